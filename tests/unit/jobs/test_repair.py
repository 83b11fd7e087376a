"""Whatever an archive has lost: all that is whole is in it again, what is not is told, and nothing whole is touched."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kbackup.jobs.repair as repair_job
import kbackup.jobs.verify as verify_job
from kbackup.archive import layout
from kbackup.archive.commit import seal_unfinished
from kbackup.archive.expire import prepare, publish, what_stays
from kbackup.archive.fold import fold
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import NewerError, TopicState
from kbackup.archive.overview import list_points, overview
from kbackup.archive.reader import open_archive
from kbackup.archive.segments import Segment
from kbackup.archive.settle import settle
from kbackup.archive.writer import Target
from kbackup.errors import CorruptError, LockedError, NoArchiveError, WrongKeyError
from kbackup.formats.index import decode_index
from kbackup.jobs.copy import copy_archive
from kbackup.jobs.listen import Silent
from kbackup.jobs.progress import ProgressSender
from kbackup.jobs.repair import RepairReport, repair
from kbackup.jobs.verify import VerifyReport, verify
from kbackup.store.base import Store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from tests.support.archives import LOSS, T0, commit_point, group_at, make_archive, topic_state, write
from tests.support.crash_store import Crash, CrashStore, crashed
from tests.support.memory_store import MemoryStore

ORDERS = "topics/orders/segment_partition_000_from_offset_00000000"
LAST = 6
CHECKSUM = re.compile(rb'"checksum":"[^"]*"')

Place = tuple[str, int, int]


def no_spark() -> NoReturn:
    raise AssertionError("Spark was asked for")


@pytest.fixture(autouse=True)
def _tasks_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_here(spark: None, tasks: Sequence[Any], work: Any, show: Any) -> list[Any]:
        return [result for task in tasks for result in work(task, ProgressSender(None, 0))]

    monkeypatch.setattr(verify_job, "run_tasks", run_here)
    monkeypatch.setattr(repair_job, "run_tasks", run_here)


def make(store: Store) -> None:
    """Six restore points with a checkpoint at the fourth. At the fifth, topic orders comes back as another one."""
    make_archive(store)
    more: list[Segment] = []
    for seq in range(3, LAST + 1):
        archive = open_archive(store)
        head = archive.head
        assert head is not None
        new = write(
            store, Target("more", 1, 0, 1000, "zstd" if seq % 2 else "none"), range(seq * 10, seq * 10 + 9)
        )
        more += new
        states = {t.name: t for t in head.topics} | {
            "more": topic_state("more", seq, "present", [(0, seq * 10 + 9, more)])
        }
        if seq == 5:
            again = write(store, Target("orders", 2, 0, 1000, "none"), range(4))
            new = [*new, *again]
            state = topic_state("orders", 5, "present", [(0, 4, again)])
            fields = {name: getattr(state, name) for name in state.__struct_fields__}
            states["orders"] = TopicState(**fields | {"incarnation": 2, "id": "another id"})
        groups = [group_at("billing", ("more", 0, seq * 10))]
        commit_point(archive, seq, [states[name] for name in sorted(states)], new, groups)
        if seq == 4:
            archive = open_archive(store)
            assert archive.head is not None
            fold(archive, archive.head, lambda: None, every=2)


@pytest.fixture(scope="module")
def made() -> MemoryStore:
    store = MemoryStore()
    make(store)
    return store


@pytest.fixture
def store(made: MemoryStore) -> MemoryStore:
    return made.copy()


def run(store: Store, confirm: bool = True, rebuild: bool = False) -> RepairReport:
    return repair(store, confirm, rebuild, 60, no_spark, Silent())


def verified(store: Store) -> VerifyReport:
    return verify(store, "all", False, lambda: None, Silent())  # type: ignore[arg-type, return-value]


def expire_some(store: Store, gone: Collection[int], cutoff: int | None = T0 + 8000) -> None:
    archive = open_archive(store)
    publish(archive, prepare(archive, gone, what_stays(archive, gone), cutoff, ()), lambda: None)
    settle(archive, lambda: None)


def records(store: Store) -> dict[str, bytes]:
    return {e.key: store.get(e.key) for e in store.list(layout.TOPICS) if "_records" in e.key}


def held(store: Store) -> dict[int, dict[Place, list[str]]]:
    """By restore point and partition the segments that it stands on."""
    archive = open_archive(store)
    found: dict[int, dict[Place, list[str]]] = {}
    for point in archive.restore_points:
        places = found.setdefault(point.seq, {})
        for s in archive.segments(archive.manifest(point)):
            places.setdefault((s.topic, s.incarnation, s.partition), []).append(s.key)
    return found


def harm(store: Store, key: str, how: str) -> None:
    data = store.get(key)
    if how == "gone":
        store.delete([key])
    else:
        at = len(data) // 2
        store.put(
            key, data[:at] + (bytes([data[at] ^ 1]) + data[at + 1 :] if how == "flip" and data else b"")
        )


def all_but_records(store: Store) -> list[str]:
    return [entry.key for entry in store.list() if "_records" not in entry.key]


def check_healed(store: Store, truth: Mapping[str, bytes]) -> None:
    """The archive is whole, knows everything that it holds, and there is nothing left to repair."""
    assert verified(store).findings == ()
    assert records(store) == truth
    points = held(store)
    assert {key for places in points.values() for keys in places.values() for key in keys} == set(truth)
    again = run(store, confirm=False)
    assert (again.mended, again.left, again.restore_point) == ((), (), None)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_loss_of_what_is_not_a_record_loses_a_record(made: MemoryStore, data: st.DataObject) -> None:
    """Any files but records are gone, cut or changed, few or nearly all of them."""
    keys = all_but_records(made)
    hows = st.sampled_from(["gone", "gone", "cut", "flip"])
    few = st.dictionaries(st.sampled_from(keys), hows, max_size=6)
    spared = st.sets(st.sampled_from(keys), max_size=6)
    hurt = data.draw(st.one_of(few, spared.map(lambda left: {k: "gone" for k in keys if k not in left})))
    store = made.copy()
    before = held(store)
    for key, how in hurt.items():
        harm(store, key, how)
    shown, done = run(store, confirm=False), run(store)
    assert (shown.restore_point, shown.lost, shown.left_out) == (done.restore_point, done.lost, ())
    assert done.losses == ()
    after = held(store)
    if done.restore_point is not None:
        assert {seq: after[seq] for seq in after if seq <= (done.kept or 0)} == {
            seq: before[seq] for seq in before if seq <= (done.kept or 0)
        }
        newest, last = after[max(after)], before[LAST]
        assert {place: keys for place, keys in newest.items() if keys} == last
        check_healed(store, records(made))
    else:
        assert verified(store).findings == ()
        assert all(after[seq] == before[seq] for seq in after)
        if max(after, default=0) < LAST:
            # nothing tells it from an archive whose last run is at work, or was cut off
            there = {p for e in store.list(layout.BACKUPS) if (p := layout.parse_backup_key(e.key))}
            at_work = max(number for number, _ in there)
            assert (at_work, layout.INTENT) in there
            assert not {(at_work, layout.MANIFEST), (at_work, layout.REFRESHED)} & there
            run(store, rebuild=True)
            check_healed(store, records(made))


@pytest.mark.exhaustive(keep=3)
@pytest.mark.parametrize("seq", range(1, LAST + 1))
@pytest.mark.parametrize("name", [layout.MANIFEST, layout.SEGMENTS, layout.GROUPS, layout.METADATA])
def test_a_lost_restore_point_gives_way_to_one_of_what_was_found(
    store: MemoryStore, seq: int, name: str
) -> None:
    truth, before = records(store), held(store)
    harm(store, layout.backup_key(seq, name), "gone")
    assert verified(store).findings
    report = run(store)
    assert (report.kept, report.lost) == (seq - 1 or None, tuple(range(seq, LAST + 1)))
    assert report.is_loss
    check_healed(store, truth)
    after = held(store)
    assert after[max(after)] == before[LAST]
    whole = overview(store, "latest")
    assert any("lost" in line for line in whole.repairs)
    assert [p.number for p in list_points(open_archive(store)) if p.status == "lost"] == list(report.lost)
    assert {t.name: t.configs for t in whole.topics}["more"] == {"retention.ms": "-1"}
    assert (whole.groups == ("billing",)) or seq < 3 or "late" in whole.groups
    known = [loss for loss in whole.losses if loss == LOSS]
    assert known or seq == 2 or name == layout.MANIFEST


def test_a_dry_run_writes_nothing(store: MemoryStore) -> None:
    harm(store, layout.backup_key(3, layout.MANIFEST), "gone")
    before = {entry.key: store.get(entry.key) for entry in store.list()}
    assert run(store, confirm=False).restore_point == LAST + 1
    assert {entry.key: store.get(entry.key) for entry in store.list()} == before


def test_records_that_are_damaged_are_left_out_and_named(store: MemoryStore) -> None:
    """One in the midst of a partition is a loss; the last one is for the next backup to read again."""
    harm(store, layout.backup_key(2, layout.MANIFEST), "gone")
    bad = {f"{ORDERS}15_records": "cut", f"{ORDERS}32_records": "flip", f"{ORDERS}08_records": "gone"}
    bytes_of = {key: store.get(key) for key in bad}
    for key, how in bad.items():
        harm(store, key, how)
    cut = {key: store.get(key) for key, how in bad.items() if how != "gone"}
    report = run(store)
    assert {out.key for out in report.left_out} == {*cut, f"{ORDERS}08_index"}
    assert [line for line in report.losses if "offsets 15 to 23 of orders-0" in line]
    assert [line for line in report.losses if "offsets 8 to 9 of orders-0" in line]
    assert [line for line in report.warnings if "from offset 32 on" in line]
    assert verified(store).findings == ()
    for key, data in cut.items():
        assert store.get(layout.damaged_key(report.restore_point or 0, key)) == data != bytes_of[key]
    old = next(p for p in held(store).values() if ("orders", 1, 0) in p)
    assert old["orders", 1, 0] == [f"{ORDERS}00_records", f"{ORDERS}24_records"]


def test_damaged_records_alone_are_for_another_copy_to_mend(store: MemoryStore) -> None:
    """No restore point is given up for them unless that is asked for."""
    harm(store, f"{ORDERS}00_records", "cut")
    report = run(store)
    assert report.restore_point is None
    assert [finding.file for finding in report.left] == [f"{ORDERS}00_records"]
    assert "--rebuild" in report.left[0].hint
    rebuilt = run(store, rebuild=True)
    assert (rebuilt.kept, rebuilt.lost) == (None, tuple(range(1, LAST + 1)))
    assert [line for line in rebuilt.losses if "offsets 0 to 7 of orders-0" in line]
    assert verified(store).findings == ()


def lose_run(store: Store, seq: int) -> None:
    """Its table, and its segments of topic more; the partition index is gone as well."""
    store.delete([layout.backup_key(seq, layout.SEGMENTS), "topics/more/index_partition_000"])
    store.delete([e.key for e in store.list("topics/more/") if f"_{seq * 10:010d}_" in e.key])
    store.delete([e.key for e in store.list("topics/more/") if f"_{seq * 10 + 8:010d}_" in e.key])


def test_a_lost_end_is_for_the_next_backup_to_read(store: MemoryStore) -> None:
    """A manifest counts records that no table and no object is left of."""
    lose_run(store, LAST)
    end = max(
        s.last for s in open_archive(store).added(open_archive(store).restore_points[-2]) if s.topic == "more"
    )
    report = run(store)
    assert report.losses == ()
    assert [line for line in report.warnings if f"more-0 had from offset {end + 1} on" in line]
    head = open_archive(store).head
    assert head is not None
    assert [(t.partitions[0].end, t.partitions[0].records) for t in head.topics if t.name == "more"] == [
        (end + 1, 27)
    ]
    again = run(store, rebuild=True)
    assert (again.warnings, again.losses) == ((), ())


def test_a_lost_run_before_others_is_a_loss(store: MemoryStore) -> None:
    lose_run(store, 5)
    report = run(store)
    assert [line.partition(":")[0] for line in report.losses] == [
        "offsets 49 to 58 of more-0, or some of them, are lost from the archive"
    ]
    assert not [line for line in report.warnings if "more-0" in line]
    again = run(store, rebuild=True)
    assert (again.warnings, again.losses) == ((), ())


def test_what_a_partition_index_names_was_committed(store: MemoryStore) -> None:
    """All of the newest run is gone but for that, and the first segment of another partition with the tables of it."""
    lost = [e.key for e in store.list("topics/more/") if "_0000000060_" in e.key or "_0000000068_" in e.key]
    store.delete([*lost, *[e.key for e in store.list(layout.backup_key(LAST, ""))]])
    for confirm in (False, True):
        report = run(store, confirm)
        assert (report.restore_point, report.kept, report.is_loss) == (LAST, LAST - 1, True)
        said = [line for line in report.warnings if "is missing: what more-0 had from offset 60 on" in line]
        assert said
        assert "_from_offset_0000000060_records" in said[0]
    again = run(store)
    assert (again.restore_point, again.left, again.is_loss) == (None, (), False)


def test_a_segment_that_a_partition_index_alone_names_is_a_loss(store: MemoryStore) -> None:
    store.delete([e.key for prefix in (layout.BACKUPS, layout.CHECKPOINTS) for e in store.list(prefix)])
    store.delete([f"{ORDERS}08_records", f"{ORDERS}08_index"])
    report = run(store)
    assert [line.partition(" of ")[0] for line in report.losses] == ["offsets 8 to 14"]
    assert report.is_loss


def test_that_all_restore_points_are_lost_is_a_loss(store: MemoryStore) -> None:
    store.delete([e.key for prefix in (layout.BACKUPS, layout.CHECKPOINTS) for e in store.list(prefix)])
    for confirm in (False, True):
        report = run(store, confirm)
        assert (report.restore_point, report.lost, report.losses, report.is_loss) == (2, (), (), True)


def test_what_a_segment_has_beyond_the_one_that_covers_its_start_is_lost(store: MemoryStore) -> None:
    target = Target("over", 1, 0, 1 << 20, "none")
    for offsets in (range(10), range(5, 20), range(20, 25)):
        write(store, target, offsets)
    report = run(store, rebuild=True)
    middle = "topics/over/segment_partition_000_from_offset_0000000005_records"
    assert [out.key for out in report.left_out] == [middle]
    assert [line for line in report.losses if "offsets 10 to 19 of over-0" in line], report


def test_records_that_end_before_their_index_does_are_cut_off(store: MemoryStore) -> None:
    """Exactly where one ends, which only the index shows: that stays until a restore point tells of it."""
    store.delete([e.key for prefix in (layout.BACKUPS, layout.CHECKPOINTS) for e in store.list(prefix)])
    for start in ("15", "32"):
        index = decode_index(store.get(f"{ORDERS}{start}_index"), "index")
        data = store.get(f"{ORDERS}{start}_records")
        store.put(f"{ORDERS}{start}_records", data[: int(index.positions[2])])
    crashing = store.copy()
    with pytest.raises(Crash):
        run(CrashStore(crashing, at=4))
    crashing.delete([layout.LOCK])
    for each in (store, crashing):
        report = run(each)
        assert len(report.losses) == 1
        assert "offsets 18 to 23 of orders-0" in report.losses[0]
        assert [line for line in report.warnings if "orders-0 had from offset 34 on" in line]
        assert verified(each).findings == ()
        again = run(each)
        assert (again.restore_point, again.mended, again.left) == (None, (), ())


def test_a_copy_takes_a_repaired_archive_as_it_is(store: MemoryStore) -> None:
    harm(store, layout.backup_key(3, layout.MANIFEST), "gone")
    run(store)
    target = other()
    copy_archive(store, target, 60, Silent())
    assert held(target) == held(store)
    assert verified(target).findings == ()


def test_what_comes_back_later_under_a_number_that_was_given_up_changes_nothing(store: MemoryStore) -> None:
    """A manifest out of a bucket's versions, a checkpoint that was being written, a run that only slept."""
    lost = layout.backup_key(3, layout.MANIFEST)
    old = {entry.key: store.get(entry.key) for entry in store.list(layout.CHECKPOINTS)} | {
        lost: store.get(lost)
    }
    harm(store, lost, "gone")
    run(store)
    healed = held(store)
    for key, data in old.items():
        store.put(key, data)
    assert held(store) == healed


