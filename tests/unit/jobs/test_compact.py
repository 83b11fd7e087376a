"""What a compaction leaves out of an archive, and that each kept restore point has the latest record of each key."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.merging import MergeSizes
from kbackup.archive.query.content import content_of, view_of
from kbackup.archive.query.overview import not_reached
from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import open_archive
from kbackup.archive.segments.read import read_segment, superseded_gaps
from kbackup.archive.segments.window import Window
from kbackup.jobs.compact import find_superseded
from kbackup.jobs.erase import Erasure, erase
from kbackup.jobs.key_matching import KeyMatch
from kbackup.jobs.points import pin
from kbackup.jobs.repair import repair
from kbackup.jobs.retention import Expiry, Policy, expire, undo
from kbackup.jobs.rewrite import RewriteReport, Rewriting, rewrite
from kbackup.metrics.registry import Silent
from kbackup.serve.logs import Choosing, served_archive
from kbackup.store.base import Store
from kbackup.util.times import ms_of
from tests.support.archives import History, day, expired
from tests.support.copies import check_whole, copied, swept
from tests.support.faulty_store import crashed
from tests.support.memory_store import MemoryStore
from tests.support.truth import all_records

pytestmark = pytest.mark.usefixtures("tasks_run_here")

COMPACT = Rewriting(MergeSizes(0, 100_000), compact=True)
BOTH = Rewriting(MergeSizes(10_000, 100_000), compact=True)
DAY = timedelta(days=1)
POINTS = 6

Latest = dict[tuple[str, int, bytes], int]


def a_key(offset: int) -> bytes:
    return b"key %d" % (offset % 3)


def made(policy: str = "compact", points: int = POINTS) -> MemoryStore:
    """Restore points with four records of each of two partitions of a topic, which has three keys, and of another one,
    which is not compacted."""
    store = MemoryStore()
    history = History(store, configs={"a": {"cleanup.policy": policy}}, key=a_key)
    for number in range(1, points + 1):
        history.run(number, {"a": 4, "b": 4})
    return store


@pytest.fixture
def store() -> MemoryStore:
    return made()


def compacted(store: Store, rewriting: Rewriting = COMPACT, confirm: bool = True) -> RewriteReport:
    return rewrite(store, rewriting, 60, DAY, Silent(), confirm=confirm)


def latest(store: Store, number: int) -> Latest:
    """The offset of the last record of each key of each partition, at a restore point."""
    archive = open_archive(store)
    offsets: Latest = {}
    for segment in archive.segments(archive.restore_point(number)):
        for block in read_segment(store, segment):
            for offset in block.offsets.tolist():
                offsets[segment.topic, segment.partition, a_key(offset)] = offset
    return offsets


def latest_of_all(store: Store) -> dict[int, Latest]:
    return {point.number: latest(store, point.number) for point in open_archive(store).restore_points}


def records_of(store: Store, topic: str) -> int:
    return sum(segment.count for segment in open_archive(store).added(0, 99) if segment.topic == topic)


def test_each_kept_restore_point_has_the_latest_record_of_each_key(store: MemoryStore) -> None:
    pin(store, "4")
    expired(store, last=1)
    before = latest_of_all(store)
    others = records_of(store, "b")
    report = compacted(store)
    assert latest_of_all(store) == before
    # Sixteen offsets of a partition up to restore point 4: three are the last of their key, one is the first of all.
    assert report.superseded == 2 * 12
    assert records_of(store, "a") == 2 * (POINTS * 4 - 12)
    assert records_of(store, "b") == others
    assert open_archive(store).state.superseded_records == report.superseded
    check_whole(store)


def test_records_behind_the_oldest_kept_restore_point_stay(store: MemoryStore) -> None:
    before = all_records(store)
    report = compacted(store)
    # Of four records with three keys the first is superseded, and the first of a segment stays.
    assert (report.rewrite, report.superseded) == (None, 0)
    assert all_records(store) == before


@pytest.mark.parametrize("policy", ["delete", ""])
def test_topics_that_are_not_compacted_stay(policy: str) -> None:
    store = made(policy)
    expired(store, last=1)
    assert (compacted(store).searched, compacted(store).superseded) == (0, 0)


def test_a_topic_that_was_not_compacted_at_the_oldest_restore_point_stays() -> None:
    store = made("delete", points=3)
    history = History(store, configs={"a": {"cleanup.policy": "compact"}}, key=a_key)
    history.topics = {topic.name: topic for topic in open_archive(store).restore_point("latest").topics}
    history.run(4, {"a": 4})
    pin(store, "3")
    expired(store, last=1)
    assert compacted(store).searched == 0
    assert latest(store, 3)


def test_a_dry_run_changes_nothing_and_says_what_a_run_does(store: MemoryStore) -> None:
    expired(store, last=1)
    before = {entry.key: store.get(entry.key) for entry in store.list()}
    planned = compacted(store, confirm=False)
    assert {entry.key: store.get(entry.key) for entry in store.list()} == before
    report = compacted(store)
    assert planned.compacted == report.compacted != ()
    assert (planned.segments_after, planned.searched) == (report.segments_after, report.searched)


def test_what_was_looked_at_is_looked_at_again_when_enough_is_new(store: MemoryStore) -> None:
    expired(store, last=1)
    assert compacted(store).searched == 2 * POINTS * 4
    assert compacted(store).searched == 0
    history = History(store, configs={"a": {"cleanup.policy": "compact"}}, key=a_key)
    history.topics = {topic.name: topic for topic in open_archive(store).restore_point("latest").topics}
    history.run(7, {"a": 4})
    assert compacted(store).searched == 0, "the oldest restore point is the same"
    expired(store, last=1)
    before = latest_of_all(store)
    report = compacted(store)
    assert report.searched > 0
    assert report.superseded > 0
    assert latest_of_all(store) == before
    check_whole(store)


def test_restore_points_that_an_undo_may_bring_back_count_as_kept(store: MemoryStore) -> None:
    before = all_records(store)
    expire(store, Expiry(Policy(last=1), None, DAY), 60, Silent(), confirm=True)
    assert compacted(store).superseded == 0
    undo(store, 60)
    assert all_records(store) == before


def test_an_expiration_after_a_compaction_can_be_undone(store: MemoryStore) -> None:
    expired(store, last=3)
    before = latest_of_all(store)
    assert compacted(store).superseded
    expire(store, Expiry(Policy(last=1), None, DAY), 60, Silent(), confirm=True)
    assert compacted(store).superseded == 0
    undo(store, 60)
    assert latest_of_all(store) == before
    check_whole(store)


def test_small_segments_are_merged_after_it_and_keep_its_restore_point(store: MemoryStore) -> None:
    pin(store, "4")
    expired(store, last=1)
    before = latest_of_all(store)
    compacted(store, BOTH)
    numbers = {layout.compacted_of(segment.key) for segment in open_archive(store).added(0, 99) if segment.topic == "a"}
    assert numbers == {0, 4}
    assert latest_of_all(store) == before
    swept(store)
    assert latest_of_all(store) == before
    check_whole(store)


def test_an_expiration_compacts_at_its_end_if_that_is_asked_for(store: MemoryStore) -> None:
    report = expire(store, Expiry(Policy(last=1), None, timedelta(0), rewriting=COMPACT), 60, Silent(), confirm=True)
    assert report.rewrite is not None
    assert report.rewrite.superseded > 0


def test_a_copy_gets_what_is_left(store: MemoryStore) -> None:
    copy = MemoryStore()
    copied(store, copy)
    expired(store, last=1)
    compacted(store)
    copied(store, copy)
    swept(copy)
    assert all_records(copy) == all_records(store)
    check_whole(copy)


def test_a_copy_that_keeps_restore_points_keeps_the_records_that_they_need(store: MemoryStore) -> None:
    copy = MemoryStore()
    copied(store, copy)
    expired(store, last=1)
    before = all_records(copy)
    compacted(store)
    copied(store, copy, keep=True)
    swept(copy)
    assert all_records(copy) == before
    check_whole(copy)
    expired(copy, last=1)
    copied(store, copy, keep=True)
    swept(copy)
    assert all_records(copy) == all_records(store)
    check_whole(copy)


def test_a_copy_keeps_its_own_beside_what_was_merged_and_then_compacted(store: MemoryStore) -> None:
    copy = MemoryStore()
    copied(store, copy)
    expired(store, last=1)
    before = all_records(copy)
    rewrite(store, Rewriting(MergeSizes(10_000, 100_000)), 60, DAY, Silent(), confirm=True)
    assert compacted(store).superseded > 0
    copied(store, copy, keep=True)
    assert all_records(copy) == before
    check_whole(copy)


def test_an_erasure_goes_through_compacted_segments(store: MemoryStore) -> None:
    expired(store, last=1)
    compacted(store)
    erasure = Erasure(Selection.of(("a",), ()), KeyMatch([b"key 1"]), "")
    report = erase(store, erasure, 60, Silent(), confirm=True)
    assert report.records == 2, "the last one of each partition"
    state = open_archive(store).state
    assert (state.erased_records, state.superseded_records) == (2, 2 * (POINTS * 4 - 4))
    assert all(layout.compacted_of(segment.key) for segment in open_archive(store).added(0, 99) if segment.topic == "a")
    check_whole(store)


def test_what_is_left_of_an_erasure_is_compacted(store: MemoryStore) -> None:
    expired(store, last=1)
    erasure = Erasure(Selection.of(("a",), ()), KeyMatch([b"key 1"]), "")
    erased = erase(store, erasure, 60, Silent(), confirm=True).records
    before = latest_of_all(store)
    assert compacted(store).superseded > 0
    assert latest_of_all(store) == before
    assert open_archive(store).state.erased_records == erased
    check_whole(store)


def test_a_compaction_that_dies_anywhere_can_be_repeated(store: MemoryStore) -> None:
    pin(store, "4")
    expired(store, last=1)
    before = latest_of_all(store)
    whole = store.copy()
    compacted(whole, BOTH)
    for left in crashed(store, lambda attempt: compacted(attempt, BOTH)):
        assert latest_of_all(left) == before
        check_whole(left)
        compacted(left, BOTH)
        swept(left)
        assert latest_of_all(left) == before
        assert records_of(left, "a") == records_of(whole, "a")
        check_whole(left)


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_repair_without_any_catalog_finds_what_restore_points_need(store: MemoryStore, is_swept: bool) -> None:
    pin(store, "4")
    expired(store, last=1)
    compacted(store)
    if is_swept:
        swept(store)
    before = latest_of_all(store)
    store.delete([entry.key for entry in store.list() if entry.key.startswith((layout.CATALOG, layout.TABLES))])
    repair(store, True, True, 60, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    after = latest_of_all(store)
    assert {number: after[number] for number in before} == before


def test_keys_are_looked_at_in_groups_with_the_same_result(store: MemoryStore) -> None:
    segments = [segment for segment in open_archive(store).added(0, 99) if segment.topic == "a"][: POINTS * 2]
    whole = find_superseded(store, segments, lambda records, size: None)
    grouped = find_superseded(store, segments, lambda records, size: None, at_once=5)
    assert len(whole.offsets) > 3
    assert grouped.offsets.tolist() == whole.offsets.tolist()
    assert grouped.lengths.tolist() == whole.lengths.tolist()


def test_records_without_a_key_supersede_nothing() -> None:
    store = MemoryStore()
    history = History(store, configs={"a": {"cleanup.policy": "compact"}}, key=lambda offset: None)
    history.run(1, {"a": 8})
    assert (compacted(store).searched, compacted(store).superseded) == (16, 0)


def test_a_time_before_what_was_compacted_is_named(store: MemoryStore) -> None:
    expired(store, last=1)
    compacted(store)
    archive = open_archive(store)
    for moment, is_named in ((day(2), True), (day(POINTS), False)):
        at = int(moment.timestamp() * 1000)
        view = view_of(archive, POINTS, Window(to_time=at))
        content = content_of(archive, view.upto, view.topics)
        notes = [note for note in not_reached(archive, view, content, at) if "compacted away" in note]
        assert bool(notes) == is_named
        served = served_archive(store, archive, Choosing(Selection.of((), ()), to_time=at))
        assert set(notes) <= set(served.warnings)
    assert ms_of(archive.restore_points[0].committed_at) == int(day(POINTS).timestamp() * 1000)


def test_gaps_are_those_of_compacted_segments_alone(store: MemoryStore) -> None:
    assert len(superseded_gaps(store, open_archive(store).added(0, 99)).starts) == 0
    expired(store, last=1)
    compacted(store)
    segments = [segment for segment in open_archive(store).added(0, 99) if segment.partition == 0]
    gaps = superseded_gaps(store, segments)
    (kept,) = [segment for segment in segments if segment.topic == "a"]
    offsets = next(read_segment(store, kept)).offsets
    assert gaps.outside(offsets).all()
    assert not gaps.outside(offsets[:1] + 1).any()
    assert gaps.outside(offsets[-1:] + 1).all()
