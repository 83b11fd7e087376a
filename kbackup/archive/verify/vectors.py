"""The segments of the catalog against the manifests' vectors of offsets. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from kbackup.archive.catalog.state import LogStart, State
from kbackup.archive.models import Manifest, PartitionState
from kbackup.archive.segments.table import Segment, in_order
from kbackup.archive.verify.findings import CHANGED, Findings
from kbackup.types import IncarnationPartition


@dataclass
class _Sum:
    records: int = 0
    bytes: int = 0
    last: int = -1
    key: str = ""


def check_vectors(
    state: State, manifests: Mapping[int, Manifest], segments: Mapping[int, list[Segment]], findings: Findings
) -> None:
    """Segments lie in order within what their restore point says was archived, and add up to its totals.

    `segments` are by the restore point that added them. Restore points that were let go count for later ones.
    """
    sums: dict[IncarnationPartition, _Sum] = defaultdict(_Sum)
    damaged = {
        (row["topic"], row["incarnation"], row["partition"])
        for row in state.losses.dicts()
        if row["kind"] == "damaged"
    }
    pending = sorted(segments)
    since = 0
    for number, manifest in sorted(manifests.items()):
        states = _captured(manifest, since)
        row = state.point(number)
        manifest_key = row.documents[0] if row is not None else ""
        while pending and pending[0] <= number:
            for segment in sorted(segments[pending.pop(0)], key=in_order):
                key = segment.incarnation_partition
                _check_segment(segment, states.get(key), manifest, findings)
                _add(segment, sums[key], findings)
        for key, partition in states.items():
            if key not in damaged:
                _check_sum(key, partition, manifest_key, sums[key], state.starts.get(key), findings)
        since = number


def _captured(manifest: Manifest, since: int) -> dict[IncarnationPartition, PartitionState]:
    """The partitions that were captured after restore point `since`."""
    return {
        (t.name, t.incarnation, p.partition): p
        for t in manifest.topics
        if since < t.captured <= manifest.number
        for p in t.partitions
    }


def _check_segment(
    segment: Segment, state: PartitionState | None, manifest: Manifest, findings: Findings
) -> None:
    if state is None:
        return  # of an incarnation that was over by then
    if segment.first < state.start or segment.last >= state.end:
        findings.add(
            segment.key,
            f"holds offsets {segment.first} to {segment.last}, outside of {state.start} to {state.end - 1} "
            f"that restore point {manifest.number} says were archived",
            CHANGED,
        )


def _add(segment: Segment, before: _Sum, findings: Findings) -> None:
    if segment.first <= before.last:
        findings.add(
            segment.key, f"begins at offset {segment.first}, but {before.key} ends at {before.last}", CHANGED
        )
    before.records += segment.count
    before.bytes += segment.bytes
    before.last, before.key = segment.last, segment.key


def _check_sum(
    key: IncarnationPartition,
    state: PartitionState,
    manifest_key: str,
    total: _Sum,
    start: LogStart | None,
    findings: Findings,
) -> None:
    """A manifest counts what was let go as well: all of it or, where it ends before the log start, all that it has."""
    records, size = total.records, total.bytes
    if start is not None and state.end >= start.start:
        records, size = records + start.records, size + start.bytes
    elif start is not None and not records:
        return
    if (state.records, state.bytes) != (records, size):
        findings.add(
            manifest_key,
            f"says that {key[0]}-{key[2]} has {state.records} records in {state.bytes} bytes, "
            f"its segments have {records} in {size}",
            CHANGED,
        )
