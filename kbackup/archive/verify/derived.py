"""Partition indexes and group offset files against what follows from the restore points."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.derived import group_files, partition_indexes
from kbackup.archive.models import TopicState
from kbackup.archive.segments import PLACE, Segment, starts_of, to_batch
from kbackup.archive.verify.findings import REBUILD, Findings
from kbackup.archive.verify.points import Points, Sizes
from kbackup.store.base import Store

_THREADS = 16


def expected(points: Points) -> dict[str, bytes]:
    """Key -> bytes of every derived file: those of a topic's incarnation are as of the last restore point that
    names it, its groups as of the one that captured it then."""
    last: dict[tuple[str, int], TopicState] = {}
    for manifest in points.committed:
        last |= {(t.name, t.incarnation): t for t in manifest.topics}
    places = {(t.name, t.incarnation, p.partition) for t in last.values() for p in t.partitions}
    segments: list[Segment] = [
        s for table in points.added.values() for s in table if (s.topic, s.incarnation, s.partition) in places
    ]
    files = partition_indexes(
        last.values(), starts_of([pa.Table.from_batches([to_batch(segments)]).select(PLACE.names)])
    )
    for topic in last.values():
        if topic.captured in points.groups:
            files |= group_files([topic], points.groups[topic.captured], points.expired)
    return files


def check_derived(
    store: Store, files: dict[str, bytes], sizes: Sizes, deep: bool, findings: Findings
) -> None:
    """By size, or by their bytes when `deep`."""
    same: list[str] = []
    for key, data in files.items():
        if key not in sizes:
            findings.add(key, "is missing", REBUILD)
        elif sizes[key] != len(data):
            findings.add(key, f"has {sizes[key]} bytes, not {len(data)}", REBUILD)
        else:
            same.append(key)

    def compare(key: str) -> None:
        with findings.catching(key):
            if store.get(key) != files[key]:
                what = "segments" if "/index_" in key else "groups.json"
                findings.add(key, f"is not what follows from the {what} of its restore point", REBUILD)

    if deep:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(compare, same))


def settled(store: Store, points: Points, sizes: Sizes) -> bool:
    """Whether the derived files can be judged: those of the newest restore point were all written, and no
    other run has committed or expired anything since the listing."""
    if not points.committed or points.committed[-1].seq not in points.refreshed:
        return False
    expired = max((key for key in sizes if key.startswith(layout.EXPIRATIONS)), default="")
    if not points.expired_settled or next(iter(store.list(layout.EXPIRATIONS, expired)), None) is not None:
        return False
    known = [key for key in sizes if key.startswith(layout.BACKUPS)]
    return next(iter(store.list(layout.BACKUPS, max(known))), None) is None
