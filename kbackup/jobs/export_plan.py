"""What restore points added, point by point: what an export has still to write. Reads metadata alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

from kbackup.archive.models import Point
from kbackup.archive.reader import Archive, in_place
from kbackup.archive.segments import SCHEMA, Segment, from_batches, in_order
from kbackup.errors import UsageError
from kbackup.jobs.select import Selection

TopicKey = tuple[str, int]
"""Topic and incarnation."""


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
        self._found: dict[int, list[tuple[int, Segment]]] = {}

    @property
    def newest(self) -> int:
        """The newest restore point; `NoArchiveError` where there is none."""
        return self._archive.restore_point("latest").seq

    def check_names(self) -> None:
        """`UsageError` for a topic that is asked for by its name and was never archived."""
        known = {t.name for t in self._archive.restore_point("latest").topics}
        for name in sorted(self._selection.names - known):
            raise UsageError(f"there is no topic {name} in {self._archive.store.url}", "see 'kbackup ls'")

    def topics_after(self, seq: int) -> list[str]:
        """Those that restore points after `seq` added something to, sorted."""
        return sorted({s.topic for p in self._points(seq) for added, s in self._of(p) if added > seq})

    def after(self, seq: int, topic: str | None = None) -> Iterator[Addition]:
        """What restore points after `seq` added (to `topic`), oldest first; nothing for those that added nothing."""
        for point in self._points(seq):
            segments = [s for added, s in self._of(point) if added > seq and topic in (None, s.topic)]
            if not segments:
                continue
            counts = {
                (t.name, t.incarnation): len(t.partitions) for t in self._archive.manifest(point).topics
            }
            keys = {(s.topic, s.incarnation) for s in segments}
            partitions = {key: counts.get(key, 0) for key in keys}
            for s in segments:  # as those of a folder that was adopted: what is there, is
                key = s.topic, s.incarnation
                partitions[key] = max(partitions[key], s.partition + 1)
            yield Addition(point, tuple(sorted(segments, key=in_order)), partitions)

    def _points(self, seq: int) -> list[Point]:
        return [p for p in self._archive.restore_points if p.seq > seq]

    def _of(self, point: Point) -> list[tuple[int, Segment]]:
        """The selected segments that came with `point`, each with the number of the run that added it."""
        if point.seq not in self._found:
            expired = self._archive.expired
            upto = expired.upto if expired is not None else 0
            found = [] if point.seq <= upto else [(point.seq, s) for s in self._archive.added(point)]
            before = max((p.seq for p in self._archive.restore_points if p.seq < point.seq), default=0)
            found += [(seq, s) for seq, s in self._left if before < seq <= point.seq]
            topics = set(self._selection.topics({s.topic for _, s in found}))
            self._found[point.seq] = [(seq, in_place(s)) for seq, s in found if s.topic in topics]
        return self._found[point.seq]

    @cached_property
    def _left(self) -> list[tuple[int, Segment]]:
        """What an expiration left, with the numbers of its runs."""
        expired = self._archive.expired
        if expired is None:
            return []
        found: list[tuple[int, Segment]] = []
        for table in self._archive.tables(expired.upto, [*SCHEMA.names, "seq"]):
            numbers: list[Any] = table.column("seq").to_pylist()
            rows = from_batches(table.select(SCHEMA.names).to_batches())
            found += zip(numbers, rows, strict=True)
        return found
