"""Plan an export: the segments that each restore point added. Reads metadata alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kbackup.archive.catalog.state import Point
from kbackup.archive.followers import damaged, missed
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.archive.reader import Archive
from kbackup.archive.segments.key_check import with_checked_key
from kbackup.archive.segments.table import Segment, in_order
from kbackup.errors import RefusedError
from kbackup.types import Incarnation, TopicPartition

_Added = tuple[int, Segment]
"""A segment and the number of the run that added it."""


class Addition(NamedTuple):
    """Segments to export for a restore point: `segments` in order of topic, incarnation, partition and offset;
    `partitions` is how many each of their topics had."""

    point: Point
    segments: tuple[Segment, ...]
    partitions: dict[Incarnation, int]

    @property
    def records(self) -> int:
        return sum(s.count for s in self.segments)

    @property
    def bytes(self) -> int:
        return sum(s.bytes for s in self.segments)


class Additions:
    """The selected additions of an archive. Remaining segments of expired restore points come with the next restore
    point."""

    def __init__(self, archive: Archive, selection: Selection) -> None:
        self._archive, self._selection = archive, selection
        self._added: dict[int, dict[str, list[_Added]]] = {}
        self._counts: dict[int, dict[Incarnation, int]] = {}
        self._missed: dict[int, list[tuple[TopicPartition, int]]] = {}

    @property
    def newest(self) -> int:
        """The newest restore point; `NoArchiveError` where there is none."""
        return self._archive.find_point("latest").number

    def check_names(self) -> None:
        """Raise `UsageError` for a selection that matches no topic that was ever archived."""
        known = [t.name for t in self._archive.restore_point("latest").topics]
        check_selection(
            self._selection, "topic", known, f"in {self._archive.store.url}", "'kbackup ls' lists them"
        )

    def topics_after(self, number: int) -> list[str]:
        """Return the topics with records of restore points after `number`, sorted; `RefusedError` where the archive is
        behind."""
        self._check_not_ahead(number)
        topics = (
            topic
            for point in self._points(number)
            for topic, added in self._of(point).items()
            if any(run > number for run, _ in added)
        )
        return sorted(set(topics))

    def after(self, number: int, topic: str | None = None) -> Iterator[Addition]:
        """Yield the additions (to `topic`) of restore points after `number`, oldest first; none for those without
        segments. `RefusedError` where the archive is behind."""
        self._check_not_ahead(number)
        for point in self._points(number):
            by_topic = self._of(point)
            selected = by_topic.values() if topic is None else [by_topic.get(topic, [])]
            segments = sorted((s for added in selected for run, s in added if run > number), key=in_order)
            if segments:
                yield Addition(point, tuple(segments), self._partitions(point, segments))

    def missed(self, number: int, topic: str | None = None) -> list[tuple[TopicPartition, int]]:
        """The partitions (of `topic`) of which records that came after `number` may have expired, and below which
        offset: they are in no `Addition`."""
        if number not in self._missed:
            topics = set(self._selection.topics({key[0] for key in self._archive.state.starts}))
            self._missed[number] = missed(self._archive, number, lambda tp: tp.topic in topics)
        return [(tp, start) for tp, start in self._missed[number] if topic is None or tp.topic == topic]

    def damaged(self, number: int, topic: str | None = None) -> list[tuple[TopicPartition, str]]:
        """The partitions (of `topic`) with records of restore points after `number` that were found missing or damaged,
        each with a sentence: they are in no `Addition`."""
        topics = set(self._selection.topics(set(self._archive.state.losses.columns("topic")[0])))
        last = self._archive.state.next_point
        return damaged(
            self._archive, number, last, lambda tp: tp.topic in topics and topic in (None, tp.topic)
        )

    def _check_not_ahead(self, number: int) -> None:
        if number >= self._archive.state.next_point:
            raise RefusedError(
                f"records were exported up to restore point {number}, the newest of {self._archive.store.url} is "
                f"{self.newest}",
                "export from the archive that is ahead, or to another destination",
            )

    def _partitions(self, point: Point, segments: Sequence[Segment]) -> dict[Incarnation, int]:
        """Return the number of partitions of each topic; of an ended incarnation, those with segments."""
        if point.number not in self._counts:
            topics = self._archive.manifest(point).topics
            self._counts[point.number] = {(t.name, t.incarnation): len(t.partitions) for t in topics}
        counts = self._counts[point.number]
        partitions: dict[Incarnation, int] = {}
        for s in segments:
            key = s.topic, s.incarnation
            partitions[key] = max(partitions.get(key, counts.get(key, 0)), s.partition + 1)
        return partitions

    def _points(self, number: int) -> list[Point]:
        return [p for p in self._archive.restore_points if p.number > number]

    def _of(self, point: Point) -> dict[str, list[_Added]]:
        """The selected segments that came with `point`, by topic."""
        if point.number not in self._added:
            before = max(
                (p.number for p in self._archive.restore_points if p.number < point.number), default=0
            )
            added = self._archive.added_by(before, point.number)
            topics = set(self._selection.topics({s.topic for _, s in added}))
            by_topic: dict[str, list[_Added]] = {}
            for run, s in added:
                if s.topic in topics:
                    by_topic.setdefault(s.topic, []).append((run, with_checked_key(s)))
            self._added[point.number] = by_topic
        return self._added[point.number]
