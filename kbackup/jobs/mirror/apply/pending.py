"""Find the archived segments beyond the applied positions, in order of incarnation and offset. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.archive.restores.plan import UnitRange
from kbackup.archive.segments.key_check import with_checked_key
from kbackup.archive.segments.table import (
    SCHEMA,
    Segment,
    from_batches,
    in_order,
    integers,
    of_topics,
    rows_where,
)
from kbackup.jobs.mirror.apply.applied import Recreated
from kbackup.jobs.mirror.apply.recreated import incarnation_kind
from kbackup.jobs.mirror.flow import AppliedPosition, RemoteTopic
from kbackup.types import TopicPartition

_LARGE = 10_000  # rows from which on columns are compared instead of rows


@dataclass(frozen=True)
class Lives:
    """The incarnations of a topic that a round applies: from `first` to `last`."""

    topic: RemoteTopic
    first: int
    last: int


@dataclass(frozen=True)
class Pending:
    """The ranges to apply. `ranges` has them by remote partition, in order of incarnation."""

    ranges: dict[TopicPartition, list[UnitRange]] = field(default_factory=dict)
    held_back: tuple[Recreated, ...] = ()

    @property
    def segments(self) -> Iterable[Segment]:
        return (s for ranges in self.ranges.values() for each in ranges for s in each.segments)


def find_pending(
    archive: Archive,
    point: Manifest,
    topics: Sequence[RemoteTopic],
    positions: Mapping[TopicPartition, AppliedPosition],
    after: Mapping[str, int],
    stop: bool,
) -> Pending:
    """Return the segments beyond `positions` up to restore point `point`. `after` names, by topic, a restore point up
    to which everything is applied; by default 0. `stop`: a new incarnation of a topic is held back."""
    lives = topic_lives(point, topics, positions, stop)
    newest = {t.name: t.incarnation for t in point.topics}
    held_back = [
        Recreated(
            name, life.topic.remote, newest[name], True, incarnation_kind(archive, point, name, newest[name])
        )
        for name, life in sorted(lives.items())
        if life.last < newest[name]
    ]
    ranges: dict[TopicPartition, list[UnitRange]] = {}
    for (remote, _), segments in sorted(
        _by_partition(_segments(archive, point, lives, positions, after), lives).items()
    ):
        part = UnitRange(
            topic=segments[0].topic,
            partition=segments[0].partition,
            target=remote.topic,
            segments=tuple(segments),
        )
        ranges.setdefault(remote, []).append(part)
    return Pending(ranges, tuple(held_back))


def topic_lives(
    point: Manifest,
    topics: Sequence[RemoteTopic],
    positions: Mapping[TopicPartition, AppliedPosition],
    stop: bool,
) -> dict[str, Lives]:
    """Return the incarnations to apply of each topic that the restore point has. A topic that was never applied begins
    with its newest one."""
    reached: dict[str, list[int]] = {}
    for tp, position in positions.items():
        reached.setdefault(tp.topic, []).append(position.incarnation)
    newest = {t.name: t.incarnation for t in point.topics}
    lives: dict[str, Lives] = {}
    for topic in topics:
        if topic.source not in newest:
            continue
        last, own = newest[topic.source], reached.get(topic.remote)
        if own is None:
            lives[topic.source] = Lives(topic, last, last)
        else:
            lives[topic.source] = Lives(topic, min(own), max(own) if stop else last)
    return lives


def _by_partition(
    segments: Iterable[Segment], lives: Mapping[str, Lives]
) -> dict[tuple[TopicPartition, int], list[Segment]]:
    """Segments by remote partition and incarnation."""
    by_partition: dict[tuple[TopicPartition, int], list[Segment]] = {}
    for segment in segments:
        remote = TopicPartition(lives[segment.topic].topic.remote, segment.partition)
        by_partition.setdefault((remote, segment.incarnation), []).append(segment)
    return by_partition


def _segments(
    archive: Archive,
    point: Manifest,
    lives: Mapping[str, Lives],
    positions: Mapping[TopicPartition, AppliedPosition],
    after: Mapping[str, int],
) -> list[Segment]:
    """Segments beyond the positions, in order."""
    segments: list[Segment] = []
    groups: dict[int, set[str]] = {}
    for name in lives:
        groups.setdefault(after.get(name, 0), set()).add(name)
    for number, names in groups.items():
        if number >= point.number:
            continue
        table = of_topics(archive.table(point.number, SCHEMA.names, number), names)
        if len(table) > _LARGE:
            table = rows_where(table, _beyond(table, lives, positions))
        segments += [s for s in from_batches(table.to_batches()) if _is_pending(s, lives[s.topic], positions)]
    return sorted(map(with_checked_key, segments), key=in_order)


def _is_pending(segment: Segment, life: Lives, positions: Mapping[TopicPartition, AppliedPosition]) -> bool:
    if not life.first <= segment.incarnation <= life.last:
        return False
    position = positions.get(TopicPartition(life.topic.remote, segment.partition))
    return position is None or (segment.incarnation, segment.last) >= (position.incarnation, position.next)


def _beyond(
    table: pa.Table, lives: Mapping[str, Lives], positions: Mapping[TopicPartition, AppliedPosition]
) -> npt.NDArray[np.bool_]:
    """bool[rows]: `_is_pending`, by columns. A partition's position is looked up once."""
    topics: list[Any] = table.column("topic").to_pylist()
    incarnation, partition, last = (integers(table, name) for name in ("incarnation", "partition", "last"))
    names, codes = np.unique(np.array(topics, object), return_inverse=True)
    keys = (codes.astype(np.int64) << 32) | partition
    unique, rows = np.unique(keys, return_inverse=True)
    at = np.zeros((len(unique), 2), np.int64)
    for n, key in enumerate(unique.tolist()):
        remote = lives[str(names[key >> 32])].topic.remote
        position = positions.get(TopicPartition(remote, key & 0xFFFFFFFF))
        if position is not None:
            at[n] = position
    begun, following = at[rows, 0], at[rows, 1]
    pending: npt.NDArray[np.bool_] = (incarnation > begun) | ((incarnation == begun) & (last >= following))
    return pending
