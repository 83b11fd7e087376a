"""Kafka's requests about groups: what they say goes to the coordinator, and its answers become responses."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

from kbackup.kafka.control import messages
from kbackup.serve.groups.assignors import AssignedPartition
from kbackup.serve.groups.classic import ClassicGroup, ClassicMember, ClassicState, JoinCall, Joined, SyncCall
from kbackup.serve.groups.consumer import HEARTBEAT_SECONDS, ConsumerGroup, ConsumerMember, MemberCall
from kbackup.serve.groups.coordinator import CommitCall, Coordinator
from kbackup.serve.groups.delayed import DelayedAnswer
from kbackup.serve.groups.errors import GroupRequestError
from kbackup.serve.groups.offsets import GroupOffsets
from kbackup.serve.groups.patterns import matching_topics
from kbackup.serve.protocol import (
    BROKER_ID,
    READ_ONLY,
    Api,
    ClientRequest,
    ErrorCode,
    Handler,
    HostileClientError,
    ServedContents,
)
from kbackup.types import CommittedOffset, TopicPartition

MOST_PARTITIONS = 200_000
"""The bound of partitions that one request names: each costs some hundred bytes in the response."""

_GROUP_COORDINATOR = 0
_TRANSACTION_COORDINATOR = 1

_FIRST_WITH_KNOWN_IDS = 4  # of JoinGroup: a new member has to join a second time, with the id that it got
_FIRST_WITH_NULL_PROTOCOL = 7  # of JoinGroup
_FIRST_WITH_SKIPPING = 9  # of JoinGroup
_FIRST_WITH_MANY_MEMBERS = 3  # of LeaveGroup
_FIRST_WITH_MANY_COORDINATORS = 4  # of FindCoordinator
_FIRST_WITH_MANY_GROUPS = 8  # of OffsetFetch
_FIRST_WITH_TOPIC_IDS = 10  # of OffsetCommit and of OffsetFetch
_FIRST_WITH_MEMBER_EPOCHS = 9  # of OffsetCommit
_FIRST_WITH_NOT_FOUND = 6  # of DescribeGroups

_NO_OFFSET = -1
_NO_EPOCH = -1
_READ = 3
_DESCRIBE = 8
_OPERATIONS = {_READ, _DESCRIBE}
"""What everybody may do with a group, by Kafka's numbers."""
_NO_OPERATIONS = -(1 << 31)
"""Stands for operations that were not asked for."""

_CONSUMER_MEMBER = 1
"""The type of a member of the new protocol."""

_Answer = TypeVar("_Answer")


