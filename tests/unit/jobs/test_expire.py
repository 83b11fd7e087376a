"""What expires is gone, and nothing else: whatever the policy, whoever is reading, wherever it is cut off."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.checkpoints import bare
from kbackup.archive.commit import open_or_create, publish, seal_unfinished
from kbackup.archive.content import content_of
from kbackup.archive.expired import read_expired, read_pins
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import (
    Checkpoint,
    ExpirationStep,
    Expired,
    FoldedPart,
    FoldedPoints,
    Intent,
    IntentTopic,
    Loss,
    Repaired,
    dump,
    file_sum,
    load,
)
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.segments import FOLDED, Segment, encode_folded
from kbackup.archive.settle import is_settled, step_of
from kbackup.archive.verify.findings import Findings
from kbackup.archive.verify.points import read_points
from kbackup.archive.verify.vectors import check_vectors
from kbackup.errors import (
    CorruptError,
    DeniedError,
    LeaseLostError,
    LockedError,
    NoArchiveError,
    RefusedError,
    StoreError,
    UsageError,
)
from kbackup.formats.index import decode_partition_index
from kbackup.jobs.backup import _repair_derived
from kbackup.jobs.expire import ExpireReport, Expiry, expire
from kbackup.jobs.expire_policy import Policy
from kbackup.jobs.keep import keep
from kbackup.jobs.listen import Silent
from kbackup.jobs.repair import repair
from kbackup.jobs.verify import verify
from kbackup.store.base import Buffer, Failed, ObjectInfo, Store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from tests.support.crash_store import Crash, CrashStore
from tests.support.exhaustive import sample
from tests.support.faulty_store import FaultyStore, down
from tests.support.histories import Did, History, day
from tests.support.memory_store import MemoryStore

NOW = timedelta(0)
LOSS = Loss(kind="retention", topic="a", partition=0, start=1, end=2, message="offset 1 of a-0 was deleted")


def expired(
    store: Store,
    *,
    last: int = 0,
    days: int | None = None,
    grace: timedelta = NOW,
    confirm: bool = True,
) -> ExpireReport:
    older_than = None if days is None else timedelta(days=days)
    expiry = Expiry(Policy(last=last), older_than, grace)
    return expire(store, expiry, 60, Silent(), confirm=confirm)


def check_whole(store: Store, *, clean: bool = False) -> None:
    """`clean`: there is nothing that nobody needs either."""
    report = verify(store, "all", True, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    assert report.findings == ()
    if clean:
        assert {note.file for note in report.notes} <= {"topics/"}


@dataclass(frozen=True)
class Seen:
    """What a restore point has to say."""

    segments: tuple[Segment, ...]
    groups: object
    settings: object
    losses: tuple[str, ...]


def seen(archive: Archive, seq: int) -> Seen:
    manifest = archive.restore_point(seq)
    content = content_of(archive, manifest, manifest.topics)
    settings = tuple((t.name, t.incarnation, t.configs, t.replication_factor) for t in content.topics)
    return Seen(tuple(archive.segments(manifest)), content.groups, settings, content.losses)


def all_seen(archive: Archive) -> dict[int, Seen]:
    return {point.seq: seen(archive, point.seq) for point in archive.restore_points}


def without(before: dict[int, Seen], kept: set[int], pinned: set[int], cutoff: int | None) -> dict[int, Seen]:
    """By brute force: of each partition, what all restore points that stay have, in order, up to the first segment that
    is young or pinned."""
    gone: set[Segment] = set()
    places: dict[tuple[str, int, int], list[Segment]] = {}
    for segment in sorted({s for seq in kept for s in before[seq].segments}, key=lambda s: s.first):
        places.setdefault((segment.topic, segment.incarnation, segment.partition), []).append(segment)
    for some in places.values():
        for segment in some:
            young = cutoff is None or (segment.max_timestamp or 0) >= cutoff
            if young or any(segment in before[seq].segments for seq in pinned):
                break
            gone.add(segment)
    return {
        seq: Seen(
            tuple(s for s in before[seq].segments if s not in gone),
            before[seq].groups,
            before[seq].settings,
            before[seq].losses,
        )
        for seq in kept
    }


dids = st.fixed_dictionaries({name: st.sampled_from([0, 1, 3, 5, "out", "anew"]) for name in ("a", "b")})
rounds = st.lists(
    st.tuples(
        st.lists(dids, min_size=1, max_size=4),
        st.integers(0, 3),
        st.none() | st.integers(0, 4),
        st.lists(st.integers(1, 12), max_size=1),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rounds)
def test_what_stays_is_as_it_was(
    rounds: list[tuple[list[dict[str, Did]], int, int | None, list[int], bool]],
) -> None:
    store = MemoryStore()
    history = History(store)
    seq = 0
    for runs, last, days, pins, sweeps in rounds:
        for did in runs:
            seq += 1
            history.run(seq, did, [LOSS])
        points = [p.seq for p in history.archive.restore_points]
        for pin in {*pins} & {*points}:
            keep(store, str(pin), 60, undo=False)
        pinned = {*read_pins(store, history.archive.info.id)}
        kept = {*points[-last:], *pinned} if last else {*points}
        old = history.archive
        before = all_seen(old)
        cutoff = None if days is None else int((day(seq) - timedelta(days=days)).timestamp() * 1000)
        after = without(before, kept, pinned, cutoff)
        grace = NOW if sweeps else timedelta(days=1)
        if before[seq].segments and not after[seq].segments:
            with pytest.raises(RefusedError, match="no record"):
                expired(store, last=last, days=days, confirm=False)
            days, after = None, without(before, kept, pinned, None)
        report = expired(store, last=last, days=days, grace=grace)
        assert {p.number for p in report.restore_points if p.stays} == kept
        assert all_seen(history.archive) == after
        assert {p.number: p.records for p in report.restore_points if p.stays} == {
            n: sum(s.count for s in each.segments) for n, each in after.items()
        }
        check_whole(store, clean=sweeps)
        if sweeps:
            left = {e.key for e in store.list(layout.TOPICS) if e.key.endswith("_records")}
            assert left == {s.key for each in after.values() for s in each.segments}
        else:
            fresh = open_archive(store)
            fresh.__dict__["expired"] = old.expired
            assert all_seen(fresh) == before, "who opened it before reads on"


def build(store: Store, then: Callable[[int], object] = lambda seq: None) -> History:
    """Eight restore points of three topics: b made anew at 4, c compacted and left out since 3, a with a loss.
    Number 6 is a seal over a run that wrote a segment."""
    history = History(store, {"c": {"cleanup.policy": "compact"}})
    for seq in range(1, 10):
        if seq == 6:
            intent = Intent(
                archive_id=history.archive.info.id,
                seq=6,
                parent=5,
                run_id="x",
                host="x",
                started_at="x",
                isolation_level="read_committed",
                topics=(),
            )
            store.put_new(layout.backup_key(6, layout.INTENT), dump(intent))
            store.put(layout.backup_key(6, layout.GROUPS), b"cut off")
            store.put("topics/a/segment_partition_000_from_offset_0000000777_records", b"left")
            seal_unfinished(history.archive, "x")
            then(seq)
            continue
        did: dict[str, Did] = {"a": 3, "b": "anew" if seq == 4 else 2, "c": 2 if seq < 3 else "out"}
        history.run(seq, did, [LOSS] if seq == 2 else [])
        then(seq)
    return history


@pytest.fixture(params=["plain", "encrypted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    plain = MemoryStore()
    if request.param == "plain":
        return plain
    (tmp_path / "key").write_text(generate_key())
    return CryptStore(plain, Keyring(plain, f"file:{tmp_path / 'key'}"))


def test_what_is_gone_is_told(store: Store) -> None:
    history = build(store)
    keep(store, "3", 60, undo=False)
    before = all_seen(history.archive)
    told = expired(store, last=2, days=3, confirm=False)
    assert all_seen(history.archive) == before, "a dry run"
    report = expired(store, last=2, days=3)
    assert told.restore_points == report.restore_points
    assert (told.records, told.bytes, told.segments) == (report.records, report.bytes, report.segments)
    fates = {p.number: p.reasons for p in report.restore_points}
    assert fates == {1: (), 2: (), 3: ("pinned",), 4: (), 5: (), 7: (), 8: ("last",), 9: ("last",)}
    assert report.spared == ("c",)
    archive = open_archive(store)
    assert [p.seq for p in archive.restore_points] == [3, 8, 9]
    assert seen(archive, 3) == before[3], "pinned"
    with pytest.raises(
        UsageError, match="restore point 5 is not there any more: it was expired on 20"
    ) as raised:
        archive.restore_point(5)
    assert "3 and 8" in raised.value.hint
    with pytest.raises(UsageError, match="there is no restore point 77"):
        archive.restore_point(77)
    with pytest.raises(UsageError, match="expired on"):
        verify(store, "5", True, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    check_whole(store, clean=True)


def test_the_log_start_moves_on(store: Store) -> None:
    history = build(store)
    before = all_seen(history.archive)
    report = expired(store, days=3)
    assert report.records > 0
    assert all(p.stays for p in report.restore_points)
    archive = open_archive(store)
    content = content_of(archive, archive.restore_point(9), archive.restore_point(9).topics)
    a, b, c = ((t, t.partitions[0]) for t in content.topics)
    assert (a[1].start, a[1].expired, a[1].segments[0].first) == (19, 15, 20)  # days 1 to 5 and their markers
    assert (b[0].incarnation, b[1].start, b[1].expired) == (2, 5, 4), "of days 4 and 5"
    assert (c[1].start, c[1].expired, c[1].records) == (0, 0, 4), "it is compacted"
    old = (
        content_of(archive, archive.restore_point(2), archive.restore_point(2).topics).topics[0].partitions[0]
    )
    assert (old.start, old.end, old.expired) == (8, 8, 6), "nothing is left there"
    assert before[9].segments != seen(archive, 9).segments
    index = decode_partition_index(store.get("topics/a/index_partition_000"), "index")
    assert index[0].start_offset == 20
    assert json.loads(store.get("topics/a/consumer_offsets_partition_000")) == {"g": 19}, "it stood at 16"
    history.run(10, {"a": 3, "b": 2, "c": "out"})
    check_whole(store)
    assert expired(store, days=2).records > 0
    check_whole(store, clean=True)


def test_each_incarnation_goes_by_its_own_settings() -> None:
    """Compacted was what a topic was before it was made anew, or what it is since."""
    store = MemoryStore()
    compacted = {"cleanup.policy": "compact"}
    configs = {"was": compacted, "is": {}}
    history = History(store, configs)
    for seq in range(1, 9):
        if seq == 4:
            configs |= {"was": {}, "is": compacted}
        history.run(seq, {"was": "anew" if seq == 4 else 2, "is": "anew" if seq == 4 else 2})
    before = all_seen(history.archive)
    report = expired(store, days=2)
    assert report.spared == ("is", "was (incarnation 1)")
    after = all_seen(open_archive(store))

    def left(name: str, incarnation: int, seq: int) -> set[str]:
        return {s.key for s in after[seq].segments if (s.topic, s.incarnation) == (name, incarnation)}

    assert left("is", 1, 3) == set(), "they are old news"
    assert left("was", 1, 3) == {s.key for s in before[3].segments if s.topic == "was"}
    assert left("is", 2, 8) == {s.key for s in before[8].segments if s.topic == "is"}
    assert 0 < len(left("was", 2, 8)) < len([s for s in before[8].segments if s.topic == "was"])
    check_whole(store, clean=True)


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_every_write(after: bool) -> None:
    """It is whole at each moment, and the next run comes to the same end."""

    whole = MemoryStore()
    build(whole)
    keep(whole, "3", 60, undo=False)

    def made() -> MemoryStore:
        return whole.copy()

    def done(store: Store) -> tuple[object, ...]:
        found = open_archive(store)
        assert found.expired is not None
        keys = {entry.key for entry in store.list() if entry.key != layout.LOCK}
        return keys, all_seen(found), [link.last for link in found.expired.gone], found.expired.topics

    counting = CrashStore(made())
    before = all_seen(open_archive(counting))
    expired(counting, last=2, days=3)
    end = done(counting)
    assert counting.writes > 8
    for at in sample(range(1, counting.writes + 1)):
        inner = made()
        with pytest.raises(Crash):
            expired(CrashStore(inner, at, after), last=2, days=3)
        inner.delete([layout.LOCK])  # it ran out
        check_whole(inner)
        archive = open_archive(inner)
        views = all_seen(archive)
        assert views == (before if archive.expired is None else end[1])
        expired(inner, last=2, days=3)
        assert done(inner) == end
        check_whole(inner, clean=True)


def test_a_backup_after_a_crash_refreshes() -> None:
    """Between the commit and its derived files."""
    store = MemoryStore()
    build(store)
    fails = FaultyStore(store, down("put", "topics/*"))
    with pytest.raises(Exception, match="down"):
        expired(fails, last=2, days=3)
    archive = open_archive(store)
    assert archive.expired is not None
    assert not is_settled(archive)
    check_whole(store)
    store.delete([layout.LOCK])
    with HeldLease(store, "kbackup backup", 60) as lease:
        _repair_derived(archive, lease)
    assert is_settled(archive)
    check_whole(store)


def test_grace() -> None:
    """What went stays for readers until its time is over; then any run deletes it."""
    store = MemoryStore()
    history = build(store)
    objects = {e.key for e in store.list(layout.TOPICS) if "777" not in e.key}
    first = expired(store, last=3, days=3, grace=timedelta(days=1))
    assert first.expiration == 1
    assert first.deleted == 2, "what a crashed run left, and nothing else"
    assert {e.key for e in store.list(layout.TOPICS)} == objects
    history.run(10, {"a": 3, "b": 2, "c": "out"})
    again = expired(store, last=2, grace=timedelta(days=1))
    assert (again.expiration, again.deleted) == (2, 0)
    dry = expired(store, grace=NOW, confirm=False)
    assert (dry.expiration, dry.failed) == (None, {})
    third = expired(store, grace=NOW)
    assert third.deleted == dry.deleted > 10
    assert not [e.key for e in store.list(layout.expiration_key(1, ""))], "an older one"
    check_whole(store, clean=True)
    # what was deleted once is not looked for again, whatever is said of the time
    history.run(11, {"a": 3, "b": 2, "c": "out"})
    assert expired(store, last=1, grace=timedelta(days=9)).deleted == 0
    check_whole(store)
    assert expired(store).deleted > 0
    check_whole(store, clean=True)


def dated_back(store: Store, number: int) -> None:
    """Its files say that the grace time of that expiration is over."""
    key = layout.expiration_key(number, layout.REFRESHED)
    store.put(key, dump(replace(load(ExpirationStep, store.get(key), key), at="2026-01-01T00:00:00.000Z")))


def long_ago(store: MemoryStore, number: int) -> None:
    """The grace time of that expiration is over, as the store says, too."""
    dated_back(store, number)
    store.age(layout.expiration_key(number, ""), 30 * 24 * 3600.0)


def forged_expiration(store: MemoryStore) -> None:
    """As a writer can make it: with all marks, dated back."""
    forged = store.copy()
    expired(forged, last=1, days=1, grace=timedelta(days=1))
    dated_back(forged, 1)
    document = read_expired(forged, 1, "")
    forged.put(layout.expiration_key(1, layout.SWEPT), dump(step_of(document, "swept")))
    for entry in forged.list(layout.EXPIRATIONS):
        store.put_new(entry.key, forged.get(entry.key))


def forged_repair(store: MemoryStore) -> None:
    """A restore point that gives up all before it but the first, as if they were lost, and one that follows it."""
    first = open_archive(store).restore_point(1)
    for seq in (10, 11):
        for name in first.files:
            store.put_new(layout.backup_key(seq, name), store.get(layout.backup_key(1, name)))
        repaired = Repaired(why="lost", restore_points=(2, 3, 4, 5, 6, 7, 8, 9)) if seq == 10 else None
        made = replace(first, seq=seq, parent=1 if seq == 10 else 10, repaired=repaired)
        store.put_new(layout.backup_key(seq, layout.MANIFEST), dump(made))


def forged_checkpoint(store: MemoryStore) -> None:
    """One of the newest restore point, without any segment."""
    archive = open_archive(store)
    last = archive.restore_points[-1].seq
    points = dump(
        FoldedPoints(archive_id=archive.info.id, points=tuple(bare(p) for p in archive.closed)), indent=-1
    )
    segments = encode_folded([FOLDED.empty_table()])
    part = FoldedPart(first=1, last=last, rows=0, points=file_sum(points), segments=file_sum(segments))
    head = Checkpoint(archive_id=archive.info.id, seq=last, parts=(part,))
    store.put_new(layout.checkpoint_key(last, layout.POINTS), points)
    store.put_new(layout.checkpoint_key(last, layout.SEGMENTS), segments)
    store.put_new(layout.checkpoint_key(last, layout.CHECKPOINT), dump(head))


@pytest.mark.parametrize("forge", [forged_expiration, forged_repair, forged_checkpoint])
def test_a_writer_can_have_nothing_deleted_before_the_grace_time_is_over(
    forge: Callable[[MemoryStore], None],
) -> None:
    """Whoever may create objects, but not delete them, can say anything of the time: the store's word counts."""
    store = MemoryStore()
    build(store)
    expired(store)
    objects = {e.key for e in store.list(layout.TOPICS)}
    forge(store)
    assert expired(store, grace=timedelta(days=1)).deleted == 0
    assert {e.key for e in store.list(layout.TOPICS)} == objects
    store.age("", 2 * 24 * 3600.0)
    expired(store, grace=timedelta(days=1))
    assert not {e.key for e in store.list(layout.TOPICS)} >= objects, "that is what was forged"


