"""One segment read back: every byte, against checksum, index and descriptor."""

from __future__ import annotations

from dataclasses import dataclass

from kbackup.archive import layout
from kbackup.archive.segments.read import read_index, read_records
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import greatest, least
from kbackup.archive.verify.findings import CHANGED, Finding, Findings, ToRead
from kbackup.formats.index import SegmentIndex
from kbackup.store.base import Store


@dataclass
class _Seen:
    """The values that the records themselves give; `Segment` explains them."""

    count: int = 0
    first: int = 0
    last: int = -1
    bytes: int = 1
    min_timestamp: int | None = None
    max_timestamp: int | None = None
    largest: int = 0


@dataclass(frozen=True, slots=True)
class SegmentResult:
    """`records` and `bytes` that were read."""

    records: int
    bytes: int
    findings: tuple[Finding, ...]


def check_segment(store: Store, item: ToRead) -> SegmentResult:
    """Index and records of a segment, each on its own: where the index is damaged the records are walked
    without it."""
    findings = Findings()
    segment, seen = item.segment, _Seen()
    index: SegmentIndex | None = None
    if item.index:
        with findings.catching(layout.index_key_of(segment.key)):
            index = read_index(store, segment)
    if item.records:
        with findings.catching(segment.key):
            _read(store, segment, index, seen)
            _compare(segment, seen, findings)
    return SegmentResult(seen.count, seen.bytes, tuple(sorted(findings.entries)))


def _read(store: Store, segment: Segment, index: SegmentIndex | None, seen: _Seen) -> None:
    for block in read_records(store, segment, index):
        if not seen.count:
            seen.first = int(block.offsets[0])
        seen.last = int(block.offsets[-1])
        seen.count += len(block)
        seen.bytes += block.nbytes
        seen.largest = max(seen.largest, block.largest)
        seen.min_timestamp = least(seen.min_timestamp, block.min_timestamp)
        seen.max_timestamp = greatest(seen.max_timestamp, block.max_timestamp)


def _compare(segment: Segment, seen: _Seen, findings: Findings) -> None:
    """The descriptor; one that was made from a Java tool's index knows no timestamps."""
    names = ["count", "first", "last", "bytes", "largest"]
    names += ["min_timestamp", "max_timestamp"] if segment.crc else []
    for name in names:
        due, is_now = getattr(segment, name), getattr(seen, name)
        if due != is_now:
            findings.add(
                segment.key, f"has {name.replace('_', ' ')} {is_now}, its restore point says {due}", CHANGED
            )
