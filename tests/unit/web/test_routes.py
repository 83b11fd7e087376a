"""Pages, and what they answer to those who ask for something else."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi.routing import APIRoute

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.recovery import lose_segments
from kbackup.archive.catalog.retention import expire_points
from kbackup.archive.catalog.run import open_or_create
from kbackup.archive.reader import open_archive
from kbackup.archive.segments.writer import PartitionWriter, Target
from kbackup.errors import UnreachableError
from kbackup.jobs.mirror.status import first_status, write_status
from kbackup.jobs.points.job import label, pin
from kbackup.metadata.entities import Znode
from kbackup.store.base import ObjectInfo, Store
from kbackup.store.file import FileStore
from kbackup.web.app import ROUTERS, make_pages
from kbackup.web.archive_cache import FRESH, ArchiveCache
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import commit_point, group_at, make_archive, topic_state
from tests.support.faulty_store import FaultyStore
from tests.support.java_sink import FLAWS, torn_folder
from tests.support.mirrors import flow_of
from tests.support.plain_records import Plain, block_of
from tests.support.rich_archive import ATTACK, GROUPS, LONG, ODD, SCRIPT
from tests.support.visits import crawl, links, tags, text, visit
from tests.unit.archive.query.test_browse import encrypting

WRITES = {"put", "put_new", "replace", "upload", "delete"}


def test_there_are_only_reads(rich: Store) -> None:
    """Of all routes; what is sent otherwise is refused before any of them."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    assert len(make_pages(ArchiveCache(rich)).routes) == len(ROUTERS) + 1, "and the static files"
    assert len(routes) == sum(len(router.routes) for router in ROUTERS) == 15
    assert all(route.methods == {"GET", "HEAD"} for route in routes)
    client = visit(rich)
    for route in routes:
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            refused = client.request(method, re.sub(r"\{\w+\}", "0", route.path))
            assert refused.status_code == 405
            assert refused.headers["allow"] == "GET, HEAD"


@pytest.mark.exhaustive
def test_every_page_is_there_and_safe(rich: Store) -> None:
    """Each link leads somewhere; nothing is code that should be text, nothing is from elsewhere, nothing is written."""
    store = FaultyStore(rich)
    seen: dict[str, str] = {}
    for address, status, html in crawl(visit(store), of_a_kind=1):
        assert status in (200, 303), f"{address}: {text(html)}"
        seen[re.sub(r"\?.*|\d+", "", address)] = html
        for link in links(html):
            assert link.startswith("/") or link == "#main", link
        for tag, attributes in tags(html):
            assert tag not in ("img", "iframe", "object", "style"), address
            assert (tag == "script") == ("src" in attributes), address
            assert not [name for name in attributes if name.startswith("on") or name == "style"], address
    assert {
        "/",
        "/points/",
        "/topics",
        "/topics/orders",
        "/topics/orders/",
        "/topics/orders//records",
        "/groups",
    } <= {*seen}
    assert {"/group", "/growth", "/diff", "/topics/odd//records/", "/topics/odd//records//value"} <= {*seen}
    assert not WRITES & {operation for operation, _ in store.calls}


def test_flows_of_mirrors(rich: Store) -> None:
    shown = text(visit(rich).get("/mirrors").text)
    troubled, even = shown.split("A → B")
    assert ATTACK in troubled
    assert "last round failed" in troubled
    assert f"acls: no authorizer {SCRIPT}" in troubled
    assert f"3 records lost {ATTACK}" in troubled
    assert "1 topic held back" in troubled
    assert f"is held back: the target refused it {SCRIPT}" in troubled
    assert "up to date" in even
    assert "held back" not in even.replace("records behindheld back", "").replace(
        "records behind held back", ""
    )


def test_an_archive_without_mirrors(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "archive")
    make_archive(store)
    assert "No flow of this archive has begun" in text(visit(store).get("/mirrors").text)


def test_migration_by_archived_znodes(tmp_path: Path) -> None:
    """Of a restore point before the migration and of one within; older ones hold no znodes."""
    store = FileStore(tmp_path / "archive")
    archive = make_archive(store)
    assert "None of the newest 20 restore points" in text(visit(store).get("/migration").text)
    of_kraft = Znode(path="/controller", content='{"brokerid": 3000, "kraftControllerEpoch": 5}')
    copied = Znode(path="/migration", content='{"kraft_metadata_offset": 99}')
    of_zookeeper = Znode(path="/controller", content='{"brokerid": 1, "kraftControllerEpoch": -1}')
    assert archive.head is not None
    topics = archive.head.topics
    for number, znodes in ((3, (of_zookeeper,)), (4, (of_kraft, copied))):
        commit_point(archive, number, topics, [], [], znodes=znodes)
    shown = text(visit(store).get("/migration").text)
    assert "dual write or brokers moved or finished" in shown
    assert "/controller is KRaft controller 3000, /migration at offset 99, 0 brokers with ZooKeeper" in shown
    assert "/controller is broker 1, no /migration" in shown
    assert "kbackup migrate status" in shown


