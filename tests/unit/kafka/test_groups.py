"""Groups without a broker: how commits are cut, and who is asked again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from confluent_kafka import Consumer, KafkaError
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.metadata import FindCoordinatorRequest

from kbackup.kafka.admin_protocol.endpoint import NoConnectionError
from kbackup.kafka.client import Connection
from kbackup.kafka.groups import admin as group_admin
from kbackup.kafka.groups.admin import GroupAdmin, GroupInfo, partition_of, probe_groups
from kbackup.kafka.groups.calls import Answer, DescribedGroup, GroupCalls, committed_of, partitions_of
from kbackup.kafka.native.library import lib
from kbackup.types import CommittedOffset, TopicPartition
from tests.support.mock_cluster import OFFSET_COMMIT, OFFSET_FETCH, MockCluster, mock_cluster
from tests.unit.kafka.conftest import answer

NOWHERE: dict[str, str | int | float | bool] = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.none() | st.integers(0, 99), st.text(max_size=300))))
def test_partition_lists_hold_committed_offsets(entries: list[tuple[int, int | None, str]]) -> None:
    offsets = [
        CommittedOffset(TopicPartition(f"topic-{n}", n), offset, epoch, metadata)
        for n, (offset, epoch, metadata) in enumerate(entries)
    ]
    made = partitions_of(offsets, whole=True)
    try:
        assert [committed_of(made.contents.elems[n]) for n in range(made.contents.cnt)] == offsets
    finally:
        lib.rd_kafka_topic_partition_list_destroy(made)


def test_names_that_c_can_not_hold_are_refused_unasked() -> None:
    calls = GroupCalls(Consumer({**NOWHERE, "group.id": "g"}), 1)
    said = {group: str(answer) for group, answer in calls.committed(["", "a\0b"])}
    assert "its name is empty" in said[""]
    assert "its name has a NUL byte" in said["a\0b"]


def test_commits_are_cut_to_what_a_batch_holds() -> None:
    some = [CommittedOffset(TopicPartition("t", p), p, None, "m" * 4096) for p in range(500)]
    portions = list(group_admin._portions(some))
    assert [each for portion in portions for each in portion] == some
    sizes = [sum(len(c.metadata) for c in portion) for portion in portions]
    assert max(sizes) <= 256 << 10
    assert len(portions) < 10
    huge = CommittedOffset(TopicPartition("t", 0), 0, None, "m" * (1 << 20))
    assert list(group_admin._portions([huge, huge])) == [[huge], [huge]]
    assert list(group_admin._portions([])) == []


# Questions about groups while their coordinator moves: they are asked again, and end nothing.


MOVED = KafkaError.NOT_COORDINATOR


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    with mock_cluster() as made:
        yield made


@pytest.fixture
def groups(cluster: MockCluster) -> GroupAdmin:
    connection = Connection({"bootstrap.servers": cluster.bootstrap}, "source")
    return GroupAdmin(connection, connection.admin())


def test_offsets_are_read_once_the_coordinator_is_known(cluster: MockCluster, groups: GroupAdmin) -> None:
    cluster.fail(OFFSET_FETCH, MOVED, MOVED)
    found, failed = groups.committed(["billing"])
    assert (found, failed) == ({"billing": []}, {})


def test_share_groups_are_asked_about_at_their_coordinators(
    cluster: MockCluster, groups: GroupAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is elsewhere, one's coordinator loads at first, one's can't be reached, and one lacks a right."""
    answers = [{"loads": 14}, {}]

    class FakeBroker:
        versions: ClassVar = {90: (0, 0)}

        def __init__(self, address: tuple[str, int] | None) -> None:
            self.address = address

        def close(self) -> None:
            pass

        def ask(self, request: Any) -> Any:
            if isinstance(request, FindCoordinatorRequest):
                found = [
                    SimpleNamespace(key=g, host="dead" if g == "dead" else g[:1], port=1, error_code=0)
                    for g in request.coordinator_keys
                ]
                return SimpleNamespace(coordinators=found)
            assert self.address is not None
            asked = [g.group_id for g in request.groups]
            assert {g[:1] for g in asked} == {self.address[0]}
            codes = {"denied": 30} | (answers.pop(0) if "loads" in asked else {})
            return SimpleNamespace(groups=[_described(g, codes.get(g, 0)) for g in asked])

    def opened(connection: Connection, address: tuple[str, int] | None) -> FakeBroker:
        if address == ("dead", 1):
            raise NoConnectionError("dead:1: refused")
        return FakeBroker(address)

    monkeypatch.setattr("kbackup.kafka.admin_protocol.session.open_broker", opened)
    names = ["loads", "denied", "dead", "elsewhere", "torn"]
    found, failed = groups.committed([*names, "plain"], names)
    seventh = [CommittedOffset(TopicPartition("t", 1), 7, None, "")]
    assert found == {"plain": [], "loads": seventh, "elsewhere": seventh}
    assert failed.keys() == {"denied", "dead", "torn"}
    assert "dead:1: refused" in failed["dead"]
    assert "Describe on the group" in failed["denied"]
    assert "t-0: gone" in failed["torn"]
    FakeBroker.versions = {}
    assert "the brokers are too old for share groups" in groups.committed(["loads"], names)[1]["loads"]


def _described(group: str, code: int) -> Any:
    """Partition 0 has no start offset yet."""
    torn = {"error_code": 3, "error_message": "gone"} if group == "torn" else {"error_code": 0, "error_message": None}
    partitions = [SimpleNamespace(partition_index=p, start_offset=o, **torn) for p, o in ((0, -1), (1, 7))]
    topics = [SimpleNamespace(topic_name="t", partitions=partitions)]
    return SimpleNamespace(group_id=group, topics=topics, error_code=code, error_message=None)


