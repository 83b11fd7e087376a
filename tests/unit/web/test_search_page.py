"""The search page: matches, bounds, links that resume a search, and the download."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from unittest import mock
from urllib.parse import quote

import pytest

from kbackup.archive.query import browse
from kbackup.archive.query.find import Pattern
from kbackup.archive.segments.window import Window
from kbackup.cli.common.record_formats import as_json
from kbackup.formats.record import rows
from kbackup.jobs.decoding import Decoding, Expression
from kbackup.library.reading import ArchiveReader
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from kbackup.types import TopicPartition
from kbackup.web import decoding
from kbackup.web.archive_cache import ArchiveCache
from kbackup.web.pages import search as engine
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import T0, topic_archive
from tests.support.faulty_store import FaultyStore
from tests.support.memory_store import MemoryStore
from tests.support.plain_records import Plain, block_of
from tests.support.rich_archive import ATTACK, SCRIPT
from tests.support.visits import WRITES, links, tags, text, visit

_MATCH = re.compile(r'/topics/([^/"]+)/(\d+)/records/(\d+)(?:\?[^"]*)?">Record')
Address = tuple[str, int, int]


def matches(html: str) -> list[Address]:
    return [(topic, int(partition), int(offset)) for topic, partition, offset in _MATCH.findall(html)]


def search_all(store: Store, address: str) -> tuple[list[Address], int]:
    """Follow the links to the end of a search; return its matches and the number of pages."""
    client, seen, pages = visit(store), list[Address](), 0
    following: str | None = address
    while following is not None:
        html = client.get(following).text
        seen += matches(html)
        pages += 1
        following = next((link for link in links(html) if "at=" in link), None)
    assert "that is all" in html
    return seen, pages


ORDERS = [("orders", 0, o) for o in (*range(10), 15, *range(17, 40))] + [("orders", 1, o) for o in range(12)]
CLICKS = [("clicks", 0, o) for o in range(20)]


def test_a_search_over_all_topics(store: Store) -> None:
    found, pages = search_all(store, "/search?text=key+0")
    assert found == [(topic, partition, offset) for topic, partition, offset in CLICKS + ORDERS if offset % 3 == 0]
    assert pages == 1


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("text=value+7+of&where=orders", [("orders", 0, 7), ("orders", 1, 7)]),
        ("text=value+7+of&where=orders:1", [("orders", 1, 7)]),
        ("text=VALUE+7+of&where=orders/1&ignore_case=1", [("orders", 1, 7)]),
        ("text=%5Evalue+3%5B12%5D&regex=1&where=orders", [("orders", 0, 31), ("orders", 0, 32)]),
        ("text=key&in=value&where=orders", []),
        ("text=trace&in=headers&where=orders:1:2-4", [("orders", 1, 2), ("orders", 1, 3)]),
        (f"text=key&where=orders:0&from_time={T0 + 38_000}", [("orders", 0, 38), ("orders", 0, 39)]),
        (f"text=key&where=orders:1&to_time={T0 + 1000}", [("orders", 1, 0), ("orders", 1, 1)]),
        ("text=key&where=orders:2", []),
    ],
)
def test_search_finds_records_by_text_topic_and_time(store: Store, query: str, expected: list[Address]) -> None:
    found, _ = search_all(store, f"/search?{query}")
    assert found == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize("bounds", [{"MATCHES": 7}, {"BYTES": 1}, {"SECONDS": 0.0}, {"ROOM": 1}])
def test_bounded_pages_find_the_same(store: Store, bounds: dict[str, float]) -> None:
    address = "/search?text=key+&in=key&from_time=1"
    with mock.patch.dict(vars(engine), {"_UNIT": 500, **bounds}):
        found, pages = search_all(store, address)
    assert found == CLICKS + ORDERS
    assert pages > 5


def test_a_bounded_page_reads_little() -> None:
    store = FaultyStore(MemoryStore())
    records = block_of([Plain(b"k", b"v" * 1000) for _ in range(2000)])
    segments = topic_archive(store, "t", records, 20_000)
    client = visit(store)
    assert len(segments) > 50
    store.calls.clear()
    shown = text(client.get("/search?text=v").text)
    assert "50 records found" in shown
    read = {key for operation, key in store.calls if operation == "open_range" and key.endswith("_records")}
    assert len(read) < 12
    assert not WRITES & {operation for operation, _ in store.calls}


def test_a_match_far_behind_the_beginning_is_shown(rich: Store) -> None:
    store = MemoryStore()
    long = "é".encode() * 5000 + b"needle" + b"x" * 5000
    records = block_of([Plain(b"k", long, headers=((b"h", b"pin"),))])
    topic_archive(store, "t", records)
    shown = visit(store).get("/search?text=needle").text
    assert "\N{HORIZONTAL ELLIPSIS}" + "é" * 20 + "<mark>needle</mark>" + "x" * 150 in shown
    assert "xefxbf" not in shown
    assert "header h pin" in text(visit(store).get("/search?text=pin").text)


def test_topics_of_a_java_folder_with_any_name() -> None:
    source, store = FileStore(JAVA / "archive"), MemoryStore()
    name = f"{ATTACK} ?#&"
    topic = next(iter(source.list_dirs()))
    for entry in source.list(f"{topic}/"):
        store.put(f"{name}/{entry.key.rpartition('/')[2]}", source.get(entry.key))
    client = visit(store)
    (address,) = {link for link in links(client.get(f"/topics/{quote(name, safe='')}").text) if "where=" in link}
    assert client.get(address).status_code == 200
    with mock.patch.dict(vars(engine), {"MATCHES": 1}):
        first = client.get("/search", params={"text": "a", "where": f"{name}:0"}).text
        (following,) = {link for link in links(first) if "at=" in link}
        second = client.get(following)
    assert second.status_code == 200
    records = [[link for link in links(html) if "/records/" in link] for html in (first, second.text)]
    assert len(records[0]) == len(records[1]) == 1
    assert records[0] != records[1]


def test_hostile_matches_are_text(rich: Store) -> None:
    shown = visit(rich).get("/search", params={"text": "onerror", "where": "odd"})
    assert shown.status_code == 200
    assert ATTACK in text(shown.text)
    assert SCRIPT in text(visit(rich).get("/search", params={"text": SCRIPT}).text)
    assert {tag for tag, attributes in tags(shown.text) if tag == "script"} == {"script"}
    assert not [tag for tag, _ in tags(shown.text) if tag == "img"]


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("text=a(&regex=1", 400, "a( can't be searched for"),
        ("text=a&where=<b>", 400, "<b> is not an address"),
        ("text=a&at=x:1:y", 400, "x:1:y is not an address"),
        ("text=a&from_time=yesterdy", 400, "yesterdy is not a time"),
        ("text=a&where=nowhere", 404, "there is no topic nowhere"),
        ("text=a&where=orders:9", 404, "topic orders has no partition 9"),
        ("text=a&in=everything", 400, ""),
    ],
)
def test_invalid_input(store: Store, query: str, status: int, message: str) -> None:
    shown = visit(store).get(f"/search?{query}")
    assert shown.status_code == status
    assert message in text(shown.text)


def test_damage_ends_a_search_behind_its_matches(store: Store) -> None:
    bad = next(e.key for e in store.list("topics/orders/segment_partition_001") if e.key.endswith("_records"))
    store.put(bad, b"\x7f" * len(store.get(bad)))
    shown = visit(store).get("/search?text=value+3").text
    assert matches(shown) == [("clicks", 0, 3), ("orders", 0, 3), *(("orders", 0, o) for o in range(30, 40))]
    assert f"The search ended at damage: file {bad}" in text(shown) or bad in text(shown)
    assert not [link for link in links(shown) if "at=" in link]


# What matches is highlighted, rows open, expressions of jq, and the download.


def marked(html: str) -> list[str]:
    """Return the highlighted texts of the rows, without those of the opened records."""
    return re.findall("<mark>(.*?)</mark>", re.sub(r'<tr class="whole">.*?</tr>', "", html, flags=re.S))


@pytest.mark.parametrize(
    ("query", "record", "expected"),
    [
        ({"text": "<b>"}, Plain(b"a<b>c", b"<b><b>"), ["&lt;b&gt;"] * 3),
        ({"text": "X", "ignore_case": 1}, Plain(b"x", b"aXb"), ["x", "X"]),
        ({"text": "x", "in": "key"}, Plain(b"x", b"x"), ["x"]),
        ({"text": "^a|b+", "regex": 1}, Plain(b"aabb", b"-"), ["a", "bb"]),
        ({"text": "(a)(b)", "regex": 1}, Plain(b"ab", b"-"), ["ab"]),
        ({"text": "z*", "regex": 1}, Plain(b"ab", b"z"), ["z"]),
        ({"text": r"\Qa", "regex": 1}, Plain(b"a", b"-"), []),
        ({"text": "é"}, Plain("é".encode(), b"-"), ["é"]),
        ({"text": r"\xc3", "regex": 1}, Plain("é".encode(), b"-"), ["é"]),
        ({"text": "needle"}, Plain(b"\xff" * 300 + b"needle", b"-"), ["6e 65 65 64 6c 65"]),
        ({"text": "needle"}, Plain(b"k", b"-" * (2 << 20) + b"needle"), ["needle"]),
        ({"text": "<i>"}, Plain(b"k", b"v", headers=((b"<i>", b"1<i>"),)), ["&lt;i&gt;"] * 2),
        ({"text": "\u202ea"}, Plain("\u202eab".encode(), b"-"), [r"\u202ea"]),
        ({"jq": '.key == "a"'}, Plain(b"a", b"-"), []),
    ],
)
def test_what_matches_is_highlighted(query: dict[str, str | int], record: Plain, expected: list[str]) -> None:
    store = MemoryStore()
    topic_archive(store, "t", block_of([record]))
    shown = visit(store).get("/search", params=query)
    assert "1 record found" in text(shown.text)
    assert marked(shown.text) == expected


def test_a_row_holds_the_whole_record() -> None:
    store = MemoryStore()
    value = b'{"a": {"status": "fai<led", "n": "\\u0007led"}}'
    topic_archive(store, "t", block_of([Plain(b"k", value, headers=((b"h", b"led"),))]))
    html = visit(store).get("/search?text=led").text
    (whole,) = re.findall(r'<tr class="whole">.*?</tr>', html, re.S)
    assert '<span class="j-text">&#34;fai&lt;<mark>led</mark>&#34;</span>' in whole
    assert '<span class="j-text">&#34;\\u0007<mark>led</mark>&#34;</span>' in whole
    assert "<mark>led</mark>" in whole.split("header h")[1].split("<dt>")[0]
    assert "Record 0 of t, partition 0" in text(whole)
    assert [tag for tag, _ in tags(html) if tag in ("details", "summary")] == ["details", "summary"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"jq": ".offset == 7"}, [("clicks", 0, 7), ("orders", 0, 7), ("orders", 1, 7)]),
        ({"jq": ".offset < 9", "text": "value 7", "where": "orders"}, [("orders", 0, 7), ("orders", 1, 7)]),
        ({"jq": ".value.no"}, []),  # fails for each
        ({"jq": "env | length > 5"}, []),
    ],
)
def test_an_expression_selects_records(store: Store, query: dict[str, str], expected: list[Address]) -> None:
    shown = visit(store).get("/search", params=query)
    assert matches(shown.text) == expected
    assert ("The expression failed for" in text(shown.text)) == (query["jq"] == ".value.no")


def test_what_is_wrong_is_said_above_the_form(store: Store) -> None:
    shown = visit(store).get("/search", params={"jq": ".a <b>", "text": "x", "where": "orders"})
    assert shown.status_code == 400
    assert "the jq expression .a <b> can't be used: jq: error: syntax error" in text(shown.text)
    kept = [(a["name"], a["value"]) for tag, a in tags(shown.text) if tag == "input" and a.get("type") != "checkbox"]
    assert {("jq", ".a <b>"), ("text", "x"), ("where", "orders")} <= set(kept)
    assert visit(store).get("/search.ndjson", params={"jq": ".a |"}).status_code == 400


def test_an_endless_expression_is_stopped() -> None:
    stopped = pytest.raises(decoding.StoppedError, match="the jq expression is stopped: it takes more than 1 seconds")
    with closing(decoding.BoundedProgram("last(range(1e12))", cpu=1)) as program, stopped:
        program.input_text("{}")


@pytest.mark.exhaustive
def test_an_expression_that_takes_too_much_memory_is_stopped(store: Store) -> None:
    shown = visit(store).get("/search", params={"jq": "[range(1e9)]", "where": "orders:1:2-3"})
    assert shown.status_code == 400
    assert "the jq expression is stopped" in text(shown.text)


def test_an_expression_reads_no_files(store: Store, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": 7}')
    expression = f'import "x" as $data {{search: "{tmp_path}"}}; $data[0].a == 7'
    assert Expression(expression, Decoding({})) is not None
    shown = visit(store).get("/search", params={"jq": expression})
    assert shown.status_code == 400
    assert "Too many open files" in text(shown.text)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"text": "value 7 of", "where": "orders"}, [("orders", 0, 7), ("orders", 1, 7)]),
        ({"jq": ".offset == 7", "at": "orders:0:8"}, [("orders", 1, 7)]),
        ({"text": "key"}, CLICKS + ORDERS),  # more than a page shows
        ({"text": "nobody"}, []),
    ],
)
def test_the_download_has_every_match(store: Store, query: dict[str, str], expected: list[Address]) -> None:
    client = visit(store)
    sent = client.get("/search.ndjson", params=query)
    records = [json.loads(line) for line in sent.text.splitlines()]
    assert [(r["topic"], r["partition"], r["offset"]) for r in records] == expected
    assert sent.headers["content-type"] == "application/x-ndjson"
    assert client.head("/search.ndjson", params=query).content == b""
    assert visit(store, token="t" * 20).get("/search.ndjson", params=query).status_code == 401


def test_the_last_slice_offers_the_download_of_all(store: Store) -> None:
    """Also without a match of its own: earlier slices may have some, and its end replaces theirs."""
    client = visit(store)
    offered = ["search.ndjson" in client.get(f"/search?text=nowhere&done={done}").text for done in (0, 1)]
    assert offered == [False, True]


def test_the_download_has_the_documents_of_find(store: Store) -> None:
    (batch,) = browse.page_from(store, ArchiveReader(store).catalogue().partition("orders", 1), 7, 1).blocks
    (row,) = rows(batch)
    sent = visit(store).get("/search.ndjson", params={"text": "value 7 of", "where": "orders:1"})
    assert sent.text == as_json(TopicPartition("orders", 1), row)
    assert sent.headers["content-disposition"] == 'attachment; filename="orders_1-matches.ndjson"'


def test_a_hostile_name_of_a_download(rich: Store) -> None:
    refused = visit(rich).get("/search.ndjson", params={"text": "a", "where": 'x"\r\ny: z'})
    assert refused.status_code == 400
    assert "content-disposition" not in refused.headers


def test_a_search_ends_when_nobody_waits(store: Store) -> None:
    snapshot = ArchiveCache(store).snapshot("latest")
    due = engine.partitions_due(snapshot, None, Window(), None)
    for gone, expected in ((True, 1), (False, len(CLICKS + ORDERS))):
        found = engine.search_page(store, due, Pattern("key"), lambda gone=gone: gone, 1)  # type: ignore[misc]
        assert min(len(found.matches), 2 if gone else 50) == min(expected, 50)


def test_a_program_is_closed_after_its_pipes() -> None:
    """The collector closes the pipes first when a download is given up."""
    program = decoding.BoundedProgram(".a == 1")
    assert program.input_text('{"a":\n1}') == [True]
    process = program.process
    assert process.stdin is not None
    process.stdin.close()
    program.close()
    assert process.returncode is not None


def test_spans_hold_whatever_their_marks_are() -> None:
    """The marks that Arrow puts round a match are random: none may mean something to RE2."""
    pattern = Pattern("b+", regex=True)
    assert {(*pattern.spans(b"abbab"),) for _ in range(200)} == {((1, 3), (4, 5))}
