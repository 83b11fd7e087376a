"""Lag of consumer groups at a sample of restore points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kbackup.archive.query.group_overview import groups_overview
from kbackup.archive.query.points import PointOverview
from kbackup.archive.reader import Archive
from kbackup.errors import CorruptError
from kbackup.util.times import ms_of


class PointLags(NamedTuple):
    """Lag by group at restore point `number`, committed at `time` (ms). None where its documents are damaged."""

    number: int
    time: int
    lags: dict[str, int] | None


def sample_points(points: Sequence[PointOverview], most: int) -> list[PointOverview]:
    """Return at most `most` restore points, spread over time: always the newest.

    The sample changes little as the archive grows: it has the first restore point of each span of 2^n seconds."""
    if len(points) <= most:
        return list(points)
    seconds = np.array([ms_of(point.committed_at) // 1000 for point in points])
    width = 1
    while len(first := np.unique(seconds // width, return_index=True)[1]) > most - 1:
        width *= 2
    return [points[n] for n in sorted({*first.tolist(), len(points) - 1})]


def point_lags(archive: Archive, point: PointOverview) -> PointLags:
    """Read the lag of every group at a restore point. Costs its manifest and its groups; keeps neither."""
    reader = Archive(archive.store, archive.info, archive.committed)  # keeps what it reads, and is dropped
    time = ms_of(point.committed_at)
    try:
        overview = groups_overview(reader, reader.manifest(point.number))
    except CorruptError:
        return PointLags(point.number, time, None)
    return PointLags(point.number, time, {group.group: group.lag for group in overview.groups})