def test_grace_is_kept_where_a_checkpoint_was_made_since() -> None:
    """It has nothing of what went by the second expiration, and the first one's table nothing of the runs since."""
    store = MemoryStore()
    history = History(store)
    for seq in range(1, 5):
        history.run(seq, {"a": 3})
    assert expired(store, last=3, grace=timedelta(days=1)).expiration == 1
    for seq in range(5, 11):
        history.run(seq, {"a": 3})
    old = history.archive
    before = all_seen(old)
    assert expired(store, days=2, grace=timedelta(days=1)).records > 0
    for seq in range(11, 24):
        history.run(seq, {"a": 3})
    assert open_archive(store).covered is not None
    long_ago(store, 1)
    assert expired(store, grace=timedelta(days=1)).deleted > 0, "what went by the first one"
    fresh = open_archive(store)
    fresh.__dict__ |= {"expired": old.expired, "covered": None}
    for seq, was in before.items():
        assert seen(fresh, seq) == was
        assert {s.key for s in was.segments} <= {e.key for e in store.list(layout.TOPICS)}
    expired(store)
    check_whole(store, clean=True)


def test_a_table_of_an_expiration_that_a_copy_never_got_is_in_nobodys_way() -> None:
    """It was cut off before the commit, and came to a later one then."""
    store = MemoryStore()
    build(store)
    expired(store, last=6, grace=timedelta(days=1))
    expired(store, last=5, grace=timedelta(days=1))
    table = layout.expiration_key(2, "segments-0123456789abcdef.parquet")
    expired(store, last=4, grace=timedelta(days=1))
    store.put(table, b"never committed")
    left = {e.key for e in store.list(layout.expiration_key(2, ""))}
    store.delete(sorted(left - {table}))
    long_ago(store, 1)
    assert expired(store, grace=timedelta(days=1)).deleted > 1
    assert {e.key for e in store.list(layout.EXPIRATIONS)}.isdisjoint({table})
    assert [link.last for link in open_archive(store).gone] == [2, 3, 4]
    expired(store)
    check_whole(store, clean=True)


