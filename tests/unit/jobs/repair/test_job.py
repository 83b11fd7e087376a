"""Whatever an archive has lost: every restore point that can be kept is listed and says what it lacks, and nothing that
is whole is deleted."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kbackup.jobs.repair.read_back as repair_job
from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.documents import Catalog
from kbackup.archive.catalog.operations import label_point, pin_points
from kbackup.archive.catalog.retention import expire_points, expire_records, old_starts
from kbackup.archive.catalog.state import State
from kbackup.archive.lease.hold import HeldLease
from kbackup.archive.models import NewerError, TopicState, load
from kbackup.archive.query.overview import overview
from kbackup.archive.query.points import list_points
from kbackup.archive.reader import open_archive
from kbackup.archive.repair.scan import Damaged, ToScan, Whole, scan
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import Target
from kbackup.errors import CorruptError, LockedError, NoArchiveError, WrongKeyError
from kbackup.formats.index import decode_index
from kbackup.jobs.copy.job import copy_archive
from kbackup.jobs.repair.job import RepairReport, repair
from kbackup.jobs.verify.job import VerifyReport, verify
from kbackup.metrics.events import Silent
from kbackup.spark.progress import ProgressSender
from kbackup.store.base import Store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from tests.support.archives import LOSS, T0, commit_point, group_at, make_archive, topic_state, write
from tests.support.crash_store import CrashStore, crashed
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.exhaustive(keep=2)

ORDERS = "topics/orders/segment_partition_000_from_offset_00000000"
LAST = 6
CHECKSUM = re.compile(rb'"checksum":"[^"]*"')

Place = tuple[str, int, int]
Held = dict[int, dict[Place, list[str]]]


def no_spark() -> NoReturn:
    raise AssertionError("Spark was asked for")


@pytest.fixture(autouse=True)
def _tasks_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_here(spark: None, tasks: Sequence[Any], work: Any, show: Any) -> list[Any]:
        return [result for task in tasks for result in work(task, ProgressSender(None, 0))]

    monkeypatch.setattr("kbackup.spark.tasks.run_tasks", run_here)
    monkeypatch.setattr(repair_job, "run_tasks", run_here)


def make(store: Store) -> None:
    """Six restore points. At the fifth, topic orders comes back as another one. Restore point 5 is pinned, 4 has a
    label."""
    make_archive(store)
    more: list[Segment] = []
    for number in range(3, LAST + 1):
        archive = open_archive(store)
        head = archive.head
        assert head is not None
        new = write(
            store,
            Target("more", 1, 0, 1000, "zstd" if number % 2 else "none"),
            range(number * 10, number * 10 + 9),
        )
        more += new
        states = {t.name: t for t in head.topics} | {
            "more": topic_state("more", number, "present", [(0, number * 10 + 9, more)])
        }
        if number == 5:
            again = write(store, Target("orders", 2, 0, 1000, "none"), range(4))
            new = [*new, *again]
            state = topic_state("orders", 5, "present", [(0, 4, again)])
            fields = {name: getattr(state, name) for name in state.__struct_fields__}
            states["orders"] = TopicState(**fields | {"incarnation": 2, "id": "another id"})
        groups = [group_at("billing", ("more", 0, number * 10))]
        commit_point(archive, number, [states[name] for name in sorted(states)], new, groups)
    do(store, lambda state: label_point(pin_points(state, [5], "2026-01-09"), "weekly", 4))


def do(store: Store, operation: Any) -> None:
    archive = open_archive(store)
    commit(store, archive.committed, operation, Author("expire", "", "test"))


@pytest.fixture(scope="module")
def made() -> MemoryStore:
    store = MemoryStore()
    make(store)
    return store


@pytest.fixture
def store(made: MemoryStore) -> MemoryStore:
    return made.copy()


def run(store: Store, confirm: bool = True, read_data: bool = True) -> RepairReport:
    return repair(store, confirm, read_data, 60, no_spark, Silent())


def verified(store: Store) -> VerifyReport:
    return verify(store, "all", False, lambda: None, Silent())  # type: ignore[arg-type, return-value]


def expire_some(store: Store, gone: Collection[int], cutoff: int | None = T0 + 8000) -> None:
    def operation(state: State) -> State:
        state = expire_points(state, gone)
        return state if cutoff is None else expire_records(state, old_starts(state, cutoff))

    do(store, operation)


def records(store: Store) -> dict[str, bytes]:
    return {e.key: store.get(e.key) for e in store.list(layout.TOPICS) if "_records" in e.key}


def held(store: Store) -> Held:
    """By restore point and partition the segments that it has."""
    archive = open_archive(store)
    found: Held = {}
    for point in archive.restore_points:
        places = found.setdefault(point.number, {})
        for s in archive.segments(archive.manifest(point)):
            places.setdefault((s.topic, s.incarnation, s.partition), []).append(s.key)
    return found


def records_listed(store: Store) -> set[str]:
    return open_archive(store).keys()


def less(points: Held, keys: Collection[str]) -> Held:
    """`points` without the segments `keys`."""
    return {
        number: {
            place: kept
            for place, some in places.items()
            if (kept := [key for key in some if key not in keys])
        }
        for number, places in points.items()
    }


def lacking(store: Store, number: int) -> list[str]:
    """The losses by damage that a restore point tells of."""
    archive = open_archive(store)
    return [loss.message for loss in archive.losses(archive.manifest(number)) if loss.kind == "damaged"]


def harm(store: Store, key: str, how: str) -> None:
    data = store.get(key)
    if how == "gone":
        store.delete([key])
    else:
        at = len(data) // 2
        store.put(
            key, data[:at] + (bytes([data[at] ^ 1]) + data[at + 1 :] if how == "flip" and data else b"")
        )


def key_of(store: Store, number: int, name: str) -> str:
    """The key of a document of a restore point."""
    return next(e.key for e in store.list(f"{layout.POINTS}{number:010d}-") if e.key.endswith(name))


def catalogs(store: Store) -> list[str]:
    return [e.key for e in store.list(layout.CATALOG) if layout.parse_catalog_key(e.key) is not None]


def contents(store: Store) -> dict[str, bytes]:
    return {e.key: store.get(e.key) for e in store.list() if e.key != layout.LOCK}


def said(report: RepairReport) -> tuple[object, ...]:
    """Return the members of a report on the archive, which a dry run and a repair share."""
    return (report.catalog, report.restored, report.lost, report.mended, report.new_point, report.losses)


def check_healed(store: Store) -> None:
    """Verification finds nothing, and there is nothing left to repair."""
    assert verified(store).findings == ()
    before = contents(store)
    for confirm in (False, True):
        again = run(store, confirm)
        assert not again.changes, again
        assert contents(store) == before


def repaired(store: Store) -> RepairReport:
    """Repair, after a dry run that says the same and writes nothing; no whole object is deleted."""
    before = contents(store)
    shown = run(store, confirm=False)
    assert contents(store) == before
    done = run(store)
    assert said(done) == said(shown)
    after = contents(store)
    assert before.keys() <= after.keys()
    kept = [key for key in before if key.startswith(layout.POINTS) or "_records" in key]
    assert all(after[key] == before[key] for key in kept)
    check_healed(store)
    return done


def all_objects(store: Store) -> list[str]:
    return [entry.key for entry in store.list() if entry.key != layout.LOCK]


HOWS = st.sampled_from(["gone", "gone", "cut", "flip"])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_is_lost_every_restore_point_has_what_is_whole_or_says_what_it_lacks(
    made: MemoryStore, data: st.DataObject
) -> None:
    """Up to six objects of any kind. Where the newest catalog is whole no restore point goes, and none lacks a
    segment that is whole."""
    store = made.copy()
    before, truth = held(store), records(store)
    hurt = data.draw(st.dictionaries(st.sampled_from(all_objects(store)), HOWS, max_size=6))
    for key, how in hurt.items():
        harm(store, key, how)
    bad = {key for key in hurt if key in truth}
    done = repaired(store)
    after, whole = held(store), less(before, bad)
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
    before, truth = held(store), records(store)
    spared = data.draw(st.sets(st.sampled_from(keys), max_size=6))
    store.delete([key for key in keys if key not in spared])
    done = repaired(store)
    assert done.losses == () or all("restore point" in loss for loss in done.losses)
    after = held(store)
    listed = {key for places in after.values() for some in places.values() for key in some}
    if listed != set(truth):
        # they belong to a run that may have been interrupted, and lie behind what is listed
        archive = open_archive(store)
        assert archive.state.open_run is not None
        known = {key for n in done.restored for some in before[n].values() for key in some}
        assert known <= listed
    elif after:
        newest = {place: some for place, some in after[max(after)].items() if some}
        assert newest == before[LAST]


@pytest.mark.parametrize("number", range(1, LAST + 1))
@pytest.mark.parametrize("name", [layout.MANIFEST, layout.GROUPS, layout.METADATA])
@pytest.mark.parametrize("how", ["gone", "flip"])
def test_a_lost_document_costs_no_restore_point(store: MemoryStore, number: int, name: str, how: str) -> None:
    before, points = held(store), {p.number: p for p in list_points(open_archive(store))}
    shown = {n: overview(store, str(n)) for n in before}
    harm(store, key_of(store, number, name), how)
    assert verified(store).findings
    report = repaired(store)
    assert (report.lost, report.restored, report.new_point) == ((), (), None)
    assert report.is_loss
    assert any(loss.startswith(f"restore point {number}: ") for loss in report.losses)
    assert held(store) == before
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
    before = held(store)
    store.delete([e.key for e in store.list(layout.POINTS) if e.key.endswith(layout.MANIFEST)])
    repaired(store)
    assert held(store) == before


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("how", ["gone", "cut", "flip"])
def test_a_lost_segment_costs_no_restore_point(store: MemoryStore, how: str) -> None:
    before = held(store)
    bad = f"{ORDERS}15_records"
    harm(store, bad, how)
    report = repaired(store)
    assert (report.lost, report.new_point) == ((), None)
    assert report.is_loss
    assert "offsets 15 to 23 of orders-0" in report.losses[0]
    assert held(store) == less(before, [bad])
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


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_lost_catalogs_cost_no_restore_point(store: MemoryStore, count: int) -> None:
    """The newest catalogs are gone: what their restore points added is found by their manifests."""
    before = held(store)
    store.delete(catalogs(store)[-count:])
    with pytest.raises(CorruptError, match="is missing") as raised:
        open_archive(store)
    assert "kbackup repair" in raised.value.hint
    report = repaired(store)
    assert held(store) == before
    assert (report.lost, report.losses) == ((), ())
    assert any("are lost or damaged" in warning for warning in report.warnings)


@pytest.mark.exhaustive(keep=2)
@pytest.mark.parametrize("table", ["points", "incarnations", "segments", "losses", "past", "log_starts"])
@pytest.mark.parametrize("how", ["gone", "flip"])
@pytest.mark.parametrize("expired", [False, True])
def test_lost_tables_cost_nothing(store: MemoryStore, table: str, how: str, expired: bool) -> None:
    if expired:
        expire_some(store, {1, 2, 4})
    archive = open_archive(store)
    before, losses = held(store), {n: archive.losses(archive.manifest(n)) for n in held(store)}
    catalog = archive.committed.catalog
    assert catalog is not None
    refs = getattr(catalog.tables, table)
    older = list(catalogs(store)[:-1])
    for ref in refs:
        harm(store, ref.key, how)
    store.delete(older)
    report = repaired(store)
    archive = open_archive(store)
    after = held(store)
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
    before = held(store)
    lose_table(store, table)
    store.delete([key_of(store, number, layout.MANIFEST) for number in numbers])
    report = repaired(store)
    assert held(store) == before
    assert (report.lost, report.new_point) == ((), None)
    assert sorted(loss.partition(":")[0] for loss in report.losses) == [f"restore point {n}" for n in numbers]


@pytest.mark.parametrize("at", [0, 20, 50, 58, 62, 90])
def test_a_lost_table_and_a_damaged_partition_index_are_no_loss(store: MemoryStore, at: int) -> None:
    before, key = held(store), "topics/orders/index_partition_000"
    lose_table(store, "segments")
    data = store.get(key)
    store.put(key, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert repaired(store).losses == ()
    assert held(store) == before


def test_a_restore_point_whose_catalog_is_lost_without_a_trace_is_found(store: MemoryStore) -> None:
    """The archive looks as if its newest backup had died right before the commit: repair commits what is whole."""
    before = held(store)
    committed = max(
        key for key in catalogs(store) if load(Catalog, store.get(key), key).operation.kind == "backup"
    )
    store.delete([key for key in catalogs(store) if key >= committed] + [layout.LATEST, layout.DERIVED])
    assert open_archive(store).restore_points[-1].number == LAST - 1
    report = repaired(store)
    assert held(store) == before
    assert (report.restored, report.losses) == ((LAST,), ())


@pytest.mark.parametrize("retained", [(layout.POINTS, layout.TOPICS), (layout.TOPICS,)])
def test_without_a_catalog_all_that_is_whole_is_found(store: MemoryStore, retained: tuple[str, ...]) -> None:
    before, truth = held(store), records(store)
    store.delete([e.key for e in store.list() if not e.key.startswith(retained)])
    report = repaired(store)
    after = held(store)
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


def test_nothing_but_records_is_left(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    before, truth = held(store), records(store)
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
    after = held(store)
    assert {key for places in after.values() for some in places.values() for key in some} == set(truth)
    assert {place: some for place, some in after[max(after)].items() if some} == before[LAST]


def test_a_segment_that_a_partition_index_alone_names_is_a_loss(store: MemoryStore) -> None:
    store.delete([key for key in all_objects(store) if not key.startswith(layout.TOPICS)])
    store.delete([f"{ORDERS}08_records", f"{ORDERS}08_index"])
    report = repaired(store)
    lost = [line.partition(" of ")[0] for line in report.losses if "restore point" not in line]
    assert lost == ["offsets 8 to 14"]
    assert report.is_loss


def test_records_that_a_manifest_counts_and_nothing_has_are_a_loss(store: MemoryStore) -> None:
    """Catalogs, a restore point's segments and the partition index are gone: its manifest still counts records."""
    store.delete([e.key for e in store.list() if e.key.startswith((layout.CATALOG, layout.TABLES))])
    store.delete([layout.DERIVED, "topics/more/index_partition_000"])
    store.delete(
        [e.key for e in store.list("topics/more/") if "_0000000050_" in e.key or "_0000000058_" in e.key]
    )
    report = repaired(store)
    assert ["offsets 49 to 58 of more-0" in line for line in report.losses] == [True]
    assert {n: len(lacking(store, n)) for n in held(store)} == {1: 0, 2: 0, 3: 0, 4: 0, 5: 1, 6: 1}