class GroupAnswers:
    """Answers the requests about groups. It belongs to the event loop in which it is asked first."""

    def __init__(
        self, contents: ServedContents, *, refuses_commits: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._contents = contents
        self._clock = clock
        offsets = GroupOffsets(contents, refuses_commits=refuses_commits)
        self._coordinator = Coordinator(contents, offsets, matching_topics, clock)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_deadline = math.inf

    def apis(self) -> list[Api]:
        """Return the requests that are answered here."""
        return [
            _api("FindCoordinator", self.find_coordinator),
            _api("JoinGroup", self.join_group),
            _api("SyncGroup", self.sync_group),
            _api("Heartbeat", self.heartbeat),
            _api("LeaveGroup", self.leave_group),
            _api("OffsetCommit", self.offset_commit),
            # Before version 1, brokers read offsets from ZooKeeper.
            _api("OffsetFetch", self.offset_fetch, oldest=1),
            _api("OffsetDelete", self.offset_delete),
            _api("DeleteGroups", self.delete_groups),
            _api("ListGroups", self.list_groups),
            _api("DescribeGroups", self.describe_groups),
            _api("ConsumerGroupHeartbeat", self.consumer_group_heartbeat),
            _api("ConsumerGroupDescribe", self.consumer_group_describe),
        ]

    # Coordinators.

    async def find_coordinator(self, request: ClientRequest) -> Any:
        message = request.message
        host, port = self._contents.address()
        error, words = _coordinator_error(message.key_type)
        found = {"node_id": BROKER_ID, "host": host, "port": port}
        if error is not ErrorCode.NONE:
            found = {"node_id": -1, "host": "", "port": -1}
        outcome = {"error_code": error, "error_message": words, **found}
        if request.version < _FIRST_WITH_MANY_COORDINATORS:
            return messages.FindCoordinatorResponse(**outcome)
        coordinator = messages.FindCoordinatorResponse.Coordinator
        keys = dict.fromkeys(message.coordinator_keys)
        return messages.FindCoordinatorResponse(coordinators=[coordinator(key=key, **outcome) for key in keys])

    # The classic protocol.

    async def join_group(self, request: ClientRequest) -> Any:
        message = request.message
        try:
            pending = self._coordinator.join(message.group_id, _join_call(request))
            joined = await self._wait(pending)
        except GroupRequestError as error:
            protocol = None if request.version >= _FIRST_WITH_NULL_PROTOCOL else ""
            return messages.JoinGroupResponse(
                error_code=error.code,
                protocol_name=protocol,
                leader="",
                member_id=error.member_id or message.member_id,
                members=[],
            )
        finally:
            self._set_timer()
        return _joined_response(joined)

    async def sync_group(self, request: ClientRequest) -> Any:
        message = request.message
        assignments = {each.member_id: bytes(each.assignment) for each in message.assignments}
        call = SyncCall(
            member_id=message.member_id,
            instance_id=message.group_instance_id,
            generation=message.generation_id,
            protocol_type=message.protocol_type,
            protocol=message.protocol_name,
            assignments=assignments,
        )
        try:
            pending = self._coordinator.sync(message.group_id, call)
            synced = await self._wait(pending)
        except GroupRequestError as error:
            return messages.SyncGroupResponse(error_code=error.code, assignment=b"")
        finally:
            self._set_timer()
        return messages.SyncGroupResponse(
            protocol_type=synced.protocol_type, protocol_name=synced.protocol, assignment=synced.assignment
        )

    async def heartbeat(self, request: ClientRequest) -> Any:
        message = request.message
        code = ErrorCode.NONE
        try:
            self._coordinator.heartbeat(
                message.group_id, message.member_id, message.group_instance_id, message.generation_id
            )
        except GroupRequestError as error:
            code = error.code
        return messages.HeartbeatResponse(error_code=code)

    async def leave_group(self, request: ClientRequest) -> Any:
        message = request.message
        if request.version < _FIRST_WITH_MANY_MEMBERS:
            _, code = self._leave(message.group_id, message.member_id, None)
            return messages.LeaveGroupResponse(error_code=code)
        entry = messages.LeaveGroupResponse.MemberResponse
        left: list[Any] = []
        for each in message.members:
            member_id, code = self._leave(message.group_id, each.member_id, each.group_instance_id)
            left.append(entry(member_id=member_id, group_instance_id=each.group_instance_id, error_code=code))
        return messages.LeaveGroupResponse(members=left)

    def _leave(self, group_id: str, member_id: str, instance_id: str | None) -> tuple[str, ErrorCode]:
        try:
            left = self._coordinator.leave(group_id, member_id, instance_id)
        except GroupRequestError as error:
            return member_id, error.code
        finally:
            self._set_timer()
        return left, ErrorCode.NONE

    # Committed offsets.

    async def offset_commit(self, request: ClientRequest) -> Any:
        message = request.message
        names = self._names_by_id() if request.version >= _FIRST_WITH_TOPIC_IDS else None
        _check_count(len(topic.partitions) for topic in message.topics)
        call = CommitCall(
            group_id=message.group_id,
            member_id=message.member_id,
            instance_id=message.group_instance_id,
            generation=message.generation_id_or_member_epoch,
            knows_epochs=request.version >= _FIRST_WITH_MEMBER_EPOCHS,
        )
        offsets: list[CommittedOffset] = []
        for topic in message.topics:
            name = topic.name if names is None else names.get(topic.topic_id)
            if name is not None:
                offsets += [_committed_offset(name, each) for each in topic.partitions]
        whole: ErrorCode | None = None
        results: dict[TopicPartition, ErrorCode] = {}
        try:
            results = self._coordinator.commit(call, offsets)
        except GroupRequestError as error:
            whole = error.code
        response = messages.OffsetCommitResponse.OffsetCommitResponseTopic
        topics: list[Any] = []
        for topic in message.topics:
            name = topic.name if names is None else names.get(topic.topic_id)
            partitions: list[Any] = []
            for each in topic.partitions:
                code = whole
                if code is None and name is None:
                    code = ErrorCode.UNKNOWN_TOPIC_ID
                elif code is None:
                    code = results[TopicPartition(name or "", each.partition_index)]
                entry = response.OffsetCommitResponsePartition
                partitions.append(entry(partition_index=each.partition_index, error_code=code))
            topics.append(response(name=name or "", topic_id=topic.topic_id, partitions=partitions))
        return messages.OffsetCommitResponse(topics=topics)

    async def offset_fetch(self, request: ClientRequest) -> Any:
        message = request.message
        response = messages.OffsetFetchResponse
        if request.version < _FIRST_WITH_MANY_GROUPS:
            _check_count(len(topic.partition_indexes) for topic in message.topics or ())
            offsets = self._coordinator.committed(message.group_id, None, _NO_EPOCH)
            kind = response.OffsetFetchResponseTopic
            topics = self._fetched(kind, kind.OffsetFetchResponsePartition, message.topics, offsets, None)
            return response(topics=topics)
        names = self._names_by_id() if request.version >= _FIRST_WITH_TOPIC_IDS else None
        # Each once: else a small request could ask for the same many offsets a million times.
        asked = {group.group_id: group for group in message.groups}
        _check_count(len(topic.partition_indexes) for group in asked.values() for topic in group.topics or ())
        groups = [self._fetched_group(group, names) for group in asked.values()]
        return response(groups=groups)

    def _fetched_group(self, group: Any, names: dict[UUID, str] | None) -> Any:
        response = messages.OffsetFetchResponse.OffsetFetchResponseGroup
        try:
            offsets = self._coordinator.committed(group.group_id, group.member_id, group.member_epoch)
        except GroupRequestError as error:
            return response(group_id=group.group_id, topics=[], error_code=error.code)
        kind = response.OffsetFetchResponseTopics
        topics = self._fetched(kind, kind.OffsetFetchResponsePartitions, group.topics, offsets, names)
        return response(group_id=group.group_id, topics=topics)

    def _fetched(
        self,
        topic_kind: Any,
        partition_kind: Any,
        asked: Sequence[Any] | None,
        offsets: list[CommittedOffset],
        names: dict[UUID, str] | None,
    ) -> list[Any]:
        """Return the offsets of the topics that a request names, of all topics if `asked` is None."""
        if asked is None:
            return self._fetched_all(topic_kind, partition_kind, offsets)
        by_partition = {each.tp: each for each in offsets}
        topics: list[Any] = []
        for topic in asked:
            name = topic.name if names is None else names.get(topic.topic_id)
            partitions: list[Any] = []
            for number in topic.partition_indexes:
                committed = by_partition.get(TopicPartition(name or "", number))
                error = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.NONE
                partitions.append(_fetched_partition(partition_kind, number, committed, error))
            topic_id = None if names is None else topic.topic_id
            topics.append(_topic_entry(topic_kind, name or "", topic_id, partitions))
        return topics

    def _fetched_all(self, topic_kind: Any, partition_kind: Any, offsets: list[CommittedOffset]) -> list[Any]:
        served = self._contents.topics()
        by_topic: dict[str, list[Any]] = defaultdict(list)
        for each in offsets:
            if each.tp.topic in served:
                entry = _fetched_partition(partition_kind, each.tp.partition, each, ErrorCode.NONE)
                by_topic[each.tp.topic].append(entry)
        return [_topic_entry(topic_kind, name, served[name].topic_id, found) for name, found in by_topic.items()]

    def _names_by_id(self) -> dict[UUID, str]:
        return {topic.topic_id: name for name, topic in self._contents.topics().items()}

    # What an archive does not do.

    async def offset_delete(self, request: ClientRequest) -> Any:
        return messages.OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, topics=[])

    async def delete_groups(self, request: ClientRequest) -> Any:
        entry = messages.DeleteGroupsResponse.DeletableGroupResult
        refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
        names = dict.fromkeys(request.message.groups_names)
        results = [entry(group_id=name, error_code=refused) for name in names]
        return messages.DeleteGroupsResponse(results=results)

    # Lists and descriptions.

    async def list_groups(self, request: ClientRequest) -> Any:
        states = {state.lower() for state in request.message.states_filter or ()}
        kinds = {kind.lower() for kind in request.message.types_filter or ()}
        entry = messages.ListGroupsResponse.ListedGroup
        listed: list[Any] = []
        for group in self._coordinator.list_groups():
            if states and group.state.lower() not in states:
                continue
            if kinds and group.kind not in kinds:
                continue
            listed.append(
                entry(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    group_state=group.state,
                    group_type=group.kind.capitalize(),
                )
            )
        return messages.ListGroupsResponse(groups=listed)

    async def describe_groups(self, request: ClientRequest) -> Any:
        operations = _OPERATIONS if request.message.include_authorized_operations else None
        described: list[Any] = []
        for group_id in dict.fromkeys(request.message.groups):
            try:
                group = self._coordinator.classic_group(group_id)
            except GroupRequestError as error:
                described.append(_undescribed(group_id, error, request.version))
            else:
                described.append(_described(group, operations))
        return messages.DescribeGroupsResponse(groups=described)

    async def consumer_group_describe(self, request: ClientRequest) -> Any:
        operations = _NO_OPERATIONS
        if request.message.include_authorized_operations:
            operations = sum(1 << number for number in _OPERATIONS)
        entry = messages.ConsumerGroupDescribeResponse.Group
        described: list[Any] = []
        for group_id in dict.fromkeys(request.message.group_ids):
            try:
                group = self._coordinator.consumer_group(group_id)
            except GroupRequestError as error:
                missing = entry(
                    error_code=error.code,
                    error_message=error.message,
                    group_id=group_id,
                    group_state="Dead",
                    group_epoch=0,
                    assignment_epoch=0,
                    assignor_name="",
                    members=[],
                )
                described.append(missing)
            else:
                described.append(self._described_consumers(group, operations))
        return messages.ConsumerGroupDescribeResponse(groups=described)

    def _described_consumers(self, group: ConsumerGroup, operations: int) -> Any:
        names = self._names_by_id()
        members: list[Any] = []
        for member in group.members.values():
            target = group.target.get(member.member_id, frozenset())
            members.append(_described_consumer(member, target, names))
        return messages.ConsumerGroupDescribeResponse.Group(
            error_code=ErrorCode.NONE,
            group_id=group.group_id,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=group.assignor,
            members=members,
            authorized_operations=operations,
        )

    # The new protocol.

    async def consumer_group_heartbeat(self, request: ClientRequest) -> Any:
        response = messages.ConsumerGroupHeartbeatResponse
        try:
            answer = self._coordinator.consumer_heartbeat(request.message.group_id, _member_call(request))
        except GroupRequestError as error:
            return response(
                error_code=error.code, error_message=error.message or None, member_epoch=0, heartbeat_interval_ms=0
            )
        finally:
            self._set_timer()
        assignment = None
        if answer.assigned is not None:
            kind = response.Assignment
            topics: list[Any] = []
            for topic_id, partitions in _by_topic(answer.assigned).items():
                topics.append(kind.TopicPartitions(topic_id=topic_id, partitions=partitions))
            assignment = kind(topic_partitions=topics)
        return response(
            member_id=answer.member_id,
            member_epoch=answer.epoch,
            heartbeat_interval_ms=int(HEARTBEAT_SECONDS * 1000),
            assignment=assignment,
        )

    # Time.

    async def _wait(self, pending: DelayedAnswer[_Answer]) -> _Answer:
        """Wait until a group gives an answer."""
        self._set_timer()
        given = asyncio.get_running_loop().create_future()

        def notify() -> None:
            # The client may have gone away, which has cancelled the future.
            if not given.done():
                given.set_result(None)

        pending.when_given(notify)
        await given
        return pending.result()

    def _set_timer(self) -> None:
        """See to it that groups do in time what they have to."""
        deadline = self._coordinator.next_deadline()
        if deadline == self._timer_deadline:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_deadline = deadline
        if deadline < math.inf:
            delay = max(0.0, deadline - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._pass_time)

    def _pass_time(self) -> None:
        self._timer = None
        self._timer_deadline = math.inf
        self._coordinator.pass_time()
        self._set_timer()