@pytest.mark.exhaustive(keep=1)
def test_it_may_be_cut_off_anywhere(made: MemoryStore) -> None:
    truth = records(made)
    harmed = made.copy()
    for key in (layout.ARCHIVE, layout.backup_key(3, layout.MANIFEST), layout.backup_key(1, layout.SEGMENTS)):
        harm(harmed, key, "gone")
    for store in crashed(harmed, run):
        run(store)
        check_healed(store, truth)


def test_an_encrypted_archive_is_repaired_with_its_key_alone(tmp_path: Path) -> None:
    inner = MemoryStore()
    (tmp_path / "key").write_text(generate_key())
    store = CryptStore(inner, Keyring(inner, f"file:{tmp_path / 'key'}"))
    make_archive(store)
    truth = records(store)
    for key in (layout.ARCHIVE, *(e.key for e in store.list(layout.BACKUPS)), f"{ORDERS}15_index"):
        harm(store, key, "gone")
    bad = f"{ORDERS}32_records"
    sealed = inner.get(bad)
    inner.put(bad, sealed[:-1])
    with pytest.raises(WrongKeyError, match="is encrypted"):
        run(inner)
    report = run(store)
    assert [out.key for out in report.left_out] == [bad]
    assert inner.get(layout.damaged_key(1, bad)) == sealed[:-1]
    assert verified(store).findings == ()
    assert records(store) == {key: data for key, data in truth.items() if key != bad}


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