def test_what_a_partition_index_names_was_committed(store: MemoryStore) -> None:
    """The newest restore point has no catalog and no manifest left."""
    before = held(store)
    store.delete([*catalogs(store)[-5:], *[e.key for e in store.list(f"{layout.POINTS}{LAST:010d}-")]])
    report = repaired(store)
    assert report.new_point == LAST
    assert held(store) == before


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
        assert less(held(target), [f"{ORDERS}15_records"]) == held(store)
        assert verified(target).findings == ()
    assert any(f"{ORDERS}15_records" in keys for keys in held(early)[2].values()), "it has it still"


def test_what_comes_back_later_changes_nothing(store: MemoryStore) -> None:
    """A manifest out of a bucket's versions, a catalog that was being written, a segment that was lost."""
    lost = [key_of(store, 3, layout.MANIFEST), catalogs(store)[-1], f"{ORDERS}15_records"]
    old = {key: store.get(key) for key in lost}
    store.delete(lost)
    run(store)
    healed = held(store)
    for key, data in old.items():
        store.put(key, data)
    assert held(store) == healed
    check_healed(store)


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("kind", ["documents", "catalogs", "all"])
def test_it_may_be_cut_off_anywhere(made: MemoryStore, kind: str) -> None:
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
            assert held(store) == held(whole)
        assert records(store) == records(harmed)
        check_healed(store)


