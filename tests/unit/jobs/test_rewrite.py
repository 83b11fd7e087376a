"""What a merge of small segments changes in an archive, and what not: for readers, copies, undos, repairs, after a
crash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.documents import OpenRun
from kbackup.archive.catalog.merging import MergeSizes
from kbackup.archive.catalog.retention import lose_segments
from kbackup.archive.catalog.state import State
from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import new_offsets, open_archive
from kbackup.archive.restores.plan import UnitRange, check_segments_there
from kbackup.archive.segments.parallel import read_batches
from kbackup.errors import CorruptError, LockedError, RefusedError
from kbackup.jobs.copy import promote
from kbackup.jobs.erase import Erasure, erase
from kbackup.jobs.export.job import Additions
from kbackup.jobs.key_matching import KeyMatch
from kbackup.jobs.points import pin, release
from kbackup.jobs.repair import repair
from kbackup.jobs.retention import Expiry, Policy, expire, undo
from kbackup.jobs.rewrite import RewriteReport, Rewriting, rewrite
from kbackup.metrics.registry import Silent
from kbackup.store.base import Store
from tests.support.archives import PARTITIONS, History, expired, restore_plan
from tests.support.copies import check_whole, copied, swept
from tests.support.faulty_store import FaultyStore, Operation, crashed
from tests.support.memory_store import MemoryStore
from tests.support.truth import all_records

pytestmark = pytest.mark.usefixtures("tasks_run_here")

SIZES = MergeSizes(below=10_000, largest=100_000)
DAY = timedelta(days=1)


def merged(store: Store, sizes: MergeSizes = SIZES, confirm: bool = True) -> RewriteReport:
    return rewrite(store, Rewriting(sizes), 60, DAY, Silent(), confirm=confirm)


def segments_of(store: Store) -> list[tuple[str, int, int, int, int]]:
    """Topic, partition, offsets and restore point of every segment, in order."""
    rows = open_archive(store).state.segments.rows("topic", "partition", "first", "last", "point")
    return sorted(rows)


def only(store: Store, topic: str, partition: int = 0) -> list[tuple[int, int, int]]:
    return [row[2:] for row in segments_of(store) if row[:2] == (topic, partition)]


def made(points: int = 6) -> MemoryStore:
    """Restore points with two records of each of two partitions of a topic: each adds one segment to a partition."""
    store = MemoryStore()
    history = History(store)
    for number in range(1, points + 1):
        history.run(number, {"a": 2})
    return store


@pytest.fixture
def store() -> MemoryStore:
    return made()


def test_nothing_is_merged_while_every_restore_point_is_kept(store: MemoryStore) -> None:
    report = merged(store)
    assert (report.rewrite, report.segments, report.merged) == (None, 0, 0)


def test_segments_between_kept_restore_points_become_one(store: MemoryStore) -> None:
    pin(store, "2")
    expired(store, last=2)
    before = all_records(store)
    report = merged(store)
    assert (report.segments, report.merged) == (10, 4)
    assert [points for _, _, points in only(store, "a")] == [2, 5, 6]
    assert all_records(store) == before
    check_whole(store)


class SweptMeanwhile(FaultyStore):
    """Before the first read of a segment somebody else merges all, and deletes the old objects without a grace time."""

    done = False

    def _before(self, operation: Operation, key: str) -> None:
        is_read = operation in ("get", "open_range")
        if is_read and key.startswith(layout.TOPICS) and not self.done:
            self.done = True
            merged(self.inner)
            swept(self.inner)
        super()._before(operation, key)


def test_what_a_sweep_deletes_under_a_merge_or_an_erasure_is_no_damage(store: MemoryStore) -> None:
    expired(store, last=1)
    erasure = Erasure(Selection.of(("a",), ()), KeyMatch([b"k"]), "")
    with pytest.raises(RefusedError, match="deleted objects that it was about to read"):
        erase(SweptMeanwhile(store.copy()), erasure, 60, Silent(), confirm=True)
    with pytest.raises(RefusedError, match="deleted objects that it was about to read"):
        merged(SweptMeanwhile(store.copy()))
    for key in [segment.key for segment in open_archive(store).added(0, 6)]:
        store.delete([key])
    with pytest.raises(CorruptError):
        merged(store)


class SweptBeforeItWrites(FaultyStore):
    """Before the first catalog somebody else merges all segments, and deletes the old objects without a grace time."""

    done = False

    def _before(self, operation: Operation, key: str) -> None:
        if operation == "put_new" and layout.parse_catalog_key(key) is not None and not self.done:
            self.done = True
            merged(self.inner)
            swept(self.inner)
        super()._before(operation, key)


def test_what_a_sweep_deletes_between_the_search_and_the_erasure_is_no_damage(store: MemoryStore) -> None:
    expired(store, last=1)
    erasure = Erasure(Selection.of(("a",), ()), lambda tp, block: block.offsets == 4, "")
    with pytest.raises(RefusedError, match="deleted objects that it was about to read"):
        erase(SweptBeforeItWrites(store), erasure, 60, Silent(), confirm=True)


def test_a_dry_run_changes_nothing_and_says_what_a_run_does(store: MemoryStore) -> None:
    expired(store, last=1)
    before = {entry.key: store.get(entry.key) for entry in store.list()}
    planned = merged(store, confirm=False)
    assert {entry.key: store.get(entry.key) for entry in store.list()} == before
    report = merged(store)
    assert (planned.segments, planned.merged) == (report.segments, report.merged) == (12, 2)
    assert (planned.segments_after, report.segments_after) == (2, 2)


def test_an_expiration_that_can_be_undone_keeps_its_segments_apart(store: MemoryStore) -> None:
    before = all_records(store)
    expire(store, Expiry(Policy(last=2), None, DAY), 60, Silent(), confirm=True)
    report = merged(store)
    assert (report.merged, report.waiting) == (0, 8)
    undo(store, 60)
    assert all_records(store) == before
    check_whole(store)


def test_an_expiration_after_a_merge_can_be_undone(store: MemoryStore) -> None:
    expired(store, last=4)
    assert merged(store).merged == 2
    before = all_records(store)
    expire(store, Expiry(Policy(last=1), None, DAY), 60, Silent(), confirm=True)
    assert merged(store).merged == 0
    undo(store, 60)
    assert all_records(store) == before
    check_whole(store)


def test_an_undo_of_expired_records_beside_a_merge_brings_them_back(store: MemoryStore) -> None:
    expired(store, last=2)
    before = all_records(store)
    expire(store, Expiry(Policy(), timedelta(days=3), DAY), 60, Silent(), confirm=True)
    assert merged(store).merged == 2
    undo(store, 60)
    assert all_records(store) == before
    check_whole(store)


def test_merged_segments_are_merged_again_and_the_old_ones_are_swept(store: MemoryStore) -> None:
    expired(store, last=3)
    merged(store)
    expired(store, last=1)
    before = all_records(store)
    merged(store)
    swept(store)
    assert [row[4] for row in segments_of(store)] == [6, 6]
    records = [entry.key for entry in store.list("topics/") if entry.key.endswith("_records")]
    assert len(records) == 2
    assert all_records(store) == before
    check_whole(store)


def test_a_merged_segment_is_no_larger_than_a_new_one(store: MemoryStore) -> None:
    expired(store, last=1)
    (size, *_) = (row[0] for row in open_archive(store).state.segments.rows("bytes"))
    # Three fit: later ones are a few bytes longer.
    merged(store, MergeSizes(below=10_000, largest=3 * size + 10))
    assert [last + 1 - first for first, last, _ in only(store, "a")] == [8, 8]
    check_whole(store)


def test_large_segments_stay(store: MemoryStore) -> None:
    expired(store, last=1)
    assert merged(store, MergeSizes(below=10, largest=100_000)).merged == 0


def test_the_next_backup_goes_on_after_a_merge(store: MemoryStore) -> None:
    history = History(store)
    history.topics["a"] = open_archive(store).restore_point("latest").topics[0]
    expired(store, last=1)
    merged(store)
    history.run(7, {"a": 2})
    assert [point for _, _, point in only(store, "a")] == [6, 7]
    check_whole(store)


def test_segments_beside_damage_stay_apart(store: MemoryStore) -> None:
    expired(store, last=1)
    key = sorted(open_archive(store).keys())[2]
    archive = open_archive(store)
    operation: Callable[[State], State] = lambda state: lose_segments(state, {key: "is missing"})  # noqa: E731
    commit(store, archive.committed, operation, Author("repair", "", "test"))
    merged(store)
    assert len(only(store, "a")) + len(only(store, "a", 1)) == 3


def test_a_copy_is_not_rewritten_and_gets_the_merged_segments(store: MemoryStore) -> None:
    copy = MemoryStore()
    copied(store, copy)
    expired(store, last=1)
    copied(store, copy)
    with pytest.raises(RefusedError, match="copy of"):
        merged(copy)
    before = all_records(store)
    merged(store)
    copied(store, copy)
    assert segments_of(copy) == segments_of(store)
    assert all_records(copy) == before
    swept(copy)
    check_whole(copy)
    assert all_records(copy) == before


def test_a_copy_that_keeps_restore_points_keeps_their_segments(store: MemoryStore) -> None:
    copy = MemoryStore()
    copied(store, copy)
    expired(store, last=1)
    before = all_records(copy)
    merged(store)
    copied(store, copy, keep=True)
    swept(copy)
    assert all_records(copy) == before
    check_whole(copy)
    # When the restore points have expired in the copy as well, it takes over what its source has.
    expired(copy, last=1)
    copied(store, copy, keep=True)
    swept(copy)
    assert segments_of(copy) == segments_of(store)
    check_whole(copy)


def test_a_copy_that_keeps_restore_points_and_is_far_behind_is_refused(store: MemoryStore) -> None:
    source = made(3)
    copy = MemoryStore()
    copied(source, copy)
    history = History(source)
    history.topics["a"] = open_archive(source).restore_point("latest").topics[0]
    for number in (4, 5, 6):
        history.run(number, {"a": 2})
    expired(source, last=1)
    merged(source)
    before = all_records(copy)
    with pytest.raises(RefusedError, match="without --keep"):
        copied(source, copy, keep=True)
    assert all_records(copy) == before
    copied(source, copy)
    assert all_records(copy) == all_records(source)
    check_whole(copy)


def test_a_copy_goes_on_where_its_own_records_expired_inside_a_merged_segment(store: MemoryStore) -> None:
    copy = MemoryStore()
    expired(store, last=1)
    copied(store, copy)
    expire(copy, Expiry(Policy(), timedelta(days=3), timedelta(0)), 60, Silent(), confirm=True)
    before = all_records(copy)
    merged(store)
    copied(store, copy)
    assert all_records(copy) == before
    check_whole(copy)


def test_a_copy_that_lost_a_segment_gets_it_back_in_a_merged_one(store: MemoryStore) -> None:
    copy = MemoryStore()
    expired(store, last=1)
    copied(store, copy)
    lost = sorted(open_archive(copy).keys())[0]
    archive = open_archive(copy)
    commit(copy, archive.committed, lambda state: lose_segments(state, {lost: "gone"}), Author("repair", "", "test"))
    merged(store)
    copied(store, copy)
    assert all_records(copy) == all_records(store)
    assert not open_archive(copy).state.damage


def test_a_copy_heals_a_merged_segment_that_its_source_lost_by_those_it_still_has(store: MemoryStore) -> None:
    copy = MemoryStore()
    expired(store, last=1)
    copied(store, copy)
    before = all_records(copy)
    merged(store)
    archive = open_archive(store)
    keys = archive.keys()
    operation: Callable[[State], State] = lambda state: lose_segments(state, dict.fromkeys(keys, "gone"))  # noqa: E731
    commit(store, archive.committed, operation, Author("repair", "", "test"))
    copied(store, copy)
    assert all_records(copy) == before
    assert not open_archive(copy).state.damage


def test_who_followed_an_archive_to_an_expired_restore_point_learns_what_is_new(store: MemoryStore) -> None:
    expired(store, last=1)
    merged(store)
    archive = open_archive(store)
    segments = archive.added(4, 6)
    assert sorted(new_offsets(archive, 4, segments).values()) == [only_end(4)] * 2
    assert new_offsets(archive, 0, segments) == {}
    assert new_offsets(archive, 6, archive.added(6, 6)) == {}


def test_an_export_that_came_to_an_expired_restore_point_gets_each_later_record_once(store: MemoryStore) -> None:
    expired(store, last=1)
    merged(store)
    additions = Additions(open_archive(store), Selection.of((), ()))
    (addition,) = additions.after(4)
    read: list[int] = []
    for unit in addition.units():
        for piece in unit.ranges:
            for block in read_batches(store, piece):
                read += block.offsets.tolist()
    assert addition.records == len(read) == 8
    assert sorted(set(read)) == [12, 13, 15, 16]
    (whole,) = additions.after(0)
    assert whole.records == 24


def only_end(point: int) -> int:
    """The offset after the records of a restore point of `made`: each has two, and a transaction's marker."""
    return point * 3 - 1


