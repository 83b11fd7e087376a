"""Repair: what comes back of an archive with lost or damaged objects, and which losses it reports."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, product
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.archive.catalog.documents import Catalog
from kbackup.archive.catalog.operations import label_point
from kbackup.archive.catalog.points import list_points
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import NewerError, dump, load
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.map_parts import MapPart, MapPartName
from kbackup.archive.restores.offset_map import runs_table
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.config.models import Backup
from kbackup.errors import CorruptError, KbackupError, LockedError, NoArchiveError, WrongKeyError
from kbackup.formats.index import decode_index
from kbackup.jobs.copy import copy_archive
from kbackup.jobs.status.job import archive_status
from kbackup.jobs.verify import VerifyReport, record_verification
from kbackup.library.reading import ArchiveReader
from kbackup.metrics.registry import Silent
from kbackup.mirror.flow import write_status
from kbackup.mirror.status import first_status
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.times import now
from tests.support.archives import LOSS, commit_point, make_archive, restore_plan, topic_state, write
from tests.support.drill_reports import store_drill
from tests.support.faulty_store import Counting, CrashStore, crashed
from tests.support.flow_maps import flow_of
from tests.support.key_files import encrypted
from tests.support.map_parts import a_map_part, write_map
from tests.support.memory_store import MemoryStore
from tests.support.repairs import (
    HOWS,
    LAST,
    ORDERS,
    all_objects,
    catalogs,
    check_healed,
    contents,
    do,
    expire_some,
    harm,
    key_of,
    lacking,
    listed_segments,
    make,
    records,
    repaired,
    run,
    verified,
    without_segments,
)

pytestmark = [pytest.mark.exhaustive(keep=1), pytest.mark.usefixtures("tasks_run_here")]


@pytest.fixture(scope="module")
def made() -> MemoryStore:
    store = MemoryStore()
    make(store)
    return store


@pytest.fixture
def store(made: MemoryStore) -> MemoryStore:
    return made.copy()


# Repair of archives with any loss: every restore point has its whole records or reports the loss.


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_restore_points_have_whole_segments_or_losses(made: MemoryStore, data: st.DataObject) -> None:
    """Up to six objects of any kind. Where the newest catalog is whole no restore point goes, and none lacks a
    segment that is whole."""
    store = made.copy()
    before, truth = listed_segments(store), records(store)
    hurt = data.draw(st.dictionaries(st.sampled_from(all_objects(store)), HOWS, max_size=6))
    for key, how in hurt.items():
        harm(store, key, how)
    bad = {key for key in hurt if key in truth}
    done = repaired(store)
    after, whole = listed_segments(store), without_segments(before, bad)
    for number in after.keys() & before.keys():
        assert after[number] == whole[number]
        lost = {key for keys in before[number].values() for key in keys if key in bad}
        assert len(lacking(store, number)) >= len(lost) > 0 or not (lost or lacking(store, number))
    assert after.keys() >= before.keys() - set(done.lost)
    assert not done.lost or any(key.startswith(layout.CATALOG) or key.startswith(layout.TABLES) for key in hurt)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_loss_of_what_is_not_a_record_loses_a_record(made: MemoryStore, data: st.DataObject) -> None:
    """Nearly all objects but records are gone: the newest restore point has them all, or the next backup finds them."""
    store = made.copy()
    keys = [key for key in all_objects(store) if "_records" not in key]
    before, truth = listed_segments(store), records(store)
    spared = data.draw(st.sets(st.sampled_from(keys), max_size=6))
    store.delete([key for key in keys if key not in spared])
    done = repaired(store)
    assert done.losses == () or all("restore point" in loss for loss in done.losses)
    after = listed_segments(store)
    listed = {key for places in after.values() for segments in places.values() for key in segments}
    if listed != set(truth):
        # they belong to a run that may have been interrupted, and lie behind what is listed
        archive = open_archive(store)
        # an old catalog alone, with its tables, tells nothing of a later run
        base = "" if done.catalog is None else layout.catalog_key(done.catalog)
        named = made.get(base) if base else b""
        runs = (layout.CATALOG, layout.TABLES, layout.POINTS)
        tells = [key for key in spared if key.startswith(runs) and key.encode() not in named]
        assert archive.state.open_run is not None or tells == [base]
        known = {key for n in done.restored for segments in before[n].values() for key in segments}
        assert known <= listed
    elif after:
        newest = {place: segments for place, segments in after[max(after)].items() if segments}
        assert newest == before[LAST]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *product((layout.MANIFEST, layout.GROUPS, layout.METADATA), range(1, LAST + 1)),
        *product([layout.SCHEMAS, layout.DELETIONS], range(3, LAST + 1)),
    ],
)
@pytest.mark.parametrize("how", ["gone", "flip"])
def test_a_lost_document_costs_no_restore_point(store: MemoryStore, number: int, name: str, how: str) -> None:
    before, points = listed_segments(store), {p.number: p for p in list_points(open_archive(store).state)}
    row = attrgetter("records", "losses", "labels", "pinned")
    shown = {n: ArchiveReader(store, str(n)).overview() for n in before}
    harm(store, key_of(store, number, name), how)
    assert verified(store).findings
    report = repaired(store)
    assert (report.lost, report.restored, report.new_point) == ((), (), None)
    assert report.is_loss
    assert any(loss.startswith(f"restore point {number}: ") for loss in report.losses)
    assert listed_segments(store) == before
    after = {p.number: p for p in list_points(open_archive(store).state)}
    for n, point in after.items():
        assert row(point) == row(points[n])
        whole = ArchiveReader(store, str(n)).overview()
        assert [(t.name, t.incarnation, t.sums) for t in whole.topics] == [
            (t.name, t.incarnation, t.sums) for t in shown[n].topics
        ]
        assert whole.losses == shown[n].losses
        assert whole.not_known or (whole.groups, [t.configs for t in whole.topics]) == (
            shown[n].groups,
            [t.configs for t in shown[n].topics],
        )
    assert ArchiveReader(store, str(number)).overview().not_known
    if name == layout.MANIFEST:
        assert [(t.configs, t.state) for t in ArchiveReader(store, str(number)).overview().topics] == [
            (t.configs, t.state) for t in shown[number].topics
        ]
        assert ArchiveReader(store, str(number)).overview().groups == shown[number].groups


def test_all_manifests_are_made_of_the_catalog(store: MemoryStore) -> None:
    before = listed_segments(store)
    store.delete([e.key for e in store.list(layout.POINTS) if e.key.endswith(layout.MANIFEST)])
    repaired(store)
    assert listed_segments(store) == before


@pytest.mark.parametrize("how", ["gone", "cut", "flip"])
def test_a_lost_segment_costs_no_restore_point(store: MemoryStore, how: str) -> None:
    before = listed_segments(store)
    bad = f"{ORDERS}15_records"
    harm(store, bad, how)
    report = repaired(store)
    assert (report.lost, report.new_point) == ((), None)
    assert report.is_loss
    assert "offsets 15 to 23 of orders-0" in report.losses[0]
    assert listed_segments(store) == without_segments(before, [bad])
    assert {n: len(lacking(store, n)) for n in before} == {1: 0, 2: 1, 3: 1, 4: 1, 5: 0, 6: 0}
    assert {p.number: p.damaged for p in list_points(open_archive(store).state)} == {1: 0, 2: 1, 3: 1, 4: 1, 5: 0, 6: 0}
    assert ArchiveReader(store, "2").overview().losses == (LOSS, *lacking(store, 2))


def test_segments_are_compared_by_size_unless_all_are_read(store: MemoryStore) -> None:
    harm(store, f"{ORDERS}15_records", "flip")
    assert run(store, read_data=False).losses == ()
    assert len(run(store).losses) == 1


@pytest.mark.parametrize("confirm", [False, True])
def test_a_damaged_lease_is_named_as_replaced(store: MemoryStore, confirm: bool) -> None:
    store.put(layout.LOCK, b"garbage")
    assert [mended.file for mended in run(store, confirm=confirm).mended] == [layout.LOCK]


def partition_counts(store: MemoryStore, point: str) -> dict[str, int]:
    return {t.name: len(t.partitions) for t in open_archive(store).restore_point(point).topics}


def archive_with_empty_partitions() -> MemoryStore:
    """One restore point: the last of four partitions of orders is empty, topic empty has no record at all."""
    store = MemoryStore()
    archive = open_or_create(store)
    written = [write(store, SegmentTarget("orders", 1, p, 1000, "none"), range(7, 12)) for p in range(3)]
    orders = topic_state("orders", [*((7, 12, some) for some in written), (0, 0, [])])
    empty = topic_state("empty", [(0, 0, []), (0, 0, [])])
    segments = [segment for some in written for segment in some]
    commit_point(archive, 1, topics=[empty, orders], segments=segments)
    return store


@pytest.mark.parametrize("lost", ["manifest", "neighbour's manifest and metadata", "all documents"])
def test_a_lost_manifest_comes_back_with_every_partition(lost: str) -> None:
    store = archive_with_empty_partitions()
    archive = open_archive(store)
    before = archive.restore_point("1")
    if lost.startswith("neighbour"):
        states = [msgspec.structs.replace(t, captured=2) for t in before.topics]
        commit_point(archive, 2, topics=states)
        store.delete([key_of(store, 2, layout.MANIFEST), key_of(store, 1, layout.METADATA)])
    store.delete([key_of(store, 1, layout.MANIFEST)])
    if lost == "all documents":
        store.delete([e.key for e in store.list(layout.POINTS)])
    repaired(store)
    after = open_archive(store).restore_point("1")
    if lost == "all documents":
        assert partition_counts(store, "1") == {"empty": 1, "orders": 3}, "every topic has a partition"
        assert "partitions behind the last one with records of empty, orders" in after.not_known
    else:
        assert partition_counts(store, "1") == {"empty": 2, "orders": 4}
        assert not any("partitions" in note for note in after.not_known)
        ends = {t.name: [(p.start, p.end) for p in t.partitions] for t in after.topics}
        assert ends == {t.name: [(p.start, p.end) for p in t.partitions] for t in before.topics}


def test_a_new_restore_point_has_the_partitions_and_topics_that_were_captured() -> None:
    """Catalogs and manifests are lost; metadata.json is there."""
    store = archive_with_empty_partitions()
    keep = (layout.METADATA, "_records", "_index")
    store.delete([key for key in all_objects(store) if not key.endswith(keep)])
    repaired(store)
    assert partition_counts(store, "latest") == {"empty": 2, "orders": 4}
    assert [t.configs for t in ArchiveReader(store, "latest").overview().topics] == [{"retention.ms": "-1"}] * 2


# Repair of archives whose catalogs or tables are lost.


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_lost_catalogs_cost_no_restore_point(store: MemoryStore, count: int) -> None:
    """The newest catalogs are gone: what their restore points added is found by their manifests."""
    before = listed_segments(store)
    store.delete(catalogs(store)[-count:])
    with pytest.raises(CorruptError, match="is missing") as raised:
        open_archive(store)
    assert "kbackup repair" in raised.value.hint
    report = repaired(store)
    assert listed_segments(store) == before
    assert (report.lost, report.losses) == ((), ())
    assert any("lost or damaged catalogs after" in warning for warning in report.warnings)


@pytest.mark.parametrize("table", ["points", "incarnations", "segments", "losses", "past", "log_starts"])
@pytest.mark.parametrize("how", ["gone", "flip"])
@pytest.mark.parametrize("expired", [False, True])
def test_lost_tables_cost_nothing(store: MemoryStore, table: str, how: str, expired: bool) -> None:
    if expired:
        expire_some(store, {1, 2, 4})
    archive = open_archive(store)
    before, losses = (listed_segments(store), {n: archive.losses(archive.manifest(n)) for n in listed_segments(store)})
    catalog = archive.committed.catalog
    assert catalog is not None
    refs = getattr(catalog.tables, table)
    older = list(catalogs(store)[:-1])
    for ref in refs:
        harm(store, ref.key, how)
    store.delete(older)
    report = repaired(store)
    archive = open_archive(store)
    after = listed_segments(store)
    if expired and table in ("past", "log_starts"):  # what was let go is back where nothing tells that it went
        assert all(key in after[n].get(place, []) for n in before for place in before[n] for key in before[n][place])
    else:
        assert after == before
        assert {n: archive.losses(archive.manifest(n)) for n in after} == losses
    assert archive.state.pins.keys() == {5}
    assert report.losses == ()


@pytest.mark.parametrize("table", ["incarnations", "losses"])
def test_an_expired_incarnation_stays_so_when_a_table_is_lost(store: MemoryStore, table: str) -> None:
    """Its segments wait for a sweep, and the tables of restore points and segments say that nothing needs them."""
    expire_some(store, {1, 2, 3, 4}, cutoff=None)
    before = listed_segments(store)
    listed: set[str] = set()
    for partitions in before.values():
        listed.update(chain.from_iterable(partitions.values()))
    assert records(store).keys() - listed, "the segments of what has expired are there"
    catalog = open_archive(store).committed.catalog
    assert catalog is not None
    store.delete([ref.key for ref in getattr(catalog.tables, table)])
    report = repaired(store)
    assert (report.new_point, report.losses) == (None, ())
    assert listed_segments(store) == before


def lose_table(store: MemoryStore, table: str) -> None:
    """Every table `table` of every catalog."""
    for key in catalogs(store):
        refs = getattr(load(Catalog, store.get(key), key).tables, table)
        store.delete([ref.key for ref in refs if ref.key in all_objects(store)])


@pytest.mark.parametrize("numbers", [{1}, {2, 3}, {4}, {3, 6}, {5, 6}, {1, 2, 3, 4, 5, 6}])
@pytest.mark.parametrize("table", ["segments", "incarnations"])
def test_a_lost_table_and_lost_manifests_cost_nothing(store: MemoryStore, numbers: set[int], table: str) -> None:
    """A restore point's row counts the segments that it added: they are the oldest objects that it may have added."""
    before = listed_segments(store)
    lose_table(store, table)
    store.delete([key_of(store, number, layout.MANIFEST) for number in numbers])
    report = repaired(store)
    assert listed_segments(store) == before
    assert (report.lost, report.new_point) == ((), None)
    assert sorted(loss.partition(":")[0] for loss in report.losses) == [f"restore point {n}" for n in numbers]