@pytest.mark.parametrize(
    "change", [(b'"version": 1', b'"version": 2'), (b'"checksum"', b'"new": 1, "checksum"')]
)
@pytest.mark.parametrize(
    "name",
    [
        layout.LOCK,
        layout.ARCHIVE,
        layout.backup_key(3, layout.MANIFEST),
        layout.backup_key(3, layout.REFRESHED),
        layout.backup_key(LAST, layout.INTENT),
        layout.backup_key(2, layout.METADATA),
        layout.checkpoint_key(4, layout.CHECKPOINT),
        layout.expiration_key(1, layout.EXPIRED),
        layout.expiration_key(1, layout.REFRESHED),
    ],
)
def test_what_a_newer_version_wrote_is_no_damage(
    store: MemoryStore, name: str, change: tuple[bytes, bytes]
) -> None:
    if name.startswith(layout.EXPIRATIONS):
        expire_some(store, {1}, None)
    with HeldLease(store, "kbackup backup", 60):
        pass
    harm(store, layout.backup_key(5, layout.GROUPS), "gone")
    store.put(name, newer(store.get(name), change))
    before = {entry.key: store.get(entry.key) for entry in store.list() if entry.key != layout.LOCK}
    for confirm, rebuild in ((False, False), (True, False), (True, True)):
        with pytest.raises(NewerError, match=name):
            run(store, confirm, rebuild)
    assert {e.key: store.get(e.key) for e in store.list() if e.key != layout.LOCK} == before
    if name == layout.LOCK:
        assert b'"new"' in store.get(name) or b'"version":2' in store.get(name)


