"""A group of the new protocol (KIP-848): the coordinator assigns partitions, and each member follows at its own pace.

Three epochs count, as in a broker:

- The group's epoch grows with each change of members, subscriptions or partitions.
- The target assignment has the epoch of the group that it was made for.
- A member has the epoch of the target that it has reached. It first gives up what it has to (`REVOKING`), and then gets
  what others have given up (`WAITING` as long as they have not).

A partition has at most one owner: the member that it is assigned to, or that has yet to give it up.

All times are seconds of one clock, and each call gets the present time. Nothing happens between calls: `pass_time`
does what is due, and `next_deadline` says when something will be.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from kbackup.serve.groups.assignors import ASSIGNORS, AssignedPartition
from kbackup.serve.groups.classic import MOST_MEMBERS
from kbackup.serve.groups.errors import GroupRequestError
from kbackup.serve.protocol import ErrorCode, ServedTopic

HEARTBEAT_SECONDS = 1.0
"""How often members report. A broker asks for every 5 seconds; an archive has few readers, and they should not wait."""

SESSION_SECONDS = 30.0
"""How long a member may be silent."""

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
PAUSING_EPOCH = -2
"""The epoch of a static member that will come back."""

DEFAULT_ASSIGNOR = next(iter(ASSIGNORS))

Topics = Mapping[str, ServedTopic]
TopicMatcher = Callable[[str, Topics], frozenset[str]]
"""Returns the names of topics that match a regular expression of Java's kind. Raises `ValueError` if it is none."""


class MemberState(Enum):
    """How far a member has come on its way to the target assignment."""

    STABLE = "stable"
    REVOKING = "revoking"
    WAITING = "waiting"


