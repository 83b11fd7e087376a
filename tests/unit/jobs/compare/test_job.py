"""Offsets, groups and totals of `verify --against`."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from kbackup.archive.query.content import content_of
from kbackup.archive.restores.offset_map import SCHEMA, runs_table
from kbackup.archive.restores.plan import RestorePlan
from kbackup.config.models import Restore
from kbackup.jobs.compare.job import (
    NO_OFFSETS,
    ComparePlan,
    _all_partitions,
    _compared,
    due_offset,
    is_right_position,
    restored_offsets,
)
from kbackup.jobs.compare.partition import TargetOffsets
from kbackup.jobs.compare.report import (
    Comparison,
    Difference,
    Kind,
    fewer_named,
    findings_of,
    is_wrong,
    sum_counts,
    topics_of,
)
from kbackup.jobs.restore.plan import plan_restore
from kbackup.types import TopicPartition
from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore


def target_offsets(*runs: tuple[int, int, int]) -> TargetOffsets:
    return TargetOffsets(*(np.array(column, np.int64) for column in zip(*runs, strict=True)))


@pytest.mark.parametrize(
    ("committed", "due"),
    [
        (0, (7, "log start")),
        (10, (7, "exact")),
        (12, (9, "exact")),
        (13, (11, "next record")),
        (20, (11, "exact")),
        (21, (12, "log end")),
        (99, (12, "log end")),
    ],
)
def test_where_a_group_belongs(committed: int, due: tuple[int, str]) -> None:
    assert due_offset(target_offsets((10, 7, 3), (20, 11, 1)), committed) == due


def test_where_a_group_stands_well() -> None:
    assert due_offset(NO_OFFSETS, 5) == (0, "empty")
    assert is_right_position(7, 7, "exact", 20)
    assert not is_right_position(8, 7, "exact", 20)
    assert [is_right_position(found, 12, "log end", 14) for found in (11, 12, 14, 15)] == [False, True, True, False]


@pytest.fixture(scope="module")
def plan() -> RestorePlan:
    archive = make_archive(MemoryStore())
    point = archive.restore_point("latest")
    content = content_of(archive, point, [t for t in point.topics if t.name == "orders"])
    return plan_restore(Restore(map={"orders": "again"}), content, "cluster")


def test_every_partition_is_looked_at(plan: RestorePlan) -> None:
    """Also the one that holds nothing: something may have come there."""
    parts = _all_partitions(plan)
    assert sorted(p.tp for p in parts) == [TopicPartition("again", n) for n in range(3)]
    assert [p.partition for p in parts if not p.segments] == [2]


def test_the_map_is_cut_by_partition(plan: RestorePlan) -> None:
    runs = {
        TopicPartition("again", 0): target_offsets((0, 0, 10), (15, 11, 1)),
        TopicPartition("again", 1): target_offsets((0, 3, 12)),
    }
    table = runs_table({tp: (p.source, p.target, p.count) for tp, p in runs.items()})
    offsets = restored_offsets(plan, table)
    assert sorted(offsets) == [TopicPartition("again", n) for n in range(3)]
    for tp in offsets:
        wanted = runs.get(tp, NO_OFFSETS)
        for name in ("source", "target", "count"):
            assert getattr(offsets[tp], name).tolist() == getattr(wanted, name).tolist()
    assert all(not len(p.source) for p in restored_offsets(plan, SCHEMA.empty_table()).values())


@pytest.mark.parametrize(("into_existing", "start"), [(True, 40), (False, 3)])
def test_comparison_skips_earlier_records_only_in_an_existing_topic(
    plan: RestorePlan, into_existing: bool, start: int
) -> None:
    """Is another's where the topic was not empty, else one too many: it may be a second copy."""
    part = _all_partitions(plan)[0]
    plan = msgspec.structs.replace(plan, into_existing=into_existing)
    compare_plan = ComparePlan(plan, {part.tp: target_offsets((0, 40, 10))}, "read_committed", ends={part.tp: 60})
    found = _compared(compare_plan, part, 3, "target")
    assert (found.start, found.end) == (start, 60)


def compared(counts: dict[Kind, int], named: int = 0, after: int = 0, stopped: str = "") -> Comparison:
    return Comparison(
        topic="orders",
        partition=1,
        target="again",
        records=1000,
        bytes=5,
        same=0,
        counts=counts,
        differences=tuple(Difference(what=("value",), source=n) for n in range(named)),
        after=after,
        stopped=stopped,
    )


def test_findings_in_words() -> None:
    wrong = compared({"value": 2, "missing": 1}, after=3)
    assert findings_of([wrong], False) == [
        "again-1: of 1,000 records compared, 1 missing in the topic, 2 with another value"
    ]
    assert findings_of([compared({}, after=3)], False) == []
    assert findings_of([compared({}, after=3)], True) == [
        "again-1: of 1,000 records compared, 3 after the last restored one"
    ]
    (stopped,) = findings_of([compared({}, stopped="too many")], False)
    assert "not compared any further: too many" in stopped
    assert [is_wrong(compared({}, after=1), exact) for exact in (False, True)] == [False, True]
    assert sum_counts([wrong, wrong, compared({})]) == {"missing": 2, "value": 4}


def test_empty_partitions_are_counted(plan: RestorePlan) -> None:
    """Nothing is compared of a partition that is empty on both sides."""
    (topic,) = topics_of(plan.topics, [], set(), set(), False)
    assert (topic.target, topic.partitions, topic.records, topic.ok) == ("again", 3, 0, True)


def test_so_many_are_named_in_all() -> None:
    results = [compared({"value": 3}, named=3), compared({"value": 2}, named=2)]
    for show in range(6):
        assert sum(len(r.differences) for r in fewer_named(results, show)) == min(show, 5)
    assert [len(r.differences) for r in fewer_named(results, 4)] == [3, 1]
