"""The files of a slot's offset map: only what was committed counts, and they stay few."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.catalog.sweep import find_orphans
from kbackup.archive.layout import mirror_key
from kbackup.archive.models import dump
from kbackup.archive.restores.offset_map import OffsetMap, Runs
from kbackup.archive.verify.catalog import note_orphans
from kbackup.archive.verify.findings import Findings
from kbackup.errors import CorruptError
from kbackup.mirror import flow_map as module
from kbackup.mirror.flow_map import (
    EXACT,
    FOLD,
    SHARE,
    SLACK,
    SLOTS,
    FlowMap,
    FlowMapPartName,
    FlowState,
    MappedPartition,
    SlotMap,
    flow_runs_table,
    folder,
    open_map,
    slot_of,
    thin,
    write_flow_map_part,
)
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore

REMOTE = TopicPartition("A.orders", 0)
KEY = MappedPartition(REMOTE, 1)
SLOT = slot_of(REMOTE, SLOTS)
FOLDER = folder("A", "B", SLOT)


@pytest.fixture
def store() -> Store:
    store = MemoryStore()
    flow = FlowState(
        source="A", target="B", archive_id="a", target_cluster_id="c", slots=SLOTS, created_at="2026-01-01"
    )
    store.put_new(mirror_key("A", "B", "flow.json"), dump(flow))
    return store


def runs(*rows: tuple[int, int, int], key: MappedPartition = KEY) -> pa.Table:
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    return flow_runs_table({key: (columns[0], columns[1], columns[2])})


def write(
    store: Store,
    number: int,
    attempt: str,
    previous: FlowMapPartName | None,
    *rows: tuple[int, int, int],
    key: MappedPartition = KEY,
) -> FlowMapPartName:
    name = FlowMapPartName(number, attempt)
    write_flow_map_part(store, FOLDER, name, runs(*rows, key=key), previous)
    return name


def rows(flow_map: FlowMap, incarnation: int = 1) -> list[tuple[int, int, int]]:
    found = flow_map.partition(REMOTE, incarnation)
    return list(zip(found.source.tolist(), found.target.tolist(), found.count.tolist(), strict=True))


def slot_rows(slot: SlotMap) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in slot.runs(KEY)), strict=True))


def test_a_part_of_a_transaction_that_was_given_up_is_never_believed(store: Store) -> None:
    one = write(store, 1, "aa", None, (0, 0, 10))
    write(store, 2, "aa", one, (10, 11, 5))  # given up
    two = write(store, 2, "bb", one, (10, 17, 8))
    write(store, 3, "bb", two, (18, 26, 1))  # given up, or not: the notes say it
    assert rows(open_map(store, "A", "B", {SLOT: two})) == [(0, 0, 10), (10, 17, 8)]
    assert rows(open_map(store, "A", "B")) == [(0, 0, 10), (10, 17, 8)]
    assert rows(open_map(store, "A", "B", {SLOT: one})) == [(0, 0, 10)]
    assert rows(open_map(store, "A", "B", {})) == []
    assert rows(open_map(MemoryStore(), "A", "B")) == []


def test_next_is_after_the_last_record(store: Store) -> None:
    one = write(store, 1, "aa", None, (5, 7, 10))
    found = open_map(store, "A", "B", {SLOT: one}).partition(REMOTE, 1)
    assert (found.next, found.map(99).offset, found.map(6).offset) == (17, 17, 8)


def fill(store: Store, parts: int, slot: SlotMap) -> None:
    """Rounds of one record each, folded when that is due."""
    for _ in range(parts):
        number = slot.head.number + 1 if slot.head else 1
        previous = slot.head
        name = write(store, number, "aa", previous, (number - 1, 2 * number - 2, 1))
        assert slot.add(name, previous, runs((number - 1, 2 * number - 2, 1)))
        if slot.merge_due:
            slot.merge_map_parts()


@pytest.mark.exhaustive
def test_thousands_of_rounds_leave_few_files(store: Store) -> None:
    slot = SlotMap(store, FOLDER)
    most = 0
    for _ in range(100):
        fill(store, 20, slot)
        most = max(most, len(list(store.list(FOLDER))))
    assert slot.head == FlowMapPartName(2_000, "aa")
    assert most <= 3 * FOLD + 3
    again = SlotMap(store, FOLDER)
    again.load(slot.head)
    assert slot_rows(again)[-500:] == [(n, 2 * n, 1) for n in range(1_500, 2_000)]
    assert len(slot_rows(again)) < 1_600
    assert sum(count for _, _, count in slot_rows(again)) == 2_000


def test_another_process_has_folded_meanwhile(store: Store) -> None:
    """A reader that listed files before they were deleted looks again."""
    slot, old = SlotMap(store, FOLDER), SlotMap(store, FOLDER)
    fill(store, 3, slot)
    old.load(slot.head)
    fill(store, 5 * FOLD, slot)
    old.load(slot.head)
    assert slot_rows(old) == slot_rows(slot)
    fill(store, 1, slot)
    added = old.load(slot.head)
    *_, (newest, _, _) = slot_rows(slot)
    assert added.column("source").to_pylist() == [newest]


def test_a_part_that_is_missing_is_damage(store: Store) -> None:
    one = write(store, 1, "aa", None, (0, 0, 10))
    two = write(store, 2, "aa", one, (10, 11, 5))
    store.delete([f"{FOLDER}{one}.parquet"])
    with pytest.raises(CorruptError, match=r"lacks a part that was committed .*0000000001-aa"):
        rows(open_map(store, "A", "B", {SLOT: two}))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([(0, 0, 10)], [(0, 0, 10), (10, 12, 3)]),
        # transactions that were given up have made the new log as long as the old one
        ([(0, 0, 10), (10, 11, 5)], [(5, 20, 10)]),
    ],
)
def test_a_remote_topic_that_was_made_anew_forgets_what_it_had(
    old: list[tuple[int, int, int]], new: list[tuple[int, int, int]], store: Store
) -> None:
    two = write(store, 2, "aa", write(store, 1, "aa", None, *old), *new)
    assert rows(open_map(store, "A", "B", {SLOT: two})) == new


def test_incarnations_have_maps_of_their_own(store: Store) -> None:
    one = write(store, 1, "aa", None, (0, 0, 10))
    flow_map = open_map(store, "A", "B", {SLOT: write(store, 2, "aa", one, (0, 11, 4), key=MappedPartition(REMOTE, 2))})
    assert (rows(flow_map, 1), rows(flow_map, 2)) == ([(0, 0, 10)], [(0, 11, 4)])


def test_slot_map_without_notes_finds_head_and_followers(store: Store) -> None:
    one = write(store, 1, "aa", None, (0, 0, 10))
    two = write(store, 2, "aa", one, (10, 11, 5))
    three, other = (write(store, 3, attempt, two, (15, 17, 5)) for attempt in ("aa", "bb"))
    slot = SlotMap(store, FOLDER)
    slot.load(None)
    assert slot.head == two
    assert [name for name, _ in slot.followers()] == [three, other]


def test_flow_maps_are_not_orphans(store: Store) -> None:
    archive = make_archive(store)
    write(store, 1, "aa", None, (0, 0, 10))
    there = list(store.list())
    findings, others = Findings(), {e.key for e in there if "mirrors" not in e.key}
    note_orphans({entry.key: entry.size for entry in there}, others, True, findings)
    assert findings.notes == set()
    orphans = find_orphans(store, archive.committed, there, float("inf"))
    assert not [each.key for each in orphans.objects if each.key.startswith("mirrors/")]


# Thinned runs answer never behind the exact answer, and stay few however many rounds there are.


def offset_map(runs: Runs) -> OffsetMap:
    source, target, count = runs
    return OffsetMap(source, target, count, int(target[-1] + count[-1]))


def history(holes: list[int], counts: list[int], markers: list[int]) -> Runs:
    """Runs from holes in the source before each run, records in it, and offsets that the target skips before it."""
    size = min(len(holes), len(counts), len(markers))
    count = np.array(counts[:size], np.int64)
    before = np.concatenate(([0], np.cumsum(count)[:-1]))
    source = before + np.cumsum(np.array(holes[:size], np.int64))
    target = before + np.cumsum(np.array(markers[:size], np.int64))
    return source, target, count


def test_ten_thousand_rounds_leave_few_runs() -> None:
    """Folded again and again, as rounds come in."""
    runs = history([0] * 1000, [10] * 1000, [1] * 1000)
    for _ in range(200):
        source, target, count = runs
        more = np.arange(1, 101, dtype=np.int64)
        runs = thin(
            (
                np.concatenate([source, source[-1] + count[-1] + 10 * (more - 1)]),
                np.concatenate([target, target[-1] + count[-1] + 11 * more - 10]),
                np.concatenate([count, np.full(100, 10, np.int64)]),
            )
        )
    source, target, count = runs
    assert len(source) < EXACT + SLACK + 100 + 10 * SHARE
    assert count.sum() == 21_000 * 10
    assert (np.diff(source) > 0).all()
    assert (target[1:] >= target[:-1] + count[:-1]).all()


@given(
    st.lists(st.integers(0, 5), min_size=60, max_size=120),
    st.lists(st.integers(1, 6), min_size=60, max_size=120),
    st.lists(st.integers(0, 3), min_size=60, max_size=120),
    st.integers(1, 8),
    st.booleans(),
)
def test_no_answer_becomes_greater(
    holes: list[int], counts: list[int], markers: list[int], share: int, twice: bool
) -> None:
    """And each lies before the exact one by no more than the markers and holes between."""
    exact = history(holes, counts, markers)
    kept = (module.EXACT, module.SLACK, module.SHARE)
    module.EXACT, module.SLACK, module.SHARE = 20, 0, share
    try:
        thinned = thin(exact)
        if twice:
            thinned = thin(thinned)
    finally:
        module.EXACT, module.SLACK, module.SHARE = kept
    truth, answers = offset_map(exact), offset_map(thinned)
    end = int(exact[0][-1] + exact[2][-1])
    computed = [answers.map(p).offset for p in range(end + 1)]
    due = [truth.map(p).offset for p in range(end + 1)]
    assert all(a <= b for a, b in zip(computed, due, strict=True))
    assert computed == sorted(computed)
    since = int(exact[0][-20])
    assert computed[since:] == due[since:], "the newest runs are exact"
    sources, _, _ = exact
    first = int(min(sources))
    assert computed[first] == due[first]
    assert len(thinned[0]) <= len(exact[0]) or not any(holes)