def test_deletes_that_are_refused_are_told_and_tried_again() -> None:
    store = MemoryStore()
    build(store)
    locked = Undeletable(store)
    report = expired(locked, last=2, days=3)
    assert report.failed
    assert set(report.failed.values()) == {"it is locked"}
    assert {e.key for e in store.list()} >= report.failed.keys()
    check_whole(store)
    again = expired(store)
    assert again.deleted == len(report.failed)
    check_whole(store, clean=True)


class Undeletable(FaultyStore):
    def delete(self, keys: Iterable[str]) -> list[Failed]:
        return [Failed(key, DeniedError("it is locked", "wait")) for key in keys]


@pytest.mark.parametrize(
    "lost", [layout.backup_key(8, layout.MANIFEST), layout.expiration_key(2, layout.EXPIRED)]
)
def test_an_expiration_soon_after_a_repair(lost: str) -> None:
    """As it was before, nobody can open the archive: that waits for the grace time of what the repair made."""
    store = MemoryStore()
    build(store)
    for last in (5, 4):
        expired(store, last=last, grace=timedelta(days=1))
        long_ago(store, 1)
    store.delete([lost])
    assert repair(store, True, False, 60, lambda: None, Silent()).restore_point  # type: ignore[arg-type, return-value]
    before = all_seen(open_archive(store))
    assert expired(store, grace=timedelta(days=1)).deleted == 0
    check_whole(store)
    expired(store)
    assert all_seen(open_archive(store)) == before
    check_whole(store)