def test_it_is_not_committed_where_another_changed_the_archive(store: MemoryStore) -> None:
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
    (tmp_path / "key").write_text(generate_key())
    store = CryptStore(inner, Keyring(inner, f"file:{tmp_path / 'key'}"))
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
        key for places in held(store).values() for some in places.values() for key in some
    } == truth.keys() - {bad}


@pytest.mark.parametrize("how", ["gone", "cut"])
def test_the_index_of_an_orphan_is_left_alone(store: MemoryStore, how: str) -> None:
    """A later run may give a compressed segment the same name, and write the index."""
    orphan = write(store, Target("more", 1, 0, 1 << 20, "none"), range(100, 105))[0]
    key = layout.index_key_of(orphan.key)
    harm(store, key, how)
    harm(store, catalogs(store)[-1], "gone")  # orphans are read
    before = contents(store).get(key)
    run(store)
    assert orphan.key not in records_listed(store)
    assert contents(store).get(key) == before


def test_a_key_for_an_archive_that_is_not_encrypted_is_no_damage(store: MemoryStore, tmp_path: Path) -> None:
    harm(store, layout.ARCHIVE, "gone")
    (tmp_path / "key").write_text(generate_key())
    with pytest.raises(WrongKeyError):
        run(CryptStore(store, Keyring(store, f"file:{tmp_path / 'key'}")))


