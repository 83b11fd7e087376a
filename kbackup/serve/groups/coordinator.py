"""The coordinator of all groups: it finds the state machine of a group, bounds what clients may fill the memory with,
and knows when a group has something to do."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from kbackup.serve.groups.classic import (
    ClassicGroup,
    ClassicState,
    JoinCall,
    Joined,
    SyncCall,
    Synced,
    subscription_bytes,
)
from kbackup.serve.groups.consumer import (
    LEAVING_EPOCH,
    ConsumerGroup,
    ConsumerState,
    MemberAnswer,
    MemberCall,
    TopicMatcher,
)
from kbackup.serve.groups.delayed import DelayedAnswer
from kbackup.serve.groups.errors import GroupRequestError
from kbackup.serve.groups.offsets import CommitResults, GroupOffsets
from kbackup.serve.protocol import ErrorCode, ServedContents
from kbackup.types import CommittedOffset

MOST_GROUPS = 10_000
"""The bound of groups that clients join."""

MOST_HELD_BYTES = 64 << 20
"""The bound of subscriptions and assignments of all members."""

CLASSIC = "classic"
CONSUMER = "consumer"

AnyGroup = ClassicGroup | ConsumerGroup
_Kind = TypeVar("_Kind", ClassicGroup, ConsumerGroup)


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group as lists show it."""

    group_id: str
    kind: str
    """`CLASSIC` or `CONSUMER`."""
    protocol_type: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitCall:
    """A commit. `generation` is the member epoch in the new protocol. `knows_epochs`: whether the client could hear of
    an epoch that is stale."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    knows_epochs: bool


class Coordinator:
    """Keeps the groups. `clock` returns seconds; `matcher` finds topics by regular expressions."""

    def __init__(
        self, contents: ServedContents, offsets: GroupOffsets, matcher: TopicMatcher, clock: Callable[[], float]
    ) -> None:
        self._contents = contents
        self._offsets = offsets
        self._matcher = matcher
        self._clock = clock
        self._groups: dict[str, AnyGroup] = {}
        self._held: dict[str, int] = {}
        """The bytes that each group keeps for clients."""
        self._held_bytes = 0
        self._due: list[tuple[float, str]] = []
        """When groups have something to do, the next one first. Entries that are too early do no harm."""
        self._scheduled: dict[str, float] = {}
        """The earliest entry of each group in `_due`."""

    # The classic protocol.

    def join(self, group_id: str, call: JoinCall) -> DelayedAnswer[Joined]:
        self._check_id(group_id)
        self._check_room(subscription_bytes(call.protocols))
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            if group.members:
                words = f"group {group_id} has members of the consumer protocol"
                raise GroupRequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, words)
            group = None
        if group is None:
            if call.member_id:
                raise GroupRequestError(ErrorCode.UNKNOWN_MEMBER_ID)
            group = self._add(ClassicGroup(group_id))
        try:
            return group.join(call, self._clock())
        finally:
            self._settle(group)

    def sync(self, group_id: str, call: SyncCall) -> DelayedAnswer[Synced]:
        self._check_room(sum(map(len, call.assignments.values())))
        group = self._classic(group_id)
        try:
            return group.sync(call, self._clock())
        finally:
            self._settle(group)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> None:
        self._classic(group_id).heartbeat(member_id, instance_id, generation, self._clock())

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> str:
        """Remove a member, by its id or its group.instance.id. Return its member id."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return self._leave_consumer(group, member_id, instance_id)
        group = self._classic(group_id)
        try:
            return group.leave(member_id, instance_id, self._clock())
        finally:
            self._settle(group)

    # The new protocol.

    def consumer_heartbeat(self, group_id: str, call: MemberCall) -> MemberAnswer:
        self._check_id(group_id)
        names = call.names or ()
        self._check_room(len(call.regex or "") + sum(map(len, names)))
        group = self._consumer(group_id, may_be_new=call.epoch == 0)
        try:
            return group.heartbeat(call, self._contents.topics(), self._clock())
        finally:
            self._settle(group)

    # Offsets.

    def commit(self, call: CommitCall, offsets: Iterable[CommittedOffset]) -> CommitResults:
        """Keep offsets. Return for each partition whether they were kept, or why not."""
        self._check_id(call.group_id)
        group = self._groups.get(call.group_id)
        now = self._clock()
        if isinstance(group, ClassicGroup):
            group.check_commit(call.member_id, call.instance_id, call.generation, now)
        elif isinstance(group, ConsumerGroup):
            if group.members and not call.knows_epochs:
                raise GroupRequestError(ErrorCode.UNSUPPORTED_VERSION)
            group.check_commit(call.member_id, call.generation, now)
        elif call.generation >= 0:
            raise GroupRequestError(ErrorCode.ILLEGAL_GENERATION)
        return self._offsets.commit(call.group_id, offsets)

    def committed(self, group_id: str, member_id: str | None, member_epoch: int) -> list[CommittedOffset]:
        """Return the offsets of a group, by topic and partition. A member of the new protocol names its epoch."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup) and member_epoch >= 0:
            group.check_member(member_id or "", member_epoch)
        offsets = self._offsets.of_group(group_id)
        return [offsets[tp] for tp in sorted(offsets)]

    # What is there.

    def list_groups(self) -> list[GroupSummary]:
        """Return every group: those that clients have joined, and those that have offsets."""
        names = self._offsets.groups() | set(self._groups)
        return [self.summary(name) for name in sorted(names)]

    def summary(self, group_id: str) -> GroupSummary:
        """Return what a list shows of a group. Raise `GroupRequestError` if it is unknown."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return GroupSummary(group_id, CONSUMER, "consumer", group.state.value)
        if isinstance(group, ClassicGroup):
            return GroupSummary(group_id, CLASSIC, group.protocol_type or "consumer", group.state.value)
        if group_id not in self._offsets.groups():
            raise GroupRequestError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        # Nobody has joined it here: it has the offsets of the archive, or those of a tool.
        return GroupSummary(group_id, CLASSIC, "consumer", ClassicState.EMPTY.value)

    def classic_group(self, group_id: str) -> ClassicGroup:
        """Return a group of the classic protocol. Raise `GroupRequestError` if there is none."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            words = f"Group {group_id} is not a classic group."
            raise GroupRequestError(ErrorCode.GROUP_ID_NOT_FOUND, words)
        if group is None:
            summary = self.summary(group_id)
            return ClassicGroup(group_id, protocol_type=summary.protocol_type)
        return group

    def consumer_group(self, group_id: str) -> ConsumerGroup:
        """Return a group of the new protocol. Raise `GroupRequestError` if there is none."""
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            self.summary(group_id)
            words = f"Group {group_id} is not a consumer group."
            raise GroupRequestError(ErrorCode.GROUP_ID_NOT_FOUND, words)
        return group

    # Time.

    def next_deadline(self) -> float:
        """Return when `pass_time` has to be called next; infinity if nothing is due ever."""
        return self._due[0][0] if self._due else math.inf

    def pass_time(self) -> None:
        """Let every group do what is due."""
        now = self._clock()
        due: set[str] = set()
        while self._due and self._due[0][0] <= now:
            deadline, group_id = heapq.heappop(self._due)
            due.add(group_id)
            if self._scheduled.get(group_id) == deadline:
                del self._scheduled[group_id]
        for group_id in due:
            group = self._groups.get(group_id)
            if group is not None:
                group.pass_time(now)
                self._settle(group)

    # Finding groups.

    def _check_id(self, group_id: str) -> None:
        if not group_id:
            raise GroupRequestError(ErrorCode.INVALID_GROUP_ID)

    def _check_room(self, size: int) -> None:
        if self._held_bytes + size > MOST_HELD_BYTES:
            raise GroupRequestError(ErrorCode.GROUP_MAX_SIZE_REACHED, "the groups fill the memory that is theirs")

    def _classic(self, group_id: str) -> ClassicGroup:
        group = self._groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            raise GroupRequestError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def _consumer(self, group_id: str, *, may_be_new: bool) -> ConsumerGroup:
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        has_classic_members = group is not None and group.members
        if has_classic_members or not may_be_new:
            words = f"Group {group_id} is not a consumer group."
            raise GroupRequestError(ErrorCode.GROUP_ID_NOT_FOUND, words)
        return self._add(ConsumerGroup(group_id, self._matcher))

    def _leave_consumer(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> str:
        """Remove a member of the new protocol by a request of the classic one: tools for administrators send it."""
        member = group.find_member(member_id, instance_id)
        call = MemberCall(
            member_id=member.member_id,
            epoch=LEAVING_EPOCH,
            instance_id=instance_id,
            rack_id=None,
            client_id="",
            host="",
            rebalance_seconds=None,
            names=None,
            regex=None,
            assignor=None,
            owned=None,
        )
        group.heartbeat(call, self._contents.topics(), self._clock())
        self._settle(group)
        return member.member_id

    def _add(self, group: _Kind) -> _Kind:
        """Keep a new group; it takes the place of one of the other protocol that has no members any more."""
        if group.group_id not in self._groups and len(self._groups) >= MOST_GROUPS:
            self._drop_empty()
            if len(self._groups) >= MOST_GROUPS:
                raise GroupRequestError(ErrorCode.GROUP_MAX_SIZE_REACHED, "there are too many groups")
        self._groups[group.group_id] = group
        return group

    def _drop_empty(self) -> None:
        """Forget the groups without members. Their offsets stay."""
        for group_id, group in list(self._groups.items()):
            if _is_empty(group):
                del self._groups[group_id]

    def _settle(self, group: AnyGroup) -> None:
        """See to what a call may have changed: the memory of a group, its next deadline, and whether it is of use."""
        group_id = group.group_id
        held = group.held_bytes()
        self._held_bytes += held - self._held.pop(group_id, 0)
        if held:
            self._held[group_id] = held
        deadline = group.next_deadline()
        if deadline < self._scheduled.get(group_id, math.inf):
            self._scheduled[group_id] = deadline
            heapq.heappush(self._due, (deadline, group_id))
        is_unknown = _is_empty(group) and group_id not in self._offsets.groups()
        if is_unknown and deadline == math.inf:
            # A client may have tried to join only, or everybody has left: the group is as if it had never been.
            self._groups.pop(group_id, None)


def _is_empty(group: AnyGroup) -> bool:
    return group.state in (ClassicState.EMPTY, ConsumerState.EMPTY)
