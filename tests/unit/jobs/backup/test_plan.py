"""What a backup reads, which partitions wait, and what its restore point says of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.last_record import DISTANCES, digest_of, earlier_offsets, records_at, spread
from kbackup.archive.models import (
    EpochEnd,
    Group,
    GroupOffset,
    Groups,
    LastRecord,
    Manifest,
    PartitionState,
    TopicState,
    Totals,
)
from kbackup.archive.restores.target_topics import TopicRestore
from kbackup.archive.segments.table import Segment
from kbackup.jobs.backup.plan import (
    NO_PATIENCE,
    TYPICAL_RECORD,
    BatchingPolicy,
    Plan,
    clamp,
    held_back,
    hold_back,
    new_bytes,
    next_states,
    recreated_topics,
    says_more,
    waiting,
)
from kbackup.jobs.backup.plan import make_plan as plan_of
from kbackup.jobs.backup.task import make_tasks, without
from kbackup.jobs.capture import Live, LiveTopic
from kbackup.types import IncarnationPartition, OffsetRange, TopicPartition
from tests.support.made_segments import TOPIC, block, target, write
from tests.support.memory_store import MemoryStore


def live(start: int, end: int, high: int | None = None) -> Live:
    return Live(start, end, end if high is None else high)


def topic(*partitions: Live, name: str = "orders", id: str = "A") -> LiveTopic:
    return LiveTopic(name, id, dict(enumerate(partitions)))


def archived(
    *ends: int,
    name: str = "orders",
    id: str = "A",
    state: str = "present",
    incarnation: int = 1,
    log_ends: Sequence[int] = (),
) -> Manifest:
    partitions = tuple(
        PartitionState(partition=n, start=0, end=end, log_start=0, log_end=high, records=end, bytes=end)
        for n, (end, high) in enumerate(zip(ends, log_ends or ends, strict=True))
    )
    known = TopicState(
        name=name,
        id=id,
        incarnation=incarnation,
        captured=1,
        state=state,  # type: ignore[arg-type]
        partitions=partitions,
    )
    return manifest_of(known)


def manifest_of(*topics: TopicState) -> Manifest:
    return Manifest(
        archive_id="x",
        number=1,
        run="r",
        previous=None,
        tool="t",
        started_at="",
        committed_at="",
        totals=Totals(topics=0, partitions=0, segments=0, records=0, bytes=0, stored_bytes=0, groups=0),
        captures=(),
        topics=topics,
    )


def make_plan(
    head: Manifest | None,
    selected: Sequence[LiveTopic],
    existing: Iterable[str],
    diverged: Mapping[TopicPartition, int] = MappingProxyType({}),
    restores: Mapping[str, TopicRestore] = MappingProxyType({}),
) -> Plan:
    """A plan where each new incarnation gets the next number of its topic."""
    known = {t.name: t.incarnation for t in head.topics} if head is not None else {}
    return plan_of(head, selected, existing, lambda name, _: known.get(name, 0) + 1, diverged, restores)


def test_a_first_run_takes_all_there_is_and_calls_nothing_a_loss() -> None:
    plan = make_plan(None, [topic(live(0, 10), live(7, 9), live(4, 4))], ["orders"])
    assert plan.ranges == [
        OffsetRange("orders", 0, 0, 10),
        OffsetRange("orders", 1, 7, 9),
        OffsetRange("orders", 2, 4, 4),
    ]
    assert (plan.losses, plan.warnings, plan.carried) == ((), (), ())


def test_a_partition_without_a_leader_stays_as_it_is_archived() -> None:
    head = archived(5, 7)
    plan = make_plan(head, [LiveTopic("orders", "A", {0: live(0, 9)}, offline=(1, 2))], ["orders"])
    assert plan.ranges == [OffsetRange("orders", 0, 5, 9)]
    assert "partitions without a leader: orders-1, orders-2" in plan.warnings[0]
    (state,) = next_states(2, plan, ())
    assert [(p.partition, p.end) for p in state.partitions] == [(0, 9), (1, 7), (2, 0)], "one of each partition"
    assert state.partitions[1] == head.topics[0].partitions[1]
    later = make_plan(manifest_of(state), [topic(live(0, 9), live(0, 7), live(0, 3))], ["orders"])
    assert (later.losses, later.ranges[2]) == ((), OffsetRange("orders", 2, 0, 3))


def test_the_next_run_goes_on_where_the_last_one_ended_and_takes_new_partitions_whole() -> None:
    plan = make_plan(archived(10), [topic(live(2, 15), live(0, 3))], ["orders"])
    assert plan.ranges == [OffsetRange("orders", 0, 10, 15), OffsetRange("orders", 1, 0, 3)]
    assert plan.losses == ()
    assert plan.topics[0].partitions[0].before is not None
    assert plan.topics[0].partitions[1].before is None


def test_records_deleted_before_archiving_are_a_loss_with_an_exact_range() -> None:
    plan = make_plan(archived(10), [topic(live(14, 20))], ["orders"])
    (loss,) = plan.losses
    assert (loss.kind, loss.topic, loss.partition, loss.start, loss.end) == ("retention", "orders", 0, 10, 14)
    assert "offsets 10 to 13 of orders-0" in loss.message
    assert plan.ranges == [OffsetRange("orders", 0, 14, 20)]
    assert make_plan(archived(10), [topic(live(10, 20))], ["orders"]).losses == (), "it starts at the archived end"


def test_a_topic_made_anew_gets_an_incarnation_of_its_own_and_is_a_loss() -> None:
    plan = make_plan(archived(10), [topic(live(0, 3), id="B")], ["orders"])
    assert plan.topics[0].incarnation == 2
    assert plan.ranges == [OffsetRange("orders", 0, 0, 3)]
    assert [loss.kind for loss in plan.losses] == ["recreated"]
    assert plan.losses[0].message == (
        "topic orders was deleted and created again (incarnation 2); lost are at most the records that the former "
        "topic got after restore point 1 and before its deletion"
    )
    # one that was seen deleted before it came back
    plan = make_plan(archived(10, state="deleted"), [topic(live(0, 3), id="B")], ["orders"])
    assert plan.topics[0].incarnation == 2
    assert plan.losses == ()
    assert "incarnation 2" in plan.warnings[0]


def restore_of_orders(**changes: Any) -> TopicRestore:
    made = TopicRestore(
        restore_id="r-1", restore_point=1, source="orders", created=True, selected=False, outcome="finished"
    )
    return msgspec.structs.replace(made, **changes)


@pytest.mark.parametrize("state", ["present", "unselected", "deleted"])
def test_a_topic_that_a_restore_made_anew_is_no_loss(state: str) -> None:
    plan = make_plan(
        archived(10, state=state), [topic(live(0, 11), id="B")], ["orders"], restores={"B": restore_of_orders()}
    )
    assert plan.losses == ()
    assert plan.topics[0].incarnation == 2
    assert plan.warnings == (
        "topic orders was created again by restore r-1 of restore point 1 (incarnation 2); its records are archived "
        "anew, so the archive has them twice until restore point 1 and those before it expire; records that the former "
        "topic got after restore point 1 are in no restore point",
    )


@pytest.mark.parametrize(
    ("changes", "is_to_finish"),
    [({"outcome": "unfinished"}, True), ({"outcome": "left out"}, False), ({"selected": True}, False)],
    ids=["unfinished", "left out", "selected records"],
)
def test_a_topic_that_came_back_in_part_is_no_loss_and_the_warning_names_the_last_whole_one(
    changes: dict[str, Any], is_to_finish: bool
) -> None:
    restores = {"B": restore_of_orders(**changes)}
    plan = make_plan(archived(10), [topic(live(0, 11), id="B")], ["orders"], restores=restores)
    assert plan.losses == ()
    (warning,) = plan.warnings
    assert "what it has is archived anew, and restore point 1 is the last with the former topic" in warning
    assert ("to finish the restore, run it again with --restore-id r-1" in warning) is is_to_finish


def test_a_restore_of_another_topic_id_does_not_count() -> None:
    restores = {"C": restore_of_orders()}
    plan = make_plan(archived(10), [topic(live(0, 3), id="B")], ["orders"], restores=restores)
    assert [loss.kind for loss in plan.losses] == ["recreated"]


def test_records_that_a_restore_point_left_to_the_next_are_lost_also_with_a_restored_topic() -> None:
    head = archived(900, log_ends=(1400,))
    plan = make_plan(head, [topic(live(0, 901), id="B")], ["orders"], restores={"B": restore_of_orders()})
    (loss,) = plan.losses
    assert (loss.kind, loss.start, loss.end) == ("retention", 900, 1400)
    gone = archived(900, log_ends=(1400,), state="deleted")
    plan = make_plan(gone, [topic(live(0, 901), id="B")], ["orders"], restores={"B": restore_of_orders()})
    assert plan.losses == (), "the run that met the deletion has reported it"


def test_topics_under_another_id_are_the_recreated_ones() -> None:
    assert recreated_topics(archived(10), [topic(live(0, 3), id="B")]) == {"orders": "B"}
    assert recreated_topics(archived(10), [topic(live(0, 3))]) == {}
    assert recreated_topics(archived(10), [topic(live(0, 3), id="")]) == {}, "brokers before 2.8 give no ids"
    assert recreated_topics(archived(10, id=""), [topic(live(0, 3), id="B")]) == {}
    assert recreated_topics(None, [topic(live(0, 3), id="B")]) == {}


def test_a_log_cut_below_the_archived_end_starts_a_new_incarnation_and_is_a_loss() -> None:
    plan = make_plan(archived(10, 5), [topic(live(0, 8), live(0, 9))], ["orders"])
    (loss,) = plan.losses
    assert (loss.kind, loss.partition, loss.start, loss.end) == ("truncated", 0, 8, 10)
    assert plan.topics[0].incarnation == 2
    assert plan.ranges == [OffsetRange("orders", 0, 0, 8), OffsetRange("orders", 1, 0, 9)]


def test_a_last_stable_offset_behind_the_archived_end_is_no_truncation() -> None:
    """After a run under read_uncommitted, with a transaction still open."""
    plan = make_plan(archived(10), [topic(live(0, 8, high=12))], ["orders"])
    assert plan.losses == ()
    assert plan.ranges == [OffsetRange("orders", 0, 10, 10)]


def test_an_unselected_topic_is_carried_and_a_deleted_one_is_told_of_once() -> None:
    plan = make_plan(archived(10), [], ["orders"])
    assert [(t.name, t.state, t.captured) for t in plan.carried] == [("orders", "unselected", 1)]
    assert "no topic of the source is selected" in plan.warnings[0]
    about = [w for w in plan.warnings if "orders" in w]
    assert not about, f"warnings about orders: {about}"
    gone = make_plan(archived(10), [], [])
    assert [(t.name, t.state) for t in gone.carried] == [("orders", "deleted")]
    assert [w for w in gone.warnings if "topic orders no longer exists" in w]
    again = [w for w in make_plan(archived(10, state="deleted"), [], []).warnings if "orders" in w]
    assert not again, f"warnings about orders after its deletion was told: {again}"


def test_held_back_records_of_a_deleted_topic_are_reported_once_as_a_loss() -> None:
    def head(state: str) -> Manifest:
        return archived(900, 7, log_ends=(1400, 7), state=state)

    (loss,) = make_plan(head("present"), [], []).losses
    assert (loss.topic, loss.partition, loss.start, loss.end) == ("orders", 0, 900, 1400)
    assert "offsets 900 to 1399 of orders-0" in loss.message
    assert make_plan(head("deleted"), [], []).losses == ()
    assert make_plan(head("present"), [], ["orders"]).losses == (), "it is there, only not selected"


def test_an_unknown_topic_id_is_not_taken_for_another_one() -> None:
    assert make_plan(archived(10, id=""), [topic(live(0, 12))], ["orders"]).topics[0].incarnation == 1


@pytest.mark.parametrize(
    ("taken", "remaining"),
    [
        ([], [(0, 100)]),
        ([(0, 100)], []),
        ([(0, 10), (50, 60)], [(10, 50), (60, 100)]),
        ([(10, 20), (20, 30)], [(0, 10), (30, 100)]),
        ([(90, 100)], [(0, 90)]),
    ],
)
def test_salvaged_ranges_are_not_read_again(taken: list[tuple[int, int]], remaining: list[tuple[int, int]]) -> None:
    whole = OffsetRange("t", 0, 0, 100)
    assert without([whole], [OffsetRange("t", 0, a, b) for a, b in taken]) == [
        OffsetRange("t", 0, a, b) for a, b in remaining
    ]


@given(sizes=st.lists(st.integers(0, 5_000), max_size=60), split=st.integers(1, 3_000), pack=st.integers(1, 2_000))
def test_tasks_cover_every_range_once_and_keep_their_bounds(sizes: list[int], split: int, pack: int) -> None:
    ranges = [OffsetRange("t", n, 5, 5 + size) for n, size in enumerate(sizes)]
    tasks = make_tasks(ranges, split, pack)
    covered = sorted((r.partition, o) for task in tasks for r in task for o in range(r.start, r.end))
    assert covered == [(n, 5 + o) for n, size in enumerate(sizes) for o in range(size)]
    for task in tasks:
        assert len({r.partition for r in task}) == len(task)
        if len(task) > 1:
            assert sum(r.end - r.start for r in task) <= pack
        elif task[0].end - task[0].start >= pack:
            assert task[0].end - task[0].start <= split
    sums = [sum(r.end - r.start for r in task) for task in tasks]
    assert sums == sorted(sums, reverse=True)


def test_no_task_has_two_ranges_of_a_partition() -> None:
    """The rest of a partition around salvaged segments may be several small ranges."""
    remaining = without([OffsetRange("t", 0, 0, 90), OffsetRange("t", 1, 0, 9)], [OffsetRange("t", 0, 10, 80)])
    assert make_tasks(remaining, 1000, 100) == [
        [OffsetRange("t", 0, 80, 90), OffsetRange("t", 1, 0, 9)],
        [OffsetRange("t", 0, 0, 10)],
    ]


def test_a_log_that_was_cut_and_has_grown_again_makes_a_new_incarnation() -> None:
    """Its end tells nothing; the loss begins nobody knows where."""
    logs = topic(live(0, 30), live(0, 9))
    plan = make_plan(archived(10, 5), [logs], ["orders"], {TopicPartition("orders", 0): 9})
    (loss,) = plan.losses
    assert (loss.kind, loss.partition, loss.start, loss.end) == ("truncated", 0, None, 10)
    assert "orders-0 was cut and has grown again: it differs from the archive at offset 9" in loss.message
    assert plan.topics[0].incarnation == 2
    assert plan.ranges == [OffsetRange("orders", 0, 0, 30), OffsetRange("orders", 1, 0, 9)]


NOW = 10_000.0


def planned(*partitions: Live, ends: tuple[int, ...] = ()) -> Plan:
    return make_plan(archived(*ends) if ends else None, [topic(*partitions)], ["orders"])


def waiting_since(*ages: float) -> dict[IncarnationPartition, float]:
    return {("orders", 1, n): NOW - age for n, age in enumerate(ages)}


@st.composite
def situations(draw: st.DrawFn) -> tuple[Plan, BatchingPolicy, dict[IncarnationPartition, float]]:
    """Partitions known and new, with and without losses and open transactions, waiting for all kinds of times."""
    partitions: dict[int, Live] = {}
    ends: list[int] = []
    for n in range(draw(st.integers(1, 12))):
        end = draw(st.integers(0, 50))
        start = draw(st.integers(0, 70))
        high = draw(st.integers(max(start, end), 120))
        partitions[n] = Live(start, draw(st.integers(start, high)), high)
        ends.append(end)
    known = draw(st.integers(0, len(ends)))
    head = archived(*ends[:known]) if known else None
    plan = make_plan(head, [LiveTopic("orders", "A", partitions)], ["orders"])
    batching = BatchingPolicy(
        *(draw(st.integers(0, 200)), draw(st.floats(0, 100)), draw(st.integers(0, 5))),
        draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])),
    )
    ages = draw(st.dictionaries(st.integers(0, 11), st.floats(0, 200)))
    return plan, batching, {("orders", 1, n): NOW - age for n, age in ages.items()}


@given(situations())
def test_hold_back_respects_the_maximal_age_and_claims_no_unarchived_records(
    situation: tuple[Plan, BatchingPolicy, dict[IncarnationPartition, float]],
) -> None:
    plan, batching, since = situation
    chosen = hold_back(plan, batching, since, NOW)
    waits = held_back(chosen)
    before = {(t.name, t.incarnation, p.partition): p for t in plan.topics for p in t.partitions}
    after = {(t.name, t.incarnation, p.partition): p for t in chosen.topics for p in t.partitions}
    assert after.keys() == before.keys()
    assert (chosen.losses, chosen.warnings, chosen.carried) == (plan.losses, plan.warnings, plan.carried)
    for key, p in after.items():
        if key in waits:
            assert NOW - since.get(key, NOW) < batching.max_age
            assert new_bytes(p.live.end - p.start, p.before) < batching.small_bytes
            assert p.end == p.start < p.live.end
            assert p.before is None or p.end >= p.before.end, "it never goes back"
        else:
            assert p == before[key]
    small = [key for key, p in waiting(plan).items() if new_bytes(p.end - p.start, p.before) < batching.small_bytes]
    of_age = [key for key in small if NOW - since.get(key, NOW) >= batching.max_age]
    go = max(batching.small_segments, int(batching.share * len(small)), len(of_age))
    assert len(waits) == max(0, len(small) - go)
    taken = [since.get(key, NOW) for key in small if key not in waits]
    assert max(taken, default=0) <= min((since.get(key, NOW) for key in waits), default=NOW)


@given(situations())
def test_without_patience_nobody_waits(
    situation: tuple[Plan, BatchingPolicy, dict[IncarnationPartition, float]],
) -> None:
    plan, _, since = situation
    assert hold_back(plan, NO_PATIENCE, since, NOW) == plan


def test_a_partition_with_enough_does_not_wait() -> None:
    """The fixture's records are one byte each."""
    plan = planned(live(0, 50), live(0, 30), ends=(10, 10))
    chosen = hold_back(plan, BatchingPolicy(40, 600, 0), {}, NOW)
    assert [(r.start, r.end) for r in chosen.ranges] == [(10, 50), (10, 10)]
    assert held_back(chosen) == {("orders", 1, 1): 10}


