"""Groups by brokers that answer what a test says: who is asked, how often, and what their answers mean."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.consumer import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

from kbackup.errors import ClusterError
from kbackup.kafka.client import Connection
from kbackup.kafka.control import groups as group_module
from kbackup.kafka.control import router as routing
from kbackup.kafka.control.groups import (
    OFFSETS_TOPIC,
    GroupAdmin,
    GroupInfo,
    partition_of,
    probe_groups,
    stable_offsets,
)
from kbackup.kafka.control.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from kbackup.kafka.control.router import Router
from kbackup.types import CommittedOffset, TopicPartition
from tests.support.fake_broker import FakeCluster, HangUp, fake_cluster

MOVED, LOADING, NOT_AVAILABLE = 16, 14, 15
DENIED, UNKNOWN_TOPIC, UNKNOWN_MEMBER, NOT_FOUND, UNSTABLE, NOT_EMPTY = 30, 3, 25, 69, 88, 68
TP = TopicPartition("t", 1)
SEVENTH = CommittedOffset(TP, 7, None, "")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "PAUSE_SECONDS", 0.01)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between listings; time passes in nothing else."""
    pauses: list[float] = []
    fake = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr(group_module, "time", fake)
    return pauses


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster(2) as made:
        yield made


@pytest.fixture
def groups(cluster: FakeCluster) -> Iterator[GroupAdmin]:
    router = cluster.router("source")
    yield GroupAdmin(router)
    router.close()


class Offsets:
    """What groups have committed. `errors` are answered first, one for each request that asks about the group;
    `torn` are partitions that can't be read."""

    def __init__(self, held: Mapping[str, Sequence[CommittedOffset]]) -> None:
        self.held = {group: [*offsets] for group, offsets in held.items()}
        self.errors: dict[str, list[int]] = defaultdict(list)
        self.torn: dict[TopicPartition, int] = {}

    def fetch(self, request: Any) -> Any:
        if request.version < 8:
            code, topics = self._answer(request.group_id, OffsetFetchResponse.OffsetFetchResponseTopic)
            return OffsetFetchResponse(throttle_time_ms=0, topics=topics, error_code=code)
        entry = OffsetFetchResponse.OffsetFetchResponseGroup
        answered = []
        for asked in request.groups:
            code, topics = self._answer(asked.group_id, entry.OffsetFetchResponseTopics)
            answered.append(entry(group_id=asked.group_id, topics=topics, error_code=code))
        return OffsetFetchResponse(throttle_time_ms=0, groups=answered)

    def _answer(self, group: str, topic: Any) -> tuple[int, list[Any]]:
        if self.errors[group]:
            return self.errors[group].pop(0), []
        partition = getattr(topic, "OffsetFetchResponsePartitions", None) or topic.OffsetFetchResponsePartition
        topics = []
        for each in self.held.get(group, ()):
            entry = partition(
                partition_index=each.tp.partition,
                committed_offset=each.offset,
                committed_leader_epoch=-1 if each.leader_epoch is None else each.leader_epoch,
                metadata=each.metadata,
                error_code=self.torn.get(each.tp, 0),
            )
            topics.append(topic(name=each.tp.topic, partitions=[entry]))
        return 0, topics

    def commit(self, request: Any) -> Any:
        code = self.errors[request.group_id].pop(0) if self.errors[request.group_id] else 0
        entry = OffsetCommitResponse.OffsetCommitResponseTopic
        topics = []
        for topic in request.topics:
            partitions = []
            for each in topic.partitions:
                tp = TopicPartition(topic.name, each.partition_index)
                epoch = each.committed_leader_epoch
                known = epoch if epoch >= 0 else None
                offset = CommittedOffset(tp, each.committed_offset, known, each.committed_metadata)
                self.held.setdefault(request.group_id, []).append(offset)
                partitions.append(entry.OffsetCommitResponsePartition(partition_index=tp.partition, error_code=code))
            topics.append(entry(name=topic.name, partitions=partitions))
        return OffsetCommitResponse(throttle_time_ms=0, topics=topics)