def test_a_restore_that_was_planned_before_is_refused_when_its_segments_are_deleted(store: MemoryStore) -> None:
    expired(store, last=1)
    archive = open_archive(store)
    segments = tuple(archive.added(0, 6))
    part = UnitRange(topic="a", partition=0, target="a", segments=segments)
    plan = restore_plan(units=((part,),))
    merged(store)
    check_segments_there(plan, open_archive(store))
    swept(store)
    with pytest.raises(RefusedError, match="merged since"):
        check_segments_there(plan, open_archive(store))


def test_an_erasure_goes_through_merged_segments(store: MemoryStore) -> None:
    expired(store, last=1)
    merged(store)
    erasure = Erasure(Selection.of(("a",), ()), KeyMatch([b"k"]), "")
    erase(store, erasure, 60, Silent(), confirm=True)
    assert not any(records for records in all_records(store)[6, "a"].values())
    check_whole(store)


def test_segments_without_erased_records_are_merged(store: MemoryStore) -> None:
    erase(
        store, Erasure(Selection.of(("a",), ()), lambda tp, block: block.offsets == 4, ""), 60, Silent(), confirm=True
    )
    expired(store, last=1)
    before = all_records(store)
    merged(store)
    assert len(segments_of(store)) == 2
    assert all_records(store) == before
    check_whole(store)


