"""The names, the offset map and the notes of one slot of a flow (`exactly_once.unit.Ledger`)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from kbackup.archive.restores.flow_map.tables import Incarnation, PartName, folder, runs_table, write_part
from kbackup.archive.restores.offset_map import Cut
from kbackup.archive.restores.plan import UnitPart
from kbackup.jobs.mirror.apply.positions import Note, Noted
from kbackup.jobs.mirror.flow import AppliedPosition
from kbackup.jobs.replay.unit import Reached
from kbackup.kafka.produce.produce import Progress, Runs
from kbackup.store.base import Store
from kbackup.types import TopicPartition


class CommittedPart(NamedTuple):
    """A part of the offset map whose transaction is committed."""

    name: PartName
    previous: PartName | None
    runs: pa.Table


def incarnation_of(part: UnitPart) -> int:
    """Return the incarnation of the source's topic that all segments of a part are of."""
    return part.segments[0].incarnation


@dataclass
class SlotLedger:
    """`positions` are the committed ones of the slot, as its producer found them. `head` is the
    last part of the slot's map that is known to be committed, which they may not name any more. `point` is the restore
    point that is applied. `parts` are those committed since they were last taken."""

    state: Store
    source: str
    target: str
    slot: int
    positions: dict[TopicPartition, Noted]
    head: PartName | None = None
    point: int = 0
    attempt: str = field(default_factory=lambda: secrets.token_hex(8))
    parts: list[CommittedPart] = field(default_factory=list)
    transactions: bool = True

    def __post_init__(self) -> None:
        self._next: tuple[CommittedPart, dict[TopicPartition, Noted]] | None = None
        self.know(self.positions)

    def know(self, positions: dict[TopicPartition, Noted]) -> None:
        """Go on from `positions`."""
        self.positions = positions
        parts = [noted.note.part for noted in positions.values()]
        self.head = max([*parts, *([self.head] if self.head else [])], default=None)

    def start(self, part: UnitPart) -> int | None:
        """Return the source offset from which `part` is left, None where a later incarnation has begun."""
        noted = self.positions.get(part.tp)
        incarnation = incarnation_of(part)
        if noted is None or noted.position.incarnation < incarnation:
            return 0
        return noted.position.next if noted.position.incarnation == incarnation else None

    def publish(
        self, runs: Mapping[TopicPartition, Runs], reached: Mapping[TopicPartition, Reached], cut: Cut
    ) -> Mapping[TopicPartition, Progress]:
        """The map first, then its name with the records themselves."""
        name = PartName(self.head.number + 1 if self.head else 1, self.attempt)
        incarnations = {tp: incarnation_of(each.part) for tp, each in reached.items()}
        table = runs_table(
            {Incarnation(tp, incarnations[tp]): (r.source, r.target, r.count) for tp, r in runs.items()}
        )
        write_part(self.state, folder(self.source, self.target, self.slot), name, table, self.head)
        noted = {
            tp: Noted(AppliedPosition(incarnations[tp], each.next), Note(incarnations[tp], name, self.point))
            for tp, each in reached.items()
        }
        self._next = CommittedPart(name, self.head, table), noted
        return progress_of(noted)

    def committed(self) -> None:
        assert self._next is not None  # noqa: S101 (it follows `publish`)
        part, noted = self._next
        self.parts.append(part)
        self.positions |= noted
        self.head = part.name

    def take_parts(self) -> list[CommittedPart]:
        parts, self.parts = self.parts, []
        return parts


def progress_of(noted: Mapping[TopicPartition, Noted]) -> dict[TopicPartition, Progress]:
    """Return positions as a producer commits them."""
    return {tp: Progress(each.position.next, str(each.note)) for tp, each in noted.items()}