class Forgetful(FaultyStore):
    """The newest restore point is missing in the first `times` listings that begin with `prefix`."""

    def __init__(self, inner: Store, prefix: str, times: int) -> None:
        super().__init__(inner)
        self.prefix, self.times = prefix, times

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        self.times -= prefix == self.prefix
        left_out = layout.backup_key(9, "") if prefix == self.prefix and self.times >= 0 else "none"
        return (e for e in super().list(prefix, start_after) if not e.key.startswith(left_out))


@pytest.mark.parametrize(("prefix", "times"), [(layout.BACKUPS, 99), ("", 99), (layout.BACKUPS, 1)])
def test_nothing_is_deleted_where_listings_differ(prefix: str, times: int) -> None:
    store = MemoryStore()
    before = all_seen(build(store).archive)
    for confirm in (False, True):
        forgetful = Forgetful(store, prefix, times)
        if times > 1:
            with pytest.raises(StoreError, match=r"lists file backups/0000000009/manifest\.json at one time"):
                expired(forgetful, confirm=confirm)
            assert not [key for call, key in forgetful.calls if call == "delete"]
        else:
            expired(forgetful, confirm=confirm)
    assert all_seen(open_archive(store)) == before
    check_whole(store)


def test_what_the_next_backup_may_take_over_stays() -> None:
    store = MemoryStore()
    history = build(store)
    state = history.topics["a"]
    topic = IntentTopic(name="a", id=state.id, incarnation=state.incarnation)
    intent = Intent(
        archive_id=history.archive.info.id,
        seq=10,
        parent=9,
        run_id="x",
        host="x",
        started_at="x",
        isolation_level="read_committed",
        topics=(topic,),
    )
    store.put_new(layout.backup_key(10, layout.INTENT), dump(intent))
    mine = "topics/a/segment_partition_000_from_offset_0000000888_records"
    other = "topics/b/segment_partition_000_from_offset_0000000888_records"
    foreign = "topics/b/notes.txt"
    for key in (mine, other, foreign):
        store.put(key, b"x")
    expired(store)
    left = {e.key for e in store.list(layout.TOPICS)}
    assert mine in left
    assert other not in left
    assert foreign in left
    assert [run.seq for run in open_archive(store).runs][-1] == 10


