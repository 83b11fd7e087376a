"""Applied positions that the target forgot: what its logs hold decides, not how long they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from kbackup.archive.restores.flow_map import (
    FlowMapPartName,
    MappedPartition,
    SlotMap,
    folder,
    runs_table,
    write_map_part,
)
from kbackup.archive.restores.offset_map import by_partition
from kbackup.jobs.mirror.apply import pending
from kbackup.jobs.mirror.apply.pending import Noted, PositionNote, Recovery
from kbackup.jobs.mirror.flow import AppliedPosition
from kbackup.kafka.admin.cluster import Topic
from kbackup.types import TopicPartition
from tests.support.memory_store import MemoryStore

QUIET, BUSY = TopicPartition("A.orders", 0), TopicPartition("A.orders", 1)
FOLDER = folder("A", "B", 0)

Row = tuple[int, int, int]


@dataclass
class Target:
    """Logs by their start and end, and the offsets of committed records."""

    logs: dict[TopicPartition, tuple[int, int]]
    committed: dict[TopicPartition, Collection[int]] = field(default_factory=dict)

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        topics_by_name: dict[str, Topic] = {}
        for name in names:
            partitions = tuple(sorted(tp.partition for tp in self.logs if tp.topic == name))
            if partitions:
                topics_by_name[name] = Topic(name, "", False, partitions, 1)
        return topics_by_name

    def log_starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.logs[tp][0] for tp in partitions}

    def log_ends(self, partitions: Iterable[TopicPartition], isolation: str) -> dict[TopicPartition, int]:
        return {tp: self.logs[tp][1] for tp in partitions}

    def committed_partitions(self, target: object, group: str, part: pa.Table) -> set[TopicPartition]:
        return {
            tp
            for tp, (_, at, count) in by_partition(part)
            for start, size in zip(at.tolist(), count.tolist(), strict=True)
            if any(start <= offset < start + size for offset in self.committed.get(tp, ()))
        }

    def first_committed(self, target: object, group: str, parts: Iterable[pa.Table]) -> object:
        return next((tp for part in parts for tp in self.committed_partitions(target, group, part)), None)


class Recover:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.slot = SlotMap(MemoryStore(), FOLDER)

    def write(
        self, number: int, previous: FlowMapPartName | None, rows: Mapping[TopicPartition, Row]
    ) -> FlowMapPartName:
        name = FlowMapPartName(number, "aa")
        columns = {
            MappedPartition(tp, 1): cast(Any, tuple(np.array([value], np.int64) for value in row))
            for tp, row in rows.items()
        }
        write_map_part(self.slot.store, FOLDER, name, runs_table(columns), previous)
        return name

    def __call__(
        self, target: Target, known: Mapping[TopicPartition, FlowMapPartName] | None = None
    ) -> dict[TopicPartition, int]:
        self.patch.setattr(pending, "committed_partitions", target.committed_partitions)
        self.patch.setattr(pending, "first_committed", target.first_committed)
        noted = {tp: Noted(AppliedPosition(1, 0), PositionNote(1, part, 1)) for tp, part in (known or {}).items()}
        recovery = Recovery(cast(Any, target), {}, ("A", "B"), {QUIET.topic})
        return {tp: each.position.next for tp, each in recovery.positions([self.slot], noted).items()}


@pytest.fixture
def recover(monkeypatch: pytest.MonkeyPatch) -> Recover:
    return Recover(monkeypatch)


@pytest.mark.parametrize(
    ("target", "applied"),
    [
        (Target({QUIET: (0, 101)}, {QUIET: [99]}), {QUIET: 100}),
        (Target({QUIET: (0, 101)}), {}),  # another log, of a transaction that was given up
        (Target({QUIET: (0, 50)}), {}),
        (Target({QUIET: (120, 120)}), {QUIET: 100}),  # retention took the records
        (Target({QUIET: (60, 101)}), {}),
    ],
    ids=["there", "given up", "shorter", "expired", "given up and partly expired"],
)
def test_a_position_counts_where_the_target_holds_the_record_before_it(
    target: Target, applied: dict[TopicPartition, int], recover: Recover
) -> None:
    one = recover.write(1, None, {QUIET: (0, 0, 100)})
    recover.slot.load(one)
    assert recover(target) == applied


def test_the_newest_position_of_a_slot_alone_is_missing(recover: Recover) -> None:
    """No position names the part that was committed last: the target tells of it."""
    one = recover.write(1, None, {QUIET: (0, 0, 100), BUSY: (0, 0, 10)})
    two = recover.write(2, one, {QUIET: (100, 101, 5)})
    recover.slot.load(one)
    target = Target({QUIET: (0, 107), BUSY: (0, 11)}, {QUIET: range(106), BUSY: range(10)})
    assert recover(target, {BUSY: one}) == {QUIET: 105}
    assert recover.slot.head == two


def test_a_position_is_missing_and_later_parts_are_named(recover: Recover) -> None:
    one = recover.write(1, None, {BUSY: (0, 0, 10)})
    two = recover.write(2, one, {QUIET: (0, 0, 100)})
    recover.write(3, two, {QUIET: (100, 101, 5)})  # given up
    recover.slot.load(one)
    target = Target({QUIET: (0, 107), BUSY: (0, 11)}, {QUIET: range(100), BUSY: range(10)})
    assert recover(target, {BUSY: one}) == {QUIET: 100}
    assert recover.slot.head == two


def test_a_part_that_a_known_position_does_not_name_was_given_up(recover: Recover) -> None:
    """Its records are not looked for: another topic of that name may hold some at the same place."""
    one = recover.write(1, None, {BUSY: (0, 0, 10)})
    recover.write(2, one, {BUSY: (10, 11, 5), QUIET: (0, 0, 5)})
    recover.slot.load(one)
    target = Target({QUIET: (0, 107), BUSY: (0, 107)}, {QUIET: range(100), BUSY: range(100)})
    assert recover(target, {BUSY: one}) == {}
    assert recover.slot.head == one


def test_a_partition_that_is_not_there_was_made_anew(recover: Recover) -> None:
    one = recover.write(1, None, {BUSY: (0, 0, 10)})
    recover.write(2, one, {BUSY: (10, 11, 5)})
    recover.slot.load(one)
    assert recover(Target({QUIET: (0, 107)}, {QUIET: range(100)})) == {}
