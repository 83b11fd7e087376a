"""What restore points added, point by point: what an export has still to write. Reads metadata alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from kbackup.archive.expired import log_starts
from kbackup.archive.followed import given_up_with, missed
from kbackup.archive.models import Point
from kbackup.archive.reader import Archive, in_place
from kbackup.archive.segments import SCHEMA, Segment, from_batches, in_order
from kbackup.errors import RefusedError
from kbackup.jobs.select import Selection, check_selection
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
        return self._archive.restore_point("latest").seq

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
        self._check_known(seq)
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
            wanted = set(self._selection.topics({place[0] for place in log_starts(self._archive.expired)}))
            self._missed[seq] = missed(self._archive, seq, lambda tp: tp.topic in wanted)
        return [some for some in self._missed[seq] if topic is None or some[0].topic == topic]

    def _check_known(self, seq: int) -> None:
        """A repair's restore point has what was added by those that it gave up."""
        self._check_not_ahead(seq)
        lost = given_up_with(self._archive, seq)
        if lost is not None:
            raise RefusedError(
                f"restore point {seq}, up to which records were exported, was lost: restore point {lost.stop}, "
                "which 'kbackup repair' made, has its records again",
                "export to another place",
            )

    def _check_not_ahead(self, seq: int) -> None:
        if seq > self.newest:
            raise RefusedError(
                f"records were exported up to restore point {seq}, the newest of {self._archive.store.url} is "
                f"{self.newest}",
                "export from the archive that is ahead, or to another place",
            )

    def _partitions(self, point: Point, segments: Sequence[Segment]) -> dict[TopicKey, int]:
        """How many the topics had; of a life that was over by then, those that have something."""
        if point.seq not in self._counts:
            topics = self._archive.manifest(point).topics
            self._counts[point.seq] = {(t.name, t.incarnation): len(t.partitions) for t in topics}
        counts = self._counts[point.seq]
        found: dict[TopicKey, int] = {}
        for s in segments:
            key = s.topic, s.incarnation
            found[key] = max(found.get(key, counts.get(key, 0)), s.partition + 1)
        return found

    def _points(self, seq: int) -> list[Point]:
        return [p for p in self._archive.restore_points if p.seq > seq]

    def _of(self, point: Point) -> dict[str, list[_Added]]:
        """The selected segments that came with `point`, by topic."""
        if point.seq not in self._found:
            expired = self._archive.expired
            upto = expired.upto if expired is not None else 0
            added = [] if point.seq <= upto else [(point.seq, s) for s in self._archive.added(point)]
            before = max((p.seq for p in self._archive.restore_points if p.seq < point.seq), default=0)
            added += [(seq, s) for seq, s in self._left if before < seq <= point.seq]
            topics = set(self._selection.topics({s.topic for _, s in added}))
            found: dict[str, list[_Added]] = {}
            for seq, s in added:
                if s.topic in topics:
                    found.setdefault(s.topic, []).append((seq, in_place(s)))
            self._found[point.seq] = found
        return self._found[point.seq]

    @cached_property
    def _left(self) -> list[_Added]:
        """What an expiration left."""
        expired = self._archive.expired
        if expired is None:
            return []
        found: list[_Added] = []
        for table in self._archive.tables(expired.upto, [*SCHEMA.names, "seq"]):
            numbers: list[Any] = table.column("seq").to_pylist()
            rows = from_batches(table.select(SCHEMA.names).to_batches())
            found += zip(numbers, rows, strict=True)
        return found
