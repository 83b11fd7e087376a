"""Any sequence of joins, heartbeats, departures and silence leaves a group of the new protocol in order."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from kbackup.serve.groups.assignors import AssignedPartition
from kbackup.serve.groups.consumer import SESSION_SECONDS, ConsumerGroup, ConsumerState
from kbackup.serve.groups.errors import GroupRequestError
from kbackup.serve.groups.patterns import matching_topics
from kbackup.serve.protocol import ErrorCode
from tests.unit.serve.groups.builders import Contents, a_member_call, topic_id

REBALANCE = 20.0
STEP = 5.0
_REJOIN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)


class Client:
    """A consumer as Kafka's clients are: it gives up what it is told to, says so, and then takes what it gets."""

    def __init__(self, group: ConsumerGroup, member_id: str, names: frozenset[str], instance_id: str | None) -> None:
        self.group = group
        self.member_id = member_id
        self.names = names
        self.instance_id = instance_id
        self.epoch = 0
        self.owned: frozenset[AssignedPartition] = frozenset()
        self.told: frozenset[AssignedPartition] = frozenset()
        self.is_dead = False
        self.is_slow = False
        self.loses_answer = False
        self.has_lost_answer = False
        """Whether it has to say everything again, as clients do after a request without an answer."""
        self.removals = 0

    def step(self, contents: Contents, now: float) -> None:
        has_news = self.owned != self.told and not self.is_slow
        if has_news:
            self.owned &= self.told
        is_whole = self.epoch == 0 or self.has_lost_answer
        call = a_member_call(
            self.member_id,
            self.epoch,
            instance_id=self.instance_id,
            rebalance_seconds=REBALANCE if is_whole else None,
            names=self.names if is_whole else None,
            owned=self.owned if has_news or is_whole else None,
        )
        try:
            answer = self.group.heartbeat(call, contents.topics(), now)
        except GroupRequestError as error:
            if error.code is ErrorCode.FENCED_INSTANCE_ID:
                self.is_dead = True
            elif error.code not in (*_REJOIN, ErrorCode.UNRELEASED_INSTANCE_ID):
                raise
            self.removals += error.code in _REJOIN
            self.epoch = 0
            self.owned = self.told = frozenset()
            return
        if self.loses_answer:
            self.loses_answer = False
            self.has_lost_answer = True
            return
        self.has_lost_answer = False
        self.epoch = answer.epoch
        if answer.assigned is not None:
            self.told = answer.assigned
        if not self.is_slow and self.owned <= self.told:
            self.owned = self.told


class ConsumerSequences(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.contents = Contents(a=4, b=3)
        self.group = ConsumerGroup("g", matching_topics)
        self.clients: list[Client] = []
        self.now = 1000.0
        self.epoch = 0

    def living(self) -> list[Client]:
        return [client for client in self.clients if not client.is_dead]

    @precondition(lambda self: len(self.living()) < 5)
    @rule(names=st.sampled_from(["a", "b", "ab"]), instance_id=st.sampled_from([None, None, "one"]))
    def a_client_comes(self, names: str, instance_id: str | None) -> None:
        for client in self.living():
            if client.instance_id == instance_id is not None:
                # It pauses, to be started again.
                self.leave(client, -2)
        client = Client(self.group, f"m{len(self.clients)}", frozenset(names), instance_id)
        self.clients.append(client)
        client.step(self.contents, self.now)

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def a_client_leaves(self, data: st.DataObject) -> None:
        self.leave(data.draw(st.sampled_from(self.living())), -1)

    def leave(self, client: Client, epoch: int) -> None:
        client.is_dead = True
        call = a_member_call(client.member_id, epoch, instance_id=client.instance_id)
        try:
            self.group.heartbeat(call, self.contents.topics(), self.now)
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
        data.draw(st.sampled_from(self.living())).is_slow = is_slow

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def an_answer_is_lost(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.living())).loses_answer = True

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def a_client_does_something(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.living())).step(self.contents, self.now)

    @rule(count=st.integers(4, 8))
    def a_topic_gets_longer(self, count: int) -> None:
        longer = max(count, self.contents.served["a"].partitions)
        self.contents.serve(a=longer, b=3)

    @rule(steps=st.integers(1, 8))
    def time_passes(self, steps: int) -> None:
        for _ in range(steps):
            self.tick()

    def tick(self) -> None:
        self.now += STEP
        self.group.pass_time(self.now)
        assert self.group.next_deadline() > self.now, "what is due was done"
        for client in self.living():
            client.step(self.contents, self.now)

    @invariant()
    def the_epoch_never_falls(self) -> None:
        assert self.group.epoch >= self.epoch
        self.epoch = self.group.epoch

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        owners: dict[AssignedPartition, str] = {}
        for client in self.living():
            if client.member_id not in self.group.members:
                # It was removed, and hears of it with its next heartbeat.
                continue
            for each in client.owned:
                other = owners.setdefault(each, client.member_id)
                assert other == client.member_id, f"{each} belongs to {other} and {client.member_id}"

    def teardown(self) -> None:
        """Every rebalance ends, and the living members read everything; who sends heartbeats stays."""
        for client in self.clients:
            client.is_slow = False
            client.loses_answer = False
        for _ in range(int(SESSION_SECONDS / STEP) + 10):
            self.tick()
        removals = sum(client.removals for client in self.clients)
        for _ in range(20):
            self.tick()
        living = self.living()
        assert removals == sum(client.removals for client in self.clients)
        assert set(self.group.members) == {client.member_id for client in living}
        assert self.group.state is (ConsumerState.STABLE if living else ConsumerState.EMPTY)
        names = frozenset[str]().union(*(client.names for client in living))
        expected = [
            AssignedPartition(topic_id(name).bytes, number)
            for name in sorted(names)
            for number in range(self.contents.served[name].partitions)
        ]
        assert sorted(each for client in living for each in client.owned) == sorted(expected)


def test_any_sequence_leaves_the_group_in_order() -> None:
    run_state_machine_as_test(ConsumerSequences, settings=settings(max_examples=100, stateful_step_count=30))