@pytest.fixture
def promoted(store: MemoryStore) -> MemoryStore:
    """A promoted copy of an archive that has had many more catalogs, and in which records were erased."""
    for _ in range(20):
        pin(store, "2")
        release(store, "2")
    erasure = Erasure(Selection.of(("a",), ()), lambda tp, block: block.offsets == 4, "")
    erase(store, erasure, 60, Silent(), confirm=True)
    copy = MemoryStore()
    copied(store, copy)
    promote(copy)
    return copy


def test_rewrites_of_a_promoted_copy_are_newer_than_those_of_its_source(promoted: MemoryStore) -> None:
    expired(promoted, last=1)
    merged(promoted)
    before = all_records(promoted)
    state = open_archive(promoted).state
    rows = state.segments.rows("topic", "incarnation", "partition", "first", "last", "key")
    for topic, incarnation, partition, first, last, key in rows:
        erased = state.erased_in((topic, incarnation, partition), first, last, key)
        assert erased is None, "it would count as a segment that still has them"
    # An erasure there goes through what was merged, and a copy that retains everything takes it all.
    copy = MemoryStore()
    copied(promoted, copy)
    another = Erasure(Selection.of(("a",), ()), lambda tp, block: block.offsets == 7, "")
    assert erase(promoted, another, 60, Silent(), confirm=True).records == PARTITIONS
    copied(promoted, copy, keep=True)
    assert all_records(copy) == all_records(promoted) != before
    check_whole(copy)
    check_whole(promoted)