def test_the_longest_waiting_go_first() -> None:
    plan = planned(live(0, 11), live(0, 11), live(0, 11), ends=(10, 10, 10))
    chosen = hold_back(plan, BatchingPolicy(1000, 600, 1), waiting_since(5, 50, 20), NOW)
    assert held_back(chosen) == {("orders", 1, 0): 10, ("orders", 1, 2): 10}


@pytest.mark.exhaustive
def test_many_quiet_partitions_never_come_of_age_together() -> None:
    """2,000 of them with a record a minute each, all since the same moment: no minute has more than its share."""
    count, minutes = 2_000, 35
    batching = BatchingPolicy(1 << 20, 600.0, 50, 0.1)
    head = archived(*[100] * count)
    since: dict[IncarnationPartition, float] = {}
    written: list[int] = []
    waited: dict[int, float] = {}
    for minute in range(1, minutes + 1):
        now = 60.0 * minute
        plan = make_plan(head, [topic(*[live(0, 100 + minute)] * count)], ["orders"])
        since = {key: since.get(key, now) for key in waiting(plan)}
        chosen = hold_back(plan, batching, since, now)
        waits = held_back(chosen)
        for key, begun in since.items():
            if key not in waits:
                waited[key[2]] = max(waited.get(key[2], 0), now - begun)
        written.append(sum(r.end > r.start for r in chosen.ranges))
        since = {key: since[key] for key in waits}
        head = msgspec.structs.replace(head, topics=next_states(minute, chosen, ()))
    assert written == [count // 10] * minutes
    assert len(waited) == count
    assert max(waited.values()) <= batching.max_age


def test_a_loss_is_told_once_although_what_comes_after_it_waits() -> None:
    first = hold_back(planned(live(14, 20), ends=(10,)), BatchingPolicy(1000, 600, 0), {}, NOW)
    assert [(loss.start, loss.end) for loss in first.losses] == [(10, 14)]
    (state,) = next_states(2, first, ())
    assert (state.partitions[0].end, state.partitions[0].log_end) == (14, 20)
    again = make_plan(archived(14), [topic(live(14, 20))], ["orders"])
    assert again.losses == ()


def test_records_deleted_by_retention_while_held_back_are_a_loss() -> None:
    (state,) = next_states(2, hold_back(planned(live(0, 5)), BatchingPolicy(10**9, 600, 0), {}, NOW), ())
    assert (state.partitions[0].start, state.partitions[0].end) == (0, 0)
    (loss,) = make_plan(archived(0), [topic(live(3, 5))], ["orders"]).losses
    assert (loss.kind, loss.start, loss.end) == ("retention", 0, 3)


def test_bytes_are_guessed_by_what_is_archived() -> None:
    state = PartitionState(partition=0, start=0, end=4, log_start=0, log_end=4, records=4, bytes=1000)
    assert new_bytes(10, state) == 2500
    assert new_bytes(10, None) == 10 * TYPICAL_RECORD


def test_group_offsets_stop_where_the_archive_does() -> None:
    plan = hold_back(planned(live(0, 50), live(0, 30), ends=(10, 10)), BatchingPolicy(40, 600, 0), {}, NOW)
    offsets = tuple(
        GroupOffset(topic=name, partition=p, offset=o, leader_epoch=3, metadata="m")
        for name, p, o in (("orders", 0, 45), ("orders", 1, 29), ("orders", 2, 7), ("else", 1, 99))
    )
    groups = Groups(
        captured_at="", groups=(Group(group="g", type="", state="", offsets=offsets),), not_carried={"x": "y"}
    )
    clamped = clamp(groups, plan)
    assert [(o.topic, o.partition, o.offset, o.metadata) for o in clamped.groups[0].offsets] == [
        ("orders", 0, 45, "m"),
        ("orders", 1, 10, "m"),
        ("orders", 2, 7, "m"),
        ("else", 1, 99, "m"),
    ]
    assert clamped.not_carried == {"x": "y"}


def test_a_plan_that_holds_all_back_says_nothing_new() -> None:
    patient = BatchingPolicy(10**9, 600, 0)
    for partitions, more in (
        ((live(0, 12),), False),
        ((live(5, 12),), False),
        ((live(0, 12), live(0, 0)), True),
        ((live(11, 12),), True),
    ):
        plan = hold_back(planned(*partitions, ends=(10,)), patient, {}, NOW)
        assert says_more(plan, archived(10)) is more, partitions
    assert says_more(planned(live(0, 12), ends=(10,)), archived(10))
    assert says_more(planned(live(0, 0)), None)
    assert says_more(make_plan(archived(10), [], []), archived(10)), "the topic is gone"
    assert says_more(make_plan(archived(10), [topic(live(0, 3), id="B")], ["orders"]), archived(10))


assert TOPIC == "orders"
TP = TopicPartition(TOPIC, 0)


def record(offset: int, epoch: int | None = None) -> LastRecord:
    return LastRecord(offset=offset, leader_epoch=epoch, digest=f"{offset:016x}")


def after(
    head: Manifest | None, offsets: range, *few: LastRecord, compacted: bool = True
) -> tuple[Manifest, PartitionState]:
    """The restore point after a run that read `few` as the last of the records at `offsets`."""
    plan = make_plan(head, [topic(Live(0, offsets.stop, offsets.stop))], [TOPIC])
    segments: list[Segment] = write(MemoryStore(), target(0), offsets) if offsets else []
    states = next_states(2, plan, segments, {TP: few} if few else {}, {TOPIC} if compacted else ())
    return _with(head or archived(0), states), states[0].partitions[0]


def _with(head: Manifest, states: tuple[object, ...]) -> Manifest:
    return msgspec.structs.replace(head, topics=states)


def test_a_compacted_topic_remembers_the_records_before_the_last_one() -> None:
    read = [record(n) for n in range(26, 29)], record(29, 4)
    _, partition = after(None, range(30), *read[0], read[1])
    assert (partition.tail, partition.last) == (tuple(read[0]), read[1])
    _, partition = after(None, range(30), *read[0], read[1], compacted=False)
    assert (partition.tail, partition.last) == ((), read[1])


def test_records_of_earlier_runs_are_remembered_where_a_run_adds_few() -> None:
    head, _ = after(None, range(30), *(record(n) for n in range(26, 29)), record(29, 4))
    _, partition = after(head, range(30, 32), record(30), record(31, 4))
    assert [r.offset for r in partition.tail] == [28, 29, 30]
    _, partition = after(head, range(30, 35), record(34, 4))
    assert partition.tail == (), "there are records between them that nobody remembers"
    _, partition = after(head, range(30, 35))
    assert (partition.tail, partition.last) == ((), None), "its segments were taken over"
    _, partition = after(head, range(30, 30))
    assert [r.offset for r in partition.tail] == [26, 27, 28]


def test_the_end_of_every_leader_epoch_is_remembered() -> None:
    head, partition = after(None, range(10), record(9, 4))
    assert partition.epochs == ()
    head, partition = after(head, range(10, 12), record(11, 4))
    assert partition.epochs == (), "it is the epoch of the last record"
    head, partition = after(head, range(12, 14), record(13, 6))
    assert partition.epochs == (EpochEnd(leader_epoch=4, offset=11),)
    head, partition = after(head, range(14, 16))
    assert partition.epochs[-1] == EpochEnd(leader_epoch=6, offset=13), "its segments were taken over"
    for epoch in range(7, 20):
        start = head.topics[0].partitions[0].end
        head, partition = after(head, range(start, start + 1), record(start, epoch))
    assert [e.leader_epoch for e in partition.epochs] == list(range(11, 19)), "the newest ones"


def remembered(head: Manifest | None, offsets: range, **more: Any) -> tuple[Manifest, dict[int, str]]:
    """The restore point after a run that read all of `offsets`, and the earlier records that it remembers."""
    plan = make_plan(head, [topic(Live(0, offsets.stop, offsets.stop))], [TOPIC])
    read = [(at, f"{at:016x}") for at in earlier_offsets(offsets.stop) if at in offsets]
    segments: list[Segment] = write(MemoryStore(), target(0), offsets) if offsets else []
    lasts = {TP: (record(offsets[-1], 4),)} if offsets else {}
    states = next_states(2, plan, segments, lasts, earlier={TP: read}, **more)
    return _with(head or archived(0), states), states[0].partitions[0].earlier


def test_earlier_records_at_growing_distance_are_remembered() -> None:
    head, earlier = remembered(None, range(100))
    assert list(earlier) == [99 - distance for distance in (64, 32, 16, 8, 4, 2, 1)]
    head, earlier = remembered(head, range(100, 140))
    assert list(earlier) == [35, 83, 123, 131, 135, 137, 138]
    _, again = remembered(head, range(140, 140))
    assert again == earlier, "nothing new: nothing is forgotten"


def test_runs_with_few_records_each_remember_as_far_back() -> None:
    head: Manifest | None = None
    for run in range(700):
        head, earlier = remembered(head, range(run, run + 1))
        assert len(earlier) <= len(DISTANCES)
    distances = sorted(699 - offset for offset in earlier)
    assert distances[0] == 1
    assert distances[-1] >= 512
    assert all(far <= 4 * near for near, far in pairwise(distances) if far <= 64)


def test_the_farthest_record_is_not_kept_for_ever() -> None:
    digests = [(at, "d") for at in (10, 900_000, 950_000, 999_000)]
    assert list(spread(digests, 1_000_000)) == [950_000, 999_000]


def test_a_run_that_took_segments_over_keeps_what_earlier_runs_remember() -> None:
    head, _ = remembered(None, range(100))
    plan = make_plan(head, [topic(Live(0, 140, 140))], [TOPIC])
    (state,) = next_states(2, plan, write(MemoryStore(), target(0), range(100, 140)))[0].partitions
    assert (state.last, list(state.earlier)) == (None, [35, 83])


def test_a_topic_whose_compaction_was_switched_off_forgets_earlier_records() -> None:
    head, _ = remembered(None, range(100))
    _, earlier = remembered(head, range(100, 103), forgetting={TOPIC})
    assert list(earlier) == [100, 101]


def test_the_records_of_a_block_at_the_offsets_or_right_before_them_are_remembered() -> None:
    gaps = block([3, 4, 7, 9])
    found = records_at(gaps, [2, 4, 5, 8, 9, 10])
    assert found == [(4, digest_of(gaps, 1)), (7, digest_of(gaps, 2)), (9, digest_of(gaps, 3))]
    assert records_at(gaps, [1, 20]) == []


def test_a_partition_of_an_older_archive_remembers_no_earlier_record() -> None:
    text = b'{"partition":0,"start":0,"end":1,"log_start":0,"log_end":1,"records":1,"bytes":9}'
    old = msgspec.json.decode(text, type=PartitionState)
    assert old.earlier == {}
    new = msgspec.structs.replace(old, earlier={17: "ab", 200: "cd"})
    assert msgspec.json.decode(msgspec.json.encode(new), type=PartitionState) == new