def offsets_of(cluster: FakeCluster, held: Mapping[str, Sequence[CommittedOffset]], newest: int = 10) -> Offsets:
    """Let every broker answer for what groups have committed, and take commits."""
    offsets = Offsets(held)
    cluster.on(OffsetFetchRequest, offsets.fetch, newest=newest)
    cluster.on(OffsetCommitRequest, offsets.commit)
    return offsets


# What groups have committed.


@pytest.mark.parametrize(("newest", "requests"), [(10, 1), (9, 1), (8, 1), (7, 3), (5, 3)])
def test_many_groups_are_asked_about_at_once_where_brokers_know_that(
    newest: int, requests: int, cluster: FakeCluster, groups: GroupAdmin
) -> None:
    held = {"a": [SEVENTH], "b": [CommittedOffset(TP, 8, 3, "x\0y\0")], "none": []}
    offsets_of(cluster, held, newest)
    assert groups.committed(held) == (held, {})
    assert len(cluster.asked(OffsetFetchRequest)) == requests


def test_offsets_are_in_the_order_of_their_partitions(cluster: FakeCluster, groups: GroupAdmin) -> None:
    others = [CommittedOffset(TopicPartition(topic, p), 1, None, "") for topic, p in (("a", 10), ("a", 9), ("A", 1))]
    offsets_of(cluster, {"g": [SEVENTH, *others]})
    positions, _ = groups.committed(["g"])
    assert positions["g"] == [others[2], others[1], others[0], SEVENTH]


def test_a_partition_that_can_not_be_read_is_the_error_of_its_group(cluster: FakeCluster, groups: GroupAdmin) -> None:
    offsets_of(cluster, {"torn": [SEVENTH], "whole": []}).torn[TP] = UNKNOWN_TOPIC
    found, failed = groups.committed(["torn", "whole"])
    assert found == {"whole": []}
    assert "t-1: Broker: Unknown topic or partition" in failed["torn"]


def test_a_partition_without_an_offset_is_left_out(cluster: FakeCluster, groups: GroupAdmin) -> None:
    offsets_of(cluster, {"g": [CommittedOffset(TP, -1, None, ""), CommittedOffset(TopicPartition("t", 2), 0, 0, "")]})
    positions, _ = groups.committed(["g"])
    assert positions == {"g": [CommittedOffset(TopicPartition("t", 2), 0, 0, "")]}


@pytest.mark.parametrize("code", [MOVED, LOADING, NOT_AVAILABLE])
def test_offsets_are_read_once_the_coordinator_is_ready(code: int, cluster: FakeCluster, groups: GroupAdmin) -> None:
    offsets_of(cluster, {"billing": [SEVENTH]}).errors["billing"] = [code, code]
    assert groups.committed(["billing", "other"]) == ({"billing": [SEVENTH], "other": []}, {})


def test_a_denied_group_names_the_missing_right(cluster: FakeCluster, groups: GroupAdmin) -> None:
    offsets_of(cluster, {}).errors["denied"] = [DENIED]
    found, failed = groups.committed(["denied", "other"])
    assert found == {"other": []}
    assert "it takes Describe on the group and on its topics" in failed["denied"]


def test_each_group_is_asked_about_at_its_coordinator(cluster: FakeCluster, groups: GroupAdmin) -> None:
    offsets_of(cluster, {"here": [SEVENTH], "there": [SEVENTH]})
    cluster.coordinators["there"] = 2
    positions, _ = groups.committed(["here", "there"])
    assert positions.keys() == {"here", "there"}
    asked = {node: [g.group_id for r in cluster.asked(OffsetFetchRequest, node) for g in r.groups] for node in (1, 2)}
    assert asked == {1: ["here"], 2: ["there"]}