def test_nobody_empties_an_archive() -> None:
    store = MemoryStore()
    history = History(store)
    history.run(1, {"a": 3})
    history.run(2, {"a": 0})
    with pytest.raises(RefusedError, match="no record in restore point 2, the newest"):
        expired(store, days=0)
    assert open_archive(store).expired is None
    assert expired(store, days=2).expiration is None, "counted back from the newest restore point"
    assert expired(store, last=1).expiration == 1
    assert [p.seq for p in open_archive(store).restore_points] == [2]


def test_where_there_is_no_archive_nothing_is_written() -> None:
    store = MemoryStore()
    for confirm in (False, True):
        with pytest.raises(NoArchiveError):
            expired(store, last=1, confirm=confirm)
    with pytest.raises(NoArchiveError):
        keep(store, "1", 60, undo=False)
    assert list(store.list()) == []
    open_or_create(store)
    with pytest.raises(NoArchiveError, match="no restore point"):
        expired(store, last=1)
    with pytest.raises(NoArchiveError, match="no restore point"):
        keep(store, "latest", 60, undo=False)


def test_only_one_at_a_time() -> None:
    store = MemoryStore()
    build(store)
    with HeldLease(store, "kbackup backup", 60):
        with pytest.raises(LockedError, match="kbackup backup"):
            expired(store, last=1)
        with pytest.raises(LockedError):
            keep(store, "latest", 60, undo=False)
        assert expired(store, last=1, confirm=False).expiration == 1, "looking needs no lease"
    assert open_archive(store).expired is None