class ConsumerState(Enum):
    """The states of a group; the values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberCall:
    """A heartbeat. What is None has not changed since the last one. `owned` are the partitions that the member has."""

    member_id: str
    epoch: int
    instance_id: str | None
    rack_id: str | None
    client_id: str
    host: str
    rebalance_seconds: float | None
    names: frozenset[str] | None
    regex: str | None
    assignor: str | None
    owned: frozenset[AssignedPartition] | None


@dataclass(frozen=True, slots=True)
class MemberAnswer:
    """The answer to a heartbeat. `assigned` is None if the member knows its partitions."""

    member_id: str
    epoch: int
    assigned: frozenset[AssignedPartition] | None


@dataclass(slots=True, eq=False)
class ConsumerMember:
    """A member. `assigned` is what it may read, `revoking` what it has yet to give up."""

    member_id: str
    instance_id: str | None
    rack_id: str | None = None
    client_id: str = ""
    host: str = ""
    rebalance_seconds: float = 0.0
    names: frozenset[str] = frozenset()
    regex: str = ""
    assignor: str = ""
    epoch: int = JOINING_EPOCH
    former_epoch: int = JOINING_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: frozenset[AssignedPartition] = frozenset()
    revoking: frozenset[AssignedPartition] = frozenset()
    session_deadline: float = math.inf
    revocation_deadline: float = math.inf
    topics: frozenset[str] = frozenset()
    """The topics that its names and its regular expression are about."""


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """A group. `target` is the assignment that members are on their way to."""

    group_id: str
    matcher: TopicMatcher
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = DEFAULT_ASSIGNOR
    target: dict[str, frozenset[AssignedPartition]] = field(default_factory=dict)
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    _static_ids: dict[str, str] = field(default_factory=dict)
    _owners: dict[AssignedPartition, str] = field(default_factory=dict)
    _topics: Topics = field(default_factory=dict)
    """The topics as they were at the last call."""
    _partitions: dict[bytes, int] = field(default_factory=dict)
    """The partitions of each subscribed topic, as the target was made of them."""

    @property
    def state(self) -> ConsumerState:
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerState.ASSIGNING
        for member in self.members.values():
            if member.state is not MemberState.STABLE or member.epoch != self.target_epoch:
                return ConsumerState.RECONCILING
        return ConsumerState.STABLE

    # Requests.

    def heartbeat(self, call: MemberCall, topics: Topics, now: float) -> MemberAnswer:
        """Let a member join, stay or leave; return what it has to know."""
        if call.epoch in (LEAVING_EPOCH, PAUSING_EPOCH):
            return self._leave(call, now)
        self._check(call)
        member = self._joining_member(call) if call.epoch == JOINING_EPOCH else self._present_member(call)
        former = member.assigned
        self._follow_topics(topics)
        self._update(member, call)
        member.session_deadline = now + SESSION_SECONDS
        if self.epoch > self.target_epoch:
            self._make_target()
        self._reconcile(member, call.owned, now)
        is_told = call.epoch == JOINING_EPOCH or call.owned is not None or call.names is not None
        if is_told or call.regex is not None or member.assigned != former:
            return MemberAnswer(member.member_id, member.epoch, member.assigned)
        return MemberAnswer(member.member_id, member.epoch, None)

    def check_commit(self, member_id: str, epoch: int, now: float) -> None:
        """Check that a commit is one of a member, or that there are no members that it could disturb."""
        if epoch < 0 and not self.members:
            return
        self.check_member(member_id, epoch)
        self.members[member_id].session_deadline = now + SESSION_SECONDS

    def check_member(self, member_id: str, epoch: int) -> None:
        """Raise `GroupRequestError` if there is no such member, or if it has another epoch."""
        member = self.members.get(member_id)
        if member is None:
            raise GroupRequestError(ErrorCode.UNKNOWN_MEMBER_ID)
        if member.epoch != epoch:
            raise GroupRequestError(ErrorCode.STALE_MEMBER_EPOCH)

    def find_member(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Return a member by its id, or without an id by its group.instance.id."""
        if not member_id and instance_id is not None:
            member_id = self._static_ids.get(instance_id, "")
        member = self.members.get(member_id)
        if member is None:
            raise GroupRequestError(ErrorCode.UNKNOWN_MEMBER_ID)
        if instance_id is not None and member.instance_id != instance_id:
            raise GroupRequestError(ErrorCode.FENCED_INSTANCE_ID)
        return member

    def held_bytes(self) -> int:
        """Return how many bytes of clients the group keeps, about."""
        held = 0
        for member in self.members.values():
            held += len(member.regex) + sum(map(len, member.names))
        return held

    # Time.

    def next_deadline(self) -> float:
        """Return when `pass_time` has to be called next; infinity if nothing is due ever."""
        deadlines = [min(each.session_deadline, each.revocation_deadline) for each in self.members.values()]
        return min(deadlines, default=math.inf)

    def pass_time(self, now: float) -> None:
        """Remove members that were silent, and those that have kept for too long what they have to give up."""
        for member in list(self.members.values()):
            if min(member.session_deadline, member.revocation_deadline) <= now:
                self._remove(member)

    # Members.

    def _check(self, call: MemberCall) -> None:
        """Check what a call says, before it changes anything."""
        if call.assignor is not None and call.assignor and call.assignor not in ASSIGNORS:
            known = ", ".join(ASSIGNORS)
            words = f"ServerAssignor {call.assignor} is not supported. Supported assignors: {known}."
            raise GroupRequestError(ErrorCode.UNSUPPORTED_ASSIGNOR, words)
        if call.regex:
            try:
                self.matcher(call.regex, self._topics)
            except ValueError as error:
                raise GroupRequestError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error
        if call.epoch != JOINING_EPOCH:
            return
        if call.rebalance_seconds is None:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if call.owned:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if call.names is None and call.regex is None:
            raise _invalid("SubscribedTopicNames or SubscribedTopicRegex must be set in first request.")

    def _present_member(self, call: MemberCall) -> ConsumerMember:
        """Return the member of a call that is no join. Raise `GroupRequestError` if it has to join anew."""
        if call.instance_id is not None:
            known = self._static_ids.get(call.instance_id)
            if known is not None and known != call.member_id:
                raise GroupRequestError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(call.member_id)
        if member is None:
            words = f"Member {call.member_id} is not a member of group {self.group_id}."
            raise GroupRequestError(ErrorCode.UNKNOWN_MEMBER_ID, words)
        if call.epoch == member.epoch:
            return member
        # The answer to its last heartbeat may have been lost: then it still has the former epoch, and nothing that is
        # not its own.
        if call.epoch == member.former_epoch and call.owned is not None and call.owned <= member.assigned:
            return member
        words = f"The consumer group member has an epoch of {call.epoch}, and {member.epoch} is expected. Rejoin."
        raise GroupRequestError(ErrorCode.FENCED_MEMBER_EPOCH, words)

    def _joining_member(self, call: MemberCall) -> ConsumerMember:
        member_id = call.member_id or str(uuid.uuid4())
        known = self._static_ids.get(call.instance_id) if call.instance_id is not None else None
        if known is not None and known != member_id:
            return self._replace_static(self.members[known], member_id)
        member = self.members.get(member_id)
        if member is None:
            if len(self.members) >= MOST_MEMBERS:
                raise GroupRequestError(ErrorCode.GROUP_MAX_SIZE_REACHED)
            member = ConsumerMember(member_id, call.instance_id)
            self.members[member_id] = member
            if call.instance_id is not None:
                self._static_ids[call.instance_id] = member_id
            return member
        # It has joined before, and begins anew without any partition.
        self._own(member, frozenset(), frozenset())
        member.state = MemberState.STABLE
        member.epoch = JOINING_EPOCH
        return member

    def _replace_static(self, former: ConsumerMember, member_id: str) -> ConsumerMember:
        """Let a static member come back under a new id to what it had."""
        if former.epoch != PAUSING_EPOCH:
            words = f"Static member {former.member_id} has not left the group."
            raise GroupRequestError(ErrorCode.UNRELEASED_INSTANCE_ID, words)
        assigned = former.assigned
        self._own(former, frozenset(), frozenset())
        del self.members[former.member_id]
        self.target[member_id] = self.target.pop(former.member_id, frozenset())
        former.member_id = member_id
        former.epoch = JOINING_EPOCH
        self.members[member_id] = former
        self._static_ids[former.instance_id or ""] = member_id
        self._own(former, assigned, frozenset())
        return former

    def _update(self, member: ConsumerMember, call: MemberCall) -> None:
        """Take over what a member says now. A new member or a new subscription begins a new epoch."""
        before = (member.topics, member.assignor)
        member.client_id = call.client_id
        member.host = call.host
        if call.rack_id is not None:
            member.rack_id = call.rack_id
        if call.rebalance_seconds is not None:
            member.rebalance_seconds = call.rebalance_seconds
        if call.assignor is not None:
            member.assignor = call.assignor
        if call.names is not None:
            member.names = call.names
        if call.regex is not None:
            member.regex = call.regex
        if call.names is not None or call.regex is not None:
            member.topics = self._topics_of(member)
        if member.member_id not in self.target or (member.topics, member.assignor) != before:
            self.epoch += 1

    def _leave(self, call: MemberCall, now: float) -> MemberAnswer:
        if call.instance_id is not None:
            known = self._static_ids.get(call.instance_id)
            if known is not None and known != call.member_id:
                raise GroupRequestError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(call.member_id)
        if member is None:
            raise GroupRequestError(ErrorCode.UNKNOWN_MEMBER_ID)
        if call.epoch == LEAVING_EPOCH or member.instance_id is None:
            self._remove(member)
            return MemberAnswer(call.member_id, LEAVING_EPOCH, None)
        # A static member that pauses keeps its partitions until its session ends. It has given up the others.
        self._own(member, member.assigned, frozenset())
        member.state = MemberState.STABLE
        member.revocation_deadline = math.inf
        member.epoch = PAUSING_EPOCH
        member.session_deadline = now + SESSION_SECONDS
        return MemberAnswer(call.member_id, PAUSING_EPOCH, None)

    def _remove(self, member: ConsumerMember) -> None:
        self._own(member, frozenset(), frozenset())
        del self.members[member.member_id]
        self.target.pop(member.member_id, None)
        if member.instance_id is not None:
            del self._static_ids[member.instance_id]
        self.epoch += 1

    # The target.

    def _topics_of(self, member: ConsumerMember) -> frozenset[str]:
        named = frozenset(name for name in member.names if name in self._topics)
        if not member.regex:
            return named
        return named | self.matcher(member.regex, self._topics)

    def _follow_topics(self, topics: Topics) -> None:
        """Look at the topics of subscriptions again if there may be others now. New ones begin a new epoch."""
        if topics is self._topics:
            return
        self._topics = topics
        for member in self.members.values():
            member.topics = self._topics_of(member)
        if self._subscribed_partitions() != self._partitions:
            self.epoch += 1

    def _subscribed_partitions(self) -> dict[bytes, int]:
        names = frozenset[str]().union(*(member.topics for member in self.members.values()))
        return {self._topics[name].topic_id.bytes: self._topics[name].partitions for name in names}

    def _make_target(self) -> None:
        self._partitions = self._subscribed_partitions()
        votes = Counter(member.assignor for member in self.members.values() if member.assignor)
        self.assignor = votes.most_common(1)[0][0] if votes else DEFAULT_ASSIGNOR
        subscriptions: dict[str, frozenset[bytes]] = {}
        for member in self.members.values():
            subscriptions[member.member_id] = frozenset(self._topics[name].topic_id.bytes for name in member.topics)
        self.target = ASSIGNORS[self.assignor](subscriptions, self._partitions, self.target)
        self.target_epoch = self.epoch

    # The way of a member to the target.

    def _reconcile(self, member: ConsumerMember, owned: frozenset[AssignedPartition] | None, now: float) -> None:
        if member.state is MemberState.STABLE and member.epoch == self.target_epoch:
            return
        if member.state is MemberState.REVOKING:
            if owned is None or owned & member.revoking:
                return
            self._own(member, member.assigned, frozenset())
        self._advance(member, owned, now)

    def _advance(self, member: ConsumerMember, owned: frozenset[AssignedPartition] | None, now: float) -> None:
        """Bring a member nearer to the target: it gives up first, and gets what is free then."""
        target = self.target.get(member.member_id, frozenset())
        kept = target & member.assigned
        revoking = member.assigned - target
        if revoking and (owned is None or owned & revoking):
            self._own(member, kept, revoking)
            member.state = MemberState.REVOKING
            member.revocation_deadline = now + member.rebalance_seconds
            return
        free = frozenset(each for each in target - kept if self._owners.get(each) in (None, member.member_id))
        assigned = kept | free
        self._own(member, assigned, frozenset())
        member.state = MemberState.STABLE if assigned == target else MemberState.WAITING
        member.revocation_deadline = math.inf
        if member.epoch != self.target_epoch:
            member.former_epoch = member.epoch
            member.epoch = self.target_epoch

    def _own(
        self, member: ConsumerMember, assigned: frozenset[AssignedPartition], revoking: frozenset[AssignedPartition]
    ) -> None:
        """Make a member the owner of these partitions, and of no others."""
        for each in member.assigned | member.revoking:
            del self._owners[each]
        for each in assigned | revoking:
            self._owners[each] = member.member_id
        member.assigned = assigned
        member.revoking = revoking


def _invalid(words: str) -> GroupRequestError:
    return GroupRequestError(ErrorCode.INVALID_REQUEST, words)
