"""The archive that requests share: what changes while one of them opens it, and who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.retention import expire_points
from kbackup.archive.reader import open_archive
from kbackup.errors import CorruptError
from kbackup.jobs.points import label, pin
from kbackup.store.base import ObjectInfo, Store
from kbackup.web.archive_cache import FRESH, ArchiveCache, ArchiveSnapshot
from tests.support.archives import commit_point, group_at, topic_state
from tests.support.faulty_store import FaultyStore
from tests.support.visits import text, visit

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
    state = topic_state("later", 3, "present", [(0, 0, [])])
    commit_point(open_archive(store), 3, [state], [], [group_at("new", ("later", 0, 0))])


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
    assert cache.let_go() == [1]


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
    assert "restore point 1 was let go" in text(answer.text)


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
