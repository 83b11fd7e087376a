"""A group of the classic protocol: members join, the leader assigns partitions, heartbeats keep members alive.

The rules are those of a broker. A rebalance has two phases:

1. `PREPARING`: the group waits until every member has joined, or the longest rebalance timeout of a member is over.
   Who has not joined by then is removed.
2. `COMPLETING`: everybody has heard the new generation. The leader sends the assignment of each member, and the group
   is `STABLE`.

All times are seconds of one clock, and each call gets the present time. Nothing happens between calls: `pass_time`
does what is due, and `next_deadline` says when something will be.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from kbackup.serve.groups.delayed import DelayedAnswer
from kbackup.serve.groups.errors import GroupRequestError
from kbackup.serve.protocol import ErrorCode

FIRST_REBALANCE_SECONDS = 0.1
"""How long the first rebalance of a group waits for more members. A broker waits for 3 seconds; whoever looks into an
archive should see the first record before that, and consumers that come later cost one rebalance more."""

SHORTEST_SESSION_SECONDS = 6.0
LONGEST_SESSION_SECONDS = 1800.0
"""The bounds of a session timeout, as brokers have them."""

MOST_MEMBERS = 1000
"""The bound of a group, so that one client can't fill the memory with members."""


class ClassicState(Enum):
    """The states of a group; the values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinCall:
    """A request to join. `protocols` are the assignors that the member knows, with its subscription for each, the one
    that it likes most first."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_seconds: float
    rebalance_seconds: float
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    needs_known_id: bool
    """Whether a new member has to join a second time, with the id that it gets: clients since Kafka 2.2 do."""
    can_skip_assignment: bool
    """Whether a leader may be told not to assign anew."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the leader hears about it."""

    member_id: str
    instance_id: str | None
    subscription: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The answer to a join. `members` is empty for all but the leader."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_id: str
    members: tuple[JoinedMember, ...]
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncCall:
    """A request for one's assignment; the leader's has those of all members. Older clients leave protocols out."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Synced:
    """The answer to a sync."""

    protocol_type: str
    protocol: str
    assignment: bytes


@dataclass(slots=True, eq=False)
class ClassicMember:
    """A member. `joining` and `syncing` are the answers that it waits for."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_seconds: float
    rebalance_seconds: float
    protocols: tuple[tuple[str, bytes], ...]
    session_deadline: float
    assignment: bytes = b""
    joining: DelayedAnswer[Joined] | None = None
    syncing: DelayedAnswer[Synced] | None = None

    def subscription(self, protocol: str) -> bytes:
        for name, subscription in self.protocols:
            if name == protocol:
                return subscription
        return b""

    def vote(self, candidates: set[str]) -> str:
        """Return the candidate that the member likes most."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise ValueError(f"{self.member_id} knows none of the candidates")

    def is_waiting(self) -> bool:
        """Return whether the member waits for an answer: until then it can't send heartbeats."""
        return self.joining is not None or self.syncing is not None