def test_there_must_be_something_of_an_archive() -> None:
    with pytest.raises(NoArchiveError):
        run(MemoryStore())


def test_what_was_lost_is_said_by_the_error_that_readers_end_with(store: MemoryStore) -> None:
    harm(store, layout.backup_key(LAST, layout.MANIFEST), "gone")
    with pytest.raises(CorruptError) as raised:
        _ = open_archive(store).restore_points
    assert "kbackup repair" in raised.value.hint


def test_what_was_expired_is_nothing_lost(store: MemoryStore) -> None:
    """What follows from the rest is made anew."""
    expire_some(store, {1, 2, 4})
    before = held(store)
    assert run(store).mended == ()
    for key in (f"{ORDERS}32_index", "topics/more/index_partition_000", layout.backup_key(5, layout.INTENT)):
        harm(store, key, "cut")
    report = run(store)
    assert (len(report.mended), report.left, report.restore_point) == (3, (), None)
    assert held(store) == before
    assert verified(store).findings == ()


@pytest.mark.parametrize("gone", [{1, 2, 4}, {1, 2, 3, 4}, {3, 4, 5}], ids=str)
@pytest.mark.exhaustive(keep=1)
def test_an_expiration_that_was_cut_off_is_nothing_lost(made: MemoryStore, gone: set[int]) -> None:
    """At any write; and where a topic was made anew its former incarnation goes, or the newest part of it."""
    whole = made.copy()
    expire_some(whole, gone)
    for store in (whole, *crashed(made, lambda store: expire_some(store, gone))):
        before = held(store)
        for confirm in (False, True):
            report = run(store, confirm)
            assert (report.restore_point, report.lost, report.left) == (None, (), ())
            assert not (store is whole and report.mended), report.mended
            assert held(store) == before