def _api(name: str, answer: Handler, oldest: int = 0) -> Api:
    request = getattr(messages, f"{name}Request")
    response = getattr(messages, f"{name}Response")
    newest = min(request.max_version, response.max_version)
    return Api(request, response, oldest, newest, answer)


def _check_count(counts: Iterable[int]) -> None:
    if sum(counts) > MOST_PARTITIONS:
        raise HostileClientError(f"a request that names more than {MOST_PARTITIONS} partitions")


def _coordinator_error(kind: int) -> tuple[ErrorCode, str | None]:
    """Return why there is no coordinator of a kind."""
    if kind == _GROUP_COORDINATOR:
        return ErrorCode.NONE, None
    if kind == _TRANSACTION_COORDINATOR:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, READ_ONLY
    return ErrorCode.INVALID_REQUEST, "there are no share groups"


def _join_call(request: ClientRequest) -> JoinCall:
    message = request.message
    session = message.session_timeout_ms / 1000
    rebalance = session
    if message.rebalance_timeout_ms >= 0:
        rebalance = message.rebalance_timeout_ms / 1000
    return JoinCall(
        member_id=message.member_id,
        instance_id=message.group_instance_id,
        client_id=request.connection.client_id,
        host=request.connection.host,
        session_seconds=session,
        rebalance_seconds=rebalance,
        protocol_type=message.protocol_type,
        protocols=tuple((each.name, bytes(each.metadata)) for each in message.protocols),
        needs_known_id=request.version >= _FIRST_WITH_KNOWN_IDS,
        can_skip_assignment=request.version >= _FIRST_WITH_SKIPPING,
    )


