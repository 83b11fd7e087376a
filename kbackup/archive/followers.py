"""Check by the catalog that an archive still has the history that a follower (export, stream, mirror) has read.

A follower remembers a restore point and its manifest's checksum.
"""

from __future__ import annotations

from collections.abc import Callable

from kbackup.archive.reader import Archive
from kbackup.errors import RefusedError
from kbackup.types import IncarnationPartition, TopicPartition


def manifest_of(archive: Archive, number: int) -> str:
    """The checksum of that restore point's manifest, also of one that was let go; '' where there never was one."""
    point = archive.state.point(number)
    return point.manifest if point is not None else archive.state.past_manifests.get(number, "")


def check_same_point(archive: Archive, number: int, manifest: str, follower: str, hint: str) -> None:
    """Raise `RefusedError` where the archive's restore point `number` is not the one whose `manifest` the follower
    saved, as far as both are known. A repair may have made the manifest anew: the one before it counts as well."""
    known = {each for point, each in archive.state.lineage if point == number}
    if manifest and known and manifest not in known:
        raise RefusedError(
            f"{follower} has diverged from {archive.store.url}: restore point {number} is of another history",
            hint,
        )


def missed(
    archive: Archive, after: int, selected: Callable[[TopicPartition], bool]
) -> list[tuple[TopicPartition, int]]:
    """The selected partitions of which records that came after restore point `after` were let go, and their log
    starts."""
    starts = [
        (key, TopicPartition(key[0], key[2]), start.start)
        for key, start in archive.state.starts.items()
        if selected(TopicPartition(key[0], key[2]))
    ]
    ends = _ends(archive, after) if starts else {}
    return [(tp, start) for key, tp, start in starts if start > ends.get(key, 0)]


def damaged(
    archive: Archive, after: int, last: int, selected: Callable[[TopicPartition], bool]
) -> list[tuple[TopicPartition, str]]:
    """The selected partitions with records of restore points from `after` (exclusive) to `last` that were found missing
    or damaged, each with a sentence."""
    rows = [row for row in archive.state.losses.dicts() if row["kind"] == "damaged"]
    places = [(TopicPartition(row["topic"], row["partition"]), row) for row in rows]
    return [(tp, row["message"]) for tp, row in places if after < row["point"] <= last and selected(tp)]


def _ends(archive: Archive, number: int) -> dict[IncarnationPartition, int]:
    """Return the ends of partitions at restore point `number`; where it was let go, as far as others and segments
    tell."""
    ends: dict[IncarnationPartition, int] = {}
    points = [point for point in archive.restore_points if point.number <= number]
    if points:
        topics = archive.manifest(points[-1]).topics
        ends = {(t.name, t.incarnation, p.partition): p.end for t in topics for p in t.partitions}
    if not points or points[-1].number < number:
        for s in archive.added(0, number):
            place = s.incarnation_partition
            ends[place] = max(ends.get(place, 0), s.last + 1)
    return ends