@dataclass(slots=True, eq=False)
class ClassicGroup:
    """A group. `protocol` is the assignor of the present generation, '' if there is none."""

    group_id: str
    state: ClassicState = ClassicState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str | None = None
    members: dict[str, ClassicMember] = field(default_factory=dict)
    _promised_ids: dict[str, float] = field(default_factory=dict)
    """The ids that clients got to join with, and until when they may."""
    _static_ids: dict[str, str] = field(default_factory=dict)
    """The member id of each group.instance.id."""
    _rebalance_deadline: float = math.inf
    _waits_for_newcomers: bool = False
    """Whether the rebalance lasts until its deadline even if all members have joined."""
    _sync_deadline: float = math.inf
    _synced: set[str] = field(default_factory=set)
    """Who has asked for the assignment of this generation."""

    # Requests.

    def join(self, call: JoinCall, now: float) -> DelayedAnswer[Joined]:
        """Join the group, or join it again. The answer comes when the rebalance is over."""
        self._check_join(call)
        if call.member_id:
            return self._join_again(call, now)
        if call.instance_id is not None:
            return self._join_static(call, now)
        self._check_size()
        member_id = _new_member_id(call.client_id)
        if call.needs_known_id:
            # A client that never hears this answer leaves no member behind, on which a rebalance would wait.
            self._promised_ids[member_id] = now + call.session_seconds
            raise GroupRequestError(ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        return self._add_member(member_id, call, now)

    def sync(self, call: SyncCall, now: float) -> DelayedAnswer[Synced]:
        """Return the member's assignment, as soon as the leader has sent it."""
        member = self._member(call.member_id, call.instance_id)
        self._check_generation(call.generation)
        type_differs = call.protocol_type is not None and call.protocol_type != self.protocol_type
        protocol_differs = call.protocol is not None and call.protocol != self.protocol
        if type_differs or protocol_differs:
            raise GroupRequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.state is ClassicState.PREPARING:
            raise GroupRequestError(ErrorCode.REBALANCE_IN_PROGRESS)
        pending = DelayedAnswer[Synced]()
        self._hear(member, now)
        if self.state is ClassicState.STABLE:
            pending.give(self._synced_of(member))
            return pending
        _replace_waiting(member.syncing)
        member.syncing = pending
        self._synced.add(member.member_id)
        if member.member_id == self.leader:
            self._assign(call.assignments, now)
        return pending

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: float) -> None:
        """Keep a member alive. Raise `GroupRequestError` with REBALANCE_IN_PROGRESS if it has to join again."""
        member = self._member(member_id, instance_id)
        self._check_generation(generation)
        self._hear(member, now)
        if self.state is ClassicState.PREPARING:
            raise GroupRequestError(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(self, member_id: str, instance_id: str | None, now: float) -> str:
        """Remove a member, by its id or its group.instance.id. Return its member id."""
        if instance_id is not None and not member_id:
            known = self._static_ids.get(instance_id)
            if known is None:
                raise GroupRequestError(ErrorCode.UNKNOWN_MEMBER_ID)
            member_id = known
        elif member_id in self._promised_ids:
            del self._promised_ids[member_id]
            self._complete_if_joined(now)
            return member_id
        member = self._member(member_id, instance_id)
        self._remove([member], now)
        return member_id

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now: float) -> None:
        """Check that a commit is one of a member, or that there are no members that it could disturb."""
        if generation < 0 and not self.members:
            # Tools set offsets so, and consumers that were given their partitions.
            return
        if not self.members:
            raise GroupRequestError(ErrorCode.ILLEGAL_GENERATION)
        member = self._member(member_id, instance_id)
        self._check_generation(generation)
        if self.state is ClassicState.COMPLETING:
            # The member may have lost the partition already.
            raise GroupRequestError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._hear(member, now)

    def held_bytes(self) -> int:
        """Return how many bytes of clients the group keeps: subscriptions and assignments."""
        held = 0
        for member in self.members.values():
            held += len(member.assignment) + subscription_bytes(member.protocols)
        return held

    # Time.

    def next_deadline(self) -> float:
        """Return when `pass_time` has to be called next; infinity if nothing is due ever."""
        deadlines = [self._rebalance_deadline, self._sync_deadline, *self._promised_ids.values()]
        for member in self.members.values():
            if not member.is_waiting():
                deadlines.append(member.session_deadline)
        return min(deadlines)

    def pass_time(self, now: float) -> None:
        """Do what is due: end sessions that were silent, and rebalances that have lasted too long."""
        for member_id, deadline in list(self._promised_ids.items()):
            if deadline <= now:
                del self._promised_ids[member_id]
        silent: list[ClassicMember] = []
        for member in self.members.values():
            if not member.is_waiting() and member.session_deadline <= now:
                silent.append(member)
        if silent:
            self._remove(silent, now)
        if self._sync_deadline <= now:
            # They have joined and never asked for their partitions: nobody reads these.
            missing = [member for member in self.members.values() if member.member_id not in self._synced]
            self._remove(missing, now)
        if self._rebalance_deadline <= now:
            self._complete_rebalance(now)
        else:
            self._complete_if_joined(now)

    # Joining.

    def _check_join(self, call: JoinCall) -> None:
        if not SHORTEST_SESSION_SECONDS <= call.session_seconds <= LONGEST_SESSION_SECONDS:
            raise GroupRequestError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if not call.protocol_type or not call.protocols:
            raise GroupRequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not self.members:
            return
        if call.protocol_type != self.protocol_type:
            raise GroupRequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        replaced = call.member_id
        if call.instance_id is not None and not replaced:
            replaced = self._static_ids.get(call.instance_id, "")
        others = [member for member in self.members.values() if member.member_id != replaced]
        if not others:
            return
        offered = {name for name, _ in call.protocols}
        if not offered & _common_protocols(others):
            raise GroupRequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _check_size(self) -> None:
        if len(self.members) + len(self._promised_ids) >= MOST_MEMBERS:
            raise GroupRequestError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _join_again(self, call: JoinCall, now: float) -> DelayedAnswer[Joined]:
        if call.member_id in self._promised_ids:
            if call.instance_id is not None:
                raise GroupRequestError(ErrorCode.UNKNOWN_MEMBER_ID)
            del self._promised_ids[call.member_id]
            return self._add_member(call.member_id, call, now)
        member = self._member(call.member_id, call.instance_id)
        differs = member.protocols != call.protocols
        if self.state is ClassicState.PREPARING:
            return self._rejoin(member, call, now)
        if differs or (self.state is ClassicState.STABLE and member.member_id == self.leader):
            # A leader joins again to have partitions assigned anew, for instance when a topic has got more of them.
            pending = self._rejoin(member, call, now)
            self._prepare_rebalance(now)
            return pending
        # The member has missed its answer, and nothing has changed since.
        self._hear(member, now)
        pending = DelayedAnswer[Joined]()
        pending.give(self._joined_of(member))
        return pending

    def _join_static(self, call: JoinCall, now: float) -> DelayedAnswer[Joined]:
        """Join as a member with a group.instance.id and without a member id: a new member, or a known one that was
        started again."""
        instance_id = call.instance_id
        former_id = self._static_ids.get(instance_id or "")
        member_id = _new_member_id(instance_id or call.client_id)
        if former_id is None:
            self._check_size()
            return self._add_member(member_id, call, now)
        member = self._rename(former_id, member_id)
        was_preparing = self.state is ClassicState.PREPARING
        pending = self._rejoin(member, call, now)
        if was_preparing:
            return pending
        same_protocol = self._elected_protocol() == self.protocol
        if self.state is not ClassicState.STABLE or not same_protocol:
            self._prepare_rebalance(now)
            return pending
        # This is what static members are for: they come back to the partitions that they had, without a rebalance.
        member.joining = None
        pending.give(self._rejoined_static(member, former_id, call.can_skip_assignment))
        return pending

    def _rejoined_static(self, member: ClassicMember, former_id: str, can_skip: bool) -> Joined:
        joined = self._joined_of(member)
        if member.member_id != self.leader:
            return joined
        leader = member.member_id if can_skip else former_id
        # An older client that heard of its leadership would assign anew: so it hears of a leader that is gone.
        return Joined(
            generation=joined.generation,
            protocol_type=joined.protocol_type,
            protocol=joined.protocol,
            leader=leader,
            member_id=member.member_id,
            members=joined.members if can_skip else (),
            skip_assignment=can_skip,
        )

    def _rename(self, former_id: str, member_id: str) -> ClassicMember:
        """Give a static member a new id. Whoever still comes with the former one is fenced."""
        fenced = GroupRequestError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.pop(former_id)
        if member.joining is not None:
            member.joining.refuse(fenced)
        if member.syncing is not None:
            member.syncing.refuse(fenced)
        member.joining = None
        member.syncing = None
        member.member_id = member_id
        self.members[member_id] = member
        self._static_ids[member.instance_id or ""] = member_id
        if former_id in self._synced:
            self._synced.remove(former_id)
            self._synced.add(member_id)
        if self.leader == former_id:
            self.leader = member_id
        return member

    def _add_member(self, member_id: str, call: JoinCall, now: float) -> DelayedAnswer[Joined]:
        member = ClassicMember(
            member_id=member_id,
            instance_id=call.instance_id,
            client_id=call.client_id,
            host=call.host,
            session_seconds=call.session_seconds,
            rebalance_seconds=call.rebalance_seconds,
            protocols=call.protocols,
            session_deadline=now + call.session_seconds,
        )
        if not self.members:
            self.protocol_type = call.protocol_type
        self.members[member_id] = member
        if call.instance_id is not None:
            self._static_ids[call.instance_id] = member_id
        if self.leader is None:
            self.leader = member_id
        member.joining = DelayedAnswer[Joined]()
        pending = member.joining
        if self.state is ClassicState.PREPARING:
            self._complete_if_joined(now)
        else:
            self._prepare_rebalance(now)
        return pending

    def _rejoin(self, member: ClassicMember, call: JoinCall, now: float) -> DelayedAnswer[Joined]:
        """Take over what a member says now, and let it wait for the end of the rebalance."""
        _replace_waiting(member.joining)
        member.client_id = call.client_id
        member.host = call.host
        member.session_seconds = call.session_seconds
        member.rebalance_seconds = call.rebalance_seconds
        member.protocols = call.protocols
        self._hear(member, now)
        pending = DelayedAnswer[Joined]()
        member.joining = pending
        self._complete_if_joined(now)
        return pending

    # Rebalances.

    def _prepare_rebalance(self, now: float) -> None:
        for member in self.members.values():
            if member.syncing is not None:
                # It hears that it has to join again, and could not send heartbeats while it waited.
                self._hear(member, now)
                _replace_waiting(member.syncing)
                member.syncing = None
            if self.state is ClassicState.COMPLETING:
                member.assignment = b""
        self._sync_deadline = math.inf
        self._waits_for_newcomers = self.state is ClassicState.EMPTY
        if self._waits_for_newcomers:
            self._rebalance_deadline = now + FIRST_REBALANCE_SECONDS
        else:
            self._rebalance_deadline = now + self._longest_rebalance()
        self.state = ClassicState.PREPARING
        self._complete_if_joined(now)

    def _complete_if_joined(self, now: float) -> None:
        if self.state is not ClassicState.PREPARING or self._waits_for_newcomers or self._promised_ids:
            return
        if all(member.joining is not None for member in self.members.values()):
            self._complete_rebalance(now)

    def _complete_rebalance(self, now: float) -> None:
        """Begin a new generation with those who have joined."""
        self._rebalance_deadline = math.inf
        self._waits_for_newcomers = False
        for member in list(self.members.values()):
            # A static member keeps its place while it is away; only the end of its session removes it.
            if member.joining is None and member.instance_id is None:
                self._forget(member)
        if not self.members:
            self.state = ClassicState.EMPTY
            self.generation += 1
            self.protocol = ""
            self.leader = None
            return
        joined = [member for member in self.members.values() if member.joining is not None]
        if not joined:
            # Only static members are left, and all of them are away.
            self._rebalance_deadline = now + self._longest_rebalance()
            return
        if self.leader is None or self.members[self.leader].joining is None:
            self.leader = joined[0].member_id
        self.state = ClassicState.COMPLETING
        self.generation += 1
        self.protocol = self._elected_protocol()
        self._sync_deadline = now + self._longest_rebalance()
        self._synced.clear()
        for member in joined:
            pending = member.joining
            member.joining = None
            self._hear(member, now)
            if pending is not None:
                pending.give(self._joined_of(member))

    def _assign(self, assignments: Mapping[str, bytes], now: float) -> None:
        """Give each member its part of the leader's assignment. One that the leader left out gets nothing."""
        self.state = ClassicState.STABLE
        self._sync_deadline = math.inf
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            pending = member.syncing
            member.syncing = None
            if pending is not None:
                self._hear(member, now)
                pending.give(self._synced_of(member))

    def _elected_protocol(self) -> str:
        """Return the protocol that most members like most, of those that all of them know."""
        members = list(self.members.values())
        candidates = _common_protocols(members)
        votes = Counter(member.vote(candidates) for member in members)
        # Where as many are for one as for another, the first member decides.
        return votes.most_common(1)[0][0]

    def _longest_rebalance(self) -> float:
        # Not less than a moment, whatever clients ask for: else a rebalance would end again and again.
        longest = max((member.rebalance_seconds for member in self.members.values()), default=0.0)
        return max(longest, FIRST_REBALANCE_SECONDS)

    # Members.

    def _member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """Return a member. Raise `GroupRequestError` if there is none with this id, or if another one has come with
        the same group.instance.id since."""
        if instance_id is not None:
            known = self._static_ids.get(instance_id)
            if known is None:
                raise GroupRequestError(ErrorCode.UNKNOWN_MEMBER_ID)
            if known != member_id:
                raise GroupRequestError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise GroupRequestError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise GroupRequestError(ErrorCode.ILLEGAL_GENERATION)

    def _hear(self, member: ClassicMember, now: float) -> None:
        member.session_deadline = now + member.session_seconds

    def _forget(self, member: ClassicMember) -> None:
        """Take a member out of all lists. Whoever waits in its name hears that it is no member."""
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self._static_ids[member.instance_id]
        self._synced.discard(member.member_id)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)
        gone = GroupRequestError(ErrorCode.UNKNOWN_MEMBER_ID)
        if member.joining is not None:
            member.joining.refuse(gone)
        if member.syncing is not None:
            member.syncing.refuse(gone)

    def _remove(self, members: Iterable[ClassicMember], now: float) -> None:
        for member in members:
            self._forget(member)
        if self.state is ClassicState.PREPARING:
            self._complete_if_joined(now)
        else:
            self._prepare_rebalance(now)

    # Answers.

    def _joined_of(self, member: ClassicMember) -> Joined:
        members: tuple[JoinedMember, ...] = ()
        if member.member_id == self.leader:
            members = tuple(
                JoinedMember(each.member_id, each.instance_id, each.subscription(self.protocol))
                for each in self.members.values()
            )
        return Joined(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader or "",
            member_id=member.member_id,
            members=members,
        )

    def _synced_of(self, member: ClassicMember) -> Synced:
        return Synced(self.protocol_type, self.protocol, member.assignment)


def subscription_bytes(protocols: Iterable[tuple[str, bytes]]) -> int:
    return sum(len(name) + len(subscription) for name, subscription in protocols)


def _new_member_id(name: str) -> str:
    return f"{name}-{uuid.uuid4()}"


def _common_protocols(members: Iterable[ClassicMember]) -> set[str]:
    """Return the protocols that all members know."""
    offers = [{name for name, _ in member.protocols} for member in members]
    return set.intersection(*offers)


def _replace_waiting(pending: DelayedAnswer[Joined] | DelayedAnswer[Synced] | None) -> None:
    """Answer a request that the client has sent anew since, or that a rebalance has overtaken."""
    if pending is not None:
        pending.refuse(GroupRequestError(ErrorCode.REBALANCE_IN_PROGRESS))