def test_an_expiration_after_a_promotion_can_be_undone(promoted: MemoryStore) -> None:
    before = all_records(promoted)
    expire(promoted, Expiry(Policy(last=1), None, DAY), 60, Silent(), confirm=True)
    undo(promoted, 60)
    assert all_records(promoted) == before
    assert open_archive(promoted).state.numbers.tolist() == [1, 2, 3, 4, 5, 6]


def test_nothing_is_merged_beside_an_erasure(store: MemoryStore) -> None:
    expired(store, last=1)
    run = OpenRun(run="run", command="erase", host="h", started_at="now", isolation_level="read_committed")
    archive = open_archive(store)
    commit(store, archive.committed, lambda state: with_run(state, run), Author("begin", "run", "test"))
    with pytest.raises(LockedError, match="has not ended"):
        merged(store)


def with_run(state: State, run: OpenRun) -> State:
    return replace(state, open_run=run)


def test_a_damaged_segment_is_not_merged(store: MemoryStore) -> None:
    expired(store, last=1)
    key = sorted(open_archive(store).keys())[0]
    data = bytearray(store.get(key))
    data[-1] ^= 1
    store.put(key, bytes(data))
    with pytest.raises(CorruptError):
        merged(store)
    assert len(only(store, "a")) == 6


def test_a_merge_that_dies_anywhere_can_be_repeated(store: MemoryStore) -> None:
    expired(store, last=1)
    before = all_records(store)
    for left in crashed(store, merged):
        assert all_records(left) == before
        check_whole(left)
        merged(left)
        swept(left)
        assert len(segments_of(left)) == 2
        assert all_records(left) == before
        check_whole(left)


def test_a_repair_without_any_catalog_finds_the_merged_segments(store: MemoryStore) -> None:
    expired(store, last=2)
    before = all_records(store)
    merged(store)
    store.delete([entry.key for entry in store.list() if entry.key.startswith((layout.CATALOG, layout.TABLES))])
    repair(store, True, True, 60, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    assert all_records(store) == before


def test_an_expiration_merges_at_its_end_if_that_is_asked_for(store: MemoryStore) -> None:
    report = expire(
        store, Expiry(Policy(last=1), None, timedelta(0), rewriting=Rewriting(SIZES)), 60, Silent(), confirm=True
    )
    assert report.rewrite is not None
    assert (report.rewrite.segments, report.rewrite.merged) == (12, 2)
    check_whole(store)
