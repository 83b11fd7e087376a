"""Ranges of offsets whose records an archive lacks, by partition."""

from __future__ import annotations

from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.types import IncarnationPartition

_ABSENT = ("retention", "damaged")
"""Kinds of losses whose records the archive lacks."""


def lost_ranges(archive: Archive, manifest: Manifest) -> dict[IncarnationPartition, list[tuple[int, int]]]:
    """Return ranges of offsets (end exclusive) that were lost up to a restore point, as far as they are known."""
    ranges: dict[IncarnationPartition, list[tuple[int, int]]] = {}
    for row in archive.state.losses.dicts():
        known = None not in (row["partition"], row["start"], row["end"])
        if known and row["kind"] in _ABSENT and row["point"] <= manifest.number:
            key = row["topic"], row["incarnation"], row["partition"]
            ranges.setdefault(key, []).append((row["start"], row["end"]))
    return ranges
