"""Expirations of archives, and checks that nothing else is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from kbackup.archive import layout
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Loss
from kbackup.archive.query.content import content_of
from kbackup.archive.reader import Archive
from kbackup.archive.run import begin_writing
from kbackup.archive.segments.table import Segment
from kbackup.jobs.retention import ExpireReport, Expiry, Policy, expire
from kbackup.jobs.verify import verify
from kbackup.metrics.registry import Silent
from kbackup.store.base import Buffer, Store
from tests.support.faulty_store import FaultyStore
from tests.support.histories import Did, History

NOW = timedelta(0)
DAY = timedelta(days=1)
LOSS = Loss(kind="retention", topic="a", partition=0, start=1, end=2, message="offset 1 of a-0 was deleted")


def expired(
    store: Store, *, last: int = 0, days: int | None = None, grace: timedelta = NOW, confirm: bool = True
) -> ExpireReport:
    older_than = None if days is None else timedelta(days=days)
    expiry = Expiry(Policy(last=last), older_than, grace)
    return expire(store, expiry, 60, Silent(), confirm=confirm)


def check_whole(store: Store, *, clean: bool = False) -> None:
    """`clean`: there are no orphans either."""
    report = verify(store, "all", True, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    assert report.findings == ()
    if clean:
        assert {note.file for note in report.notes} <= {"topics/"}


@dataclass(frozen=True)
class Seen:
    """The content of a restore point."""

    segments: tuple[Segment, ...]
    groups: object
    settings: object
    losses: tuple[str, ...]


def seen(archive: Archive, number: int) -> Seen:
    manifest = archive.restore_point(number)
    content = content_of(archive, manifest, manifest.topics)
    settings = tuple((t.name, t.incarnation, t.configs, t.replication_factor) for t in content.topics)
    segments = tuple(archive.segments(manifest))
    for segment in segments:
        assert archive.store.stat(segment.key).size == segment.stored
        assert archive.store.stat(layout.index_key_of(segment.key)).size
    return Seen(segments, content.groups, settings, content.losses)


def all_seen(archive: Archive) -> dict[int, Seen]:
    return {point.number: seen(archive, point.number) for point in archive.restore_points}


def objects_of(store: Store) -> dict[str, bytes]:
    """Every object but the lease's."""
    return {entry.key: store.get(entry.key) for entry in store.list() if entry.key != layout.LOCK}


def crashed_run(store: Store) -> None:
    """A backup that died with a segment of topic a and a document of its restore point written."""
    with HeldLease(store, "kbackup backup", 60) as lease:
        writing = begin_writing(store, lease, "backup")
        store.put(layout.point_key(writing.next_point, writing.run, layout.GROUPS), b"interrupted")
        end = writing.archive.restore_point("latest").topics[0].partitions[0].end
        for kind in ("records", "index"):
            store.put(f"{layout.TOPICS}a/{layout.segment_stem(0, end + 3)}_{kind}", b"interrupted")


def build(store: Store, then: Callable[[int], object] = lambda number: None) -> History:
    """Eight restore points of three topics: b made anew at 4, c compacted and left out since 3, a with a loss.
    Between 5 and 7 a run died, whose segment no later one took over."""
    history = History(store, {"c": {"cleanup.policy": "compact"}})
    for number in range(1, 10):
        if number == 6:
            crashed_run(store)
            then(number)
            continue
        did: dict[str, Did] = {"a": 3, "b": "anew" if number == 4 else 2, "c": 2 if number < 3 else "out"}
        history.run(number, did, [LOSS] if number == 2 else [])
        then(number)
    return history


def meanwhile(store: Store, work: Callable[[], object]) -> FaultyStore:
    """`store`, where `work` is done just before the first catalog is created."""
    remaining = [work]

    class Meanwhile(FaultyStore):
        def put_new(self, key: str, data: Buffer) -> str:
            if layout.parse_catalog_key(key) is not None and remaining:
                remaining.pop()()
            return super().put_new(key, data)

    return Meanwhile(store)
