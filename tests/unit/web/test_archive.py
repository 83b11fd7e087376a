"""The archive that pages share, and pages of archives that grow, change, are damaged or of other kinds."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.retention import expire_points, lose_segments
from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import open_archive
from kbackup.archive.run import WritingRun, open_or_create
from kbackup.errors import CorruptError, UnreachableError
from kbackup.jobs.erase import Erasure, erase
from kbackup.jobs.key_matching import KeyMatch
from kbackup.jobs.points import label, pin
from kbackup.metrics.registry import Silent
from kbackup.store.base import ObjectInfo, Store
from kbackup.store.file import FileStore
from kbackup.web.archive_cache import FRESH, ArchiveCache, ArchiveSnapshot
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import commit_point, group_at, make_archive, topic_state
from tests.support.faulty_store import FaultyStore, encrypting
from tests.support.java_sink import FLAWS, torn_folder
from tests.support.memory_store import MemoryStore
from tests.support.rich_archive import ATTACK
from tests.support.visits import WRITES, crawl, links, text, visit

SOON = 20.0
"""Seconds after which somebody is taken to wait for ever."""


class Slow(FaultyStore):
    """Opening stands still while `go_on` is not set."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.opened = 0

    def get(self, key: str) -> bytes:
        if key == layout.ARCHIVE:
            self.opened += 1
            self.reached.set()
            assert self.go_on.wait(SOON)
        return super().get(key)


class Meanwhile(FaultyStore):
    """`happens` once, as soon as the catalogs were listed."""

    happens: Callable[[], object] | None = None

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        found = [*super().list(prefix, start_after)]
        if prefix == layout.CATALOG and self.happens is not None:
            happens, self.happens = self.happens, None
            happens()
        return iter(found)


@pytest.fixture
def slow(store: Store) -> Iterator[Slow]:
    made = Slow(store)
    yield made
    made.go_on.set()


def test_a_reopening_waits_for_no_request_that_opens(slow: Slow) -> None:
    """The event loop calls `reopen`: waiting would block all answers. A call meanwhile needs a second opening."""
    cache = ArchiveCache(slow, lambda: 0.0)
    cache.reopen()
    slow.reached.clear()
    slow.go_on.clear()
    opening = threading.Thread(target=cache.points, daemon=True)
    opening.start()
    assert slow.reached.wait(SOON)
    reopening = threading.Thread(target=cache.reopen, daemon=True)
    reopening.start()
    reopening.join(SOON / 4)
    waits = reopening.is_alive()
    slow.go_on.set()
    opening.join(SOON)
    assert not waits
    assert slow.opened == 2
    cache.points()
    assert slow.opened == 3
    cache.points()
    assert slow.opened == 3


def _third(store: Store) -> None:
    state = topic_state("later", [(0, 0, [])], captured=3)
    commit_point(open_archive(store), 3, topics=[state], groups=[group_at("new", ("later", 0, 0))])


def test_a_point_that_is_committed_while_the_archive_opens_shows_up(store: Store) -> None:
    now = [0.0]
    meanwhile = Meanwhile(store)
    meanwhile.happens = lambda: _third(store)
    cache = ArchiveCache(meanwhile, lambda: now[0])
    assert [point.number for point in cache.points()] == [1, 2]
    now[0] += FRESH + 1
    assert [point.number for point in cache.points()] == [1, 2, 3]
    now[0] += FRESH + 1
    archive = cache.snapshot().archive
    now[0] += FRESH + 1
    assert cache.snapshot().archive is archive, "opened once for it"


def test_an_expiration_while_the_archive_opens_is_noticed(store: Store) -> None:
    now = [0.0]
    meanwhile = Meanwhile(store)
    meanwhile.happens = lambda: _expire(store, 1)
    cache = ArchiveCache(meanwhile, lambda: now[0])
    archive = cache.snapshot().archive
    assert cache.snapshot().archive is archive
    now[0] += FRESH + 1
    assert cache.snapshot().archive is not archive
    assert [point.number for point in cache.points()] == [2]
    assert cache.expired() == [1]


