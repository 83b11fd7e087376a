"""A restore point in its three forms, and what makes one of another.

`models.Manifest` is the restore point itself: the document that a run writes, and that nothing changes afterwards.
`state.PointRow` is its line in the catalog, so that lists and searches read no manifests. `PointOverview` is what
readers are shown: the line, and what was done with the restore point since, which is why no manifest can have it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Container
from dataclasses import dataclass

from msgspec.structs import asdict

from kbackup.archive import layout
from kbackup.archive.catalog.state import LossRow, PointRow, State
from kbackup.archive.models import Manifest


def manifest_key(manifest: Manifest) -> str:
    """Return the key that a run gives the manifest of its restore point."""
    return layout.point_key(manifest.number, manifest.run, layout.MANIFEST)


def point_row(manifest: Manifest, key: str) -> PointRow:
    """Return the row in the catalog of the restore point whose manifest is at `key`."""
    keys = [key]
    keys += [ref.key for ref in manifest.documents]
    # Two captures of a manifest may have the same document. It stands once, in the order in which it is first named.
    documents = tuple(dict.fromkeys(keys))
    return PointRow(
        **asdict(manifest.totals),
        number=manifest.number,
        run=manifest.run,
        origin=manifest.origin,
        started_at=manifest.started_at,
        committed_at=manifest.committed_at,
        cluster_id=manifest.cluster_id,
        isolation_level=manifest.isolation_level,
        losses=len(manifest.losses),
        warnings=len(manifest.warnings),
        manifest=manifest.checksum,
        documents=documents,
    )


def loss_rows(manifest: Manifest) -> list[LossRow]:
    """Return the rows in the catalog of the losses that a restore point found. A loss is of the incarnation that the
    restore point has; a topic that it lacks was never made anew, as far as the archive knows."""
    incarnations = {topic.name: topic.incarnation for topic in manifest.topics}
    rows: list[LossRow] = []
    for loss in manifest.losses:
        incarnation = incarnations.get(loss.topic, 1)
        rows.append(LossRow(manifest.number, incarnation, loss))
    return rows


@dataclass(frozen=True, slots=True)
class PointOverview:
    """A restore point. Counts and sizes are what it added, `losses` and `warnings` are counts; `damaged` counts the
    segments that it has lost since. `origin` is what it was made from, and `cluster_id` the cluster, '' if it is
    unknown; `cluster_changed` if the restore points before are of another cluster."""

    number: int
    origin: str
    started_at: str
    committed_at: str
    topics: int
    partitions: int
    segments: int
    records: int
    bytes: int
    stored_bytes: int
    groups: int
    losses: int
    warnings: int
    damaged: int = 0
    pinned: bool = False
    labels: tuple[str, ...] = ()
    cluster_id: str = ""
    cluster_changed: bool = False


def point_overview(row: PointRow, state: State, changed: Container[int], damaged: int = 0) -> PointOverview:
    """Return what readers are shown of a restore point that is in the catalog `state`. `changed` are the restore points
    with which the cluster changed, `damaged` is how many of its segments are lost."""
    labels = [name for name, number in state.labels.items() if number == row.number]
    return PointOverview(
        number=row.number,
        origin=row.origin,
        started_at=row.started_at,
        committed_at=row.committed_at,
        topics=row.topics,
        partitions=row.partitions,
        segments=row.segments,
        records=row.records,
        bytes=row.bytes,
        stored_bytes=row.stored_bytes,
        groups=row.groups,
        losses=row.losses,
        warnings=row.warnings,
        damaged=damaged,
        pinned=row.number in state.pins,
        labels=tuple(sorted(labels)),
        cluster_id=row.cluster_id,
        cluster_changed=row.number in changed,
    )


def list_points(state: State) -> list[PointOverview]:
    """Return every restore point, oldest first."""
    damaged_by_point = damaged_segments(state)
    changed = cluster_changes(state)
    points: list[PointOverview] = []
    for row in state.restore_points:
        damaged = damaged_by_point.get(row.number, 0)
        points.append(point_overview(row, state, changed, damaged))
    return points


def cluster_changes(state: State) -> set[int]:
    """Return the restore points that are of another cluster than the ones before. A restore point of no known cluster
    is passed over."""
    changed: set[int] = set()
    before = ""
    for number, cluster_id in sorted(state.points.rows("number", "cluster_id")):
        if before and cluster_id and cluster_id != before:
            changed.add(number)
        before = cluster_id or before
    return changed


def damaged_segments(state: State) -> dict[int, int]:
    """Count, by restore point, its segments that were found lost or damaged; restore points without any are left
    out."""
    numbers: list[int] = state.numbers.tolist()
    last = state.last_points()
    counts: dict[int, int] = defaultdict(int)
    for row in state.damage:
        # A segment is in all restore points from the one that added it to the last one of its incarnation.
        end = last.get(row.incarnation_key, 0)
        first_index = bisect_left(numbers, row.point)
        end_index = bisect_left(numbers, end + 1)
        for number in numbers[first_index:end_index]:
            counts[number] += 1
    return dict(counts)
