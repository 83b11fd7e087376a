"""What restore points added, point by point: what an export has still to write. Reads metadata alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kbackup.archive.catalog.state import Point
from kbackup.archive.followers import damaged, missed
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.archive.reader import Archive
from kbackup.archive.segments.place import in_place
from kbackup.archive.segments.table import Segment, in_order
from kbackup.errors import RefusedError
from kbackup.types import TopicPartition

TopicKey = tuple[str, int]
"""Topic and incarnation."""
_Added = tuple[int, Segment]
"""A segment and the number of the run that added it."""


class Addition(NamedTuple):
    """What is to be written for a restore point: `segments` in order of topic, incarnation, partition and offset;
    `partitions` is how many each of their topics had."""

    point: Point
    segments: tuple[Segment, ...]
    partitions: dict[TopicKey, int]

    @property
    def records(self) -> int:
        return sum(s.count for s in self.segments)

    @property
    def bytes(self) -> int:
        return sum(s.bytes for s in self.segments)


class Additions:
    """Those of an archive, as far as they are selected. Segments of restore points that were expired, and that are
    still there, come with the next one that is left."""

    def __init__(self, archive: Archive, selection: Selection) -> None:
        self._archive, self._selection = archive, selection
        self._found: dict[int, dict[str, list[_Added]]] = {}
        self._counts: dict[int, dict[TopicKey, int]] = {}
        self._missed: dict[int, list[tuple[TopicPartition, int]]] = {}

    @property
    def newest(self) -> int:
        """The newest restore point; `NoArchiveError` where there is none."""
        return self._archive.find_point("latest").number

    def check_names(self) -> None:
        """`UsageError` for a selection that matches no topic that was ever archived."""
        known = [t.name for t in self._archive.restore_point("latest").topics]
        check_selection(
            self._selection, "topic", known, f"in {self._archive.store.url}", "'kbackup ls' lists them"
        )

    def topics_after(self, seq: int) -> list[str]:
        """Those that restore points after `seq` added something to, sorted; `RefusedError` where there is no `seq`."""
        self._check_not_ahead(seq)
        found = (
            topic
            for point in self._points(seq)
            for topic, some in self._of(point).items()
            if any(added > seq for added, _ in some)
        )
        return sorted(set(found))

    def after(self, seq: int, topic: str | None = None) -> Iterator[Addition]:
        """What restore points after `seq` added (to `topic`), oldest first; nothing for those that added nothing.
        `RefusedError` where nobody can tell what of them is there already."""
        self._check_not_ahead(seq)
        for point in self._points(seq):
            found = self._of(point)
            some = found.values() if topic is None else [found.get(topic, [])]
            segments = sorted((s for of in some for added, s in of if added > seq), key=in_order)
            if segments:
                yield Addition(point, tuple(segments), self._partitions(point, segments))

    def missed(self, seq: int, topic: str | None = None) -> list[tuple[TopicPartition, int]]:
        """The partitions (of `topic`) of which records that came after `seq` may have expired, and below which offset:
        they are in no `Addition`."""
        if seq not in self._missed:
            wanted = set(self._selection.topics({place[0] for place in self._archive.state.starts}))
            self._missed[seq] = missed(self._archive, seq, lambda tp: tp.topic in wanted)
        return [some for some in self._missed[seq] if topic is None or some[0].topic == topic]

    def damaged(self, seq: int, topic: str | None = None) -> list[tuple[TopicPartition, str]]:
        """The partitions (of `topic`) with records of restore points after `seq` that were found missing or damaged,
        each with a sentence: they are in no `Addition`."""
        wanted = set(self._selection.topics(set(self._archive.state.losses.columns("topic")[0])))
        last = self._archive.state.next_point
        return damaged(self._archive, seq, last, lambda tp: tp.topic in wanted and topic in (None, tp.topic))

    def _check_not_ahead(self, seq: int) -> None:
        if seq >= self._archive.state.next_point:
            raise RefusedError(
                f"records were exported up to restore point {seq}, the newest of {self._archive.store.url} is "
                f"{self.newest}",
                "export from the archive that is ahead, or to another place",
            )

    def _partitions(self, point: Point, segments: Sequence[Segment]) -> dict[TopicKey, int]:
        """How many the topics had; of a life that was over by then, those that have something."""
        if point.number not in self._counts:
            topics = self._archive.manifest(point).topics
            self._counts[point.number] = {(t.name, t.incarnation): len(t.partitions) for t in topics}
        counts = self._counts[point.number]
        found: dict[TopicKey, int] = {}
        for s in segments:
            key = s.topic, s.incarnation
            found[key] = max(found.get(key, counts.get(key, 0)), s.partition + 1)
        return found

    def _points(self, seq: int) -> list[Point]:
        return [p for p in self._archive.restore_points if p.number > seq]

    def _of(self, point: Point) -> dict[str, list[_Added]]:
        """The selected segments that came with `point`, by topic."""
        if point.number not in self._found:
            before = max(
                (p.number for p in self._archive.restore_points if p.number < point.number), default=0
            )
            added = self._archive.added_by(before, point.number)
            topics = set(self._selection.topics({s.topic for _, s in added}))
            found: dict[str, list[_Added]] = {}
            for seq, s in added:
                if s.topic in topics:
                    found.setdefault(s.topic, []).append((seq, in_place(s)))
            self._found[point.number] = found
        return self._found[point.number]