@pytest.mark.parametrize("lasts", [(), (2,), (5, 2), (6, 4, 2)], ids=str)
def test_vectors_are_checked_across_neighbours_that_went_at_different_times(lasts: tuple[int, ...]) -> None:
    store = MemoryStore()
    build(store)
    for last in lasts:
        expired(store, last=last)
    points = read_points(store, {e.key: e.size for e in store.list()}, Findings())
    assert len(points.gone) == len(lasts)
    check_vectors(points, clean := Findings())
    assert clean.found == set()
    newest = points.committed[-1]
    topic = newest.topics[0]
    more = replace(topic.partitions[0], records=topic.partitions[0].records + 1)
    other = replace(topic, partitions=(more, *topic.partitions[1:]))
    points.committed[-1] = replace(newest, topics=(other, *newest.topics[1:]))
    check_vectors(points, wrong := Findings())
    (found,) = wrong.found
    assert "says that a-0 has 25 records" in found.what


def test_one_that_slept_changes_nothing() -> None:
    """It had everything ready when its lease ran out, and another one expired something."""
    store = MemoryStore()
    build(store)

    class Meanwhile(FaultyStore):
        def put_new(self, key: str, data: Buffer) -> str:
            if key.endswith(layout.EXPIRED):
                store.delete([layout.LOCK])
                expired(store, last=4)
            return super().put_new(key, data)

    with pytest.raises(LeaseLostError):
        expired(Meanwhile(store), last=1)
    assert len(open_archive(store).restore_points) == 4
    check_whole(store)
    expired(store)
    check_whole(store, clean=True)


