"""The applier: what a round applies, what it knows between rounds, and what it reads back or reports."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from kbackup.archive.catalog.state import LogStart
from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.archive.restores.offset_map import by_partition
from kbackup.archive.restores.plan import UnitRange
from kbackup.errors import ClusterError, FencedError, KbackupError, UnreachableError
from kbackup.jobs.replay import read_range
from kbackup.kafka.control.topics import Topic
from kbackup.metrics.registry import Silent
from kbackup.mirror.apply import applier as applier_module
from kbackup.mirror.apply import pending
from kbackup.mirror.apply import session as session_module
from kbackup.mirror.apply.applier import Applier
from kbackup.mirror.apply.held import HeldTopics, RoundRefusals
from kbackup.mirror.apply.pending import (
    Applied,
    Noted,
    Pending,
    PositionNote,
    Recovery,
    find_lost,
    find_pending,
    find_recreated,
    reported_positions,
)
from kbackup.mirror.apply.session import ApplySession
from kbackup.mirror.apply.slots import OpenSlot, SlotRefresh, SlotResult
from kbackup.mirror.flow import AppliedPosition, FlowStatus, RemoteTopic, write_status
from kbackup.mirror.flow_map import (
    SLOTS,
    FlowMap,
    FlowMapPartName,
    FlowState,
    MappedPartition,
    SlotMap,
    flow_runs_table,
    folder,
    slot_of,
    write_flow_map_part,
)
from kbackup.mirror.reader import MirrorSource
from kbackup.mirror.settings import TopicsReport
from kbackup.mirror.status import after_round, first_status
from kbackup.native.kernel import selected_kernel
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from tests.support.archives import commit_point, deletions_of
from tests.support.flow_maps import flow_of
from tests.support.made_segments import TOPIC, committed, state, target, write
from tests.support.memory_store import MemoryStore
from tests.support.slots import slot_work

REMOTE = TopicPartition("A.orders", 0)
SLOT = slot_of(REMOTE, SLOTS)


def no_spark() -> Any:
    raise AssertionError("a small round needs no Spark")


def make_applier(store: Store) -> Applier:
    return Applier(flow_of(), {"sasl.password": "hidden"}, store, no_spark, Silent())


def make_session(store: Store, heads: dict[int, FlowMapPartName] | None = None) -> ApplySession:
    state = FlowState(
        source="A", target="B", archive_id="a", target_cluster_id="c", slots=SLOTS, created_at="2026-01-01"
    )
    return ApplySession(cast(Any, None), state, {}, FlowMap(store, "A", "B", SLOTS, heads or {}))


def write_part(store: Store, number: int, previous: FlowMapPartName | None, *row: int) -> FlowMapPartName:
    name = FlowMapPartName(number, "aa")
    columns = cast(Any, tuple(np.array([value], np.int64) for value in row))
    write_flow_map_part(
        store, folder("A", "B", SLOT), name, flow_runs_table({MappedPartition(REMOTE, 1): columns}), previous
    )
    return name


def noted(following: int, part: FlowMapPartName) -> dict[TopicPartition, Noted]:
    return {REMOTE: Noted(AppliedPosition(1, following), PositionNote(1, part, 1))}


def sources(tables: list[pa.Table]) -> list[Any]:
    return [source for table in tables for source in table.column("source").to_pylist()]


def two_parts(store: Store) -> tuple[FlowMapPartName, FlowMapPartName]:
    one = write_part(store, 1, None, 0, 0, 10)
    return one, write_part(store, 2, one, 10, 11, 5)


def test_the_map_gets_what_an_attempt_before_has_committed() -> None:
    """The last attempt finds nothing left to do, and returns no part."""
    store = MemoryStore()
    one, two = two_parts(store)
    session = make_session(store, {SLOT: one})
    added = session.add(SlotResult(SLOT, [], noted(15, two), selected_kernel()))
    assert sources(added) == [10]
    assert session.map.slot(SLOT).head == two
    assert session.noted == noted(15, two)


@pytest.mark.parametrize("known", [0, 1])
def test_the_map_gets_what_was_committed_before_the_others_were_fenced(
    known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    parts = two_parts(store)
    session = make_session(store, {SLOT: parts[0]} if known else {})
    applier = make_applier(store)
    monkeypatch.setattr(applier._slots, "refresh", lambda *_: [SlotRefresh(noted(15, parts[1]), ())])
    work = slot_work(store, transaction_bytes=1)
    refusals = RoundRefusals(HeldTopics(), {})
    assert sources(applier._refresh(session, work, [], refusals)) == [0, 10][known:]
    assert session.map.slot(SLOT).head == parts[1]
    assert applier._refresh(session, work, [], refusals) == []


def unit(partition: int) -> UnitRange:
    return UnitRange(topic="orders", partition=partition, target="A.orders", segments=())


ONE_PARTITION = RemoteTopic("orders", "A.orders", 1)
"""Of the newest incarnation. An earlier one had three."""


@pytest.mark.parametrize("partition", [0, 2])
def test_a_partition_that_the_newest_incarnation_lacks_belongs_to_its_slot(partition: int) -> None:
    remote = TopicPartition("A.orders", partition)
    (task,) = make_session(MemoryStore()).tasks([ONE_PARTITION], ranges={remote: [unit(partition)]})
    assert task.slot == slot_of(remote, SLOTS)
    assert remote in task.partitions


def test_positions_that_were_read_back_are_not_expected_before_they_are_committed() -> None:
    """Else a topic that begins at its end would wait for ever in the slot of such a position."""
    session = make_session(MemoryStore())
    session.noted = session.uncommitted = noted(5, FlowMapPartName(1, "aa"))
    begins = {REMOTE._replace(topic="A.new"): AppliedPosition(1, 7)}
    tasks = [*session.tasks([ONE_PARTITION], begins=begins), *session.tasks([ONE_PARTITION])]
    assert [(each.expected, each.begins) for each in tasks] == [((), begins), ((), {})]
    session.uncommitted = {}
    assert session.tasks([ONE_PARTITION])[0].expected == (REMOTE,)


def test_remote_topics_have_room_for_every_incarnation_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, int]] = []

    def sync(_: object, topics: Sequence[RemoteTopic], __: object) -> TopicsReport:
        asked.append({topic.remote: topic.partitions for topic in topics})
        return TopicsReport((), {}, {"A.orders": "not authorized"})

    monkeypatch.setattr(applier_module, "sync_topics", sync)
    topics = [ONE_PARTITION, RemoteTopic("events", "A.events", 3)]
    parts = {TopicPartition("A.orders", 2): [unit(2)], TopicPartition("A.events", 2): [unit(2)]}
    refused = applier_module.make_room(flow_of(), cast(Any, None), topics, Pending(parts))
    assert asked == [{"A.orders": 3}]
    assert list(refused) == ["A.orders"]
    assert refused["A.orders"].endswith("not authorized")
    assert applier_module.make_room(flow_of(), cast(Any, None), topics, Pending()) == {}
    assert len(asked) == 1


@dataclass
class Closing:
    """A producer. `error` is what closing it raises."""

    error: KbackupError | None = None
    closed: int = 0

    def close(self) -> None:
        self.closed += 1
        if self.error:
            raise self.error


def open_slots(applier: Applier, producers: Sequence[Closing]) -> None:
    for number, producer in enumerate(producers):
        applier._slots._open[number] = OpenSlot(cast(Any, producer), cast(Any, None), frozenset())


def test_why_a_round_ended_outlives_the_closing_of_its_producers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    applier = make_applier(store)
    producers = [Closing(ClusterError("no abort", "wait")), *(Closing() for _ in range(30))]
    open_slots(applier, producers)

    def fenced(*_: object) -> Any:
        raise FencedError("another process", "stop one")

    monkeypatch.setattr(applier_module, "open_session", fenced)
    with pytest.raises(FencedError):
        applier.apply(cast(Any, None), cast(Any, None), [])
    assert [producer.closed for producer in producers] == [1] * len(producers)
    assert applier._slots._open == {}
    assert "no abort" in caplog.text


def test_no_password_is_shown() -> None:
    secret = {"sasl.password": "hidden"}
    store = MemoryStore()
    shown = [
        make_applier(store),
        slot_work(store, secret, transaction_bytes=1),
        Recovery(cast(Any, None), secret, ("A", "B"), []),
        MirrorSource("A", "s3://archive", secret, ()),
    ]
    assert not [each for each in shown if "hidden" in repr(each)]


# The segments that a round applies, and the records that it can't apply any more.


REMOTE = TopicPartition(f"A.{TOPIC}", 0)
OTHER = TopicPartition(f"A.{TOPIC}", 1)
TOPICS = [RemoteTopic(TOPIC, REMOTE.topic, 2)]

Positions = dict[TopicPartition, AppliedPosition]


@pytest.fixture
def archive() -> Archive:
    """Records 0 to 29 of partition 0 in three restore points, the third has partition 1 too; then incarnation 2."""
    store: Store = MemoryStore()
    for number in (1, 2, 3):
        segments = write(store, target(threshold=1 << 20), range(10 * number - 10, 10 * number))
        if number == 3:
            segments += write(store, target(1, 1 << 20), range(5, 8))
        committed(store, number, segments=segments, topics=[state((0, 0, 10 * number), (1, 5, 8), number=number)])
    anew = write(store, target(threshold=1 << 20, incarnation=2), range(4))
    committed(store, 4, segments=anew, topics=[state((0, 0, 4), (1, 0, 0), number=4, incarnation=2)])
    archive = committed(store, 5, segments=[], topics=[state((0, 0, 4), (1, 0, 0), number=5, incarnation=2)])[0]
    archive.reopen()
    return archive


def beyond(
    archive: Archive, number: int, positions: Positions, after: dict[str, int] | None = None, stop: bool = False
) -> Pending:
    return find_pending(archive, point(archive, number), TOPICS, positions, after or {}, stop)


def point(archive: Archive, number: int) -> Manifest:
    return archive.restore_point(number)


def firsts(pending_ranges: Pending) -> dict[TopicPartition, list[tuple[int, int]]]:
    """By partition, incarnation and first offset of each segment."""
    return {
        tp: [(s.incarnation, s.first) for each in ranges for s in each.segments]
        for tp, ranges in pending_ranges.ranges.items()
    }


def test_a_new_flow_begins_with_the_newest_incarnation(archive: Archive) -> None:
    assert firsts(beyond(archive, 3, {})) == {REMOTE: [(1, 0), (1, 10), (1, 20)], OTHER: [(1, 5)]}
    pending_ranges = beyond(archive, 5, {})
    assert firsts(pending_ranges) == {REMOTE: [(2, 0)]}
    assert pending_ranges.held_back == ()


def test_only_what_lies_beyond_the_positions(archive: Archive) -> None:
    positions = {REMOTE: AppliedPosition(1, 15), OTHER: AppliedPosition(1, 8)}
    assert firsts(beyond(archive, 3, positions)) == {REMOTE: [(1, 10), (1, 20)]}
    assert firsts(beyond(archive, 2, positions)) == {REMOTE: [(1, 10)]}
    pending_ranges = beyond(archive, 5, positions)
    assert firsts(pending_ranges) == {REMOTE: [(1, 10), (1, 20), (2, 0)]}
    assert [len(each.segments) for each in pending_ranges.ranges[REMOTE]] == [2, 1], "one range an incarnation"


def test_records_whose_keys_were_deleted_at_the_source_are_not_applied(archive: Archive) -> None:
    archived = archive.restore_point(5).topics
    known = deletions_of(TOPIC, (1, 3), incarnation=2)
    commit_point(archive, 6, topics=archived, deletions=known)
    (pending,) = beyond(archive, 6, {}).ranges[REMOTE]
    applied = [step.block.offsets.tolist() for step in read_range(archive.store, pending) if step.block is not None]
    assert applied == [[0, 3]]
    assert beyond(archive, 5, {}).ranges[REMOTE][0].window is None


def test_applied_restore_points_are_not_searched_again(archive: Archive) -> None:
    assert firsts(beyond(archive, 3, {REMOTE: AppliedPosition(1, 0)}, {TOPIC: 2})) == {
        REMOTE: [(1, 20)],
        OTHER: [(1, 5)],
    }
    assert firsts(beyond(archive, 5, {REMOTE: AppliedPosition(1, 0)}, {TOPIC: 5})) == {}


def test_a_new_incarnation_is_held_back_where_it_is_to_stop(archive: Archive) -> None:
    before = {REMOTE: AppliedPosition(1, 25)}
    assert beyond(archive, 5, before).held_back == ()
    held = beyond(archive, 5, before, stop=True)
    assert firsts(held) == {REMOTE: [(1, 20)], OTHER: [(1, 5)]}
    assert [(r.topic, r.incarnation, r.held_back) for r in held.held_back] == [(TOPIC, 2, True)]
    begun = {REMOTE: AppliedPosition(2, 2), OTHER: AppliedPosition(1, 8)}
    assert firsts(beyond(archive, 5, begun, stop=True)) == {REMOTE: [(2, 0)]}


def with_gaps(starts: dict[tuple[str, int, int], LogStart], *rows: dict[str, object]) -> Any:
    """An archive that lacks records: `starts` and rows of losses as a state has them, and nothing else is asked."""
    return SimpleNamespace(state=SimpleNamespace(starts=starts, losses=SimpleNamespace(dicts=lambda: rows)))


def loss(start: int, end: int, kind: str = "retention", incarnation: int = 1) -> dict[str, object]:
    row = {"point": 2, "topic": TOPIC, "incarnation": incarnation, "partition": 0, "kind": kind}
    return {**row, "start": start, "end": end}


def lost(archive: Archive, gaps: Any, before: Positions, after: Positions) -> list[tuple[int | None, ...]]:
    passed = find_lost(gaps, point(archive, 5), TOPICS, before, after)
    return [(each.incarnation, each.start, each.end) for each in passed]


def test_expired_and_lost_records_are_reported_when_a_position_passes_them(archive: Archive) -> None:
    expired = LogStart(TOPIC, 1, 0, 20, 20, 999)
    gaps = with_gaps({(TOPIC, 1, 0): expired}, loss(22, 25), loss(26, 27, "truncated"), loss(27, 28, "damaged"))
    assert lost(archive, gaps, {}, {REMOTE: AppliedPosition(1, 30)}) == [], "a new flow has lost nothing"
    at = {REMOTE: AppliedPosition(1, 12)}
    assert lost(archive, gaps, at, {REMOTE: AppliedPosition(1, 30)}) == [(1, 12, 20), (1, 22, 25), (1, 27, 28)]
    assert lost(archive, gaps, at, {REMOTE: AppliedPosition(1, 21)}) == [(1, 12, 20)]
    late = {REMOTE: AppliedPosition(1, 25)}
    assert lost(archive, gaps, late, {REMOTE: AppliedPosition(2, 4)}) == [(1, 27, 28)]
    assert lost(archive, gaps, late, late) == []


def test_a_partition_that_the_flow_comes_to_late_has_lost_what_is_gone(archive: Archive) -> None:
    gaps = with_gaps({(TOPIC, 1, 1): LogStart(TOPIC, 1, 1, 5, 5, 99)})
    before = {REMOTE: AppliedPosition(1, 12)}
    assert lost(archive, gaps, before, before | {OTHER: AppliedPosition(1, 8)}) == [(1, 0, 5)]


# Applied positions that the target forgot: what its logs hold decides, not how long they are.


QUIET, BUSY = TopicPartition("A.orders", 0), TopicPartition("A.orders", 1)
FOLDER = folder("A", "B", 0)

Row = tuple[int, int, int]


@dataclass
class Target:
    """Logs by their start and end, and the offsets of committed records."""

    logs: dict[TopicPartition, tuple[int, int]]
    committed: dict[TopicPartition, Collection[int]] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)

    def described_topics(self, names: Iterable[str]) -> tuple[dict[str, Topic], dict[str, KbackupError]]:
        refused: dict[str, KbackupError] = {}
        for name in self.hidden.intersection(names):
            refused[name] = UnreachableError(f"{name} is hidden", "give a right")
        return self.topics(name for name in names if name not in refused), refused

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        topics_by_name: dict[str, Topic] = {}
        for name in names:
            partitions = tuple(sorted(tp.partition for tp in self.logs if tp.topic == name))
            if partitions:
                topics_by_name[name] = Topic(name, "", False, partitions, 1)
        return topics_by_name

    def log_starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.logs[tp][0] for tp in partitions}

    def log_ends(self, partitions: Iterable[TopicPartition], isolation: str) -> dict[TopicPartition, int]:
        return {tp: self.logs[tp][1] for tp in partitions}

    def committed_partitions(self, target: object, group: str, part: pa.Table) -> set[TopicPartition]:
        return {
            tp
            for tp, (_, at, count) in by_partition(part)
            for start, size in zip(at.tolist(), count.tolist(), strict=True)
            if any(start <= offset < start + size for offset in self.committed.get(tp, ()))
        }

    def first_committed(self, target: object, group: str, parts: Iterable[pa.Table]) -> object:
        return next((tp for part in parts for tp in self.committed_partitions(target, group, part)), None)


class Recover:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.slot = SlotMap(MemoryStore(), FOLDER)

    def write(
        self, number: int, previous: FlowMapPartName | None, rows: Mapping[TopicPartition, Row]
    ) -> FlowMapPartName:
        name = FlowMapPartName(number, "aa")
        columns = {
            MappedPartition(tp, 1): cast(Any, tuple(np.array([value], np.int64) for value in row))
            for tp, row in rows.items()
        }
        write_flow_map_part(self.slot.store, FOLDER, name, flow_runs_table(columns), previous)
        return name

    def __call__(
        self, target: Target, known: Mapping[TopicPartition, FlowMapPartName] | None = None
    ) -> dict[TopicPartition, int]:
        self.patch.setattr(pending, "committed_partitions", target.committed_partitions)
        self.patch.setattr(pending, "first_committed", target.first_committed)
        noted = {tp: Noted(AppliedPosition(1, 0), PositionNote(1, part, 1)) for tp, part in (known or {}).items()}
        recovery = Recovery(cast(Any, target), {}, ("A", "B"), {QUIET.topic})
        return {tp: each.position.next for tp, each in recovery.positions([self.slot], noted).items()}


@pytest.fixture
def recover(monkeypatch: pytest.MonkeyPatch) -> Recover:
    return Recover(monkeypatch)


@pytest.mark.parametrize(
    ("target", "applied"),
    [
        (Target({QUIET: (0, 101)}, {QUIET: [99]}), {QUIET: 100}),
        (Target({QUIET: (0, 101)}), {}),  # another log, of a transaction that was given up
        (Target({QUIET: (0, 50)}), {}),
        (Target({QUIET: (120, 120)}), {QUIET: 100}),  # retention took the records
        (Target({QUIET: (60, 101)}), {}),
    ],
    ids=["there", "given up", "shorter", "expired", "given up and partly expired"],
)
def test_a_position_counts_where_the_target_holds_the_record_before_it(
    target: Target, applied: dict[TopicPartition, int], recover: Recover
) -> None:
    one = recover.write(1, None, {QUIET: (0, 0, 100)})
    recover.slot.load(one)
    assert recover(target) == applied


def test_the_newest_position_of_a_slot_alone_is_missing(recover: Recover) -> None:
    """No position names the part that was committed last: the target tells of it."""
    one = recover.write(1, None, {QUIET: (0, 0, 100), BUSY: (0, 0, 10)})
    two = recover.write(2, one, {QUIET: (100, 101, 5)})
    recover.slot.load(one)
    target = Target({QUIET: (0, 107), BUSY: (0, 11)}, {QUIET: range(106), BUSY: range(10)})
    assert recover(target, {BUSY: one}) == {QUIET: 105}
    assert recover.slot.head == two


def test_a_topic_that_is_hidden_is_judged_when_it_is_seen_again(recover: Recover) -> None:
    """Others go on meanwhile: it would end the round for all to ask for it."""
    one = recover.write(1, None, {QUIET: (0, 0, 100), BUSY: (0, 0, 10)})
    two = recover.write(2, one, {QUIET: (100, 101, 5)})
    recover.slot.load(one)
    target = Target({QUIET: (0, 107), BUSY: (0, 11)}, {QUIET: range(106), BUSY: range(10)}, hidden={QUIET.topic})
    recover(target, {BUSY: one})
    assert recover.slot.head == one
    target.hidden.clear()
    recover(target, {BUSY: one})
    assert recover.slot.head == two


def test_a_position_is_missing_and_later_parts_are_named(recover: Recover) -> None:
    one = recover.write(1, None, {BUSY: (0, 0, 10)})
    two = recover.write(2, one, {QUIET: (0, 0, 100)})
    recover.write(3, two, {QUIET: (100, 101, 5)})  # given up
    recover.slot.load(one)
    target = Target({QUIET: (0, 107), BUSY: (0, 11)}, {QUIET: range(100), BUSY: range(10)})
    assert recover(target, {BUSY: one}) == {QUIET: 100}
    assert recover.slot.head == two


@pytest.mark.parametrize(
    ("rows", "target", "known"),
    [
        # another topic of that name may hold records at the same place
        (
            {BUSY: (10, 11, 5), QUIET: (0, 0, 5)},
            Target({QUIET: (0, 107), BUSY: (0, 107)}, {QUIET: range(100), BUSY: range(100)}),
            [BUSY],
        ),
        ({BUSY: (10, 11, 5)}, Target({QUIET: (0, 107)}, {QUIET: range(100)}), []),
    ],
    ids=["a known position does not name it", "its partition was made anew"],
)
def test_a_part_that_was_given_up(
    rows: dict[TopicPartition, Row], target: Target, known: list[TopicPartition], recover: Recover
) -> None:
    """Its records are not looked for, or not found."""
    one = recover.write(1, None, {BUSY: (0, 0, 10)})
    recover.write(2, one, rows)
    recover.slot.load(one)
    assert recover(target, dict.fromkeys(known, one)) == {}
    assert recover.slot.head == one


# New incarnations are told once, also where a round that committed some of them failed before it told.


ORDERS = RemoteTopic(TOPIC, f"A.{TOPIC}", 2)
ZERO, ONE, TWO = (TopicPartition(ORDERS.remote, number) for number in range(3))
ELSEWHERE = TopicPartition("A.other", 0)


@pytest.fixture
def reborn() -> Archive:
    """Records 0 to 9, then incarnation 2."""
    store = MemoryStore()
    committed(store, 1, segments=write(store, target(), range(10)), topics=[state((0, 0, 10), (1, 0, 0), number=1)])
    segments = write(store, target(incarnation=2), range(4))
    reborn = committed(store, 2, segments=segments, topics=[state((0, 0, 4), (1, 0, 0), number=2, incarnation=2)])[0]
    reborn.reopen()
    return reborn


def status_of(reborn: Archive, positions: Positions) -> FlowStatus:
    first = first_status(flow_of(), reborn.info.id, None)
    return after_round(first, reborn.restore_point(1), [ORDERS], Applied(1, positions=positions), {})


CUT = loss(10, 15, "truncated", 2)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "was deleted and created again"),
        ([CUT | {"kind": "recreated"}, CUT | {"incarnation": 1}, CUT | {"topic": "x"}], "was deleted and created"),
        ([CUT | {"point": 3}], "was deleted and created again"),
        ([CUT], f"a log of topic {TOPIC} was cut"),
    ],
)
def test_why_a_new_incarnation_began(reborn: Archive, rows: list[dict[str, object]], words: str) -> None:
    point, cut = reborn.restore_point(2), with_gaps({}, *rows)
    before, after = {ZERO: AppliedPosition(1, 10)}, {ZERO: AppliedPosition(2, 4)}
    (told,) = find_recreated(cut, point, [ORDERS], before, after)
    assert words in told.message
    assert told.message.endswith("is there twice") is ("was cut" in words)
    assert find_recreated(cut, point, [ORDERS], after, after) == ()
    assert find_recreated(cut, point, [ORDERS], {}, after) == (), "a topic that comes for the first time"


def test_reported_positions_precede_committed_ones(reborn: Archive) -> None:
    told: Positions = {ZERO: AppliedPosition(1, 10), ONE: AppliedPosition(1, 7)}
    status = status_of(reborn, told)
    now: Positions = {ZERO: AppliedPosition(2, 4), ONE: AppliedPosition(1, 5), ELSEWHERE: AppliedPosition(3, 3)}
    assert reported_positions(status, reborn.info.id, now | {TWO: AppliedPosition(2, 1)}) == {
        ZERO: AppliedPosition(1, 10),
        ONE: AppliedPosition(1, 5),
        ELSEWHERE: AppliedPosition(3, 3),
    }
    assert reported_positions(status, "another archive", now) == now
    assert reported_positions(None, reborn.info.id, now) == now
    assert reported_positions(status_of(reborn, {}), reborn.info.id, now) == now


def test_losses_of_a_failed_round_are_reported_by_the_next(reborn: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The round committed everything, and was killed before the status was written."""
    status, flow = MemoryStore(), flow_of()
    note = PositionNote(2, FlowMapPartName(1, "a"), 2)
    topic = Topic(ORDERS.remote, "id", False, (0, 1), 1)
    cluster = SimpleNamespace(connect=lambda: ("id", None), described_topics=lambda _: ({ORDERS.remote: topic}, {}))
    monkeypatch.setattr(session_module, "Cluster", lambda *_: cluster)
    monkeypatch.setattr(session_module, "read_positions", lambda *_: {ZERO: Noted(AppliedPosition(2, 4), note)})
    monkeypatch.setattr(session_module, "heads_of", lambda *_: {})
    monkeypatch.setattr(session_module, "Recovery", lambda *_: SimpleNamespace(positions=lambda *_: {}))
    monkeypatch.setattr(Applier, "_refresh", lambda *_: [])
    write_status(status, status_of(reborn, {ZERO: AppliedPosition(1, 10)}))
    write_part(status, 1, None, 0, 0, 10)
    gone = loss(10, 15)
    monkeypatch.setattr(type(reborn.state.losses), "dicts", lambda _: [gone])
    with Applier(flow, {}, status, lambda: pytest.fail("Spark"), Silent()) as own:
        first, second = (own.apply(reborn, reborn.restore_point(2), [ORDERS]) for _ in range(2))
    assert [(r.remote, r.incarnation) for r in first.recreated] == [(ORDERS.remote, 2)]
    assert [(each.incarnation, each.start, each.end) for each in first.too_late] == [(1, 10, 15)]
    assert not second.is_loss, "it was told once"
