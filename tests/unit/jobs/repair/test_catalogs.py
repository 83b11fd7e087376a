"""Repair of archives whose catalogs or tables are lost."""

from __future__ import annotations

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.documents import Catalog
from kbackup.archive.models import load
from kbackup.archive.query.overview import overview
from kbackup.archive.reader import open_archive
from kbackup.errors import CorruptError
from tests.support.archives import LOSS
from tests.support.memory_store import MemoryStore
from tests.support.repairs import (
    LAST,
    all_objects,
    catalogs,
    expire_some,
    harm,
    key_of,
    listed_segments,
    records,
    repaired,
)

pytestmark = pytest.mark.exhaustive(keep=2)


@pytest.mark.exhaustive(keep=1)
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


@pytest.mark.exhaustive(keep=2)
@pytest.mark.parametrize("table", ["points", "incarnations", "segments", "losses", "past", "log_starts"])
@pytest.mark.parametrize("how", ["gone", "flip"])
@pytest.mark.parametrize("expired", [False, True])
def test_lost_tables_cost_nothing(store: MemoryStore, table: str, how: str, expired: bool) -> None:
    if expired:
        expire_some(store, {1, 2, 4})
    archive = open_archive(store)
    before, losses = (
        listed_segments(store),
        {n: archive.losses(archive.manifest(n)) for n in listed_segments(store)},
    )
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
    if expired and table in (
        "past",
        "log_starts",
    ):  # what was let go is back where nothing tells that it went
        assert all(
            key in after[n].get(place, []) for n in before for place in before[n] for key in before[n][place]
        )
    else:
        assert after == before
        assert {n: archive.losses(archive.manifest(n)) for n in after} == losses
    assert archive.state.pins.keys() == {5}
    assert report.losses == ()


def lose_table(store: MemoryStore, table: str) -> None:
    """Every table `table` of every catalog."""
    for key in catalogs(store):
        refs = getattr(load(Catalog, store.get(key), key).tables, table)
        store.delete([ref.key for ref in refs if ref.key in all_objects(store)])


@pytest.mark.parametrize("numbers", [{1}, {2, 3}, {4}, {3, 6}, {5, 6}, {1, 2, 3, 4, 5, 6}])
@pytest.mark.parametrize("table", ["segments", "incarnations"])
def test_a_lost_table_and_lost_manifests_cost_nothing(
    store: MemoryStore, numbers: set[int], table: str
) -> None:
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
    committed = max(
        key for key in catalogs(store) if load(Catalog, store.get(key), key).operation.kind == "backup"
    )
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
            p.sums.records for t in overview(store, "latest").topics for p in t.partitions
        ) + sum(p.sums.records for t in overview(store, "1").topics for p in t.partitions)
