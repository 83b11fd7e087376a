"""Topics that are held back: slots go on without them, exactly once, and each is tried again after a pause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from kbackup.archive.restores.plan import UnitRange
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.errors import ClusterError, UnreachableError
from kbackup.kafka.produce import RefusedTopicError
from kbackup.mirror.apply import slots
from kbackup.mirror.apply.held import HeldTopics, RefusedTopic, RoundRefusals, reason_of
from kbackup.mirror.apply.pending import Pending
from kbackup.mirror.apply.slots import OpenSlot, OpenSlots, SlotResult, SlotTask
from kbackup.mirror.flow import RemoteTopic
from kbackup.mirror.schemas import AwaitedSchemasError, TopicSchemas
from kbackup.native.contract import CommittedProgress, Runs
from kbackup.spark.tasks import ProgressSender
from kbackup.types import RecordBlock, TopicPartition
from tests.support.made_segments import write
from tests.support.memory_store import MemoryStore
from tests.support.slots import slot_work

# A slot with a target in memory: it keeps what is committed, and refuses the records of some topics.


@dataclass
class Target:
    """`records` are the committed source offsets by partition, `refusing` the topics that take none. `is_silent`: it
    does not say which topic of a transaction it refuses. `transactions` has the topics of each committed one."""

    refusing: set[str] = field(default_factory=set)
    is_silent: bool = False
    records: dict[TopicPartition, list[int]] = field(default_factory=dict)
    progress: dict[TopicPartition, CommittedProgress] = field(default_factory=dict)
    transactions: list[set[str]] = field(default_factory=list)
    open_producers: int = 0

    def producer(self, *_: object, **__: object) -> Producer:
        self.open_producers += 1
        return Producer(self)


@dataclass
class Producer:
    """What a `BlockProducer` does, without a broker: one transaction at a time, which is committed whole or not."""

    target: Target
    unnamed_refusal: ClusterError | None = None
    room: int = 1 << 20
    _sent: dict[TopicPartition, list[int]] = field(default_factory=dict)
    _is_closed: bool = False

    def start(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedProgress]:
        return {tp: self.target.progress[tp] for tp in partitions if tp in self.target.progress}

    def send(self, tp: TopicPartition, block: RecordBlock) -> None:
        assert not self._is_closed, "a producer that was closed is used"
        self._sent.setdefault(tp, []).extend(block.offsets.tolist())

    def flush(self) -> dict[TopicPartition, Runs]:
        self._refuse(tp.topic for tp in self._sent)
        runs: dict[TopicPartition, Runs] = {}
        for tp, sources in self._sent.items():
            at = len(self.target.records.get(tp, ()))
            source = np.array(sources, np.int64)
            runs[tp] = Runs(source, np.arange(at, at + len(source), dtype=np.int64), np.ones(len(source), np.int64))
        return runs

    def _refuse(self, topics: Iterable[str]) -> None:
        refused = sorted(self.target.refusing.intersection(topics))
        if not refused:
            return
        if not self.target.is_silent:
            raise RefusedTopicError(refused[0], f"{refused[0]} is refused", "mend it")
        self.unnamed_refusal = ClusterError("a topic is refused", "mend it")
        raise self.unnamed_refusal

    def commit(self, progress: Mapping[TopicPartition, CommittedProgress]) -> None:
        self._refuse(tp.topic for tp in progress)
        for tp, sources in self._sent.items():
            self.target.records.setdefault(tp, []).extend(sources)
        self.target.progress |= progress
        self.target.transactions.append({tp.topic for tp in progress})
        self._sent = {}

    commit_alone = commit

    def close(self) -> None:
        assert not self._is_closed, "closing a producer twice crashes the process"
        self._is_closed = True
        self.target.open_producers -= 1


ORDERS, CLICKS, EVENTS = (TopicPartition(f"A.{name}", 0) for name in ("orders", "clicks", "events"))
EVERY = (ORDERS, CLICKS, EVENTS)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def target_cluster(monkeypatch: pytest.MonkeyPatch) -> Target:
    made = Target()
    monkeypatch.setattr(slots, "BlockProducer", made.producer)
    return made


def range_of(store: MemoryStore, remote: TopicPartition, offsets: range = range(10)) -> UnitRange:
    """Return archived records of one partition, which the slot applies to a remote topic."""
    topic = remote.topic.removeprefix("A.")
    segments = write(store, SegmentTarget(topic, 1, 0, 1 << 20, "none"), offsets)
    return UnitRange(topic=topic, partition=0, target=remote.topic, segments=tuple(segments))


def task_of(ranges: Sequence[UnitRange], apart: Iterable[str] = ()) -> SlotTask:
    return SlotTask(0, tuple(ranges), EVERY, (), None, {}, {}, frozenset(apart))


def run(store: MemoryStore, task: SlotTask, open_slots: OpenSlots | None = None) -> SlotResult:
    """Run one round of a slot, in a process of its own unless slots of another round are open."""
    work = slot_work(store)
    own = open_slots or OpenSlots()
    (result,) = own.run(work, [task])
    if open_slots is None:
        own.close()
    return result


@pytest.mark.parametrize("is_silent", [False, True], ids=["the topic is named", "no topic is named"])
def test_the_other_topics_of_a_transaction_go_on_without_a_refused_one(
    is_silent: bool, store: MemoryStore, target_cluster: Target
) -> None:
    target_cluster.refusing, target_cluster.is_silent = {"A.clicks"}, is_silent
    ranges = [range_of(store, tp) for tp in EVERY]
    result = run(store, task_of(ranges))
    assert [refused.remote for refused in result.refused] == ["A.clicks"]
    assert target_cluster.records == {ORDERS: [*range(10)], EVENTS: [*range(10)]}
    assert {tp: noted.position.next for tp, noted in result.positions.items()} == {ORDERS: 10, EVENTS: 10}
    assert target_cluster.open_producers == 0


def test_a_mended_topic_catches_up_without_a_repetition(store: MemoryStore, target_cluster: Target) -> None:
    ranges = [range_of(store, tp) for tp in EVERY]
    target_cluster.refusing = {"A.clicks"}
    with_refusal = run(store, task_of(ranges))
    target_cluster.refusing = set()
    mended = run(store, task_of(ranges, apart=["A.clicks"]))
    assert (len(with_refusal.refused), mended.refused) == (1, ())
    assert target_cluster.records == {tp: [*range(10)] for tp in EVERY}
    numbers = [part.name.number for result in (with_refusal, mended) for part in result.map_parts]
    assert numbers == [*range(1, len(numbers) + 1)], "the offset map goes on where it was"


def test_a_topic_on_trial_takes_no_other_one_with_it(store: MemoryStore, target_cluster: Target) -> None:
    target_cluster.refusing = {"A.clicks"}
    result = run(store, task_of([range_of(store, tp) for tp in EVERY], apart=["A.clicks"]))
    assert target_cluster.transactions == [{"A.orders", "A.events"}]
    assert [refused.remote for refused in result.refused] == ["A.clicks"]


def test_every_topic_of_a_slot_may_be_refused(store: MemoryStore, target_cluster: Target) -> None:
    target_cluster.refusing, target_cluster.is_silent = {tp.topic for tp in EVERY}, True
    result = run(store, task_of([range_of(store, tp) for tp in EVERY]))
    assert sorted(refused.remote for refused in result.refused) == sorted(tp.topic for tp in EVERY)
    assert target_cluster.records == {}


def test_records_that_cannot_be_read_hold_back_their_topic_alone(store: MemoryStore, target_cluster: Target) -> None:
    whole, missing = range_of(store, ORDERS), range_of(store, CLICKS, range(20, 30))
    store.delete([missing.segments[0].key])
    result = run(store, task_of([whole, missing]))
    (refused,) = result.refused
    assert refused.remote == "A.clicks"
    assert missing.segments[0].key in refused.reason
    assert target_cluster.records == {ORDERS: [*range(10)]}


def test_an_error_of_the_target_is_no_refusal_of_a_topic(
    store: MemoryStore, target_cluster: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flush(_: Producer) -> Any:
        raise UnreachableError("the target is away", "wait")

    monkeypatch.setattr(Producer, "flush", flush)
    with pytest.raises(UnreachableError):
        run(store, task_of([range_of(store, ORDERS)]))


def test_a_spark_task_closes_the_producer_that_it_has_last(store: MemoryStore, target_cluster: Target) -> None:
    target_cluster.refusing = {"A.clicks"}
    work = slot_work(store)
    task = task_of([range_of(store, tp) for tp in EVERY])
    (result,) = work(task, ProgressSender(None, 0))
    assert [refused.remote for refused in result.refused] == ["A.clicks"]
    assert target_cluster.open_producers == 0


def test_positions_are_refreshed_without_those_of_a_refused_topic(store: MemoryStore, target_cluster: Target) -> None:
    own = OpenSlots()
    run(store, task_of([range_of(store, tp) for tp in EVERY]), own)
    target_cluster.refusing, target_cluster.is_silent = {"A.clicks"}, True
    before = len(target_cluster.transactions)
    (refreshed,) = own.refresh(slot_work(store), [task_of([])], {})
    own.close()
    assert [refused.remote for refused in refreshed.refused] == ["A.clicks"]
    assert sorted(map(sorted, target_cluster.transactions[before:])) == [["A.events"], ["A.orders"]]
    assert {tp: noted.position.next for tp, noted in refreshed.positions.items()} == dict.fromkeys(EVERY, 10)


def test_a_producer_is_replaced_where_a_topic_takes_smaller_batches() -> None:
    slot = OpenSlot(Producer(Target()), None, frozenset(EVERY))  # type: ignore[arg-type]
    assert slot.serves(task_of([]))
    smaller = SlotTask(0, (), EVERY, (), None, {}, {}, message_limit=100_000)
    assert not slot.serves(smaller)
    slot.message_limit = 100_000
    assert slot.serves(smaller)
    assert slot.serves(task_of([])), "small batches serve a large limit"


def test_a_producer_is_replaced_where_its_queue_has_no_room_for_a_record(store: MemoryStore) -> None:
    """It began with a task without records, as a refresh of positions is."""
    slot = OpenSlot(Producer(Target(), room=100), None, frozenset(EVERY))  # type: ignore[arg-type]
    task = task_of([range_of(store, ORDERS)])
    assert slot.serves(task)
    slot.producer.room = task.largest - 1
    assert not slot.serves(task)


# When a topic that is held back is tried again.


@dataclass
class Hands:
    """A clock."""

    at: float = 0.0

    def __call__(self) -> float:
        return self.at


def test_each_refusal_doubles_the_pause_up_to_a_bound() -> None:
    clock = Hands()
    held = HeldTopics(clock)
    pauses: list[float] = []
    for _ in range(9):
        held.hold("A.orders", "too large")
        began = clock.at
        while not held.due:
            clock.at += 1
        pauses.append(clock.at - began)
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_a_topic_waits_until_it_is_due_and_is_released_when_it_went_through() -> None:
    clock = Hands()
    held = HeldTopics(clock)
    first = RoundRefusals(held, {})
    first.add_refused([RefusedTopic("A.orders", "too large")])
    assert first.end_round(["A.orders", "A.clicks"]) == {"A.orders": "too large"}
    waiting = RoundRefusals(held, {})
    assert waiting.left_out == {"A.orders"}
    assert not waiting.on_trial
    assert waiting.end_round(["A.orders", "A.clicks"]) == {"A.orders": "too large"}
    clock.at = 5
    trial = RoundRefusals(held, {})
    assert not trial.left_out
    assert trial.on_trial == {"A.orders"}
    assert trial.end_round(["A.orders", "A.clicks"]) == {}
    assert held.reasons == {}


def test_a_topic_of_which_something_changed_is_tried_at_once() -> None:
    held = HeldTopics(Hands())
    held.hold("A.orders", "too large")
    held.try_again(["A.orders", "A.clicks"])
    assert held.due == {"A.orders"}


def test_a_topic_that_the_flow_does_not_have_any_more_is_forgotten() -> None:
    held = HeldTopics(Hands())
    held.hold("A.orders", "too large")
    assert RoundRefusals(held, {}).end_round(["A.clicks"]) == {}
    assert held.reasons == {}


def test_a_topic_that_the_caller_withholds_is_left_out_and_told() -> None:
    refusals = RoundRefusals(HeldTopics(Hands()), {"A.orders": "its schemas are missing"})
    assert refusals.left_out == {"A.orders"}
    assert refusals.end_round(["A.orders"]) == {"A.orders": "its schemas are missing"}


def test_what_another_process_held_back_goes_apart_at_once() -> None:
    held = HeldTopics(Hands())
    held.suspect("A.orders", "too large")
    assert RoundRefusals(held, {}).on_trial == {"A.orders"}


def test_left_out_topics_have_no_ranges(store: MemoryStore) -> None:
    pending = Pending({ORDERS: [range_of(store, ORDERS)], CLICKS: [range_of(store, CLICKS)]})
    assert [*pending.without({"A.orders"}).ranges] == [CLICKS]
    assert pending.without(()) is pending


def test_a_reason_has_the_same_words_in_each_attempt() -> None:
    reasons = {reason_of(ClusterError(f"denied (after {ms} ms)", "allow it")) for ms in (3, 140)}
    assert reasons == {"denied; allow it"}


# Topics whose schemas can't be had.


@dataclass
class Registry:
    """Schemas of a flow; `lacking` are the source's topics that name one which nobody knows."""

    lacking: set[str]
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def register(self, archive: object, point: object, topics: Sequence[RemoteTopic]) -> str:
        names = tuple(topic.source for topic in topics)
        self.asked.append(names)
        missing = self.lacking.intersection(names)
        if missing:
            raise AwaitedSchemasError(f"no schema for {sorted(missing)[0]}", "register it")
        return f"ids of {', '.join(names)}"


def test_a_topic_waits_alone_for_its_schemas_and_is_asked_for_again_later() -> None:
    clock, registry = Hands(), Registry({"clicks"})
    schemas = TopicSchemas(registry, clock)  # type: ignore[arg-type]
    topics = [RemoteTopic(name, f"A.{name}", 1) for name in ("clicks", "events", "orders")]

    def register() -> tuple[object, dict[str, str]]:
        return schemas.register(None, None, topics)  # type: ignore[arg-type]

    expected = "ids of events, orders", {"A.clicks": "no schema for clicks; register it"}
    assert register() == expected
    registry.asked = []
    assert register() == expected
    assert registry.asked == [("events", "orders")], "the registry is not asked about it in each round"
    registry.lacking = set()
    clock.at = 61
    assert register() == ("ids of clicks, events, orders", {})
