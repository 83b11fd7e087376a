"""Repair of archives with any loss: every restore point has its whole records or reports the loss."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.archive.query.overview import list_points, overview
from kbackup.archive.reader import open_archive
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.writer import Target
from tests.support.archives import LOSS, commit_point, topic_state, write
from tests.support.memory_store import MemoryStore
from tests.support.repairs import (
    HOWS,
    LAST,
    ORDERS,
    all_objects,
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
    assert not done.lost or any(
        key.startswith(layout.CATALOG) or key.startswith(layout.TABLES) for key in hurt
    )


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
        assert archive.state.open_run is not None
        known = {key for n in done.restored for segments in before[n].values() for key in segments}
        assert known <= listed
    elif after:
        newest = {place: segments for place, segments in after[max(after)].items() if segments}
        assert newest == before[LAST]


@pytest.mark.parametrize("number", range(1, LAST + 1))
@pytest.mark.parametrize("name", [layout.MANIFEST, layout.GROUPS, layout.METADATA])
@pytest.mark.parametrize("how", ["gone", "flip"])
def test_a_lost_document_costs_no_restore_point(store: MemoryStore, number: int, name: str, how: str) -> None:
    before, points = listed_segments(store), {p.number: p for p in list_points(open_archive(store))}
    shown = {n: overview(store, str(n)) for n in before}
    harm(store, key_of(store, number, name), how)
    assert verified(store).findings
    report = repaired(store)
    assert (report.lost, report.restored, report.new_point) == ((), (), None)
    assert report.is_loss
    assert any(loss.startswith(f"restore point {number}: ") for loss in report.losses)
    assert listed_segments(store) == before
    after = {p.number: p for p in list_points(open_archive(store))}
    for n, point in after.items():
        assert (point.records, point.losses, point.labels, point.pinned) == (
            points[n].records,
            points[n].losses,
            points[n].labels,
            points[n].pinned,
        )
        whole = overview(store, str(n))
        assert [(t.name, t.incarnation, t.sums) for t in whole.topics] == [
            (t.name, t.incarnation, t.sums) for t in shown[n].topics
        ]
        assert whole.losses == shown[n].losses
        assert whole.not_known or (whole.groups, [t.configs for t in whole.topics]) == (
            shown[n].groups,
            [t.configs for t in shown[n].topics],
        )
    assert overview(store, str(number)).not_known
    if name == layout.MANIFEST:
        assert [(t.configs, t.state) for t in overview(store, str(number)).topics] == [
            (t.configs, t.state) for t in shown[number].topics
        ]
        assert overview(store, str(number)).groups == shown[number].groups


def test_all_manifests_are_made_of_the_catalog(store: MemoryStore) -> None:
    before = listed_segments(store)
    store.delete([e.key for e in store.list(layout.POINTS) if e.key.endswith(layout.MANIFEST)])
    repaired(store)
    assert listed_segments(store) == before


@pytest.mark.exhaustive(keep=1)
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
    assert {p.number: p.damaged for p in list_points(open_archive(store))} == {
        1: 0,
        2: 1,
        3: 1,
        4: 1,
        5: 0,
        6: 0,
    }
    assert overview(store, "2").losses == (LOSS, *lacking(store, 2))


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
    written = [write(store, Target("orders", 1, p, 1000, "none"), range(7, 12)) for p in range(3)]
    orders = topic_state("orders", 1, "present", [*((7, 12, some) for some in written), (0, 0, [])])
    empty = topic_state("empty", 1, "present", [(0, 0, []), (0, 0, [])])
    segments = [segment for some in written for segment in some]
    commit_point(archive, 1, [empty, orders], segments, [])
    return store


@pytest.mark.parametrize("lost", ["manifest", "neighbour's manifest and metadata", "all documents"])
def test_a_lost_manifest_comes_back_with_every_partition(lost: str) -> None:
    store = archive_with_empty_partitions()
    archive = open_archive(store)
    before = archive.restore_point("1")
    if lost.startswith("neighbour"):
        states = [msgspec.structs.replace(t, captured=2) for t in before.topics]
        commit_point(archive, 2, states, [], [])
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
    assert [t.configs for t in overview(store, "latest").topics] == [{"retention.ms": "-1"}] * 2
