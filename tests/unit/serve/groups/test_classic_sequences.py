"""Any sequence of joins, heartbeats, departures and silence leaves a group of the classic protocol in order."""

from __future__ import annotations

import json
from collections import defaultdict

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from kbackup.serve.groups.classic import ClassicGroup, ClassicState, Joined, Synced
from kbackup.serve.groups.delayed import DelayedAnswer
from kbackup.serve.groups.errors import GroupRequestError
from kbackup.serve.protocol import ErrorCode
from tests.unit.serve.groups.builders import a_join, a_sync

PARTITIONS = 7
SESSION = 10.0
REBALANCE = 20.0
_EXPECTED = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
"""The errors after which a client joins again under its id."""


class Client:
    """A consumer as Kafka's clients are: it joins, syncs, sends heartbeats, and joins again when it is told to."""

    def __init__(self, group: ClassicGroup, instance_id: str | None) -> None:
        self.group = group
        self.instance_id = instance_id
        self.member_id = ""
        self.joining: DelayedAnswer[Joined] | None = None
        self.syncing: DelayedAnswer[Synced] | None = None
        self.joined: Joined | None = None
        self.partitions: list[int] = []
        self.generation = 0
        self.is_dead = False
        self.is_slow = False
        self.may_be_removed = False
        """Whether it was slow since its last join: it may hear only later that it has been removed."""
        self.removals = 0

    def step(self, now: float) -> None:
        """Do the next thing, and all that follows from it without waiting."""
        try:
            self._step(now)
        except GroupRequestError as error:
            self.partitions = []
            self.joining = self.syncing = self.joined = None
            if error.code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.removals += 1
                self.member_id = ""
            elif error.code is ErrorCode.FENCED_INSTANCE_ID:
                self.is_dead = True
            elif error.code not in _EXPECTED:
                raise

    def _step(self, now: float) -> None:
        if self.joining is None and self.syncing is None and self.joined is None:
            self._join(now)
        elif self.joining is not None and self.joining.is_given:
            self.joined = self.joining.result()
            self.joining = None
            self.may_be_removed = self.is_slow
            self.member_id = self.joined.member_id
            assert self.joined.generation >= self.generation, "a generation is never older than one before"
            self.generation = self.joined.generation
            call = a_sync(self.joined, self._assignment(), instance_id=self.instance_id)
            self.syncing = self.group.sync(call, now)
        elif self.syncing is not None and self.syncing.is_given:
            self.partitions = json.loads(self.syncing.result().assignment or b"[]")
            self.syncing = None
        elif self.joining is None and self.syncing is None:
            try:
                self.group.heartbeat(self.member_id, self.instance_id, self.generation, now)
            except GroupRequestError as error:
                if self.is_slow and error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                    # It does not come back from its records, and its heartbeats go on.
                    return
                raise

    def _join(self, now: float) -> None:
        call = a_join(
            self.member_id,
            instance_id=self.instance_id,
            needs_known_id=True,
            session_seconds=SESSION,
            rebalance_seconds=REBALANCE,
        )
        try:
            self.joining = self.group.join(call, now)
        except GroupRequestError as error:
            if error.code is not ErrorCode.MEMBER_ID_REQUIRED:
                raise
            self.member_id = error.member_id

    def _assignment(self) -> dict[str, bytes]:
        assert self.joined is not None
        if self.joined.skip_assignment:
            return {}
        members = [each.member_id for each in self.joined.members]
        shares: dict[str, list[int]] = defaultdict(list)
        for number in range(PARTITIONS if members else 0):
            shares[members[number % len(members)]].append(number)
        return {member: json.dumps(numbers).encode() for member, numbers in shares.items()}


class ClassicSequences(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.group = ClassicGroup("g")
        self.clients: list[Client] = []
        self.now = 1000.0
        self.generation = 0
        self.owners: dict[tuple[int, int], str] = {}
        """Who has got a partition in a generation; the instance id of static members, whose member ids change."""

    def living(self) -> list[Client]:
        return [client for client in self.clients if not client.is_dead]

    @precondition(lambda self: len(self.living()) < 6)
    @rule(instance_id=st.sampled_from([None, None, "one", "two"]))
    def a_client_comes(self, instance_id: str | None) -> None:
        for client in self.living():
            if client.instance_id == instance_id is not None:
                # It was started again: the former life does nothing any more.
                client.is_dead = True
        client = Client(self.group, instance_id)
        self.clients.append(client)
        client.step(self.now)

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def a_client_leaves(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.living()))
        client.is_dead = True
        if client.member_id and client.joining is None:
            try:
                self.group.leave(client.member_id, client.instance_id, self.now)
            except GroupRequestError as error:
                if error.code not in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                    raise

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def a_client_vanishes(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.living())).is_dead = True

    @precondition(lambda self: self.living())
    @rule(data=st.data(), is_slow=st.booleans())
    def a_client_is_slow(self, data: st.DataObject, is_slow: bool) -> None:
        client = data.draw(st.sampled_from(self.living()))
        client.is_slow = is_slow
        client.may_be_removed |= is_slow

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def a_client_does_something(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.living())).step(self.now)

    @rule(steps=st.integers(1, 12))
    def time_passes(self, steps: int) -> None:
        for _ in range(steps):
            self.tick()

    def tick(self) -> None:
        """Two seconds go by, and every living client does what it does within them."""
        self.now += 2.0
        self.group.pass_time(self.now)
        assert self.group.next_deadline() > self.now, "what is due was done"
        for client in self.living():
            before = client.removals
            may_be_removed = client.may_be_removed
            client.step(self.now)
            assert may_be_removed or client.removals == before, "who sends heartbeats and joins in time stays a member"
            self.see(client)

    def see(self, client: Client) -> None:
        who = client.instance_id or client.member_id
        for number in client.partitions:
            owner = self.owners.setdefault((client.generation, number), who)
            assert owner == who, "a partition has one owner in a generation"

    @invariant()
    def the_generation_never_falls(self) -> None:
        assert self.group.generation >= self.generation
        self.generation = self.group.generation

    @invariant()
    def partitions_have_one_owner(self) -> None:
        for client in self.living():
            self.see(client)

    def teardown(self) -> None:
        """Every rebalance ends, and the living members read everything."""
        for client in self.clients:
            client.is_slow = False
        for _ in range(60):
            self.tick()
        living = self.living()
        if not living:
            assert self.group.state is ClassicState.EMPTY
            return
        assert self.group.state is ClassicState.STABLE
        assert set(self.group.members) == {client.member_id for client in living}
        read = sorted(number for client in living for number in client.partitions)
        assert read == list(range(PARTITIONS))


def test_any_sequence_leaves_the_group_in_order() -> None:
    run_state_machine_as_test(ClassicSequences, settings=settings(max_examples=100, stateful_step_count=30))
