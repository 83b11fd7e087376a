"""Pages of records: page by page, jumps, every form, and many headers."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

from kbackup.archive.run import open_or_create
from kbackup.archive.segments.writer import PartitionWriter, SegmentTarget
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from tests.support.archives import commit_point, topic_state
from tests.support.plain_records import Plain, block_of
from tests.support.rich_archive import LONG, ODD
from tests.support.visits import links, text, visit


def test_records_page_by_page(rich: Store) -> None:
    client = visit(rich)
    pattern = re.compile(r'records/(\d+)">')
    first = client.get("/topics/orders/1/records?n=30").text
    assert pattern.findall(first) == [str(n) for n in range(30)]
    (later,) = {link for link in links(first) if "offset=30" in link}
    assert pattern.findall(client.get(later).text)[0] == "30"
    last = client.get("/topics/orders/1/records?last=1&n=30").text
    assert pattern.findall(last) == [str(n) for n in [*range(110, 120), *range(160, 180)]], (
        "across nights without a backup"
    )
    (earlier,) = {link for link in links(last) if "before=110" in link}
    back = pattern.findall(client.get(earlier).text)
    assert back == [str(n) for n in range(80, 110)]


def test_jumps(rich: Store) -> None:
    client = visit(rich)
    where = "/topics/orders/1/records"
    assert 'id="found"' in client.get(f"{where}?offset=1,05").text
    by_time = client.get(f"{where}?time=2026-10-02T03:00:00Z&n=5")
    assert by_time.status_code == 303
    assert by_time.headers["location"].startswith(f"{where}?offset=41&n=5")
    late = client.get(f"{where}?time=2100-01-01T00:00:00Z")
    assert "No record has a time of" in text(late.text)
    over = client.get(f"{where}?offset=99999999999999999999")
    assert over.status_code == 400
    assert "There are no records here" in text(client.get(f"{where}?offset=9223372036854775807").text)
    steps = [client.get(f"{where}/119?go={way}").headers["location"] for way in ("next", "previous")]
    assert steps == [f"{where}/160?view=auto", f"{where}/118?view=auto"]


def test_a_record_in_every_form(rich: Store) -> None:
    client = visit(rich)
    for offset, record in enumerate(ODD):
        for view in ("auto", "text", "json", "hex"):
            assert client.get(f"/topics/odd/0/records/{offset}?view={view}").status_code == 200
        for field, data in (("key", record.key), ("value", record.value)):
            got = client.get(f"/topics/odd/0/records/{offset}/{field}")
            if data is None:
                assert got.status_code == 404
                continue
            assert got.content == data
            assert got.headers["content-type"] == "application/octet-stream"
            assert got.headers["content-disposition"] == f'attachment; filename="odd-0-{offset}-{field}.bin"'
            assert got.headers["x-content-type-options"] == "nosniff"
    assert client.get("/topics/odd/0/records/0/headers/1").content == b"\0\x01"
    assert client.get("/topics/odd/0/records/0/headers/2").status_code == 404
    long = client.get("/topics/odd/0/records/5").text
    assert "the first 64.0 KiB of 97.7 KiB" in text(long)
    assert len(long) < len(LONG)
    json = unescape(re.sub("<[^>]+>", "", client.get("/topics/odd/0/records/6").text))
    assert '"big": 12345678901234567890123' in json
    assert '"price": 1.10' in json


def test_pages_stay_small_whatever_headers_there_are(tmp_path: Path) -> None:
    """A message of one MB has room for some hundred thousand, or for one whose name is as long."""
    headers = tuple((b"h%d" % n, b"x") for n in range(2000))
    plain = [Plain(b"key", b"value", headers=headers), Plain(b"key", b"value", headers=((b"n" * 5000, b"x"),))]
    store = FileStore(tmp_path / "archive")
    with PartitionWriter(store, SegmentTarget("busy", 1, 0, 1 << 20, "none")) as writer:
        segments = [*writer.append(block_of(plain)), *writer.finish()]
    commit_point(open_or_create(store), 1, [topic_state("busy", 1, "present", [(0, 2, segments)])], segments, [])
    client = visit(store)
    some = client.get("/topics/busy/0/records?view=auto").text
    assert "header h19 " in text(some)
    assert "header h20 " not in text(some)
    assert "and 1,980 more" in text(some)
    assert "2,000" in text(client.get("/topics/busy/0/records").text)
    one = client.get("/topics/busy/0/records/0").text
    assert "h199 " in text(one)
    assert "h200 " not in text(one)
    assert "headers 2,000 " in text(one)
    assert "and 1,800 more" in text(one)
    assert client.get("/topics/busy/0/records/0/headers/1999").content == b"x"
    long = client.get("/topics/busy/0/records/1").text
    assert ">" + "n" * 1024 + "\N{HORIZONTAL ELLIPSIS}<" in long
