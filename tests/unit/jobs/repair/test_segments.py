"""Repair of archives where segments, indexes or manifests alone remain."""

from __future__ import annotations

import pytest

import kbackup.jobs.repair.rebuild as repair_job
from kbackup.archive import layout
from kbackup.archive.repair.scan import Damaged, ToScan, Whole, scan
from kbackup.formats.index import decode_index
from kbackup.jobs.copy import copy_archive
from kbackup.metrics.registry import Silent
from kbackup.store.base import Store
from tests.support.memory_store import MemoryStore
from tests.support.repairs import (
    LAST,
    ORDERS,
    all_objects,
    catalogs,
    check_healed,
    harm,
    key_of,
    lacking,
    listed_segments,
    records,
    repaired,
    run,
    verified,
    without_segments,
)

pytestmark = pytest.mark.exhaustive(keep=2)


def test_nothing_but_records_is_left(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    before, truth = listed_segments(store), records(store)
    indexed = store.copy()
    indexed.delete([key for key in all_objects(store) if "/segment_partition_" not in key])
    store.delete([key for key in all_objects(store) if "_records" not in key])
    read: list[str] = []

    def counted(there: Store, item: ToScan, mend: bool) -> Whole | Damaged:
        read.append(item.key)
        return scan(there, item, mend)

    monkeypatch.setattr(repair_job, "scan", counted)
    run(indexed)
    assert sorted(read) == sorted(truth), "each object is read once"
    repaired(store)
    after = listed_segments(store)
    assert {key for places in after.values() for some in places.values() for key in some} == set(truth)
    assert {place: some for place, some in after[max(after)].items() if some} == before[LAST]


def test_a_segment_that_a_partition_index_alone_names_is_a_loss(store: MemoryStore) -> None:
    store.delete([key for key in all_objects(store) if not key.startswith(layout.TOPICS)])
    store.delete([f"{ORDERS}08_records", f"{ORDERS}08_index"])
    report = repaired(store)
    lost = [line.partition(" of ")[0] for line in report.losses if "restore point" not in line]
    assert lost == ["offsets 8 to 14"]
    assert report.is_loss


def test_the_loss_of_a_missing_segment_names_the_segment(store: MemoryStore) -> None:
    store.delete([f"{ORDERS}08_records"])
    report = repaired(store)
    assert [line.partition(": ")[2] for line in report.losses] == ["the segment is missing"]


def test_records_that_a_manifest_counts_and_nothing_has_are_a_loss(store: MemoryStore) -> None:
    """Catalogs, a restore point's segments and the partition index are gone: its manifest still counts records."""
    store.delete([e.key for e in store.list() if e.key.startswith((layout.CATALOG, layout.TABLES))])
    store.delete([layout.DERIVED, "topics/more/index_partition_000"])
    store.delete(
        [e.key for e in store.list("topics/more/") if "_0000000050_" in e.key or "_0000000058_" in e.key]
    )
    report = repaired(store)
    assert ["offsets 49 to 58 of more-0" in line for line in report.losses] == [True]
    assert {n: len(lacking(store, n)) for n in listed_segments(store)} == {1: 0, 2: 0, 3: 0, 4: 0, 5: 1, 6: 1}


def test_segments_in_a_partition_index_count_as_committed(store: MemoryStore) -> None:
    """The newest restore point has no catalog and no manifest left."""
    before = listed_segments(store)
    store.delete([*catalogs(store)[-5:], *[e.key for e in store.list(f"{layout.POINTS}{LAST:010d}-")]])
    report = repaired(store)
    assert report.new_point == LAST
    assert listed_segments(store) == before


def test_records_that_end_before_their_index_does_are_cut_off(store: MemoryStore) -> None:
    index = decode_index(store.get(f"{ORDERS}15_index"), "index")
    data = store.get(f"{ORDERS}15_records")
    store.put(f"{ORDERS}15_records", data[: int(index.positions[2])])
    report = repaired(store)
    assert ["offsets 15 to 23 of orders-0" in line for line in report.losses] == [True]


def test_a_copy_takes_a_repaired_archive_as_it_is(store: MemoryStore) -> None:
    early = MemoryStore("memory://early")
    copy_archive(store, early, 60, Silent())
    harm(store, key_of(store, 3, layout.MANIFEST), "gone")
    harm(store, f"{ORDERS}15_records", "cut")
    run(store)
    for target in (MemoryStore("memory://copy"), early):
        copy_archive(store, target, 60, Silent())
        assert without_segments(listed_segments(target), [f"{ORDERS}15_records"]) == listed_segments(store)
        assert verified(target).findings == ()
    assert any(f"{ORDERS}15_records" in keys for keys in listed_segments(early)[2].values()), (
        "it has it still"
    )


def test_objects_that_come_back_later_change_nothing(store: MemoryStore) -> None:
    """A manifest out of a bucket's versions, a catalog that was being written, a segment that was lost."""
    lost = [key_of(store, 3, layout.MANIFEST), catalogs(store)[-1], f"{ORDERS}15_records"]
    old = {key: store.get(key) for key in lost}
    store.delete(lost)
    run(store)
    healed = listed_segments(store)
    for key, data in old.items():
        store.put(key, data)
    assert listed_segments(store) == healed
    check_healed(store)
