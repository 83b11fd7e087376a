"""Strips of a topic's partitions, with what the catalog knows of lost and expired records."""

from __future__ import annotations

from collections.abc import Iterable

from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic
from kbackup.web.charts.strip import Strip, strip
from kbackup.web.snapshot import Snapshot


class TopicStrips:
    """Makes the strips of the partitions of a topic."""

    def __init__(self, snapshot: Snapshot, topic: ArchivedTopic) -> None:
        self._lost, self._topic = snapshot.lost_ranges, topic
        states = snapshot.point.topics if snapshot.point is not None else ()
        own = next((state for state in states if state.name == topic.name), None)
        self._first = {p.partition: p.start for p in own.partitions} if own is not None else {}

    def of(self, partition: ArchivedPartition, groups: Iterable[tuple[str, int]] = ()) -> Strip:
        """Return the strip of a partition; `groups` are (name, offset)."""
        number, start = partition.partition, partition.start
        # as many offsets as records expired, or more where the manifest still has the first one
        first = max(min(self._first.get(number, start), start - partition.expired), 0)
        lost = self._lost.get((*self._topic.key, number), ())
        return strip(partition, groups, lost, (first, start) if first < start else None)