@pytest.mark.parametrize("at", [0, 20, 50, 58, 62, 90])
def test_a_lost_table_and_a_damaged_partition_index_are_no_loss(store: MemoryStore, at: int) -> None:
    before, key = listed_segments(store), "topics/orders/index_partition_000"
    lose_table(store, "segments")
    data = store.get(key)
    store.put(key, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert repaired(store).losses == ()
    assert listed_segments(store) == before


def test_a_restore_point_whose_catalog_is_lost_without_a_trace_is_found(store: MemoryStore) -> None:
    """The archive looks as if its newest backup had died right before the commit: repair commits what is whole."""
    before = listed_segments(store)
    committed = max(key for key in catalogs(store) if load(Catalog, store.get(key), key).operation.kind == "backup")
    store.delete([key for key in catalogs(store) if key >= committed] + [layout.LATEST, layout.DERIVED])
    assert open_archive(store).restore_points[-1].number == LAST - 1
    report = repaired(store)
    assert listed_segments(store) == before
    assert (report.restored, report.losses) == ((LAST,), ())


@pytest.mark.parametrize("retained", [(layout.POINTS, layout.TOPICS), (layout.TOPICS,)])
def test_without_a_catalog_all_that_is_whole_is_found(store: MemoryStore, retained: tuple[str, ...]) -> None:
    before, truth = listed_segments(store), records(store)
    store.delete([e.key for e in store.list() if not e.key.startswith(retained)])
    report = repaired(store)
    after = listed_segments(store)
    assert records(store) == truth
    assert {key for places in after.values() for some in places.values() for key in some} == set(truth)
    newest = {place: some for place, some in after[max(after)].items() if some}
    assert newest == before[LAST]
    assert any("no catalog is left" in warning for warning in report.warnings)
    if layout.POINTS in retained:
        assert after == before
        assert report.restored == tuple(range(1, LAST + 1))
        archive = open_archive(store)
        assert [loss.message for loss in archive.losses(archive.manifest(3))] == [LOSS]
    else:
        assert report.new_point == 2  # the former incarnation has one of its own
        assert report.records == sum(
            p.sums.records for t in ArchiveReader(store, "latest").overview().topics for p in t.partitions
        ) + sum(p.sums.records for t in ArchiveReader(store, "1").overview().topics for p in t.partitions)


# Repair of archives where segments, indexes or manifests alone remain.


def test_nothing_but_records_is_left(store: MemoryStore) -> None:
    before, truth = listed_segments(store), records(store)
    indexed = store.copy()
    indexed.delete([key for key in all_objects(store) if "/segment_partition_" not in key])
    store.delete([key for key in all_objects(store) if "_records" not in key])
    counting = Counting(indexed)
    run(counting)
    read = [key for key, start, _ in counting.read if key in truth and start == 0]
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
    store.delete([e.key for e in store.list("topics/more/") if "_0000000050_" in e.key or "_0000000058_" in e.key])
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
    assert any(f"{ORDERS}15_records" in keys for keys in listed_segments(early)[2].values()), "it has it still"


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


# Repair of archives whose records were expired.


def test_expired_segments_are_not_losses(store: MemoryStore) -> None:
    """Files that derive from the rest are made anew."""
    expire_some(store, {1, 2, 4})
    open_archive(store)
    run(store)  # the derived files are as of before
    before = listed_segments(store)
    assert run(store).mended == ()
    for key in (f"{ORDERS}32_index", "topics/more/index_partition_000"):
        harm(store, key, "cut")
    report = repaired(store)
    assert (len(report.mended), report.losses, report.new_point) == (2, (), None)
    assert listed_segments(store) == before


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_loss_in_an_archive_that_was_expired_loses_a_record(made: MemoryStore, data: st.DataObject) -> None:
    store = made.copy()
    expire_some(store, {1, 2, 4})
    before = listed_segments(store)
    keys = [key for key in all_objects(store) if "_records" not in key]
    hurt = data.draw(st.dictionaries(st.sampled_from(keys), HOWS, max_size=5))
    for key, how in hurt.items():
        harm(store, key, how)
    report = repaired(store)
    assert not [loss for loss in report.losses if "restore point" not in loss]
    after = listed_segments(store)
    if all(key.startswith((layout.POINTS, layout.TOPICS)) for key in hurt):
        assert after == before
    newest = {place: some for place, some in after[max(after)].items() if some}
    assert all(set(newest[place]) >= set(some) for place, some in before[LAST].items() if some)


def test_a_repair_may_be_killed_after_an_expiration(made: MemoryStore) -> None:
    expired = made.copy()
    expire_some(expired, {1, 2, 4})
    before = listed_segments(expired)
    harm(expired, key_of(expired, 5, layout.MANIFEST), "gone")
    for store in crashed(expired, run):
        run(store)
        assert listed_segments(store) == before
        assert verified(store).findings == ()


def test_a_lost_catalog_of_an_expiration_takes_nothing_that_is_left(store: MemoryStore) -> None:
    before = listed_segments(store)
    expire_some(store, {1, 2, 4}, None)
    after = listed_segments(store)
    store.delete(catalogs(store)[-1:])
    repaired(store)
    found = listed_segments(store)
    assert {number: found[number] for number in after} == after
    assert found == before, "nothing was swept: the expiration alone is lost"


def test_names_that_no_writer_gives_are_left_alone(store: MemoryStore) -> None:
    truth = records(store)
    strange = [
        "topics/orders/index_partition_99999999999",
        "topics/orders/segment_partition_2000000000_from_offset_0000000000_records",
        "topics/..evil\nname/segment_partition_000_from_offset_0000000000_records",
        "topics/orders@1/segment_partition_000_from_offset_0000000000_records",
        "topics/@2/segment_partition_000_from_offset_0000000000_records",
    ]
    for key in strange:
        store.put(key, truth[f"{ORDERS}00_records"])
    for key in [k for k in all_objects(store) if k.startswith((layout.CATALOG, layout.TABLES))]:
        harm(store, key, "gone")
    harm(store, layout.ARCHIVE, "gone")
    report = run(store)
    assert (report.lost, report.losses) == ((), ())
    whole = ArchiveReader(store, "latest").overview()
    assert {t.name: len(t.partitions) for t in whole.topics} == {"clicks": 1, "more": 1, "orders": 1}
    assert all(store.get(key) for key in strange)
    assert verified(store).findings == ()


# Repairs that are interrupted, encrypted, or beside other writers.


def records_listed(store: Store) -> set[str]:
    return open_archive(store).keys()


@pytest.mark.parametrize("kind", ["documents", "catalogs", "all"])
def test_a_repair_may_be_killed_anywhere(made: MemoryStore, kind: str) -> None:
    harmed = made.copy()
    lost = {
        "documents": [
            layout.ARCHIVE,
            key_of(made, 3, layout.MANIFEST),
            key_of(made, 1, layout.GROUPS),
            f"{ORDERS}08_records",
            f"{ORDERS}15_index",
        ],
        "catalogs": [*catalogs(made)[-3:], "topics/more/index_partition_000"],
        "all": [key for key in all_objects(made) if not key.startswith(layout.TOPICS)],
    }[kind]
    harmed.delete(lost)
    whole = harmed.copy()
    run(whole)
    for store in crashed(harmed, run):
        run(store)
        if kind != "all":
            assert listed_segments(store) == listed_segments(whole)
        assert records(store) == records(harmed)
        check_healed(store)


def test_a_repair_is_not_committed_to_a_changed_archive(store: MemoryStore) -> None:
    class Rival(CrashStore):
        def _before(self, operation: Any, key: str) -> None:
            if operation == "put_new" and layout.parse_catalog_key(key) and not self.down:
                self.down = True
                do(store, lambda state: label_point(state, "rival", 6))
                self.down = False

    harm(store, f"{ORDERS}15_records", "cut")
    with pytest.raises(Exception, match="changed during the repair"):
        run(Rival(store))
    assert open_archive(store).state.labels["rival"] == 6
    assert run(store).losses


def test_an_encrypted_archive_is_repaired_with_its_key_alone(tmp_path: Path) -> None:
    inner = MemoryStore()
    store = encrypted(inner, tmp_path)
    make_archive(store)
    truth = records(store)
    for key in (layout.ARCHIVE, *(e.key for e in store.list(layout.POINTS)), f"{ORDERS}15_index"):
        harm(store, key, "gone")
    bad = f"{ORDERS}32_records"
    sealed = inner.get(bad)
    inner.put(bad, sealed[:-1])
    with pytest.raises(WrongKeyError, match="is encrypted"):
        run(inner)
    report = run(store)
    assert [line for line in report.losses if "offsets 32 to " in line]
    assert inner.get(bad) == sealed[:-1]
    assert verified(store).findings == ()
    assert {
        key for places in listed_segments(store).values() for some in places.values() for key in some
    } == truth.keys() - {bad}


@pytest.mark.parametrize("how", ["gone", "cut"])
def test_the_index_of_an_orphan_is_left_alone(store: MemoryStore, how: str) -> None:
    """A later run may give a compressed segment the same name, and write the index."""
    orphan = write(store, SegmentTarget("more", 1, 0, 1 << 20, "none"), range(100, 105))[0]
    key = layout.index_key_of(orphan.key)
    harm(store, key, how)
    harm(store, catalogs(store)[-1], "gone")  # orphans are read
    before = contents(store).get(key)
    run(store)
    assert orphan.key not in records_listed(store)
    assert contents(store).get(key) == before


def test_a_key_for_an_archive_that_is_not_encrypted_is_no_damage(store: MemoryStore, tmp_path: Path) -> None:
    harm(store, layout.ARCHIVE, "gone")
    with pytest.raises(WrongKeyError):
        run(encrypted(store, tmp_path))


def test_a_repair_waits_for_no_writer(store: MemoryStore) -> None:
    with HeldLease(store, "kbackup backup", 60), pytest.raises(LockedError):
        run(store)


# Damage of an object of any kind: the commands that status and repair name mend it, or they say that nothing can.


def made_of_every_kind(store: Store) -> None:
    """Six restore points, some expired, and what restores, drills, verifications and mirrors leave."""
    make(store)
    expire_some(store, {3})
    run(store)
    archive_id = open_archive(store).info.id
    store.put(layout.restore_key("r", layout.PLAN), dump(restore_plan(archive_id=archive_id)))
    runs = runs_table({TopicPartition("copy", 0): (np.array([0]), np.array([0]), np.array([1]))})
    a_map_part(store, MapPartName("one", 0), runs)
    write_map(store, "r", [MapPart(runs)])
    store_drill(store, "drill-x", archive_id=archive_id)
    write_status(store, first_status(flow_of(), archive_id, None))
    record_verification(store, verified(store), now(), partial=False)
    with HeldLease(store, "kbackup test", 60):
        pass


def kind_of(key: str) -> str:
    """The key without numbers, names of topics, and tokens of runs."""
    key = re.sub(r"[0-9a-f]{12,}|[0-9T-]{23}Z", "", key)
    return re.sub(r"[0-9]+", "0", re.sub(r"(?<=topics/)[a-z]+", "t", key))


def one_of_each_kind(store: Store) -> Iterator[str]:
    orphans = {note.file for note in verified(store).notes}
    yield from {kind_of(e.key): e.key for e in store.list() if e.size and e.key not in orphans}.values()


def said(store: Store) -> list[str]:
    """Return the messages of status on damage, with the commands that it names."""
    try:
        status = archive_status(open_archive(store), Backup(max_age=1e12))
    except KbackupError as error:
        return [str(error)]
    return [f"{f.message}; run: {f.command}" for f in status.findings if f.subject == "damage"]


def follow(store: Store, text: str, report: VerifyReport) -> None:
    """Do what status says: repair, or what verify says of each file where no repair can mend it."""
    if "kbackup repair" in text and "no repair" not in text:
        read_data = "kbackup repair --read-data" in text
        assert run(store, confirm=False, read_data=read_data).changes, text
        assert run(store, read_data=read_data).changes
        return
    assert "kbackup verify" in text
    for finding in report.findings:
        delete = re.search(r"delete ([^ :]+)", finding.hint)
        if delete:
            store.delete([entry.key for entry in store.list() if entry.key.startswith(delete[1])])


@pytest.fixture
def whole() -> MemoryStore:
    store = MemoryStore()
    made_of_every_kind(store)
    return store


def test_the_archive_has_objects_of_every_kind(whole: MemoryStore) -> None:
    folders = {key.partition("/")[0] for key in one_of_each_kind(whole)}
    own = {value for name, value in vars(layout).items() if name.isupper() and isinstance(value, str)}
    expected = {value.rstrip("/") for value in own if value.endswith("/")} - {"check", "keys"}
    assert expected <= folders, "a folder of an archive has no object in this test"


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["flip", pytest.param("cut", marks=pytest.mark.soak), "gone"])
def test_after_the_named_commands_the_archive_is_well(whole: MemoryStore, how: str) -> None:
    assert said(whole) == []
    assert verified(whole).findings == ()
    for key in one_of_each_kind(whole):
        store = whole.copy()
        harm(store, key, how)
        report = verified(store)
        with suppress(KbackupError):
            record_verification(store, report, now(), partial=False)
        texts = said(store)
        if not report.findings:
            assert how == "gone", f"nobody finds that {key} is damaged"
            assert not texts or "kbackup repair" in texts[0], (key, texts)
        else:
            assert texts, f"status says nothing of {key}"
        for text in texts:
            follow(store, text, report)
        left = [f for f in verified(store).findings if "'kbackup repair' can't mend it" not in f.hint]
        assert left == [], (key, texts)
        if not verified(store).findings:
            record_verification(store, verified(store), now(), partial=False)
            lacks = [text for text in said(store) if "lack damaged segments" not in text]
            assert lacks == [], key
        else:
            assert key.startswith(layout.MIRRORS), f"nothing mends {key}, and nothing tells what to delete"