def _joined_response(joined: Joined) -> Any:
    entry = messages.JoinGroupResponse.JoinGroupResponseMember
    members: list[Any] = []
    for each in joined.members:
        member = entry(member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.subscription)
        members.append(member)
    return messages.JoinGroupResponse(
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=members,
    )


def _member_call(request: ClientRequest) -> MemberCall:
    message = request.message
    rebalance_seconds = None
    if message.rebalance_timeout_ms >= 0:
        rebalance_seconds = message.rebalance_timeout_ms / 1000
    names = None
    if message.subscribed_topic_names is not None:
        names = frozenset(message.subscribed_topic_names)
    owned = None
    if message.topic_partitions is not None:
        owned = frozenset(
            AssignedPartition(topic.topic_id.bytes, number)
            for topic in message.topic_partitions
            for number in topic.partitions
        )
    return MemberCall(
        member_id=message.member_id,
        epoch=message.member_epoch,
        instance_id=message.instance_id,
        rack_id=message.rack_id,
        client_id=request.connection.client_id,
        host=request.connection.host,
        rebalance_seconds=rebalance_seconds,
        names=names,
        regex=message.subscribed_topic_regex,
        assignor=message.server_assignor,
        owned=owned,
    )


def _committed_offset(topic: str, partition: Any) -> CommittedOffset:
    epoch = partition.committed_leader_epoch
    return CommittedOffset(
        tp=TopicPartition(topic, partition.partition_index),
        offset=partition.committed_offset,
        leader_epoch=None if epoch < 0 else epoch,
        metadata=partition.committed_metadata or "",
    )