def test_it_waits_for_no_writer(store: MemoryStore) -> None:
    with HeldLease(store, "kbackup backup", 60), pytest.raises(LockedError):
        run(store)


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
    ],
)
def test_what_a_newer_version_wrote_is_no_damage(store: MemoryStore, name: str, how: str) -> None:
    with HeldLease(store, "kbackup backup", 60):
        pass
    harm(store, key_of(store, 5, layout.GROUPS), "gone")
    key = name
    if name == layout.CATALOG:
        key = catalogs(store)[-1]
    elif name in (layout.MANIFEST, layout.GROUPS, layout.METADATA):
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
def test_what_was_lost_is_said_by_the_error_that_readers_end_with(store: MemoryStore, name: str) -> None:
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


def test_what_was_expired_is_nothing_lost(store: MemoryStore) -> None:
    """Files that derive from the rest are made anew."""
    expire_some(store, {1, 2, 4})
    open_archive(store)
    run(store)  # the derived files are as of before
    before = held(store)
    assert run(store).mended == ()
    for key in (f"{ORDERS}32_index", "topics/more/index_partition_000"):
        harm(store, key, "cut")
    report = repaired(store)
    assert (len(report.mended), report.losses, report.new_point) == (2, (), None)
    assert held(store) == before


@pytest.mark.exhaustive
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_loss_in_an_archive_that_was_expired_loses_a_record(
    made: MemoryStore, data: st.DataObject
) -> None:
    store = made.copy()
    expire_some(store, {1, 2, 4})
    before = held(store)
    keys = [key for key in all_objects(store) if "_records" not in key]
    hurt = data.draw(st.dictionaries(st.sampled_from(keys), HOWS, max_size=5))
    for key, how in hurt.items():
        harm(store, key, how)
    report = repaired(store)
    assert not [loss for loss in report.losses if "restore point" not in loss]
    after = held(store)
    if all(key.startswith((layout.POINTS, layout.TOPICS)) for key in hurt):
        assert after == before
    newest = {place: some for place, some in after[max(after)].items() if some}
    assert all(set(newest[place]) >= set(some) for place, some in before[LAST].items() if some)


@pytest.mark.exhaustive(keep=1)
def test_it_may_be_cut_off_where_some_was_expired(made: MemoryStore) -> None:
    expired = made.copy()
    expire_some(expired, {1, 2, 4})
    before = held(expired)
    harm(expired, key_of(expired, 5, layout.MANIFEST), "gone")
    for store in crashed(expired, run):
        run(store)
        assert held(store) == before
        assert verified(store).findings == ()


def test_a_lost_catalog_of_an_expiration_takes_nothing_that_is_left(store: MemoryStore) -> None:
    before = held(store)
    expire_some(store, {1, 2, 4}, None)
    after = held(store)
    store.delete(catalogs(store)[-1:])
    repaired(store)
    found = held(store)
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