def test_flow_that_has_applied_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "archive")
    archive = make_archive(store)
    write_status(store, first_status(flow_of(), archive.info.id, None))
    shown = text(visit(store).get("/mirrors").text)
    assert "A → B" in shown
    assert "up to date" not in shown
    assert re.search(r"records behind\s*\u2013", shown)
    assert re.search(r"last round\s*\u2013", shown)


def test_hostile_names_are_text(rich: Store) -> None:
    client = visit(rich)
    groups = client.get("/groups").text
    for name in GROUPS:
        shown = name.replace("\u202e", "\\u202e") or "(no name)"
        assert shown.replace(" ", "") in text(groups).replace(" ", ""), (
            "whole, though not all of it is visible"
        )
        own = client.get("/group", params={"name": name})
        assert own.status_code == 200
        assert shown in text(own.text)
    assert SCRIPT in text(client.get("/points/1").text + client.get("/groups?point=1").text)
    assert ATTACK in text(client.get("/").text)
    assert client.get("/topics", params={"q": SCRIPT}).text.count("<script") == 2, "the page's own"
    wild = client.get(f"/topics/{ATTACK}")
    assert wild.status_code == 404
    assert f"there is no topic {ATTACK}" in text(wild.text)


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
    plain = [
        Plain(b"key", b"value", headers=headers),
        Plain(b"key", b"value", headers=((b"n" * 5000, b"x"),)),
    ]
    store = FileStore(tmp_path / "archive")
    with PartitionWriter(store, Target("busy", 1, 0, 1 << 20, "none")) as writer:
        segments = [*writer.append(block_of(plain)), *writer.finish()]
    commit_point(
        open_or_create(store), 1, [topic_state("busy", 1, "present", [(0, 2, segments)])], segments, []
    )
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


@pytest.mark.parametrize(
    ("address", "shown", "kept"),
    [
        ("/topics/orders/0/records?n=20&offset=abc", {"offset": "abc"}, {"n": "20"}),
        ("/topics/orders/0/records?time=soon&point=2", {"time": "soon"}, {"point": "2"}),
        ("/topics/orders/0/records?view=xml", {"view": "xml"}, {}),
        ("/diff?a=1&b=99", {"a": "1", "b": "99"}, {}),
        ("/group?name=nobody", {"name": "nobody"}, {}),
        ("/topics?point=77&q=ord", {"point": "77"}, {"q": "ord"}),
    ],
)
def test_an_error_keeps_what_was_entered(
    rich: Store, address: str, shown: dict[str, str], kept: dict[str, str]
) -> None:
    page = visit(rich).get(address).text
    fields = [a for tag, a in tags(page) if tag == "input"]
    assert {a["name"]: a["value"] for a in fields if a.get("type") != "hidden"} == shown
    assert {a["name"]: a["value"] for a in fields if a.get("type") == "hidden"} == kept
    ((_, form),) = [each for each in tags(page) if each[0] == "form" and each[1].get("method") != "dialog"]
    assert "action" not in form, "where it came from"


@pytest.mark.parametrize(
    "address", ["/nothing", "/topics/nope", "/points/77", "/group?name=nobody", "/diff?a=1&b=99"]
)
def test_an_error_keeps_the_navigation(rich: Store, address: str) -> None:
    client = visit(rich)
    sign = "&" if "?" in address else "?"
    for point, stays in (("", ""), ("2", "?point=2"), ("77", ""), ("x", "")):
        page = client.get(f"{address}{sign}point={point}" if point else address).text
        for there in ("/topics", "/groups", "/growth", "/diff"):
            assert f"{there}{stays}" in links(page)
            assert client.get(f"{there}{stays}").status_code == 200


@pytest.mark.exhaustive(keep=2)
@pytest.mark.parametrize(
    ("address", "status", "message"),
    [
        ("/nothing", 404, "there is no such page"),
        ("/points/77", 404, "there is no restore point 77"),
        ("/points/x", 404, "there is no restore point x"),
        ("/topics?point=77", 404, "there is no restore point 77"),
        ("/topics/nope", 404, "there is no topic nope in restore point 7"),
        ("/topics/orders/7", 404, "topic orders has no partition 7"),
        ("/topics/orders/x", 404, "number can't be x"),
        ("/topics/orders/0/records/100000", 404, "there is no record at offset 100000 of orders-0"),
        ("/topics/orders/0/records?offset=abc", 400, "abc is not an offset"),
        ("/topics/orders/0/records?time=soon", 400, "soon is not a time"),
        ("/topics/orders/0/records?n=100000", 400, "n can't be 100000"),
        ("/topics/orders/0/records?view=xml", 400, "view can't be xml"),
        ("/topics?page=-1", 400, "page can't be -1"),
        ("/group?name=nobody", 404, "there is no group nobody"),
        ("/diff?a=1&b=99", 404, "there is no restore point 99"),
        ("/static/../app.py", 404, ""),
        ("/static/%2e%2e/app.py", 404, ""),
    ],
)
def test_what_is_not_there(rich: Store, address: str, status: int, message: str) -> None:
    answer = visit(rich).get(address)
    assert answer.status_code == status
    assert message in text(answer.text)
    assert "Traceback" not in answer.text