@pytest.mark.parametrize("name", ["backups/0000000005/manifest.json", "expired.json", "segments-"])
def test_lost_restore_points_of_an_archive_that_was_expired(store: MemoryStore, name: str) -> None:
    """One restore point of all that is left takes the place of all."""
    expire_some(store, {1, 2, 4})
    before = held(store)
    for entry in list(store.list()):
        if name in entry.key:
            harm(store, entry.key, "gone")
    assert run(store, confirm=False).restore_point
    report = run(store)
    after = held(store)
    newest = {place: keys for place, keys in after[max(after)].items() if keys}
    if name != "expired.json":  # nothing tells what was to go, then
        assert newest == before[LAST]
    assert (report.losses, report.kept) == ((), None)
    assert verified(store).findings == ()
    again = run(store, confirm=False)
    assert (again.mended, again.left, again.restore_point) == ((), (), None)
    copy_archive(store, target := other(), 60, Silent())
    assert held(target) == held(store)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_loss_in_an_archive_that_was_expired_loses_a_record(
    made: MemoryStore, data: st.DataObject
) -> None:
    store = made.copy()
    expire_some(store, {1, 2, 4})
    last, hows = held(store)[LAST], st.sampled_from(["gone", "gone", "cut", "flip"])
    hurt = data.draw(st.dictionaries(st.sampled_from(all_but_records(store)), hows, max_size=5))
    for key, how in hurt.items():
        harm(store, key, how)
    report = run(store)
    assert verified(store).findings == ()
    assert report.losses == ()
    after = held(store)
    newest = {place: keys for place, keys in after[max(after)].items() if keys}
    # where nothing tells what was expired, what is still there is back
    assert newest == last or any(key.startswith(layout.EXPIRATIONS) for key in hurt)
    again = run(store, confirm=False)
    assert (again.mended, again.left, again.restore_point) == ((), (), None)


