"""The names, the offset map and the notes of one slot of a flow (`exactly_once.unit.Ledger`)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from kbackup.archive.restores.flow_map.tables import (
    MapPartName,
    MappedPartition,
    folder,
    runs_table,
    write_map_part,
)
from kbackup.archive.restores.offset_map import Cut
from kbackup.archive.restores.plan import UnitRange
from kbackup.jobs.mirror.apply.positions import Note, Noted
from kbackup.jobs.mirror.flow import AppliedPosition
from kbackup.jobs.replay.unit import Reached
from kbackup.kafka.produce.produce import Progress, Runs
from kbackup.store.base import Store
from kbackup.types import TopicPartition


class CommittedMapPart(NamedTuple):
    """An offset map part whose transaction is committed."""

    name: MapPartName
    previous: MapPartName | None
    runs: pa.Table


def incarnation_of(range_: UnitRange) -> int:
    """Return the incarnation of the source's topic that all segments of a range are of."""
    return range_.segments[0].incarnation


@dataclass
class SlotLedger:
    """The offset map and positions of one slot. `positions` are the committed ones, as its producer found them. `head`
    is the last part of the slot's map that is known to be committed, which they may not name any more. `point` is the
    restore point that is applied. `map_parts` are those committed since they were last taken. `topic_ids` has the ids
    of the remote topics."""

    state: Store
    source: str
    target: str
    slot: int
    positions: dict[TopicPartition, Noted]
    head: MapPartName | None = None
    point: int = 0
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    attempt: str = field(default_factory=lambda: secrets.token_hex(8))
    map_parts: list[CommittedMapPart] = field(default_factory=list)
    transactions: bool = True

    def __post_init__(self) -> None:
        self._next: tuple[CommittedMapPart, dict[TopicPartition, Noted]] | None = None
        self.know(self.positions)

    def know(self, positions: dict[TopicPartition, Noted]) -> None:
        """Continue from `positions`."""
        self.positions = positions
        parts = [noted.note.map_part for noted in positions.values()]
        self.head = max([*parts, *([self.head] if self.head else [])], default=None)

    def start(self, range_: UnitRange) -> int | None:
        """Return the source offset from which to apply a range; None where a later incarnation has begun."""
        noted = self.positions.get(range_.tp)
        incarnation = incarnation_of(range_)
        if noted is None or noted.position.incarnation < incarnation:
            return 0
        return noted.position.next if noted.position.incarnation == incarnation else None

    def publish(
        self, runs: Mapping[TopicPartition, Runs], reached: Mapping[TopicPartition, Reached], cut: Cut
    ) -> Mapping[TopicPartition, Progress]:
        """Write a map part; its name is committed with the records."""
        positions = {
            tp: AppliedPosition(incarnation_of(each.range), each.next) for tp, each in reached.items()
        }
        return self._publish(runs, positions)

    def begin_at(
        self, positions: Mapping[TopicPartition, AppliedPosition]
    ) -> Mapping[TopicPartition, Progress]:
        """Write a map part without records, which positions that none led to need."""
        return self._publish({}, positions)

    def _publish(
        self, runs: Mapping[TopicPartition, Runs], positions: Mapping[TopicPartition, AppliedPosition]
    ) -> Mapping[TopicPartition, Progress]:
        name = MapPartName(self.head.number + 1 if self.head else 1, self.attempt)
        table = runs_table(
            {
                MappedPartition(tp, positions[tp].incarnation): (r.source, r.target, r.count)
                for tp, r in runs.items()
            }
        )
        write_map_part(self.state, folder(self.source, self.target, self.slot), name, table, self.head)
        noted = {
            tp: Noted(each, Note(each.incarnation, name, self.point, self.topic_ids.get(tp.topic, "")))
            for tp, each in positions.items()
        }
        self._next = CommittedMapPart(name, self.head, table), noted
        return progress_of(noted)

    def committed(self) -> None:
        assert self._next is not None  # noqa: S101 (it follows `publish`)
        part, noted = self._next
        self.map_parts.append(part)
        self.positions |= noted
        self.head = part.name

    def take_map_parts(self) -> list[CommittedMapPart]:
        map_parts, self.map_parts = self.map_parts, []
        return map_parts


def progress_of(noted: Mapping[TopicPartition, Noted]) -> dict[TopicPartition, Progress]:
    """Return positions as a producer commits them."""
    return {tp: Progress(each.position.next, str(each.note)) for tp, each in noted.items()}