def _fetched_partition(kind: Any, number: int, committed: CommittedOffset | None, error: ErrorCode) -> Any:
    if committed is None:
        # Not an error: a consumer begins where its auto.offset.reset says.
        return kind(
            partition_index=number,
            committed_offset=_NO_OFFSET,
            committed_leader_epoch=_NO_EPOCH,
            metadata="",
            error_code=error,
        )
    epoch = _NO_EPOCH if committed.leader_epoch is None else committed.leader_epoch
    return kind(
        partition_index=number,
        committed_offset=committed.offset,
        committed_leader_epoch=epoch,
        metadata=committed.metadata,
        error_code=error,
    )


def _topic_entry(kind: Any, name: str, topic_id: UUID | None, partitions: list[Any]) -> Any:
    if "topic_id" not in kind.fields:
        return kind(name=name, partitions=partitions)
    return kind(name=name, topic_id=topic_id, partitions=partitions)


def _undescribed(group_id: str, error: GroupRequestError, version: int) -> Any:
    """Return what older clients know as a dead group, and newer ones as an error."""
    code = error.code if version >= _FIRST_WITH_NOT_FOUND else ErrorCode.NONE
    return messages.DescribeGroupsResponse.DescribedGroup(
        error_code=code,
        error_message=error.message,
        group_id=group_id,
        group_state="Dead",
        protocol_type="",
        protocol_data="",
        members=[],
    )