@pytest.mark.exhaustive(keep=1)
def test_it_may_be_cut_off_where_some_was_expired(made: MemoryStore) -> None:
    expired = made.copy()
    expire_some(expired, {1, 2, 4})
    last = held(expired)[LAST]
    harm(expired, layout.backup_key(5, layout.MANIFEST), "gone")
    for store in crashed(expired, run, step=2):
        run(store)
        after = held(store)
        assert {place: keys for place, keys in after[max(after)].items() if keys} == last
        assert verified(store).findings == ()


def test_losses_of_what_had_expired_are_told_once(store: MemoryStore) -> None:
    """Restore point 2 found one: it stays with the archive after an expiration, and after repairs of that."""
    expire_some(store, {1, 2, 4})
    for _ in range(2):
        run(store, rebuild=True)
        archive = open_archive(store)
        assert [loss.message for loss in archive.losses(archive.restore_points[-1].seq)] == [LOSS]


@pytest.mark.exhaustive
@pytest.mark.parametrize("seal", [False, True])
def test_a_rebuild_that_is_cut_off_shows_no_record_twice(made: MemoryStore, seal: bool) -> None:
    """Of an archive whose restore points are whole, where some expired: a reader has what was, or what is new, or ends
    with an error that says 'kbackup repair'; which goes on, though nothing asks for a rebuild again."""
    expired = made.copy()
    expire_some(expired, {1, 2, 4})
    bad = next(key for key in records(expired) if key.startswith("topics/more/") and "0000000040" in key)
    harm(expired, bad, "cut")
    before = held(expired)
    refused: list[str] = []
    whole = expired.copy()
    run(whole, rebuild=True)
    cut_off = crashed(expired, lambda store: run(store, rebuild=True), first=1 + seal, step=2)
    for store in (*cut_off, whole):
        try:
            after = held(store)
        except CorruptError as error:
            refused.append(error.hint)
            after = {}
        if after != before:
            run(store)  # and what was left out is set aside
            after = held(store)
            assert min(after) > LAST
            newest = {place: keys for place, keys in after[max(after)].items() if keys}
            assert newest == {p: [k for k in keys if k != bad] for p, keys in before[LAST].items()}
            again = run(store, confirm=False)
            assert (again.restore_point, again.left) == (None, ())
        else:
            if seal:
                seal_unfinished(open_archive(store), "another")
            assert run(store, confirm=False).restore_point is None, "nothing is lost yet"
    assert refused
    assert all("kbackup repair" in hint for hint in refused)


def other() -> MemoryStore:
    return MemoryStore("memory://copy")


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
    harm(store, layout.ARCHIVE, "gone")
    harm(store, layout.backup_key(1, layout.MANIFEST), "gone")
    report = run(store)
    assert (report.left_out, report.losses) == ((), ())
    whole = overview(store, "latest")
    assert {t.name: len(t.partitions) for t in whole.topics} == {"clicks": 1, "more": 1, "orders": 1}
    assert all(store.get(key) for key in strange)
    assert verified(store).findings == ()
