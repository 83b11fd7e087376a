"""A restore that is run again with its id: the same options, and what it restored is still there."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from kbackup.archive import layout
from kbackup.archive.models import dump
from kbackup.archive.restores.offset_map import runs_table, write_map
from kbackup.archive.restores.plan import PlannedTopic, RestorePlan
from kbackup.config.models import Restore
from kbackup.errors import MismatchError
from kbackup.jobs.restore.plan import check_same_options, given_options
from kbackup.jobs.restore.preflight import check_still_there
from kbackup.kafka.admin.cluster import Cluster, Topic
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from kbackup.types import TopicPartition

PLACE = TopicPartition("copy", 1)
ASKED = Restore(topics=("b", "a"), map_regex=("^=x.", "a=b"), map={"a": "copy"}, topic_config={"x": "1"})


def plan(options: Restore | None = ASKED) -> RestorePlan:
    topic = PlannedTopic(
        source="a",
        incarnation=1,
        as_of=1,
        target="copy",
        partitions=2,
        records=10,
        bytes=100,
        configs={},
        replication_factor=1,
    )
    return RestorePlan(
        restore_id="r",
        archive_id="x",
        restore_point=1,
        target_cluster_id="c",
        created_at="",
        transactions=True,
        transaction_bytes=1,
        into_existing=False,
        topics=(topic,),
        units=(),
        groups=(),
        options=None if options is None else given_options(options),
    )


@pytest.mark.parametrize(
    "same",
    [
        {},
        {"topics": ("a", "b")},
        {"state": "elsewhere", "restore_id": "r", "transactions": False, "transaction_bytes": 5},
    ],
)
def test_equal_options_are_accepted(same: dict[str, Any]) -> None:
    check_same_options(plan(), msgspec.structs.replace(ASKED, **same))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"topics": ("a",)}, r'topics was \["a","b"\], now \["a"\]'),
        ({"map_regex": ("a=b", "^=x.")}, "map_regex was"),
        ({"topic_config": {}}, r'topic_config was \{"x":"1"\}, now unset'),
        ({"no_groups": True, "to_time": "2h ago"}, 'to_time was unset, now "2h ago"; no_groups was unset, now true'),
    ],
)
def test_other_options_are_refused_by_their_names(other: dict[str, Any], message: str) -> None:
    with pytest.raises(MismatchError, match=f"restore r was done with other options: {message}"):
        check_same_options(plan(), msgspec.structs.replace(ASKED, **other))


def test_a_plan_may_have_the_former_name_of_an_option() -> None:
    given = given_options(ASKED)
    older = msgspec.structs.replace(plan(), options={"backup": given.pop("restore_point"), **given})
    check_same_options(older, ASKED)
    with pytest.raises(MismatchError, match='restore_point was "latest", now 1'):
        check_same_options(older, msgspec.structs.replace(ASKED, restore_point=1))


def test_a_plan_of_an_older_version_has_no_options() -> None:
    check_same_options(plan(None), Restore())


@dataclass
class FakeTarget:
    """Topic copy with `partitions`, whose partition 1 has the offsets [start, end)."""

    partitions: tuple[int, ...] = (0, 1)
    start: int = 0
    end: int = 20
    names: set[str] = field(default_factory=lambda: {"copy"})

    def topics(self, names: Any) -> dict[str, Topic]:
        return {n: Topic(n, "", False, self.partitions, 1) for n in names if n in self.names}

    def log_starts(self, partitions: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.start)

    def log_ends(self, partitions: Any, isolation: str) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.end)


@pytest.fixture
def state(tmp_path: Path) -> Store:
    """Of restore r, which put records at offsets 2 to 4 and 10 to 16 of copy-1."""
    store = FileStore(tmp_path)
    store.put(layout.restore_key("r", layout.PLAN), dump(plan()))
    runs = tuple(np.array(column, np.int64) for column in ([0, 50], [2, 10], [3, 7]))
    write_map(store, "r", [runs_table({PLACE: cast(Any, runs)})])
    return store


def check(state: Store, target: FakeTarget) -> None:
    check_still_there(cast(Cluster, target), state, plan())


def test_restored_records_on_the_target_are_accepted(state: Store) -> None:
    check(state, FakeTarget())
    check(state, FakeTarget(start=2, end=17))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (FakeTarget(names=set()), "topic copy of finished restore r is not in the target"),
        (FakeTarget(partitions=(0,)), "topic copy of finished restore r has fewer partitions"),
        (FakeTarget(start=3), r"offsets 2 to 17 \(exclusive\) of copy-1, which has 3 to 20 now"),
        (FakeTarget(end=16), r"offsets 2 to 17 \(exclusive\) of copy-1, which has 0 to 16 now"),
    ],
)
def test_deleted_records_are_reported(state: Store, target: FakeTarget, message: str) -> None:
    with pytest.raises(MismatchError, match=message):
        check(state, target)