def _described(group: ClassicGroup, operations: set[int] | None) -> Any:
    is_stable = group.state is ClassicState.STABLE
    # What a member subscribes to, and its partitions, count once the group has agreed on them.
    protocol = group.protocol if is_stable else ""
    members = [_described_member(member, protocol) for member in group.members.values()]
    return messages.DescribeGroupsResponse.DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=protocol,
        members=members,
        authorized_operations=operations,
    )


def _described_member(member: ClassicMember, protocol: str) -> Any:
    return messages.DescribeGroupsResponse.DescribedGroup.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=f"/{member.host}",
        member_metadata=member.subscription(protocol) if protocol else b"",
        member_assignment=member.assignment if protocol else b"",
    )


def _described_consumer(member: ConsumerMember, target: frozenset[AssignedPartition], names: Mapping[UUID, str]) -> Any:
    return messages.ConsumerGroupDescribeResponse.Group.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=f"/{member.host}",
        subscribed_topic_names=sorted(member.names),
        subscribed_topic_regex=member.regex or None,
        assignment=_described_assignment(member.assigned, names),
        target_assignment=_described_assignment(target, names),
        member_type=_CONSUMER_MEMBER,
    )


def _described_assignment(assigned: Iterable[AssignedPartition], names: Mapping[UUID, str]) -> Any:
    kind = messages.ConsumerGroupDescribeResponse.Group.Member.Assignment
    topics: list[Any] = []
    for topic_id, partitions in _by_topic(assigned).items():
        # A topic that is served no more has no name; it leaves the assignment at the next heartbeat.
        if topic_id in names:
            entry = kind.TopicPartitions
            topics.append(entry(topic_id=topic_id, topic_name=names[topic_id], partitions=partitions))
    return kind(topic_partitions=topics)


def _by_topic(partitions: Iterable[AssignedPartition]) -> dict[UUID, list[int]]:
    by_topic: dict[bytes, list[int]] = defaultdict(list)
    for each in sorted(partitions):
        by_topic[each.topic].append(each.partition)
    return {UUID(bytes=topic): numbers for topic, numbers in by_topic.items()}