def test_groups_whose_answer_is_too_large_together_are_asked_about_alone(cluster: FakeCluster) -> None:
    held = {f"g{n}": [CommittedOffset(TP, n, None, "m" * 4000)] for n in range(20)}
    offsets_of(cluster, held)
    router = cluster.router(receive_message_max_bytes="20000")
    groups = GroupAdmin(router)
    assert groups.committed(held) == (held, {})
    router.close()


def test_names_that_no_message_can_hold_are_refused_unasked(cluster: FakeCluster, groups: GroupAdmin) -> None:
    offsets_of(cluster, {"a\0b": [SEVENTH]})
    found, failed = groups.committed(["", "\udcff", "a\0b"])
    assert found == {"a\0b": [SEVENTH]}
    assert "its name is empty" in failed[""]
    assert "its name is not UTF-8" in failed["\udcff"]


# The progress of a restore.


def test_progress_is_read_once_no_transaction_is_open(cluster: FakeCluster) -> None:
    offsets_of(cluster, {"g": [SEVENTH]}).errors["g"] = [UNSTABLE, MOVED]
    router = cluster.router()
    assert stable_offsets(router, "g", [TP]) == [SEVENTH]
    requests = cluster.asked(OffsetFetchRequest)
    assert [request.require_stable for request in requests] == [True] * 3
    assert [topic.partition_indexes for topic in requests[0].groups[0].topics] == [[1]]
    router.close()


def test_progress_is_not_read_where_an_open_transaction_would_not_show(cluster: FakeCluster) -> None:
    offsets_of(cluster, {"g": [SEVENTH]}, newest=6)
    router = cluster.router()
    refused = stable_offsets(router, "g", [TP])
    assert isinstance(refused, KafkaError)
    assert refused.code() == KafkaError.UNSUPPORTED_VERSION
    assert cluster.asked(OffsetFetchRequest) == []
    router.close()


# Changes.


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.none() | st.integers(0, 99), st.text(max_size=300))))
def test_what_is_committed_is_what_is_read(entries: list[tuple[int, int | None, str]]) -> None:
    wanted = [
        CommittedOffset(TopicPartition(f"topic-{n:03}", n), offset, epoch, metadata)
        for n, (offset, epoch, metadata) in enumerate(entries)
    ]
    with fake_cluster() as cluster:
        offsets = offsets_of(cluster, {"g": []})
        router = cluster.router()
        groups = GroupAdmin(router)
        assert groups.commit("g", wanted) == ""
        positions, _ = groups.committed(["g"])
        assert positions == {"g": wanted} == offsets.held
        router.close()


def test_offsets_are_set_once_the_coordinator_is_known(cluster: FakeCluster, groups: GroupAdmin) -> None:
    offsets_of(cluster, {}).errors["billing"] = [MOVED, LOADING]
    assert groups.commit("billing", [SEVENTH]) == ""


@pytest.mark.parametrize(
    ("code", "words"), [(UNKNOWN_MEMBER, "t-1: Broker: Unknown member"), (UNKNOWN_TOPIC, "t-1: Broker: Unknown topic")]
)
def test_a_refused_commit_says_why_at_once_and_others_are_made(
    code: int, words: str, cluster: FakeCluster, groups: GroupAdmin
) -> None:
    offsets = offsets_of(cluster, {})
    offsets.errors["busy"] = [code]
    refusals = groups.commit_all({"busy": [SEVENTH], "free": [SEVENTH]})
    assert words in refusals["busy"]
    assert refusals["free"] == ""
    assert len(cluster.asked(OffsetCommitRequest)) == 2


def test_commits_are_cut_to_what_a_batch_holds(cluster: FakeCluster, groups: GroupAdmin) -> None:
    some = [CommittedOffset(TopicPartition("t", p), p, None, "m" * 4096) for p in range(500)]
    offsets = offsets_of(cluster, {})
    assert groups.commit("g", some) == ""
    assert offsets.held["g"] == some
    requests = cluster.asked(OffsetCommitRequest)
    sizes = [sum(len(p.committed_metadata) for t in r.topics for p in t.partitions) for r in requests]
    assert max(sizes) <= 256 << 10
    assert len(sizes) < 10


