"""What follows from restore points that were copied: indexes and group files of each topic as of its last one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from kbackup.archive import layout
from kbackup.archive.derived import group_files, partition_indexes
from kbackup.archive.fold import fold
from kbackup.archive.models import Manifest, Point, Refreshed, TopicState, dump, load, now
from kbackup.archive.reader import Archive
from kbackup.archive.segments import PLACE
from kbackup.archive.transfer import THREADS

_AT_ONCE = 16
Place = tuple[str, int, int]


def refresh(archive: Archive, check: Callable[[], None]) -> None:
    """Write the derived files, and a checkpoint where it is time for one, that follow from the restore points since
    the last one of which that was done; `check` is called before each write."""
    done = {run.seq for run in archive.runs if layout.REFRESHED in run.files}
    since = max((p.seq for p in archive.restore_points if p.seq in done), default=0)
    stale = [point for point in archive.restore_points if point.seq > since]
    if not stale:
        return
    before = archive.restore_point(since).topics if since else ()
    last = {(t.name, t.incarnation): t for m in _manifests(archive, stale) for t in m.topics}
    touched = _touched(archive, since, stale[-1].seq) | (_places(last.values()) - _places(before))
    files = partition_indexes(last.values(), archive.starts(stale[-1]), touched)
    files |= _group_files(archive, since, list(last.values()))

    def put(entry: tuple[str, bytes]) -> None:
        check()
        archive.store.put(*entry)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(put, files.items()))
    fold(archive, archive.manifest(stale[-1]), check)
    for point in stale:
        put((layout.backup_key(point.seq, layout.REFRESHED), dump(Refreshed(seq=point.seq, at=now()))))
    archive.forget()


def _manifests(archive: Archive, points: Sequence[Point]) -> Iterator[Manifest]:
    """In order, a few at a time: they are large, and not kept."""

    def read(point: Point) -> Manifest:
        key = layout.backup_key(point.seq, layout.MANIFEST)
        return load(Manifest, archive.store.get(key), key)

    with ThreadPoolExecutor(THREADS) as pool:
        for at in range(0, len(points), _AT_ONCE):
            yield from pool.map(read, points[at : at + _AT_ONCE])


def _touched(archive: Archive, since: int, last: int) -> set[Place]:
    """The partitions that got segments, by runs that are gone as well."""
    found: set[Place] = set()
    for table in archive.tables(last, PLACE.names, since):
        columns = [table.column(name).to_pylist() for name in PLACE.names[:3]]
        found |= set(zip(*columns, strict=True))
    return found


def _places(topics: Iterable[TopicState]) -> set[Place]:
    return {(t.name, t.incarnation, p.partition) for t in topics for p in t.partitions}


def _group_files(archive: Archive, since: int, topics: Sequence[TopicState]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for seq, point in archive.captures.items():
        captured = [topic for topic in topics if topic.captured == seq]
        if captured and seq > since:
            files |= group_files(captured, archive.groups(point), archive.expired)
    return files
