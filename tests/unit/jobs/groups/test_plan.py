"""Planned offsets of groups: the reasons, leader epochs, and skipped offsets."""

from __future__ import annotations

import numpy as np
import pytest

from kbackup.archive.models import GroupOffset
from kbackup.archive.restores.offset_map import OffsetMap, SameLog
from kbackup.archive.restores.plan import PlannedGroup
from kbackup.jobs.groups.plan import Map, plan_groups, wants_epoch, with_epochs
from kbackup.types import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("new", 1)


def _map(start: int = 0) -> OffsetMap:
    """Source offsets 10 to 14 went to 100 to 104; the next is 105."""
    source, target, count = (np.array([number], np.int64) for number in (10, 100, 5))
    return OffsetMap(source, target, count, 105, start)


def _group(*offsets: GroupOffset) -> PlannedGroup:
    return PlannedGroup(source="g", target="h", offsets=offsets)


def test_names_metadata_and_reasons_go_with_the_offset() -> None:
    group = _group(
        GroupOffset(topic="old", partition=1, offset=14, leader_epoch=9, metadata="time"),
        GroupOffset(topic="a", partition=0, offset=3),
    )
    maps: dict[TopicPartition, Map] = {A1: _map(), A0: SameLog(0, 8)}
    (plan,) = plan_groups([group], {"old": "new", "a": "a"}, maps, {})
    assert (plan.source, plan.group, plan.skipped) == ("g", "h", ())
    assert [(o.tp, o.source, o.target, o.how, o.metadata) for o in plan.offsets] == [
        (A1, 14, 104, "exact", "time"),
        (A0, 3, 3, "exact", ""),
    ]


def test_unmappable_offsets_are_skipped_and_the_rest_is_set() -> None:
    group = _group(
        GroupOffset(topic="old", partition=1, offset=14), GroupOffset(topic="a", partition=0, offset=3)
    )
    maps = {A0: SameLog(0, 8)}
    (plan,) = plan_groups([group], {"old": "new", "a": "a"}, maps, {A1: "new-1 is not on the target"})
    assert [o.tp for o in plan.offsets] == [A0]
    assert plan.skipped == ("new-1 is not on the target",)


@pytest.mark.parametrize("same_log", [False, True])
def test_leader_epochs_are_those_of_the_target_log(same_log: bool) -> None:
    group = _group(
        GroupOffset(topic="a", partition=0, offset=3, leader_epoch=7),
        GroupOffset(topic="a", partition=1, offset=99, leader_epoch=7),
        GroupOffset(topic="a", partition=2, offset=3),
    )
    maps = {TopicPartition("a", p): SameLog(0, 8) for p in range(3)}
    plans = plan_groups([group], {"a": "a"}, maps, {})
    assert wants_epoch(plans) == {TopicPartition("a", 0), TopicPartition("a", 1)}
    epochs: dict[TopicPartition, int | None] = {TopicPartition("a", 0): 2, TopicPartition("a", 1): 3}
    (plan,) = with_epochs(plans, epochs, same_log)
    # a clamped offset is another place than the one that the archived epoch was of
    assert [o.leader_epoch for o in plan.offsets] == [7 if same_log else 2, 3, None]


@pytest.mark.parametrize(
    ("committed", "target", "how"),
    [(4, 5, "expired"), (5, 5, "exact"), (8, 8, "exact"), (9, 8, "log end")],
)
def test_same_log_is_clamped_to_what_is_there(committed: int, target: int, how: str) -> None:
    assert SameLog(5, 8).map(committed) == (target, how)


@pytest.mark.parametrize(
    ("committed", "target", "how"),
    [
        (9, 103, "expired"),
        (12, 103, "expired"),
        (13, 103, "exact"),
        (14, 104, "exact"),
        (15, 105, "log end"),
    ],
)
def test_offsets_deleted_from_the_target_map_to_its_log_start(committed: int, target: int, how: str) -> None:
    assert _map(start=103).map(committed) == (target, how)


def test_wholly_expired_target_is_read_from_its_start() -> None:
    emptied = _map(start=140)
    assert emptied.map(14) == emptied.map(99) == (140, "expired")