def test_a_flipped_bit_in_an_index_is_repaired_by_the_command_that_status_names(whole: MemoryStore) -> None:
    """Sizes alone do not show it."""
    store = whole.copy()
    harm(store, f"{ORDERS}15_index", "flip")
    report = verified(store)
    assert not run(store, read_data=False).changes
    record_verification(store, report, now(), partial=False)
    (text,) = said(store)
    assert text.endswith(f"run: kbackup repair --read-data --archive {store.url}")
    assert [mended.file for mended in run(store).mended] == [f"{ORDERS}15_index"]
    assert verified(store).findings == ()


# Archives that a repair leaves alone, and the errors of readers before it.


CHECKSUM = re.compile(rb'"checksum":"[^"]*"')


def newer(data: bytes, change: tuple[bytes, bytes]) -> bytes:
    """A document as a later version may write it, with its own checksum."""
    assert change[0] in data
    changed = CHECKSUM.sub(b'"checksum":""', msgspec.json.format(data.replace(*change, 1), indent=-1))
    whole = f'"checksum":"sha256:{hashlib.sha256(changed).hexdigest()}"'.encode()
    return changed.replace(b'"checksum":""', whole, 1)


NEWER = re.compile(rb'"version": \d+')


@pytest.mark.parametrize("how", ["version", "member"])
@pytest.mark.parametrize(
    "name",
    [
        layout.LOCK,
        layout.ARCHIVE,
        layout.LATEST,
        layout.DERIVED,
        layout.CATALOG,
        layout.MANIFEST,
        layout.GROUPS,
        layout.METADATA,
        layout.SCHEMAS,
        layout.DELETIONS,
    ],
)
def test_objects_of_a_newer_version_are_not_damage(store: MemoryStore, name: str, how: str) -> None:
    with HeldLease(store, "kbackup backup", 60):
        pass
    harm(store, key_of(store, 5, layout.GROUPS), "gone")
    key = name
    if name == layout.CATALOG:
        key = catalogs(store)[-1]
    elif name in (layout.MANIFEST, layout.GROUPS, layout.METADATA, layout.SCHEMAS, layout.DELETIONS):
        key = key_of(store, 3, name)
    data = store.get(key)
    version = NEWER.search(data)
    assert version is not None
    change = (version[0], b'"version": 99') if how == "version" else (b'"checksum"', b'"new": 1, "checksum"')
    store.put(key, newer(data, change))
    before, changed = contents(store), store.get(key)
    for confirm in (False, True):
        with pytest.raises(NewerError, match=key):
            run(store, confirm)
    assert contents(store) == before
    assert store.get(key) == changed


def test_there_must_be_something_of_an_archive() -> None:
    with pytest.raises(NoArchiveError):
        run(MemoryStore())


@pytest.mark.parametrize("name", [layout.MANIFEST, layout.CATALOG, layout.TABLES])
def test_errors_of_readers_name_the_lost_object_and_the_repair(store: MemoryStore, name: str) -> None:
    catalog = open_archive(store).committed.catalog
    assert catalog is not None
    key = {
        layout.MANIFEST: key_of(store, LAST, layout.MANIFEST),
        layout.CATALOG: catalogs(store)[-1],
        layout.TABLES: catalog.tables.points[0].key,
    }[name]
    harm(store, key, "gone")
    with pytest.raises(CorruptError, match=key) as raised:
        _ = open_archive(store).head
    assert "kbackup repair" in raised.value.hint
