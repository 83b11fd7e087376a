"""Cache the lag of consumer groups at restore points, for charts."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kbackup.archive.query.lag_history import PointLags, point_lags, sample_points
from kbackup.archive.query.points import PointOverview
from kbackup.archive.reader import Archive
from kbackup.web.charts.area import Area, area

SAMPLES = 24
"""Number of restore points of a chart: each costs two objects."""

_CACHED = 4 * SAMPLES
_THREADS = 4


class LagCache:
    """The lag of all groups at restore points that were read. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: OrderedDict[str, PointLags] = (
            OrderedDict()
        )  # by checksum of the manifest: it never changes

    def history(self, archive: Archive, points: Sequence[PointOverview]) -> list[PointLags]:
        """Return the lag of all groups at a sample of `points`, oldest first."""
        sample = {archive.find_point(p.number).manifest: p for p in sample_points(points, SAMPLES)}
        with self._lock, ThreadPoolExecutor(_THREADS) as pool:
            unread = [manifest for manifest in sample if manifest not in self._read]
            lags = pool.map(lambda manifest: point_lags(archive, sample[manifest]), unread)
            self._read.update(zip(unread, lags, strict=True))
            for manifest in sample:
                self._read.move_to_end(manifest)
            history = [self._read[manifest] for manifest in sample]
            while len(self._read) > _CACHED:
                self._read.popitem(last=False)
        return history


@dataclass(frozen=True)
class LagChart:
    """The chart of a group's lag (None for less than two restore points with the group).

    `read` restore points `of` all were read; `damaged` of them could not be."""

    area: Area | None
    read: int
    of: int
    damaged: int


def lag_chart(history: Sequence[PointLags], group: str, of: int) -> LagChart:
    """Return the chart of a group's lag; `of` is the number of all restore points."""
    samples = [(at.time, at.lags[group]) for at in history if at.lags is not None and group in at.lags]
    damaged = sum(at.lags is None for at in history)
    return LagChart(area(samples), len(history), of, damaged)
