"""Waiting for a transaction's markers, and where groups at the end of a log belong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import numpy as np
import pytest

from kbackup.archive.models import GroupOffset
from kbackup.archive.restores.offset_map import runs_table
from kbackup.archive.restores.plan import PlannedGroup, PlannedTopic, RestorePlan
from kbackup.jobs.groups.job import offset_maps
from kbackup.jobs.restore import job as visible
from kbackup.jobs.restore.job import wait_visible
from kbackup.kafka.admin.cluster import Cluster, Topic
from kbackup.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
RUNS = runs_table(
    {
        A: (np.array([0, 7]), np.array([0, 5]), np.array([4, 6])),  # records 0 to 10 of the target
        B: (np.array([3]), np.array([20]), np.array([1])),
    }
)


class Ends:
    """A cluster that answers with these log ends, one after the other; the last ones stay."""

    def __init__(self, *answers: dict[TopicPartition, int]) -> None:
        self._answers = list(answers)
        self.asked: list[set[TopicPartition]] = []

    def log_ends(self, partitions: Iterable[TopicPartition], isolation: str) -> dict[TopicPartition, int]:
        assert isolation == "read_committed"
        self.asked.append(set(partitions))
        ends = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return {tp: ends[tp] for tp in self.asked[-1]}

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        return {name: Topic(name, "", False, (0, 1), 1) for name in names}

    def log_starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)


def _cluster(ends: Ends) -> Cluster:
    return cast(Cluster, ends)


def test_waits_for_the_markers_of_each_partition() -> None:
    ends = Ends({A: 0, B: 22}, {A: 5, B: 22}, {A: 12, B: 22})
    assert wait_visible(_cluster(ends), RUNS) == []
    assert ends.asked == [{A, B}, {A}, {A}]


def test_says_what_stays_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visible, "_MARKERS", 0.0)
    assert wait_visible(_cluster(Ends({A: 12, B: 20})), RUNS) == [B]


@pytest.mark.parametrize(
    ("transactions", "end", "expected"),
    [
        (True, 12, 12),  # behind the marker
        (True, 30, 11),  # others have written since: their records are not skipped
        (False, 11, 11),
        (False, 12, 11),
    ],
)
def test_past_the_end_is_after_the_restore(transactions: bool, end: int, expected: int) -> None:
    plan = RestorePlan(
        restore_id="r",
        archive_id="a",
        restore_point=1,
        target_cluster_id="c",
        created_at="2026-01-01T00:00:00Z",
        transactions=transactions,
        transaction_bytes=1,
        into_existing=False,
        topics=(
            PlannedTopic(
                source="s",
                incarnation=1,
                as_of=1,
                target="t",
                partitions=2,
                records=11,
                bytes=1,
                configs={},
                replication_factor=1,
            ),
        ),
        units=(),
        groups=(PlannedGroup(source="g", target="g", offsets=(GroupOffset(topic="s", partition=0, offset=13),)),),
    )
    maps, unusable = offset_maps(_cluster(Ends({A: end})), plan, [A], RUNS)
    assert unusable == {}
    assert maps[A].map(13).offset == expected
