"""The segment tables against the manifests' vectors of offsets. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from kbackup.archive import layout
from kbackup.archive.expired import Place, log_starts
from kbackup.archive.models import ExpiredPartition, Manifest, PartitionState
from kbackup.archive.segments import Segment, in_order
from kbackup.archive.verify.findings import CHANGED, Findings
from kbackup.archive.verify.points import Points


@dataclass
class _Sum:
    records: int = 0
    bytes: int = 0
    last: int = -1
    key: str = ""


def check_vectors(points: Points, findings: Findings) -> None:
    """Segments lie in order within what their restore point says was read, and add up to its totals.

    Ends before the first restore point that is missing: what comes after it can't be added up.
    """
    sums: dict[Place, _Sum] = defaultdict(_Sum)
    before: int | None = None
    links = {link.last: link.parent for link in points.gone}
    starts = log_starts(points.expired)
    for manifest in points.committed:
        parent = manifest.parent
        while parent != before and parent in links:  # neighbours that went one after another
            parent = links[parent]
        if manifest.seq not in points.added or parent != before:
            return
        since, before = before or 0, manifest.seq
        states = _captured(manifest, since)
        for seq in sorted(seq for seq in points.added if since < seq < manifest.seq):
            for segment in sorted(points.added[seq], key=in_order):
                _add(segment, sums[segment.topic, segment.incarnation, segment.partition], findings)
        for segment in sorted(points.added[manifest.seq], key=in_order):
            place = (segment.topic, segment.incarnation, segment.partition)
            _check_segment(segment, states.get(place), manifest, findings)
            _add(segment, sums[place], findings)
        for place, state in states.items():
            _check_sum(place, state, manifest, sums[place], starts.get(place), findings)


def _captured(manifest: Manifest, since: int) -> dict[Place, PartitionState]:
    """By its own run, or by one that is gone since the restore point before."""
    return {
        (t.name, t.incarnation, p.partition): p
        for t in manifest.topics
        if since < t.captured <= manifest.seq
        for p in t.partitions
    }


def _check_segment(
    segment: Segment, state: PartitionState | None, manifest: Manifest, findings: Findings
) -> None:
    table = layout.backup_key(manifest.seq, layout.SEGMENTS)
    folder = layout.topic_dir(segment.topic, segment.incarnation)
    due = layout.records_key(folder, segment.partition, segment.first, layout.compression_of(segment.key))
    if segment.key != due:
        findings.add(table, f"names {segment.key} where the segment's own place is {due}", CHANGED)
    if state is None:
        findings.add(
            table,
            f"names {segment.key}, whose partition restore point {manifest.seq} did not capture",
            CHANGED,
        )
    elif segment.first < state.start or segment.last >= state.end:
        findings.add(
            segment.key,
            f"holds offsets {segment.first} to {segment.last}, outside of {state.start} to {state.end - 1} "
            f"that restore point {manifest.seq} says were read",
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
    place: Place,
    state: PartitionState,
    manifest: Manifest,
    total: _Sum,
    went: ExpiredPartition | None,
    findings: Findings,
) -> None:
    """A manifest counts what `went` as well, all of it or, where it ends before, all that it has."""
    records, size = total.records, total.bytes
    if went is not None and state.end >= went.start:
        records, size = records + went.records, size + went.bytes
    elif went is not None and not records:
        return
    if (state.records, state.bytes) != (records, size):
        findings.add(
            layout.backup_key(manifest.seq, layout.MANIFEST),
            f"says that {place[0]}-{place[2]} has {state.records} records in {state.bytes} bytes, "
            f"its segments have {records} in {size}",
            CHANGED,
        )