def _expire(store: Store, *numbers: int) -> None:
    base = open_archive(store).committed
    commit(store, base, lambda state: expire_points(state, numbers), Author("expire", "", "test"))


def test_a_point_that_goes_while_its_page_is_made(store: Store) -> None:
    """The page is of one archive, and the next one of another."""
    now = [0.0]
    cache = ArchiveCache(store, lambda: now[0])
    client = visit(store, cache=cache)
    snapshot = cache.snapshot

    def then_it_goes(point_name: str = "latest") -> ArchiveSnapshot:
        found = snapshot(point_name)
        _expire(store, *({1} & {point.number for point in cache.points()}))
        now[0] += FRESH + 1
        return found

    cache.snapshot = then_it_goes  # type: ignore[method-assign]
    assert client.get("/points/1").status_code == 200
    answer = client.get("/points/1")
    assert answer.status_code == 404
    assert "restore point 1 expired or was lost" in text(answer.text)


def test_pins_and_labels_show_up(store: Store) -> None:
    now = [0.0]
    cache = ArchiveCache(store, lambda: now[0])
    pin(store, "1")
    label(store, "1", "before-migration")
    assert not cache.has_point("before-migration"), "nobody looked yet"
    now[0] += FRESH + 1
    first, second = cache.points()
    assert (first.pinned, first.labels) == (True, ("before-migration",))
    assert (second.pinned, second.labels) == (False, ())
    assert cache.has_point("before-migration")
    assert cache.snapshot("before-migration").number == 1


def test_a_newest_catalog_that_is_gone_is_told(store: Store) -> None:
    """A writer to the bucket can't remove a restore point unnoticed."""
    now = [0.0]
    cache = ArchiveCache(store, lambda: now[0])
    archive = cache.snapshot().archive
    assert archive is not None
    key = layout.catalog_key(archive.state.number)
    store.delete([key])
    now[0] += FRESH + 1
    with pytest.raises(CorruptError, match=key):
        cache.points()


# Pages of an archive that grows, is damaged, or does not answer.


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


def test_unexpected_errors_become_an_error_page(store: Store, caplog: pytest.LogCaptureFixture) -> None:
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
    _third(store)
    assert "/points/3" not in client.get("/").text, "nobody looked yet"
    now[0] += FRESH + 1
    assert "/points/3" in client.get("/").text
    assert "later" in text(client.get("/topics").text)
    _expire(store, 1, 2)
    now[0] += FRESH + 1
    page = client.get("/").text
    assert "/points/2" not in page, "what goes is noticed as well"
    assert "/points/3" in page
    assert "2 restore points expired or lost" in text(page)
    assert "restore point 2, expired or lost" in text(client.get("/points/3").text)


def test_erased_records_are_counted_where_they_are_missing(store: Store) -> None:
    client = visit(store)
    assert "erased" not in text(client.get("/topics/orders").text) + text(client.get("/points/2").text)
    erasure = Erasure(Selection.of(("orders",), ()), KeyMatch([b"key 1"]))
    assert erase(store, erasure, 60, Silent(), confirm=True).records == 14
    client = visit(store)
    assert "14 records erased" in text(client.get("/topics/orders").text)
    assert "10 records erased" in text(client.get("/topics/orders/0").text)
    assert "4 records erased" in text(client.get("/topics/orders/1").text)
    assert "erased" not in text(client.get("/topics/clicks").text)
    assert "14 records erased" in text(client.get("/points/2").text)
    # Each restore point has those that came up to its end, and counts those that it added itself.
    first = text(client.get("/points/1").text)
    assert "7 records erased" in first
    assert "7 of them erased since" in first
    assert "7 of them erased since" in text(client.get("/points/2").text)


