"""What an erasure takes out of an archive, and what stays: for every reader, after a crash, in copies, in repairs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from kbackup.archive import layout
from kbackup.archive.catalog.documents import OpenRun
from kbackup.archive.catalog.rewriting import Swap, erase_segments
from kbackup.archive.catalog.state import State
from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.plan import UnitRange, check_not_erased
from kbackup.archive.segments.window import ranges_of
from kbackup.errors import CorruptError, LeaseLostError, RefusedError, UsageError
from kbackup.formats.frames import decompress
from kbackup.jobs.copy import promote
from kbackup.jobs.erase import EraseReport, Erasure, TopicInSource, erase
from kbackup.jobs.key_matching import KeyMatch
from kbackup.jobs.repair import repair
from kbackup.jobs.retention import Expiry, Policy, expire, undo
from kbackup.jobs.verify import verify
from kbackup.metrics.registry import Silent
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from tests.support.archives import History, expired, make_archive, restore_plan
from tests.support.copies import add_point, check_whole, copied, keys_of, swept
from tests.support.faulty_store import crashed
from tests.support.key_files import encrypted
from tests.support.memory_store import MemoryStore
from tests.support.truth import Records, all_records, segment_records

pytestmark = pytest.mark.usefixtures("tasks_run_here")

KEY = b"key 1"
"""The key of every third record of `make_archive`: of the offsets that leave 1 when divided by three."""


def erased(store: Store, *keys: bytes, topics: Iterable[str] = ("orders",), confirm: bool = True) -> EraseReport:
    erasure = Erasure(Selection.of(tuple(topics), ()), KeyMatch(keys or (KEY,)), "request 7")
    return erase(store, erasure, 60, Silent(), confirm=confirm)


def without_key(records: dict[tuple[int, str], Records], topics: Iterable[str]) -> dict[tuple[int, str], Records]:
    rest: dict[tuple[int, str], Records] = {}
    for (number, topic), partitions in records.items():
        rest[number, topic] = partitions
        if topic in topics:
            rest[number, topic] = {p: [r for r in own if r.key != KEY] for p, own in partitions.items()}
    return rest


def read_whole(store: Store) -> None:
    """Read every byte of the archive: it has what it promises."""
    report = verify(store, "all", False, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    assert report.findings == ()


def objects_with(store: Store, text: bytes) -> list[str]:
    """The objects that have a text, in the clear and decompressed."""
    found: list[str] = []
    for entry in store.list():
        data = store.get(entry.key)
        if entry.key.endswith(".zst"):
            data = b"".join(bytes(piece) for piece in decompress([data], entry.key, None))
        if text in data:
            found.append(entry.key)
    return found


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    make_archive(store)
    return store


def test_a_dry_run_says_what_is_there_and_changes_nothing(store: MemoryStore) -> None:
    before = {entry.key: store.get(entry.key) for entry in store.list()}
    report = erased(store, confirm=False)
    (topic,) = report.topics
    assert (topic.topic, topic.records, topic.partitions) == ("orders", 14, 2)
    assert (topic.first_point, topic.last_point, topic.restore_points) == (1, 2, 2)
    assert (report.confirmed, report.erasure, report.deleted_from) == (False, None, None)
    assert {entry.key: store.get(entry.key) for entry in store.list()} == before


@pytest.mark.parametrize("topics", [("orders",), ("clicks",), ("orders", "clicks"), ("/.*/",)], ids=str)
def test_the_records_are_gone_from_every_restore_point_and_no_other_is(
    store: MemoryStore, topics: tuple[str, ...]
) -> None:
    before = all_records(store)
    names = ("orders", "clicks") if topics == ("/.*/",) else topics
    report = erased(store, topics=topics)
    assert all_records(store) == without_key(before, names)
    assert report.records == sum(topic.records for topic in report.topics) > 0
    check_whole(store)


def test_a_second_erasure_of_other_keys_leaves_both_out(store: MemoryStore) -> None:
    erased(store, b"key 1")
    erased(store, b"key 2")
    assert erased(store, b"key 0", b"key 1", b"key 2", confirm=False).records == 17
    erased(store, b"key 0")
    check_whole(store)
    assert all_records(store)[2, "orders"] == {0: [], 1: [], 2: []}
    (topics,) = open_archive(store).state.segments.columns("topic")
    assert "orders" not in topics


def test_nothing_found_commits_nothing(store: MemoryStore) -> None:
    before = open_archive(store).state.number
    report = erased(store, b"nobody")
    assert (report.records, report.erasure) == (0, None)
    assert open_archive(store).state.number == before


def test_after_the_grace_time_no_object_has_the_key(store: MemoryStore) -> None:
    add_point(store, 3, 0)
    erased(store, topics=("/.*/",))
    assert objects_with(store, KEY)  # readers may still have the archive open
    swept(store)
    assert objects_with(store, KEY) == []
    read_whole(store)


def test_the_archive_notes_offsets_and_the_reason_and_no_key(store: MemoryStore) -> None:
    erased(store)
    state = open_archive(store).state
    offsets = [(e.partition, o) for ranges in state.erasures.values() for e in ranges for o in range(e.start, e.end)]
    assert sorted(offsets) == sorted(
        [(0, o) for o in (1, 4, 7, 19, 22, 25, 28, 31, 34, 37)] + [(1, o) for o in (1, 4, 7, 10)]
    )
    catalog = open_archive(store).committed.catalog
    assert catalog is not None
    history = [entry.key for entry in store.list(layout.CATALOG)]
    assert any(b"request 7" in store.get(key) for key in history)
    assert not [key for key in objects_with(store, KEY) if not key.startswith(layout.TOPICS)]


def test_a_crash_leaves_all_or_nothing_and_a_second_run_ends_it(store: MemoryStore) -> None:
    before = all_records(store)
    after = without_key(before, ("orders",))
    for crash in crashed(store, lambda inner: erased(inner)):
        assert all_records(crash) in (before, after)
        check_whole(crash)
        crash.delete([layout.LOCK])  # it ran out
        erased(crash)
        assert all_records(crash) == after
        swept(crash)
        read_whole(crash)
        assert [key for key in objects_with(crash, KEY) if "/orders/" in key] == []


def test_a_backup_goes_on_behind_an_erasure(store: MemoryStore) -> None:
    erased(store, topics=("/.*/",))
    add_point(store, 3, 0)
    check_whole(store)
    # Offsets 1, 4 and 7 came after the erasure: they have the key again.
    assert erased(store, topics=("/.*/",), confirm=False).records == 3


def test_a_copy_takes_an_erasure_over(store: MemoryStore) -> None:
    other, kept = MemoryStore(), MemoryStore()
    copied(store, other)
    copied(store, kept, keep=True)
    erased(store, topics=("/.*/",))
    for copy in (other, kept):
        copied(store, copy, keep=copy is kept)
        assert all_records(copy) == all_records(store)
        check_whole(copy)
        swept(copy)
        swept(copy)
        assert objects_with(copy, KEY) == []


def test_a_copy_that_was_killed_while_it_took_an_erasure_over_can_do_it_again(store: MemoryStore) -> None:
    other = MemoryStore()
    copied(store, other)
    erased(store)
    for crash in crashed(other, lambda inner: copied(store, inner)):
        crash.delete([layout.LOCK])
        swept(crash)
        copied(store, crash)
        assert all_records(crash) == all_records(store)
        check_whole(crash)


def test_a_copy_is_not_erased_itself(store: MemoryStore) -> None:
    other = MemoryStore()
    copied(store, other)
    with pytest.raises(RefusedError, match="is a copy of"):
        erased(other)
    promote(other)
    assert erased(other).records > 0


def test_what_expired_before_an_erasure_does_not_come_back(store: MemoryStore) -> None:
    add_point(store, 3, 0)
    expire(store, Expiry(Policy(last=1), None, timedelta(days=1)), 60, Silent(), confirm=True)
    erased(store, topics=("more",))
    with pytest.raises(RefusedError, match="records were erased since"):
        undo(store, 60)


def test_an_expiration_after_an_erasure_can_be_undone(store: MemoryStore) -> None:
    erased(store)
    add_point(store, 3, 0)
    before = all_records(store)
    expire(store, Expiry(Policy(last=1), None, timedelta(days=1)), 60, Silent(), confirm=True)
    undo(store, 60)
    assert all_records(store) == before
    check_whole(store)


def test_records_expire_beside_erased_ones(store: MemoryStore) -> None:
    add_point(store, 3, 0)
    erased(store, topics=("/.*/",))
    expired(store, before=9)
    check_whole(store)
    read_whole(store)


def test_a_segment_that_expires_meanwhile_stays_out(store: MemoryStore) -> None:
    archive = open_archive(store)
    head = archive.head
    assert head is not None
    segments = archive.segments(head)
    swaps = [Swap((segment,), None, np.arange(segment.first, segment.last + 1)) for segment in segments[:2]]
    left = erase_segments(_with_run(archive.state, segments[0].key), "run", 9, swaps)
    assert [key for (key,) in left.segments.rows("key")] == [
        key for (key,) in archive.state.segments.rows("key") if key not in (segments[0].key, segments[1].key)
    ]
    assert {row.point for row in left.rewrites} == {1}
    assert len(left.rewrites) == 1


def _with_run(state: State, expired_key: str) -> State:
    """The state with the open run 'run', without one segment."""
    run = OpenRun(run="run", command="erase", host="", started_at="", isolation_level="read_committed")
    return replace(state, open_run=run, segments=state.segments.without("key", [expired_key]))


def test_a_run_that_was_fenced_off_swaps_nothing(store: MemoryStore) -> None:
    state = open_archive(store).state
    with pytest.raises(LeaseLostError):
        erase_segments(state, "another run", 9, [])


def test_a_damaged_segment_ends_the_erasure_before_it_begins(store: MemoryStore) -> None:
    archive = open_archive(store)
    head = archive.head
    assert head is not None
    (first, *_) = archive.segments(head, [t for t in head.topics if t.name == "orders"])
    data = bytearray(store.get(first.key))
    data[-3] ^= 1
    store.put(first.key, bytes(data))
    number = archive.state.number
    with pytest.raises(CorruptError):
        erased(store)
    newest = open_archive(store).state
    assert len(newest.erased) == 0
    assert newest.segments.columns("key") == archive.state.segments.columns("key")
    assert newest.number >= number


def test_a_repair_brings_no_erased_record_back(store: MemoryStore) -> None:
    erased(store, b"key 0", b"key 1", b"key 2")  # of orders no segment is left
    erased(store, topics=("clicks",))
    after = all_records(store)
    repair(store, True, True, 60, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    assert all_records(store) == after
    check_whole(store)


def test_a_repair_takes_the_rewritten_segment_where_it_has_both(store: MemoryStore) -> None:
    erased(store, topics=("clicks",))
    after = all_records(store)[1, "clicks"][0]
    for folder in (layout.CATALOG, layout.TABLES, layout.DERIVED):
        store.delete([entry.key for entry in store.list(folder)])
    repair(store, True, True, 60, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    archive = open_archive(store)
    manifest = archive.restore_point(1)
    segments = archive.segments(manifest, [topic for topic in manifest.topics if topic.name == "clicks"])
    assert [record for segment in segments for record in segment_records(store, segment)] == after


def test_a_repair_says_that_erased_records_may_be_back(store: MemoryStore) -> None:
    before = all_records(store)
    erased(store)
    number = open_archive(store).state.number
    lost = [number - 1, number]  # the run's end, and the erasure itself
    store.delete([layout.catalog_key(each) for each in lost])
    report = repair(store, True, False, 60, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    assert "records that were erased since may be in the archive again" in report.warnings[-1]
    assert all_records(store) == before
    erased(store)
    assert all_records(store) == without_key(before, ("orders",))
    check_whole(store)


def test_a_lost_table_of_segments_brings_no_erased_record_back(store: MemoryStore) -> None:
    before = all_records(store)
    erased(store)
    catalog = open_archive(store).committed.catalog
    assert catalog is not None
    store.delete([ref.key for ref in catalog.tables.segments])
    repair(store, True, False, 60, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    assert all_records(store) == without_key(before, ("orders",))
    check_whole(store)


@pytest.mark.parametrize("number", [1, 2])
def test_a_manifest_that_a_repair_makes_anew_counts_erased_records(store: MemoryStore, number: int) -> None:
    erased(store, b"key 0", b"key 1", b"key 2")  # of orders no segment is left
    counted = _counted(store, number)
    store.delete([open_archive(store).find_point(number).documents[0]])
    report = repair(store, True, False, 60, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    assert len(report.losses) == 1
    check_whole(store)
    assert _counted(store, number) == counted


def _counted(store: Store, number: int) -> dict[tuple[str, int, int], int]:
    """The records that a manifest counts in each partition."""
    manifest = open_archive(store).restore_point(number)
    return {place: partition.records for place, partition in manifest.partitions().items()}


def test_only_topics_that_the_source_had_at_the_last_backup_are_named_as_its_own() -> None:
    store = MemoryStore()
    history = History(store, {"a": {"cleanup.policy": "compact"}, "c": {"cleanup.policy": "delete"}})
    history.run(1, {"a": 3, "b": 2, "c": 1})
    history.run(2, {"a": "anew", "b": 1})
    history.topics["b"] = structs.replace(history.topics["b"], state="deleted")
    history.run(3, {"a": 3})
    report = erased(store, b"k", topics=("a", "b", "c"), confirm=False)
    found = [(topic.topic, topic.incarnation) for topic in report.topics]
    assert found == [("a", 1), ("a", 2), ("b", 1), ("c", 1)]
    assert report.source == (TopicInSource("a", True), TopicInSource("c", False))


def test_an_undo_knows_what_was_erased_from_an_incarnation_that_is_back() -> None:
    store = MemoryStore()
    history = History(store)
    history.run(1, {"a": 3, "b": 2})
    history.run(2, {"a": "anew", "b": 1})
    history.run(3, {"a": 3, "b": 1})
    assert erased(store, b"k", topics=("a",)).records == 16
    known = open_archive(store).state
    expire(store, Expiry(Policy(last=2), None, timedelta(days=1)), 60, Silent(), confirm=True)
    undo(store, 60)
    back = open_archive(store).state
    assert (back.erasures, back.rewrites) == (known.erasures, known.rewrites)
    check_whole(store)


def test_an_encrypted_archive_in_a_directory_is_erased_alike(tmp_path: Path) -> None:
    store = encrypted(FileStore(tmp_path / "archive"), tmp_path)
    make_archive(store)
    before = all_records(store)
    erased(store, topics=("/.*/",))
    assert all_records(store) == without_key(before, ("orders", "clicks"))
    check_whole(store)


def test_a_restore_that_was_planned_before_is_refused(store: MemoryStore) -> None:
    archive = open_archive(store)
    head = archive.head
    assert head is not None
    segments = tuple(archive.segments(head, [t for t in head.topics if t.name == "orders"]))
    own = tuple(segment for segment in segments if segment.partition == 0)
    part = UnitRange(topic="orders", partition=0, target="orders", segments=own)
    plan = restore_plan(units=((part,),))
    check_not_erased(plan, archive)
    erased(store)
    with pytest.raises(RefusedError, match="was planned before records of orders-0 were erased, from offset 1 on"):
        check_not_erased(plan, open_archive(store))
    check_not_erased(plan, None)


def test_an_unknown_topic_is_refused(store: MemoryStore) -> None:
    with pytest.raises(UsageError, match="there is no topic order in this archive"):
        erased(store, topics=("order",))


def test_runs_of_offsets() -> None:
    assert ranges_of(np.array([], np.int64)) == ()
    assert ranges_of(np.array([3, 4, 5, 9, 11, 12])) == ((3, 6), (9, 10), (11, 13))


def test_rewritten_segments_have_names_of_their_own(store: MemoryStore) -> None:
    before = keys_of(store)
    erased(store)
    new = {layout.rewrite_of(key) for key in keys_of(store) - before}
    assert len(new) == 1
    assert 0 not in new
    assert {layout.rewrite_of(key) for key in before} == {0}