@pytest.mark.parametrize("slept", [False, True])
def test_a_run_that_slept_until_its_seal_was_deleted_commits_nothing(slept: bool) -> None:
    """Nothing keeps it from creating the manifest any more: nobody sees it there, so it must not say that it is."""
    store = MemoryStore()
    history = build(store)
    opened = history.archive
    due = replace(opened.restore_point(5), seq=6 if slept else 10)
    assert opened.expired is None
    expired(store, last=2)
    assert layout.backup_key(6, layout.MANIFEST) not in {e.key for e in store.list(layout.BACKUPS)}
    lease = [None, LeaseLostError("the lease was taken over", "run again")]

    def check() -> None:
        if error := lease.pop(0):
            raise error

    if slept:
        with pytest.raises(LeaseLostError, match="restore point 6 was closed by another writer"):
            publish(opened, due, check)
        assert [p.seq for p in open_archive(store).restore_points] == [8, 9]
        expired(store)
        check_whole(store, clean=True)
    else:
        publish(opened, due, check)  # it was committed in time: what follows meets the lost lease
    assert not lease


def test_pins() -> None:
    store = MemoryStore()
    build(store)
    assert keep(store, "latest", 60, undo=False).pinned == (9,)
    assert not keep(store, "9", 60, undo=False).changed
    assert keep(store, "2", 60, undo=False).pinned == (2, 9)
    with pytest.raises(UsageError, match="no restore point 6"):
        keep(store, "6", 60, undo=False)
    with pytest.raises(UsageError, match="3 is not pinned"):
        keep(store, "3", 60, undo=True)
    expired(store, last=1)
    assert [p.seq for p in open_archive(store).restore_points] == [2, 9]
    assert keep(store, "2", 60, undo=True).pinned == (9,)
    expired(store, last=1)
    assert [p.seq for p in open_archive(store).restore_points] == [9]
    with pytest.raises(UsageError, match="expired on"):
        keep(store, "2", 60, undo=False)
    store.put(layout.pin_key(9), b"{}")
    with pytest.raises(CorruptError, match="file pins/0000000009"):
        expired(store, last=1)


