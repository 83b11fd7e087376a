"""Requests about groups are answered in every version that is offered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kbackup.kafka.control import messages
from kbackup.serve.groups import answers as module
from kbackup.serve.groups.answers import GroupAnswers
from kbackup.serve.protocol import BROKER_ID, ErrorCode, HostileClientError
from tests.unit.serve.asking import Asking, in_loop
from tests.unit.serve.groups.builders import Contents, committed, topic_id


class Groups:
    """Answers about topics a and b, where group archived has committed for a."""

    def __init__(self, *, refuses_commits: bool = False) -> None:
        self.contents = Contents(a=2, b=1)
        self.contents.archived = {"archived": [committed("a", 0, 10, "note"), committed("a", 1, 20)]}
        self.ask = Asking(GroupAnswers(self.contents, refuses_commits=refuses_commits).apis())

    async def join(self, version: int, group: str = "g") -> Any:
        entry = messages.JoinGroupRequest.JoinGroupRequestProtocol
        message = messages.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="consumer",
            protocols=[entry(name="range", metadata=b"subscription")],
        )
        answer = await self.ask(message, version)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            message.member_id = answer.member_id
            answer = await self.ask(message, version)
        assert answer.error_code == 0
        return answer

    async def sync(self, joined: Any, version: int, group: str = "g") -> Any:
        entry = messages.SyncGroupRequest.SyncGroupRequestAssignment
        message = messages.SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[entry(member_id=joined.member_id, assignment=b"assignment")],
        )
        return await self.ask(message, version)


@pytest.fixture
def groups() -> Groups:
    return Groups()


def test_every_request_of_the_table_is_offered_from_what_old_brokers_know_to_the_newest(groups: Groups) -> None:
    offered = {name.removesuffix("Request"): (api.oldest, api.newest) for name, api in groups.ask.apis.items()}
    assert offered == {
        "FindCoordinator": (0, 6),
        "JoinGroup": (0, 9),
        "SyncGroup": (0, 5),
        "Heartbeat": (0, 4),
        "LeaveGroup": (0, 5),
        "OffsetCommit": (0, 10),
        "OffsetFetch": (1, 10),
        "OffsetDelete": (0, 0),
        "DeleteGroups": (0, 2),
        "ListGroups": (0, 5),
        "DescribeGroups": (0, 6),
        "ConsumerGroupHeartbeat": (0, 1),
        "ConsumerGroupDescribe": (0, 1),
    }


def test_the_one_broker_coordinates_every_group(groups: Groups) -> None:
    async def scenario() -> None:
        for version in groups.ask.versions("FindCoordinator"):
            message = messages.FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g", "h", "g"])
            answer = await groups.ask(message, version)
            found = answer.coordinators if version >= 4 else [answer]
            where = [(each.node_id, each.host, each.port, each.error_code) for each in found]
            assert where == [(BROKER_ID, "serve.example", 9092, 0)] * len(found)
            if version >= 4:
                assert [each.key for each in found] == ["g", "h"]

    in_loop(scenario)


@pytest.mark.parametrize(("kind", "code"), [(1, 53), (2, 42)])
def test_nobody_coordinates_transactions_and_share_groups(groups: Groups, kind: int, code: int) -> None:
    async def scenario() -> None:
        for version in groups.ask.versions("FindCoordinator")[1:]:
            message = messages.FindCoordinatorRequest(key="t", key_type=kind, coordinator_keys=["t"])
            answer = await groups.ask(message, version)
            found = answer.coordinators[0] if version >= 4 else answer
            assert (found.error_code, found.node_id) == (code, -1)
            assert found.error_message

    in_loop(scenario)


def test_a_member_goes_through_its_life_in_every_version(groups: Groups) -> None:
    async def scenario() -> None:
        for version in groups.ask.versions("JoinGroup"):
            group = f"g{version}"
            joined = await groups.join(version, group)
            assert joined.leader == joined.member_id
            assert bytes(joined.members[0].metadata) == b"subscription"
            assert joined.protocol_name == "range"
            synced = await groups.sync(joined, min(version, 5), group)
            assert bytes(synced.assignment) == b"assignment"
            beat = messages.HeartbeatRequest(
                group_id=group, generation_id=joined.generation_id, member_id=joined.member_id
            )
            assert (await groups.ask(beat, min(version, 4))).error_code == 0
            left = await _leave(groups, group, joined.member_id, min(version, 5))
            assert left == 0
            assert (await groups.ask(beat, min(version, 4))).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    in_loop(scenario)


async def _leave(groups: Groups, group: str, member_id: str, version: int) -> int:
    entry = messages.LeaveGroupRequest.MemberIdentity
    message = messages.LeaveGroupRequest(
        group_id=group, member_id=member_id, members=[entry(member_id=member_id, group_instance_id=None)]
    )
    answer = await groups.ask(message, version)
    code = answer.members[0].error_code if version >= 3 else answer.error_code
    return int(code)


def test_a_join_that_is_refused_is_answered_in_every_version(groups: Groups) -> None:
    async def scenario() -> None:
        for version in groups.ask.versions("JoinGroup"):
            message = messages.JoinGroupRequest(
                group_id="", session_timeout_ms=10_000, member_id="m", protocol_type="consumer", protocols=[]
            )
            answer = await groups.ask(message, version)
            assert (answer.error_code, answer.member_id) == (ErrorCode.INVALID_GROUP_ID, "m")

    in_loop(scenario)


def test_a_follower_waits_and_a_silent_leader_is_replaced_in_real_time(groups: Groups) -> None:
    async def scenario() -> None:
        first, second = await asyncio.gather(groups.join(0), groups.join(0))
        leader, follower = (first, second) if first.leader == first.member_id else (second, first)
        waiting = asyncio.ensure_future(groups.sync(follower, 0))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await _leave(groups, "g", leader.member_id, 0)
        answer = await waiting
        assert answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS

    in_loop(scenario)


def test_a_client_that_goes_away_while_it_waits_does_no_harm(groups: Groups) -> None:
    async def scenario() -> None:
        gone = asyncio.ensure_future(groups.join(0))
        await asyncio.sleep(0)
        gone.cancel()
        joined = await groups.join(0)
        assert joined.generation_id == 1

    in_loop(scenario)


# Offsets.


def _fetch(version: int, group: str, topics: dict[str, list[int]] | None) -> Any:
    request = messages.OffsetFetchRequest
    if version < 8:
        kind = request.OffsetFetchRequestTopic
        return request(group_id=group, topics=_asked(kind, topics, with_ids=False))
    one = request.OffsetFetchRequestGroup
    asked = _asked(one.OffsetFetchRequestTopics, topics, with_ids=True)
    return request(groups=[one(group_id=group, topics=asked)])


def _asked(kind: Any, topics: dict[str, list[int]] | None, *, with_ids: bool) -> list[Any] | None:
    if topics is None:
        return None
    entries: list[Any] = []
    for name, numbers in topics.items():
        ids = {"topic_id": topic_id(name)} if with_ids else {}
        entries.append(kind(name=name, partition_indexes=numbers, **ids))
    return entries


def _found(answer: Any, version: int) -> dict[tuple[str, int], tuple[int, str]]:
    topics = answer.topics if version < 8 else answer.groups[0].topics
    found: dict[tuple[str, int], tuple[int, str]] = {}
    for topic in topics:
        name = topic.name if version < 10 else next(n for n in ("a", "b", "c") if topic_id(n) == topic.topic_id)
        for each in topic.partitions:
            found[name, each.partition_index] = (each.committed_offset, each.metadata)
    return found


def test_committed_offsets_are_read_in_every_version(groups: Groups) -> None:
    async def scenario() -> None:
        for version in groups.ask.versions("OffsetFetch"):
            asked = _fetch(version, "archived", {"a": [0, 1], "b": [0]})
            answer = await groups.ask(asked, version)
            assert _found(answer, version) == {("a", 0): (10, "note"), ("a", 1): (20, ""), ("b", 0): (-1, "")}
            if version >= 2:
                whole = await groups.ask(_fetch(version, "archived", None), version)
                assert _found(whole, version) == {("a", 0): (10, "note"), ("a", 1): (20, "")}
            unknown = await groups.ask(_fetch(version, "unknown", {"a": [0]}), version)
            assert _found(unknown, version) == {("a", 0): (-1, "")}

    in_loop(scenario)


def test_offsets_of_several_groups_come_in_one_answer_each_once(groups: Groups) -> None:
    async def scenario() -> None:
        one = messages.OffsetFetchRequest.OffsetFetchRequestGroup
        asked = [one(group_id=name, topics=None) for name in ("archived", "unknown", "archived")]
        answer = await groups.ask(messages.OffsetFetchRequest(groups=asked))
        assert [(each.group_id, len(each.topics)) for each in answer.groups] == [("archived", 1), ("unknown", 0)]

    in_loop(scenario)


def test_an_unknown_topic_id_is_an_error_of_its_partitions(groups: Groups) -> None:
    async def scenario() -> None:
        answer = await groups.ask(_fetch(10, "archived", {"c": [0]}), 10)
        assert answer.groups[0].topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        commit = await groups.ask(_commit("g", {"c": 1}), 10)
        assert commit.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    in_loop(scenario)


def _commit(group: str, offsets: dict[str, int]) -> Any:
    kind = messages.OffsetCommitRequest.OffsetCommitRequestTopic
    topics: list[Any] = []
    for name, offset in offsets.items():
        partition = kind.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=None
        )
        topics.append(kind(name=name, topic_id=topic_id(name), partitions=[partition]))
    return messages.OffsetCommitRequest(group_id=group, member_id="", topics=topics)


def test_offsets_are_committed_in_every_version(groups: Groups) -> None:
    async def scenario() -> None:
        for version in groups.ask.versions("OffsetCommit"):
            answer = await groups.ask(_commit("g", {"a": 100 + version, "b": 1}), version)
            codes = [each.error_code for topic in answer.topics for each in topic.partitions]
            assert codes == [0, 0]
            fetched = await groups.ask(_fetch(9, "g", {"a": [0]}), 9)
            assert _found(fetched, 9) == {("a", 0): (100 + version, "")}

    in_loop(scenario)


def test_refused_commits_have_an_error_for_every_partition() -> None:
    groups = Groups(refuses_commits=True)

    async def scenario() -> None:
        for version in groups.ask.versions("OffsetCommit"):
            answer = await groups.ask(_commit("g", {"a": 1, "b": 1}), version)
            codes = [each.error_code for topic in answer.topics for each in topic.partitions]
            assert codes == [ErrorCode.GROUP_AUTHORIZATION_FAILED] * 2

    in_loop(scenario)


def test_a_request_that_names_too_many_partitions_ends_the_connection(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_PARTITIONS", 3)

    async def scenario() -> None:
        for version in (7, 9):
            with pytest.raises(HostileClientError, match="more than 3 partitions"):
                await groups.ask(_fetch(version, "archived", {"a": [0, 0], "b": [0, 0]}), version)
        with pytest.raises(HostileClientError, match="more than 3 partitions"):
            await groups.ask(_commit("g", {"a": 1, "b": 1, "c": 1, "d": 1}), 9)

    in_loop(scenario)


def test_groups_and_their_offsets_are_not_deleted(groups: Groups) -> None:
    async def scenario() -> None:
        for version in groups.ask.versions("DeleteGroups"):
            answer = await groups.ask(messages.DeleteGroupsRequest(groups_names=["archived", "archived"]), version)
            assert [(each.group_id, each.error_code) for each in answer.results] == [("archived", 30)]
        deleted = await groups.ask(messages.OffsetDeleteRequest(group_id="archived", topics=[]))
        assert deleted.error_code == 30

    in_loop(scenario)


# Lists and descriptions.


def test_groups_are_listed_with_state_and_type(groups: Groups) -> None:
    async def scenario() -> None:
        await groups.join(0, "joined")
        await _consumer(groups, "new")
        for version in groups.ask.versions("ListGroups"):
            answer = await groups.ask(messages.ListGroupsRequest(states_filter=[], types_filter=[]), version)
            assert [each.group_id for each in answer.groups] == ["archived", "joined", "new"]
            assert {each.protocol_type for each in answer.groups} == {"consumer"}
            if version >= 4:
                states = [each.group_state for each in answer.groups]
                assert states == ["Empty", "CompletingRebalance", "Stable"]
            if version >= 5:
                assert [each.group_type for each in answer.groups] == ["Classic", "Classic", "Consumer"]

    in_loop(scenario)


@pytest.mark.parametrize(
    ("states", "kinds", "expected"),
    [
        (["Empty"], [], ["archived"]),
        (["stable", "EMPTY"], [], ["archived", "new"]),
        ([], ["consumer"], ["new"]),
        ([], ["Classic"], ["archived"]),
        (["Stable"], ["classic"], []),
        ([], ["share"], []),
    ],
)
def test_a_list_may_have_some_states_and_types_only(
    groups: Groups, states: list[str], kinds: list[str], expected: list[str]
) -> None:
    async def scenario() -> None:
        await _consumer(groups, "new")
        answer = await groups.ask(messages.ListGroupsRequest(states_filter=states, types_filter=kinds))
        assert [each.group_id for each in answer.groups] == expected

    in_loop(scenario)


def test_groups_are_described_in_every_version(groups: Groups) -> None:
    async def scenario() -> None:
        joined = await groups.join(0, "joined")
        await groups.sync(joined, 0, "joined")
        for version in groups.ask.versions("DescribeGroups"):
            message = messages.DescribeGroupsRequest(
                groups=["archived", "joined", "unknown", "joined"], include_authorized_operations=True
            )
            answer = await groups.ask(message, version)
            archived, there, unknown = answer.groups
            assert (archived.error_code, archived.group_state, archived.protocol_type) == (0, "Empty", "consumer")
            assert (there.group_state, there.protocol_data) == ("Stable", "range")
            (member,) = there.members
            assert (member.member_id, member.client_host) == (joined.member_id, "/127.0.0.1")
            assert bytes(member.member_metadata) == b"subscription"
            assert bytes(member.member_assignment) == b"assignment"
            assert unknown.group_state == "Dead"
            assert unknown.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
            if version >= 3:
                assert there.authorized_operations == {3, 8}

    in_loop(scenario)


async def _consumer(groups: Groups, group: str, version: int = 1) -> Any:
    message = messages.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="m1",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["a"],
        topic_partitions=[],
    )
    return await groups.ask(message, version)


def test_a_member_of_the_new_protocol_gets_partitions_by_topic_id(groups: Groups) -> None:
    async def scenario() -> None:
        for version in groups.ask.versions("ConsumerGroupHeartbeat"):
            answer = await _consumer(groups, f"g{version}", version)
            assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "m1", 1)
            assert answer.heartbeat_interval_ms == 1000
            assigned = [(each.topic_id, each.partitions) for each in answer.assignment.topic_partitions]
            assert assigned == [(topic_id("a"), [0, 1])]
            quiet = messages.ConsumerGroupHeartbeatRequest(group_id=f"g{version}", member_id="m1", member_epoch=1)
            assert (await groups.ask(quiet, version)).assignment is None

    in_loop(scenario)


def test_the_error_of_a_heartbeat_has_a_message(groups: Groups) -> None:
    async def scenario() -> None:
        message = messages.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m1", member_epoch=3)
        answer = await groups.ask(message)
        assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert answer.error_message == "Group g is not a consumer group."

    in_loop(scenario)


def test_groups_of_the_new_protocol_are_described(groups: Groups) -> None:
    async def scenario() -> None:
        await _consumer(groups, "new")
        for version in groups.ask.versions("ConsumerGroupDescribe"):
            message = messages.ConsumerGroupDescribeRequest(
                group_ids=["new", "archived"], include_authorized_operations=True
            )
            new, archived = (await groups.ask(message, version)).groups
            assert (new.error_code, new.group_state, new.assignor_name) == (0, "Stable", "uniform")
            assert new.group_epoch == new.assignment_epoch == 1
            assert new.authorized_operations == 1 << 3 | 1 << 8
            (member,) = new.members
            assert (member.member_id, member.client_host, member.subscribed_topic_names) == ("m1", "/127.0.0.1", ["a"])
            for assignment in (member.assignment, member.target_assignment):
                assert [(t.topic_name, t.partitions) for t in assignment.topic_partitions] == [("a", [0, 1])]
            assert archived.error_code == ErrorCode.GROUP_ID_NOT_FOUND
            assert archived.error_message == "Group archived is not a consumer group."

    in_loop(scenario)