def test_what_is_too_large_for_a_batch_goes_alone(cluster: FakeCluster, groups: GroupAdmin) -> None:
    offsets_of(cluster, {})
    huge = [CommittedOffset(TopicPartition("t", p), 0, None, "m" * (1 << 20)) for p in range(2)]
    assert groups.commit("g", huge) == ""
    requests = cluster.asked(OffsetCommitRequest)
    assert [[p.partition_index for t in r.topics for p in t.partitions] for r in requests] == [[0], [1]]


def test_without_offsets_nothing_is_committed(cluster: FakeCluster, groups: GroupAdmin) -> None:
    offsets_of(cluster, {})
    assert groups.commit("g", []) == ""
    assert cluster.asked(OffsetCommitRequest) == []


def test_after_a_refusal_nothing_more_of_the_group_is_set(cluster: FakeCluster, groups: GroupAdmin) -> None:
    offsets_of(cluster, {}).errors["g"] = [UNKNOWN_MEMBER]
    some = [CommittedOffset(TopicPartition("t", p), p, None, "m" * 4096) for p in range(500)]
    assert "Unknown member" in groups.commit("g", some)
    assert len(cluster.asked(OffsetCommitRequest)) == 1


def test_removing_offsets_of_a_missing_group_removes_them(cluster: FakeCluster, groups: GroupAdmin) -> None:
    def answer(request: Any) -> Any:
        if request.group_id == "gone":
            return OffsetDeleteResponse(error_code=NOT_FOUND, throttle_time_ms=0, topics=[])
        topic = OffsetDeleteResponse.OffsetDeleteResponseTopic
        code = 86 if request.group_id == "reads" else 0
        partition = topic.OffsetDeleteResponsePartition(partition_index=1, error_code=code)
        topics = [topic(name="t", partitions=[partition])]
        return OffsetDeleteResponse(error_code=0, throttle_time_ms=0, topics=topics)

    cluster.on(OffsetDeleteRequest, answer)
    refusals = groups.remove({"gone": [SEVENTH], "g": [SEVENTH], "reads": [SEVENTH]})
    assert (refusals["gone"], refusals["g"]) == ("", "")
    assert "t-1: " in refusals["reads"]


def test_a_missing_group_counts_as_deleted(cluster: FakeCluster, groups: GroupAdmin) -> None:
    codes = {"gone": [NOT_FOUND], "loads": [LOADING, 0], "busy": [NOT_EMPTY]}

    def answer(request: Any) -> Any:
        result = DeleteGroupsResponse.DeletableGroupResult
        results = []
        for group in request.groups_names:
            code = codes[group].pop(0) if codes.get(group) else 0
            results.append(result(group_id=group, error_code=code))
        return DeleteGroupsResponse(throttle_time_ms=0, results=results)

    cluster.on(DeleteGroupsRequest, answer)
    refusals = groups.delete_each(["gone", "loads", "busy", "plain"])
    assert {group for group, why in refusals.items() if not why} == {"gone", "loads", "plain"}
    assert "The group is not empty" in refusals["busy"]
    codes["busy"] = [NOT_EMPTY]
    with pytest.raises(ClusterError, match="failed deleting group busy: Broker: The group is not empty"):
        groups.delete(["plain", "busy"])


# Share groups.