@contextmanager
def changed(store: Store, key: str, data: bytes | None) -> Iterator[None]:
    before = store.get(key)
    store.delete([key])
    if data is not None:
        store.put(key, data)
    yield
    store.put(key, before)


def test_damage_is_found() -> None:
    """Of an expiration and of what stands on it: nothing is taken for expired that was not."""
    store = MemoryStore()
    history = build(store)
    keep(store, "3", 60, undo=False)
    expired(store, last=3, days=4)
    old = store.get(layout.expiration_key(1, layout.EXPIRED))
    history.run(10, {"a": 3, "b": 2, "c": "out"})
    expired(store, last=2)
    assert not list(store.list(layout.expiration_key(1, "")))
    document = layout.expiration_key(2, layout.EXPIRED)
    table = next(e.key for e in store.list(layout.expiration_key(2, "segments-")))
    swept = layout.expiration_key(2, layout.SWEPT)
    carried = [p.seq for p in load(Expired, store.get(document), document).carried]
    assert carried
    vital = [document, table, layout.backup_key(3, layout.MANIFEST), layout.backup_key(9, layout.MANIFEST)]
    for key in (*vital, layout.pin_key(3), swept, layout.backup_key(carried[0], layout.GROUPS)):
        whole = store.get(key)
        flipped = bytes(
            [*whole[: len(whole) // 2], whole[len(whole) // 2] ^ 1, *whole[len(whole) // 2 + 1 :]]
        )
        for data in (None, b"", whole[:-2], flipped, old):
            if data is None and key in (layout.pin_key(3), swept):
                continue  # as if it had never been there
            if data is None and key == document:
                assert swept in {e.key for e in store.list()}
            with changed(store, key, data):
                report = verify(store, "all", True, lambda: None, Silent())  # type: ignore[arg-type, return-value]
                assert key in {f.file for f in report.findings}, data
                if key in vital:
                    with pytest.raises(CorruptError, match=key):
                        all_seen(open_archive(store))
    check_whole(store)