def test_pins_labels_and_damage_are_shown(store: Store) -> None:
    """Damage that a repair found counts for every restore point that has the segment."""
    pin(store, "1")
    label(store, "2", "before-migration")
    archive = open_archive(store)
    segment = archive.added(0, 1)[0]
    damaged = {segment.key: "the object is missing"}
    commit(store, archive.committed, lambda state: lose_segments(state, damaged), Author("repair", "", "test"))
    client = visit(store)
    rows = re.findall(r"<tr>\s*<th[^>]*><a.*?</tr>", client.get("/").text, re.DOTALL)
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


# Pages of encrypted archives, of folders of the Java tool, and of an archive without a restore point.


def test_records_of_an_encrypted_archive_are_shown(tmp_path: Path) -> None:
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
    assert 'class="verdict' not in seen["/"]
    for address in ("/diff", "/points/1", "/status"):
        assert visit(store).get(address).status_code == 404
    for address in ("/groups", "/groups/lag"):
        assert visit(store).get(address).status_code == 200


@pytest.mark.exhaustive
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
def test_topics_of_a_java_folder_may_have_any_name() -> None:
    source, store = FileStore(JAVA / "archive"), MemoryStore()
    name = f"{ATTACK} ?#&"  # Starlette's client takes %2F for a slash, browsers don't
    topic = next(iter(source.list_dirs()))
    for entry in source.list(f"{topic}/"):
        store.put(f"{name}/{entry.key.partition('/')[2]}", source.get(entry.key))
    client = visit(store)
    pages = {address: html for address, status, html in crawl(client) if status == 200}
    assert any(address.endswith("/records") for address in pages)
    assert all("<img" not in html for html in pages.values())


def test_an_archive_without_a_restore_point() -> None:
    store = MemoryStore()
    open_or_create(store)
    client = visit(store)
    assert "no restore point yet" in text(client.get("/").text)
    topics = client.get("/topics")
    assert topics.status_code == 404
    assert "Nothing to show yet" in text(topics.text)
    assert "run 'kbackup backup' first" in text(topics.text)
    assert client.get("/growth").status_code == 404


def test_head_is_get_without_the_body(rich: Store) -> None:
    client = visit(rich)
    for address in ("/", "/topics", "/topics/odd/0/records/0/value"):
        head = client.head(address)
        assert (head.status_code, head.content) == (200, b"")


# Ten thousand topics and as many groups.


COUNT = 10_000


@pytest.fixture(scope="module")
def many() -> MemoryStore:
    made = MemoryStore()
    states = [topic_state(f"team-{n % 40:02}.topic-{n:05}", [(0, n, [])] * 3) for n in range(COUNT)]
    groups = [group_at(f"group-{n:05}", (states[n].name, 0, 0)) for n in range(COUNT)]
    with mock.patch.object(WritingRun, "refresh_derived"):  # thousands of files that nobody looks at here
        commit_point(open_or_create(made), 1, topics=states, groups=groups)
    return made


@pytest.mark.exhaustive
def test_pages_of_ten_thousand_topics_are_small_and_read_once(many: MemoryStore) -> None:
    """What a page is made of was read before: pages share it."""
    client = visit(many)
    assert client.get("/topics").status_code == client.get("/groups").status_code == 200
    client.get("/growth")
    many.requests.clear()
    for address, text_of_page in (
        ("/topics", "1-100 of 10,000 topics"),
        ("/topics?page=100&sort=gaps", "9,901-10,000 of 10,000 topics"),
        ("/topics?q=TEAM-07+topic", "1-100 of 250 topics"),
        ("/topics?q=topic-09999", "1 topic "),
        ("/topics/team-07.topic-00007", "3 partitions"),
        ("/groups?page=3", "201-300 of 10,000 groups"),
        ("/group?name=group-00042", "1 partition "),
        ("/", "10,000"),
        ("/points/1", "10,000"),
        ("/growth", "9,970 other topics"),
    ):
        page = client.get(address).text
        assert text_of_page in text(page).replace("\N{EN DASH}", "-").replace(" -", "-").replace("- ", "-"), address
        assert len(page) < 200_000, address
    assert many.requests.total() < 10, "pages read again what was read"