def test_share_groups_are_asked_about_at_their_coordinators(cluster: FakeCluster, groups: GroupAdmin) -> None:
    """One is elsewhere, one's coordinator loads at first, and one lacks a right; partition 0 has no start offset."""
    codes = {"loads": [LOADING], "denied": [DENIED]}
    entry = DescribeShareGroupOffsetsResponse.Group

    def described(group: str) -> Any:
        torn = {"error_code": UNKNOWN_TOPIC, "error_message": "gone"} if group == "torn" else {"error_code": 0}
        starts = {0: -1, 1: 7}
        partitions = [
            entry.Topic.Partition(partition_index=p, start_offset=start, leader_epoch=0, **torn)
            for p, start in starts.items()
        ]
        code = codes[group].pop(0) if codes.get(group) else 0
        return entry(group_id=group, topics=[entry.Topic(topic_name="t", partitions=partitions)], error_code=code)

    def answer(request: Any) -> Any:
        return DescribeShareGroupOffsetsResponse(groups=[described(group.group_id) for group in request.groups])

    cluster.on(DescribeShareGroupOffsetsRequest, answer)
    offsets_of(cluster, {})
    cluster.coordinators["elsewhere"] = 2
    share = ["loads", "denied", "elsewhere", "torn"]
    found, failed = groups.committed([*share, "plain"], share)
    assert found == {"plain": [], "loads": [SEVENTH], "elsewhere": [SEVENTH]}
    assert failed.keys() == {"denied", "torn"}
    assert "Describe on the group" in failed["denied"]
    assert "t-0: gone" in failed["torn"]
    asked = [group.group_id for r in cluster.asked(DescribeShareGroupOffsetsRequest, 2) for group in r.groups]
    assert asked == ["elsewhere"]


def test_start_offsets_are_set_and_taken_away(cluster: FakeCluster, groups: GroupAdmin) -> None:
    def answer(request: Any) -> Any:
        code = NOT_EMPTY if request.group_id == "busy" else 0
        return AlterShareGroupOffsetsResponse(error_code=code, error_message="it has members", responses=[])

    cluster.on(AlterShareGroupOffsetsRequest, answer)
    cluster.on(DescribeShareGroupOffsetsRequest, answer)
    refusals = groups.commit_all({"s": [SEVENTH], "busy": [SEVENTH]}, {"s", "busy"})
    assert refusals["s"] == ""
    assert "it has members" in refusals["busy"]
    assert groups.remove({"s": [SEVENTH]}, {"s"}) == {"s": ""}
    starts = [r.topics[0].partitions[0].start_offset for r in cluster.asked(AlterShareGroupOffsetsRequest)]
    assert starts == [7, 7, -1]


def test_brokers_without_share_groups_are_named_too_old(cluster: FakeCluster, groups: GroupAdmin) -> None:
    _, refused = groups.committed(["s"], {"s"})
    assert "the brokers are too old for share groups" in refused["s"]
    assert "the brokers are too old for share groups" in groups.commit_all({"s": [SEVENTH]}, {"s"})["s"]


# Members.


def test_members_of_groups_of_every_kind_are_counted(cluster: FakeCluster, groups: GroupAdmin) -> None:
    cluster.on(DescribeGroupsRequest, _classic_groups)
    cluster.on(ConsumerGroupDescribeRequest, _consumer_groups)
    kinds = {"new": "Consumer", "shared": "Share", "quiet": "Share", "flows": "Streams"}
    states = {"quiet": "Empty"}
    listed = [(group, kind, states.get(group, "Stable")) for group, kind in kinds.items()]
    cluster.on(ListGroupsRequest, lambda request: listing(*listed))
    members, failed = groups.members(["one", "two", "empty", *kinds, "gone", "denied"])
    assert members == {
        "one": "1 live member",
        "two": "2 live members",
        "empty": "",
        "new": "1 live member",
        "shared": "live members",
        "quiet": "",
        "flows": "live members",
        "gone": "",
    }
    assert failed.keys() == {"denied"}
    assert "it takes Describe on the group" in failed["denied"]


def test_old_brokers_call_a_group_that_is_not_there_dead(cluster: FakeCluster, groups: GroupAdmin) -> None:
    cluster.on(DescribeGroupsRequest, _classic_groups, newest=5)
    cluster.on(ListGroupsRequest, lambda request: listing(), newest=4)
    assert groups.members(["two", "gone"]) == ({"two": "2 live members", "gone": ""}, {})


