"""Check that a segment lies where its catalog row says."""

from __future__ import annotations

from kbackup.archive import layout
from kbackup.archive.segments.table import Segment
from kbackup.errors import CorruptError


def with_checked_key(segment: Segment) -> Segment:
    """Return the segment; raise `CorruptError` where its key is not that of its topic, partition and first offset."""
    folder = layout.topic_dir(segment.topic, segment.incarnation)
    if not layout.is_records_key(segment.key, folder, segment.partition, segment.first):
        due = layout.records_key(folder, segment.partition, segment.first, layout.compression_of(segment.key))
        raise CorruptError(
            f"file {segment.key} is named by the catalog where {due} belongs",
            "run 'kbackup verify' to see whether the archive is damaged",
        )
    return segment
