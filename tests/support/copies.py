"""Copies of archives, and checks that they are whole."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.state import PointRow, State
from kbackup.archive.query.content import content_of
from kbackup.archive.reader import open_archive
from kbackup.errors import NoArchiveError
from kbackup.jobs.copy import CopyReport, copy_archive
from kbackup.jobs.retention import Expiry, Policy, expire
from kbackup.jobs.verify import verify
from kbackup.metrics.registry import Silent
from kbackup.store.base import Store
from kbackup.store.crypt.keyring import KEYS
from tests.support.archives import Did, History, commit_point, group_at, topic_state, write
from tests.support.made_segments import target as partition_of
from tests.support.memory_store import MemoryStore

OWN = (layout.LOCK, layout.DERIVED, layout.CATALOG, layout.TABLES, KEYS)
"""The objects that a copy has of its own: its lease, its catalogs, and the data keys of its derived files."""

StoreNamed = Callable[[str], MemoryStore]
Open = Callable[[Store], Store]


def copied(source: Store, target: Store, keep: bool = False) -> CopyReport:
    return copy_archive(source, target, 60, Silent(), keep=keep)


def contents(store: Store) -> dict[str, bytes]:
    """In the clear."""
    keys = [entry.key for entry in store.list() if not entry.key.startswith(OWN)]
    return {key: store.get(key) for key in keys}


def check_same(source: Store, target: Store) -> None:
    assert contents(target) == contents(source)
    assert seen(target) == seen(source)
    ours, theirs = open_archive(target).state, open_archive(source).state
    assert (dict(ours.pins), dict(ours.labels)) == (dict(theirs.pins), dict(theirs.labels))
    assert ours.next_point == theirs.next_point
    check_whole(target)


def check_whole(store: Store) -> None:
    """An archive that lacks nothing that it promises."""
    report = verify(store, "all", True, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    assert report.findings == ()


def answers(store: Store, number: int) -> tuple[object, ...]:
    """Return the content that a restore of this restore point would write."""
    archive = open_archive(store)
    manifest = archive.restore_point(number)
    content = content_of(archive, manifest, manifest.topics)
    return (
        content.topics,
        content.groups,
        [store.get(s.key) for s in archive.segments(manifest)],
        archive.losses(manifest),
    )


def seen(store: Store) -> dict[int, tuple[object, ...]]:
    return {p.number: answers(store, p.number) for p in open_archive(store).restore_points}


def add_point(store: Store, number: int, first: int) -> None:
    """Restore point `number` of a topic 'more': ten records from `first`, all in all from 0."""
    archive = open_archive(store)
    to = partition_of()._replace(topic="more")
    segments = write(store, to, range(first, first + 10))
    head = archive.head
    assert head is not None
    before = [s for s in archive.segments(head) if s.topic == "more"]
    state = topic_state("more", [(0, first + 10, [*before, *segments])], captured=number)
    carried = [t for t in head.topics if t.name != "more"]
    topics = sorted([*carried, state], key=lambda t: t.name)
    commit_point(archive, number, topics=topics, segments=segments, groups=[group_at("billing", ("more", 0, first))])


def build(store: Store, made: Callable[[int], object] = lambda number: None) -> None:
    """Six restore points of two topics, one of them deleted and created again; `made` is called after each."""
    history = History(store)
    runs: list[dict[str, Did]] = [
        {"a": 3, "b": 2}, {"a": 2, "b": 1}, {"a": "anew"}, {"a": 3, "b": 0}, {"a": 1, "b": 2}, {"a": 2, "b": "out"}
    ]  # fmt: skip
    for number, run in enumerate(runs, 1):
        history.run(number, run)
        made(number)


def expired(store: Store, last: int = 0, days: int | None = None) -> None:
    age = timedelta(days=days) if days is not None else None
    report = expire(store, Expiry(Policy(last=last), age, timedelta(0)), 60, Silent(), confirm=True)
    assert report.expiration is not None


def swept(store: Store) -> None:
    expire(store, Expiry(Policy(), None, timedelta(0)), 60, Silent(), confirm=True)


def copied_at(reached: int) -> tuple[MemoryStore, MemoryStore]:
    """An archive, and a copy of it as of restore point `reached`."""
    source, target = MemoryStore(), MemoryStore()
    build(source, lambda number: number == reached and copied(source, target))
    return source, target


def unchanged(store: Store) -> dict[str, bytes]:
    return {entry.key: store.get(entry.key) for entry in store.list() if entry.key != layout.LOCK}


def inner_copy(store: Store) -> MemoryStore:
    assert isinstance(store, MemoryStore)
    return store.copy()


def keys_of(store: Store) -> set[str]:
    return open_archive(store).keys()


def change(store: Store, operation: Callable[[State], State]) -> None:
    commit(store, open_archive(store).committed, operation, Author("keep", "", "test"))


def point_copied(source: Store, target: Store, point: str = "latest") -> CopyReport:
    return copy_archive(source, target, 60, Silent(), point=point)


def reached(store: Store) -> tuple[PointRow, ...]:
    try:
        return open_archive(store).restore_points
    except NoArchiveError:
        return ()