ODDITIES = [
    *("", "0", "-1", str(2**63 - 1), str(2**63), "9" * 30, "abc", "1e3", "1_000", "\u0663", "\u00b2", " 5 "),
    *(
        "\0",
        "%00",
        "<script>",
        "..",
        "a" * 3000,
        "\U0001f600",
        "latest",
        "2h ago",
        "now",
        "1e400 ago",
        "9999-12-31",
    ),
]


@pytest.mark.exhaustive
def test_no_address_is_an_internal_error(rich: Store) -> None:
    chance = random.Random(1)
    routes = [route.path for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    names = (
        "point",
        "page",
        "q",
        "sort",
        "offset",
        "before",
        "time",
        "start",
        "last",
        "n",
        "view",
        "go",
        "name",
        "a",
    )
    client = visit(rich)
    for _ in range(400):
        known = (
            chance.choice(routes).replace("{name}", "odd") if chance.random() < 0.7 else chance.choice(routes)
        )
        path = re.sub(r"\{\w+\}", lambda _: quote(chance.choice(ODDITIES), safe=""), known)
        query = {chance.choice(names): chance.choice(ODDITIES) for _ in range(chance.randrange(4))}
        answer = client.get(path, params=query)
        assert answer.status_code in (200, 303, 400, 404), f"{path} {query}: {text(answer.text)}"


def test_an_earlier_restore_point_stays_with_its_links(rich: Store) -> None:
    client = visit(rich)
    page = client.get("/topics/orders/1?point=2").text
    assert "as of restore point 2 · go to the newest" in text(page)
    inside = [link for link in links(page) if link.startswith("/topics/orders")]
    assert inside
    assert all("point=2" in link for link in inside if link != "/topics/orders/1")
    records = client.get("/topics/orders/1/records?point=2&last=1&n=1").text
    assert "offsets 39 to 39" in text(records)


def test_damage_is_named_on_its_page(store: Store) -> None:
    client = visit(store)
    assert client.get("/topics/orders/0/records").status_code == 200
    key = next(e.key for e in store.list("topics/orders/segment_partition_000") if e.key.endswith("_records"))
    store.put(key, b"\x01" + b"\x7f" * (len(store.get(key)) - 1))
    for address in ("/topics/orders/0/records", "/topics/orders/0/records/1"):
        answer = client.get(address)
        assert answer.status_code == 500
        assert key.rpartition("/")[2] in text(answer.text)
        assert "Traceback" not in answer.text
    assert client.get("/topics/orders/1/records").status_code == 200
    groups = open_archive(store).capture(1).groups.key
    store.put(groups, b"{}")
    assert groups in text(client.get("/groups?point=1").text)


def test_a_store_that_does_not_answer(store: Store) -> None:
    class Gone(FaultyStore):
        away = False

        def get(self, key: str) -> bytes:
            if self.away:
                raise UnreachableError("store s3://away can't be reached", "is it up?")
            return super().get(key)

    gone = Gone(store)
    client = visit(gone)
    gone.away = True
    answer = client.get("/groups")
    assert answer.status_code == 502
    assert "store s3://away can't be reached" in text(answer.text)
    gone.away = False
    assert client.get("/groups").status_code == 200


def test_what_nobody_thought_of_is_an_error_page(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    cache = ArchiveCache(store)
    client = visit(store, cache=cache)
    cache.points = None  # type: ignore[assignment, method-assign]
    answer = client.get("/")
    assert answer.status_code == 500
    assert "internal error: TypeError" in text(answer.text)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "Traceback" not in caplog.text


def test_new_restore_points_show_up(store: Store) -> None:
    now = [0.0]
    client = visit(store, clock=lambda: now[0])
    assert "/points/3" not in client.get("/").text
    archive = ArchiveCache(store)._archive
    assert archive is not None
    state = topic_state("later", 3, "present", [(0, 0, [])])
    commit_point(archive, 3, [state], [], [group_at("new", ("later", 0, 0))])
    assert "/points/3" not in client.get("/").text, "nobody looked yet"
    now[0] += FRESH + 1
    assert "/points/3" in client.get("/").text
    assert "later" in text(client.get("/topics").text)
    base = open_archive(store).committed
    commit(store, base, lambda state: expire_points(state, [1, 2]), Author("expire", "", "test"))
    now[0] += FRESH + 1
    page = client.get("/").text
    assert "/points/2" not in page, "what goes is noticed as well"
    assert "/points/3" in page
    assert "2 restore points expired or lost" in text(page)
    assert "restore point 2, expired or lost" in text(client.get("/points/3").text)


def test_pins_labels_and_damage_are_shown(store: Store) -> None:
    """Damage that a repair found counts for every restore point that has the segment."""
    pin(store, "1")
    label(store, "2", "before-migration")
    archive = open_archive(store)
    segment = archive.added(0, 1)[0]
    damaged = {segment.key: "the object is missing"}
    commit(
        store, archive.committed, lambda state: lose_segments(state, damaged), Author("repair", "", "test")
    )
    client = visit(store)
    rows = re.findall(r"<tr>\s*<th><a.*?</tr>", client.get("/").text, re.DOTALL)
    newest, oldest = map(text, rows)
    assert "1 damaged segment" in newest
    assert "before-migration" in newest
    assert "pinned" not in newest
    assert "pinned" in oldest
    point = text(client.get("/points/before-migration").text)
    assert "Restore point 2 before-migration" in point
    assert "the object is missing" in point
    for document in archive.find_point(2).documents:
        assert document in point
    assert "Restore point 1 pinned" in text(client.get("/points/1").text)
    topics = client.get("/topics?point=before-migration")
    assert topics.status_code == 200
    assert "as of restore point before-migration" in text(topics.text)
    assert "the object is missing" in text(client.get(f"/topics/{segment.topic}").text)


def test_looking_again_costs_one_listing(store: Store) -> None:
    class Listing(FaultyStore):
        def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
            self.calls.append(("list", prefix))
            return super().list(prefix, start_after)

    counted = Listing(store)
    now = [0.0]
    client = visit(counted, clock=lambda: now[0])
    client.get("/topics")
    counted.calls.clear()
    client.get("/topics")
    assert counted.calls == []
    now[0] += FRESH + 1
    client.get("/topics")
    assert counted.calls == [("list", layout.CATALOG)]


def test_encrypted_archives(tmp_path: Path) -> None:
    store = encrypting(FileStore(tmp_path / "archive"), tmp_path)
    make_archive(store)
    client = visit(store)
    for topic in ("orders", "clicks"):
        assert client.get(f"/topics/{topic}/0/records/5/value").content == b"value 5 of 0 " * 6


def test_a_folder_of_the_java_tool() -> None:
    store = FaultyStore(FileStore(JAVA / "archive"))
    seen = {}
    for address, status, html in crawl(visit(store), of_a_kind=1):
        assert status in (200, 303), f"{address}: {text(html)}"
        seen[address] = html
    assert "A folder of the Java tool" in text(seen["/"])
    assert any("/records/" in address for address in seen)
    assert not WRITES & {operation for operation, _ in store.calls}
    assert visit(store).get("/diff").status_code == 404
    assert visit(store).get("/points/1").status_code == 404


def test_a_folder_that_a_killed_sink_left(tmp_path: Path) -> None:
    client = visit(FileStore(torn_folder(tmp_path / "java")))
    said = text(client.get("/").text)
    assert all(f"file {file} {what.strip()}" in said for file, what in FLAWS.items())
    for _, status, html in crawl(client, of_a_kind=2):
        assert status in (200, 303), text(html)
    last = "/topics/audit_log/0/records/19/value"
    read = client.get(last)
    assert read.status_code == 200
    assert read.content == visit(FileStore(JAVA / "archive")).get(last).content


@pytest.mark.exhaustive
def test_topics_of_a_java_folder_may_have_any_name(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "archive")
    source = FileStore(JAVA / "archive")
    name = f"{ATTACK} ?#&"  # Starlette's client takes %2F for a slash, browsers don't
    topic = next(iter(source.list_dirs()))
    for entry in source.list(f"{topic}/"):
        store.put(f"{name}/{entry.key.partition('/')[2]}", source.get(entry.key))
    client = visit(store)
    pages = {address: html for address, status, html in crawl(client) if status == 200}
    assert any(address.endswith("/records") for address in pages)
    assert all("<img" not in html for html in pages.values())


def test_an_archive_without_a_restore_point(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "archive")
    open_or_create(store)
    client = visit(store)
    assert "no restore point yet" in text(client.get("/").text)
    assert client.get("/topics").status_code == 404
    assert client.get("/growth").status_code == 404


def test_head_is_get_without_the_body(rich: Store) -> None:
    client = visit(rich)
    for address in ("/", "/topics", "/topics/odd/0/records/0/value"):
        head = client.head(address)
        assert (head.status_code, head.content) == (200, b"")