def _classic_groups(request: Any) -> Any:
    entry = DescribeGroupsResponse.DescribedGroup
    member = entry.DescribedGroupMember(
        member_id="m", client_id="c", client_host="h", member_metadata=b"", member_assignment=b""
    )
    described = []
    for group in request.groups:
        members = {"one": [member], "two": [member, member]}.get(group, [])
        here = group in ("one", "two", "empty")
        code = 0 if here or request.version < 6 else NOT_FOUND
        described.append(
            entry(
                error_code=DENIED if group == "denied" else code,
                error_message=None,
                group_id=group,
                group_state="Stable" if here else "Dead",
                protocol_type="",
                protocol_data="",
                members=members,
                authorized_operations=None,
            )
        )
    return DescribeGroupsResponse(throttle_time_ms=0, groups=described)


def _consumer_groups(request: Any) -> Any:
    assert request.group_ids == ["new"]
    entry = ConsumerGroupDescribeResponse.Group
    owns = entry.Member.Assignment(topic_partitions=[])
    targets = entry.Member.Assignment(topic_partitions=[])
    member = entry.Member(
        member_id="m",
        instance_id=None,
        rack_id=None,
        member_epoch=1,
        client_id="c",
        client_host="h",
        subscribed_topic_names=["t"],
        subscribed_topic_regex=None,
        assignment=owns,
        target_assignment=targets,
    )
    group = entry(
        error_code=0,
        error_message=None,
        group_id="new",
        group_state="Stable",
        group_epoch=1,
        assignment_epoch=1,
        assignor_name="uniform",
        members=[member],
        authorized_operations=-(1 << 31),
    )
    return ConsumerGroupDescribeResponse(throttle_time_ms=0, groups=[group])


# Listings, also while brokers load the partitions that hold groups.


BILLING = GroupInfo("billing", "classic", "empty")


def listing(*groups: tuple[str, str, str], protocol: str = "consumer", code: int = 0) -> Any:
    entry = ListGroupsResponse.ListedGroup
    listed = [
        entry(group_id=group, protocol_type=protocol, group_state=state, group_type=kind)
        for group, kind, state in groups
    ]
    return ListGroupsResponse(throttle_time_ms=0, error_code=code, groups=listed)


def lists(cluster: FakeCluster, *answers: int) -> Offsets:
    """Let broker 1 list a group, and broker 2 answer a code each time; the last one repeats. The offsets topic has
    three partitions."""
    cluster.topics[OFFSETS_TOPIC] = [1, 2, 1]
    codes = [*answers] or [0]

    def second(request: Any) -> Any:
        return listing(code=codes.pop(0) if len(codes) > 1 else codes[0])

    cluster.on(ListGroupsRequest, lambda request: listing(("billing", "Classic", "Empty")), node=1)
    cluster.on(ListGroupsRequest, second, node=2)
    return offsets_of(cluster, {})


def test_groups_of_every_kind_are_listed_with_their_states(cluster: FakeCluster, groups: GroupAdmin) -> None:
    lists(cluster)
    every = [("s", "Share", "Stable"), ("c", "Consumer", "Assigning"), ("f", "Streams", "NotReady"), ("a\0b", "", "")]
    cluster.on(ListGroupsRequest, lambda request: listing(*every), node=2)
    listed, failed = groups.listed()
    assert failed == {}
    assert listed == [
        GroupInfo("a\0b", "unknown", ""),
        BILLING,
        GroupInfo("c", "consumer", "assigning"),
        GroupInfo("f", "streams", "notready"),
        GroupInfo("s", "share", "stable"),
    ]


@pytest.mark.parametrize(("protocol", "kind"), [("connect", "classic"), ("consumer", "unknown"), ("", "unknown")])
def test_old_brokers_tell_no_types(protocol: str, kind: str, cluster: FakeCluster, groups: GroupAdmin) -> None:
    lists(cluster)
    answer = listing(("g", "", "Stable"), protocol=protocol)
    cluster.on(ListGroupsRequest, lambda request: answer, node=2, newest=4)
    found, _ = groups.listed()
    assert found == [BILLING, GroupInfo("g", kind, "stable")]


