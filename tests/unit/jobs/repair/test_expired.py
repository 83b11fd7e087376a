"""Repair of archives whose records were expired."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.archive.query.overview import overview
from kbackup.archive.reader import open_archive
from tests.support.crash_store import crashed
from tests.support.memory_store import MemoryStore
from tests.support.repairs import (
    HOWS,
    LAST,
    ORDERS,
    all_objects,
    catalogs,
    expire_some,
    harm,
    key_of,
    listed_segments,
    records,
    repaired,
    run,
    verified,
)

pytestmark = pytest.mark.exhaustive(keep=2)


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


@pytest.mark.exhaustive
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_loss_in_an_archive_that_was_expired_loses_a_record(
    made: MemoryStore, data: st.DataObject
) -> None:
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


@pytest.mark.exhaustive(keep=1)
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
    whole = overview(store, "latest")
    assert {t.name: len(t.partitions) for t in whole.topics} == {"clicks": 1, "more": 1, "orders": 1}
    assert all(store.get(key) for key in strange)
    assert verified(store).findings == ()
