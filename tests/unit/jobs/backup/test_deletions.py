"""When deletions of a compacted topic may have been compacted away before a backup read them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from kbackup.archive.catalog.state import LogStart
from kbackup.archive.deletions import unseen_warnings
from kbackup.archive.models import DeletedRecords, Deletions, PartitionState, TopicState, UnseenDeletions
from kbackup.jobs.backup.compaction import merge_deletions, still_archived
from kbackup.jobs.backup.deletions import Look, complete_looks, late_looks, looks_of, with_looks
from kbackup.jobs.backup.plan import PartitionPlan, Plan, TopicPlan
from kbackup.jobs.backup.recheck import DeletedKeys
from kbackup.jobs.capture import Live
from kbackup.kafka.consume import Vanished
from kbackup.types import Offsets, TopicPartition
from tests.support.archives import partition_state, topic_of
from tests.support.made_segments import TOPIC, target, write
from tests.support.memory_store import MemoryStore

TP = TopicPartition(TOPIC, 0)
MONDAY, TUESDAY, WEDNESDAY = (f"2026-01-0{day}T00:00:00.000Z" for day in (5, 6, 7))
DAY = 86_400_000


def before(end: int = 10, seen_at: str = MONDAY, unseen: UnseenDeletions | None = None) -> PartitionState:
    return PartitionState(
        partition=0, start=0, end=end, log_start=0, log_end=end, records=end, bytes=100, seen_at=seen_at, unseen=unseen
    )


def plan(
    end: int = 20,
    log_end: int | None = None,
    archived: PartitionState | None = before(),  # noqa: B008 (frozen)
    held: Offsets = (),
    owed: Offsets = (),
) -> Plan:
    start = archived.end if archived is not None else 0
    live = Live(0, end if log_end is None else log_end, end)
    partition = PartitionPlan(0, start, end, live, archived, held, owed)
    return Plan((TopicPlan(TOPIC, "A", 1, (partition,)),), (), (), ())


def look(
    of: Plan,
    *offsets: int,
    vanished: tuple[Vanished, ...] = (),
    known: Mapping[TopicPartition, str] = MappingProxyType({}),
) -> Look:
    segments = write(MemoryStore(), target(0), offsets) if offsets else []
    return looks_of(of, segments, vanished, known, None, WEDNESDAY)[TP]


def test_a_partition_that_was_read_whole_misses_nothing() -> None:
    assert look(plan(), *range(10, 20)) == Look(MONDAY, 0, complete=True)


def test_offsets_without_a_record_are_missing() -> None:
    assert look(plan(), 10, 11, 19).missing == 7


def test_held_and_vanished_offsets_are_not_missing_and_owed_ones_are_read() -> None:
    held = plan(held=((15, 18),))
    assert look(held, *range(10, 15), 18, 19) == Look(MONDAY, 0, complete=False)
    assert look(plan(owed=((4, 6),)), 4, *range(10, 20)).missing == 1
    assert look(plan(), *range(13, 20), vanished=(Vanished(TP, 10, 13),)).missing == 0


def test_a_follower_that_found_nothing_new_on_tuesday_has_seen_all_up_to_then() -> None:
    assert look(plan(), 19, known={TP: TUESDAY}).since == TUESDAY


def test_of_a_partition_that_is_new_nothing_before_this_run_can_come_back() -> None:
    assert look(plan(archived=None), 19).since == WEDNESDAY


def test_a_partition_that_waits_for_more_records_is_not_complete() -> None:
    assert not look(plan(end=10, log_end=15)).complete
    assert complete_looks(plan(end=10, log_end=15), TUESDAY) == {}
    assert complete_looks(plan(end=10), TUESDAY) == {TP: TUESDAY}


@pytest.mark.parametrize(
    ("missing", "retention", "is_late"),
    [(3, DAY, True), (0, DAY, False), (3, 2 * DAY, False), (3, 2 * DAY - 1, True)],
    ids=["a gap, later than retention", "no gap", "a gap, in time", "a millisecond too late"],
)
def test_deletions_may_be_missing_after_a_gap_that_was_read_too_late(
    missing: int, retention: int, is_late: bool
) -> None:
    late = late_looks({TP: Look(MONDAY, missing, complete=True)}, {TOPIC: retention}, WEDNESDAY)
    assert late == ({TP: UnseenDeletions(offsets=missing, since=MONDAY)} if is_late else {})


def marked(unseen: UnseenDeletions | None, late: UnseenDeletions | None, complete: bool = True) -> PartitionState:
    topic = topic_of(TOPIC, [before(20, seen_at="", unseen=unseen)], captured=2)
    found = {TP: late} if late is not None else {}
    (result,) = with_looks([topic], {TP: Look(MONDAY, 7, complete)}, found, WEDNESDAY)
    return result.partitions[0]


def test_what_an_earlier_backup_may_have_missed_stays_missed() -> None:
    old, new = UnseenDeletions(offsets=2, since=MONDAY), UnseenDeletions(offsets=3, since=TUESDAY)
    assert marked(old, None).unseen == old
    assert marked(None, new).unseen == new
    assert marked(old, new).unseen == UnseenDeletions(offsets=5, since=MONDAY)
    assert marked(None, None).unseen is None


def test_a_partition_is_seen_at_the_start_of_the_run_that_archives_all_of_it() -> None:
    assert marked(None, None, complete=True).seen_at == WEDNESDAY
    assert marked(None, None, complete=False).seen_at == MONDAY


def test_the_warning_names_topic_partitions_offsets_and_time() -> None:
    unseen = UnseenDeletions(offsets=1, since=MONDAY)
    topics = [topic_of(TOPIC, [before(unseen=unseen)], captured=2), topic_of("plain", [before()], captured=2)]
    (warning,) = unseen_warnings(topics)
    assert warning.startswith(
        f"topic {TOPIC}: deletions may have been compacted away unseen: 1 offset of {TOPIC}-0, since {MONDAY}"
    )
    assert unseen_warnings([topic_of(TOPIC, [before(unseen=unseen)], captured=2, state="deleted")]) == []


def deletions(*offsets: tuple[int, int], topic: str = TOPIC, incarnation: int = 1) -> Deletions:
    records = DeletedRecords(topic=topic, incarnation=incarnation, partition=0, offsets=offsets)
    return Deletions(found_at=MONDAY, partitions=(records,))


def topics() -> list[TopicState]:
    return [topic_of(TOPIC, [partition_state(0, 0, 20)], captured=2)]


def test_deletions_stay_as_long_as_their_records() -> None:
    known = deletions((1, 2), (5, 7))
    assert still_archived(known, topics(), {}) is known
    starts = {(TOPIC, 1, 0): LogStart(TOPIC, 1, 0, 6, 6, 60)}
    rest = still_archived(known, topics(), starts)
    assert rest is not None
    assert rest.partitions[0].offsets == ((6, 7),)
    assert still_archived(deletions((1, 2)), topics(), starts) is None
    assert still_archived(deletions((1, 2), incarnation=7), topics(), {}) is None


def test_found_deletions_join_the_known_ones_and_are_counted_once() -> None:
    known = deletions((1, 2))
    merged, added = merge_deletions(known, [DeletedKeys(TP, 1, ((1, 3), (8, 9)))])
    assert merged is not None
    assert (merged.partitions[0].offsets, added) == (((1, 3), (8, 9)), 2)


def test_where_nothing_is_found_the_document_stays_the_same() -> None:
    known = deletions((1, 2))
    assert merge_deletions(known, [DeletedKeys(TP, 1, ((1, 2),)), DeletedKeys(TP, 1, failure="damaged")]) == (known, 0)
    assert merge_deletions(None, []) == (None, 0)