@pytest.mark.parametrize("code", [LOADING, NOT_AVAILABLE, MOVED])
def test_groups_are_listed_again_while_a_broker_loads(
    code: int, cluster: FakeCluster, groups: GroupAdmin, clock: list[float]
) -> None:
    lists(cluster, code, 0)
    assert groups.listed() == ([BILLING], {})
    assert len(clock) == 1


def test_groups_are_listed_again_while_a_partition_loads_without_a_word(
    cluster: FakeCluster, groups: GroupAdmin, clock: list[float]
) -> None:
    offsets = lists(cluster)
    offsets.errors[probe_groups(3)[1]] = [MOVED]
    assert groups.listed() == ([BILLING], {})
    assert len(clock) == 1


def test_groups_are_listed_again_where_a_broker_has_just_gone(
    cluster: FakeCluster, groups: GroupAdmin, clock: list[float]
) -> None:
    lists(cluster)
    gone = [True]

    def second(request: Any) -> Any:
        if gone.pop() if gone else False:
            raise HangUp
        return listing()

    cluster.on(ListGroupsRequest, second, node=2)
    assert groups.listed() == ([BILLING], {})
    assert len(clock) == 1


def test_a_broker_that_stays_away_is_not_waited_for_as_long_as_one_that_loads(
    cluster: FakeCluster, groups: GroupAdmin, clock: list[float]
) -> None:
    lists(cluster)
    cluster.brokers[2].stop()
    listed, failed = groups.listed()
    assert (listed, [*failed]) == ([BILLING], ["(listing 1)"])
    assert 5 <= sum(clock) < 6


def test_a_coordinator_that_never_loads_is_named_once(
    cluster: FakeCluster, groups: GroupAdmin, clock: list[float]
) -> None:
    offsets = lists(cluster, LOADING)
    for probe in probe_groups(3):
        offsets.errors[probe] = [LOADING] * 200
    listed, failed = groups.listed()
    assert (listed, failed) == ([BILLING], {"(listing 1)": KafkaError(LOADING).str()})
    assert 30 <= sum(clock) < 31


class NotingRouter(Router):
    """Notes how many seconds brokers have to answer each question."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.waits: list[float | None] = []

    def ask_each(self, *question: Any, seconds: float | None = None, **how: Any) -> Any:
        self.waits.append(seconds)
        return super().ask_each(*question, seconds=seconds, **how)


def test_listings_after_one_that_waited_in_vain_wait_for_less(cluster: FakeCluster) -> None:
    lists(cluster)
    silent = [True, True, False, False]

    def second(request: Any) -> Any:
        return None if silent.pop(0) else listing()

    cluster.on(ListGroupsRequest, second, node=2)
    failures = []
    waited: list[float | None] = []
    with closing(NotingRouter(Connection({"bootstrap.servers": cluster.bootstrap}, "target"))) as router:
        groups = GroupAdmin(router, patience=0.4, short_patience=0.2)
        for _ in range(4):
            router.waits.clear()
            _, failed = groups.listed()
            failures.append([*failed])
            waited += {*router.waits}
    assert failures == [["(listing 1)"], ["(listing 1)"], [], []]
    assert waited == [0.4, 0.2, 0.2, 0.4]


@pytest.mark.parametrize("code", [DENIED, 24])
def test_coordinators_that_do_not_answer_our_user_are_not_waited_for(
    code: int, cluster: FakeCluster, groups: GroupAdmin, clock: list[float]
) -> None:
    offsets = lists(cluster)
    for probe in probe_groups(3):
        offsets.errors[probe] = [code]
    assert groups.listed() == ([BILLING], {})
    assert clock == []


def test_before_any_group_has_committed_nobody_is_probed(cluster: FakeCluster, groups: GroupAdmin) -> None:
    lists(cluster)
    del cluster.topics[OFFSETS_TOPIC]
    assert groups.listed() == ([BILLING], {})
    assert cluster.asked(OffsetFetchRequest) == []


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