def test_offsets_are_set_once_the_coordinator_is_known(cluster: MockCluster, groups: GroupAdmin) -> None:
    cluster.create_topic("orders")
    cluster.fail(OFFSET_COMMIT, MOVED, MOVED)
    assert groups.commit("billing", [CommittedOffset(TopicPartition("orders", 0), 7, None, "")]) == ""


# Listings of groups while brokers load the partitions that hold them.


LOADING = KafkaError.COORDINATOR_LOAD_IN_PROGRESS
BILLING = GroupInfo("billing", "classic", "empty")
CONNECT = DescribedGroup("connect", "Stable", "connect")


@dataclass
class Listings:
    """The answers of brokers to each listing in turn; the last answer repeats."""

    names: list[tuple[list[DescribedGroup], KafkaError | None]] = field(default_factory=lambda: [([], None)])
    errors: list[list[KafkaError]] = field(default_factory=lambda: [[]])
    probes: list[Answer] = field(default_factory=lambda: [[]])
    partitions: int = 3
    timeouts: list[float] = field(default_factory=list)

    def groups(self, monkeypatch: pytest.MonkeyPatch) -> GroupAdmin:
        connection = Connection({"bootstrap.servers": "127.0.0.1:1"}, "source")
        groups = GroupAdmin(connection, cast(Any, self))
        calls = SimpleNamespace(names=lambda: _next(self.names), committed=self._committed)

        def open_calls(timeout: float) -> Any:
            self.timeouts.append(timeout)
            return nullcontext(cast(GroupCalls, calls))

        monkeypatch.setattr(groups, "_calls", open_calls)
        return groups

    def _committed(self, names: Iterable[str]) -> Iterator[tuple[str, Answer]]:
        answer = _next(self.probes)
        return ((name, answer) for name in names)

    def describe_topics(self, asked: Any, **_: object) -> dict[str, Any]:
        described = SimpleNamespace(partitions=range(self.partitions))
        return {name: answer(described) for name in asked.topic_names}

    def list_consumer_groups(self, **_: object) -> Any:
        billing = SimpleNamespace(
            group_id="billing", type=SimpleNamespace(name="CLASSIC"), state=SimpleNamespace(name="EMPTY")
        )
        return answer(SimpleNamespace(valid=[billing], errors=_next(self.errors)))


def _next(answers: list[Any]) -> Any:
    return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.mark.parametrize(
    "listings",
    [
        Listings(names=[([], KafkaError(LOADING)), ([], None)]),
        Listings(names=[([DescribedGroup("billing", "", "", KafkaError(LOADING))], None), ([], None)]),
        Listings(errors=[[KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE)], []]),
        Listings(probes=[KafkaError(KafkaError.NOT_COORDINATOR), []]),
        Listings(errors=[[KafkaError(KafkaError._TRANSPORT)], []]),
    ],
    ids=["every kind", "one group", "consumer groups", "a partition without a word", "a broker that has just gone"],
)
def test_groups_are_listed_again_while_a_coordinator_loads(
    listings: Listings, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    assert listings.groups(monkeypatch).listed() == ([BILLING], {})
    assert len(clock) == 1


def test_a_group_keeps_its_type_when_its_coordinator_has_loaded(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    loading = DescribedGroup("connect", "", "", KafkaError(LOADING))
    listed, failed = Listings(names=[([loading], None), ([CONNECT], None)]).groups(monkeypatch).listed()
    assert (listed, failed) == ([BILLING, GroupInfo("connect", "classic", "stable")], {})


def test_a_coordinator_that_never_loads_is_named_once(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    loading = KafkaError(LOADING)
    listings = Listings([([DescribedGroup("billing", "", "", loading)], loading)], [[loading]], [loading])
    listed, failed = listings.groups(monkeypatch).listed()
    assert (listed, failed) == ([], dict.fromkeys(["(listing 1)", "billing"], loading.str()))
    assert 30 <= sum(clock) < 31


def test_listings_after_one_that_waited_in_vain_wait_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = KafkaError(KafkaError._TIMED_OUT)
    listings = Listings(probes=[silent, silent, [], []])
    groups = listings.groups(monkeypatch)
    assert [groups.listed()[1] for _ in range(4)] == 2 * [{"(listing 1)": silent.str()}] + 2 * [{}]
    assert listings.timeouts == [30, 5, 5, 30]


@pytest.mark.parametrize("code", [KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.INVALID_GROUP_ID])
def test_coordinators_that_do_not_answer_our_user_are_not_waited_for(
    code: int, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    assert Listings(probes=[KafkaError(code)]).groups(monkeypatch).listed() == ([BILLING], {})
    assert clock == []


@pytest.mark.parametrize("partitions", [0, 1, 4, 50, 300])
def test_there_is_a_probe_for_every_partition(partitions: int) -> None:
    probes = probe_groups(partitions)
    assert [partition_of(probe, partitions) for probe in probes] == [*range(partitions)]


@pytest.mark.parametrize(
    ("group", "code"),  # of String.hashCode in Java
    [("", 0), ("abc", 96354), ("kbackup", -923059731), ("polygenelubricants", -(1 << 31))],
)
def test_groups_are_in_the_partition_of_java_s_hash(group: str, code: int) -> None:
    assert partition_of(group, 1 << 31) == (0 if code == -(1 << 31) else abs(code))
