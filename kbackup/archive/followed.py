"""Who follows an archive, a stream or an export, notes the number of a restore point. Whether that is still what it
was: repairs give numbers up, and a copy that was written to has others under the same numbers."""

from __future__ import annotations

from collections.abc import Callable

from kbackup.archive.checkpoints import given_up
from kbackup.archive.expired import Place, log_starts
from kbackup.archive.reader import Archive, in_place
from kbackup.archive.segments import SCHEMA, Segment, from_batches, in_order
from kbackup.errors import RefusedError
from kbackup.types import TopicPartition


def given_up_with(archive: Archive, seq: int) -> range | None:
    """The numbers that a repair gave up with `seq`; None where it gave up no such number. Its own restore point, the
    next number, had their records again, and may have expired since: who has the records up to `seq` can't tell which
    of that one's are the same."""
    numbers = given_up(archive.restore_points)
    for link in archive.gone:
        numbers += [range(some.first, some.last + 1) for some in link.given_up]
        if not link.restore_points:
            numbers.append(range((link.parent or 0) + 1, link.last + 1))
    return next((some for some in numbers if seq in some), None)


def manifest_of(archive: Archive, seq: int) -> str:
    """The checksum of that restore point's manifest; '' where there is none."""
    return next((point.checksum for point in archive.restore_points if point.seq == seq), "")


def check_same_point(archive: Archive, seq: int, manifest: str, noted: str, hint: str) -> None:
    """`RefusedError` where the restore point of that number is not the one whose `manifest` was noted, as far as both
    are known. `noted` says where it was, in words."""
    found = manifest_of(archive, seq)
    if manifest and found and manifest != found:
        raise RefusedError(
            f"restore point {seq} of {archive.store.url} is another one than {noted}: one of the archives went on "
            "from an older copy",
            hint,
        )


def added_between(archive: Archive, after: int, last: int) -> list[Segment]:
    """The segments that restore points from number `after` (exclusive) to `last` added, as far as they are left: those
    of expired restore points too, where others stand on them."""
    found: list[Segment] = []
    for table in archive.tables(last, SCHEMA.names, after):
        found += map(in_place, from_batches(table.to_batches()))
    return sorted(found, key=in_order)


def missed(
    archive: Archive, after: int, wants: Callable[[TopicPartition], bool]
) -> list[tuple[TopicPartition, int]]:
    """The partitions of which records that came after restore point number `after` may have expired, and below which
    offset."""
    starts = [
        (place, TopicPartition(place[0], place[2]), gone.start)
        for place, gone in log_starts(archive.expired).items()
    ]
    asked = [start for start in starts if wants(start[1])]
    if not asked or (archive.expired is not None and archive.expired.upto <= after):
        return []
    ends = _ends(archive, after)
    return [(tp, start) for place, tp, start in asked if start > ends.get(place, 0)]


def _ends(archive: Archive, number: int) -> dict[Place, int]:
    """Where partitions ended at a restore point; where it has expired, as far as others and records tell."""
    ends: dict[Place, int] = {}
    points = [point for point in archive.restore_points if point.seq <= number]
    if points:
        topics = archive.manifest(points[-1]).topics
        ends = {(t.name, t.incarnation, p.partition): p.end for t in topics for p in t.partitions}
    if not points or points[-1].seq < number:
        for s in added_between(archive, 0, number):
            place = (s.topic, s.incarnation, s.partition)
            ends[place] = max(ends.get(place, 0), s.last + 1)
    return ends
