"""Copies: the same archive at another address, what they keep when both go on, and how one becomes independent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.operations import label_point, may_salvage, pin_points, release_points
from kbackup.archive.catalog.retention import lose_points, lose_segments
from kbackup.archive.lease import HeldLease
from kbackup.archive.query.content import content_of
from kbackup.archive.reader import open_archive, refuse_if_swept
from kbackup.archive.segments.read import read_segment
from kbackup.errors import (
    CorruptError,
    LockedError,
    NoArchiveError,
    OutcomeUnknownError,
    RefusedError,
    UsageError,
    WrongKeyError,
)
from kbackup.jobs.backup.job import begin_point
from kbackup.jobs.copy import promote
from kbackup.store.base import Store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import KEYS, Keyring
from tests.support import archives
from tests.support.archives import History, make_archive, write
from tests.support.copies import (
    Open,
    StoreNamed,
    add_point,
    answers,
    change,
    check_same,
    check_whole,
    contents,
    copied,
    copied_at,
    expired,
    inner_copy,
    keys_of,
    point_copied,
    reached,
    seen,
    swept,
    unchanged,
)
from tests.support.exhaustive import CRASHES, sample
from tests.support.faulty_store import Crash, CrashStore, FaultyStore, Operation, Overtaken, crashed, lost_answer
from tests.support.made_segments import target as partition_of
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.exhaustive(keep=1)


@pytest.fixture
def store_named() -> StoreNamed:
    return defaultdict[str, MemoryStore](MemoryStore).__getitem__


@pytest.fixture(params=["plain", "encrypted"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "plain":
        return lambda store: store
    (tmp_path / "key").write_text(generate_key())
    return lambda store: CryptStore(store, Keyring(store, f"file:{tmp_path / 'key'}"), layout.key_class)


# A copy is the same archive: new objects alone are sent, damage and other archives are refused.


def test_a_copy_is_the_same_archive(store_named: StoreNamed, opened: Open) -> None:
    source, target = opened(store_named("a")), opened(store_named("b"))
    make_archive(source)
    report = copied(source, target)
    check_same(source, target)
    assert (report.restore_points, report.newest, report.found) == ((1, 2), 2, 0)
    raw = store_named("a"), store_named("b")
    for entry in raw[0].list():
        if entry.key.startswith((KEYS, "topics/")) and "segment_" in entry.key:
            assert raw[1].get(entry.key) == raw[0].get(entry.key), "as it is stored"
    assert report.objects == sum("segment_" in entry.key for entry in raw[0].list())
    assert report.bytes == sum(entry.size for entry in raw[0].list() if "segment_" in entry.key)


@pytest.mark.exhaustive
def test_again_it_takes_only_what_is_new(store_named: StoreNamed, opened: Open) -> None:
    source, target = opened(store_named("a")), opened(store_named("b"))
    make_archive(source)
    copied(source, target)

    def etags() -> dict[str, str]:
        own = (layout.LOCK, layout.CATALOG, layout.DERIVED)
        return {entry.key: entry.etag for entry in target.list() if not entry.key.startswith(own)}

    before = etags()
    assert copied(source, target).restore_points == ()
    assert etags() == before
    add_point(source, 3, 0)
    report = copied(source, target)
    assert report.restore_points == (3,)
    assert report.objects == sum("/more/segment_" in entry.key for entry in target.list())
    check_same(source, target)


def test_orphans_stay_where_they_are(store_named: StoreNamed, opened: Open) -> None:
    source, target = opened(store_named("a")), opened(store_named("b"))
    make_archive(source)
    orphan = write(source, partition_of()._replace(topic="orders", partition=1), range(100, 110))
    assert copied(source, target).restore_points == (1, 2)
    assert orphan[0].key not in {entry.key for entry in target.list()}
    check_whole(target)


def test_restores_and_drills_go_along(store_named: StoreNamed, opened: Open) -> None:
    source, target = opened(store_named("a")), opened(store_named("b"))
    make_archive(source)
    for key in ("restores/x/map/0/a-0.parquet", "restores/x/plan.json", "drills/d/report.json"):
        source.put(key, b"first")
    assert copied(source, target).beside == 3
    source.put("drills/d/report.json", b"again")
    source.put("restores/x/report.json", b"done")
    assert copied(source, target).beside == 2
    assert contents(target) == contents(source)


def test_the_state_of_flows_stays_where_it_is(store_named: StoreNamed, opened: Open) -> None:
    """Each address has flows of its own."""
    source, target = opened(store_named("a")), opened(store_named("b"))
    make_archive(source)
    own, other = layout.mirror_key("A", "B", "flow.json"), layout.mirror_key("A", "C", "flow.json")
    source.put_new(own, b"of the origin")
    copied(source, target)
    target.put_new(other, b"of the copy")
    copied(source, target)
    assert [entry.key for entry in target.list(layout.MIRRORS)] == [other]
    assert target.get(other) == b"of the copy"


@pytest.mark.exhaustive(keep=2)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_every_write(store_named: StoreNamed, opened: Open, after: bool) -> None:
    """The destination is whole at each moment as far as it goes, and the next copy ends what was begun."""
    source = opened(store_named("a"))
    make_archive(source)
    step = 3 if isinstance(source, CryptStore) else 1  # it is the same order of the same writes
    source.put("restores/x/note.txt", b"nobody's")
    counting = CrashStore(store_named("counted"))
    copied(source, opened(counting))
    assert counting.writes > 40
    for at in sample(range(1, counting.writes + 1, step), regular=CRASHES):
        name = f"crashed at {at}"
        crashing = CrashStore(store_named(name), at, after)
        with pytest.raises(Crash):
            copied(source, opened(crashing))
        inner = store_named(name)
        inner.delete([layout.LOCK])  # it ran out
        try:
            check_whole(opened(inner))
        except NoArchiveError:
            assert all(entry.key.startswith(layout.SCRATCH) for entry in inner.list())
        copied(source, opened(inner))
        inner.delete([e.key for e in inner.list(layout.SCRATCH)])
        check_same(source, opened(inner))


def test_a_damaged_object_in_the_way_is_named(store_named: StoreNamed, opened: Open) -> None:
    """A copy that slept for longer than its lease could hit what another copy committed, if copies deleted."""
    source, target = opened(store_named("a")), store_named("b")
    make_archive(source)
    crashing = CrashStore(target)
    segments = open_archive(source).added(0, 2)
    crashing.at = 24
    with pytest.raises(Crash):
        copied(source, opened(crashing))
    target.delete([layout.LOCK])
    keys = [entry.key for entry in target.list(layout.TOPICS)]
    assert keys
    target.put(keys[0], b"cut")
    with pytest.raises(RefusedError, match=f"file {keys[0]} at .* is damaged") as refused:
        copied(source, opened(target))
    assert "delete it by hand" in refused.value.hint
    target.delete([keys[0]])
    report = copied(source, opened(target))
    assert report.found == len(keys) - 1
    assert report.objects == 2 * len(segments) - report.found
    check_same(source, opened(target))


def test_damage_is_not_copied(store_named: StoreNamed, opened: Open) -> None:
    source, target = store_named("a"), store_named("b")
    make_archive(opened(source))
    key = next(e.key for e in source.list("topics/orders/segment_partition_001") if "_records" in e.key)
    whole = source.get(key)
    source.put(key, whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CorruptError, match=key):
        copied(opened(source), opened(target))
    assert key not in {entry.key for entry in target.list()}
    assert open_archive(opened(target)).restore_points == ()
    source.put(key, whole)
    copied(opened(source), opened(target))
    check_same(opened(source), opened(target))


def test_a_damaged_table_is_not_copied(store_named: StoreNamed) -> None:
    source, target = store_named("a"), store_named("b")
    make_archive(source)
    (key,) = (e.key for e in source.list("points/0000000002-") if e.key.endswith("/" + layout.GROUPS))
    source.put(key, source.get(key).replace(b"billing", b"billinh"))
    with pytest.raises(CorruptError, match=f"file {key} is not what its manifest says"):
        copied(source, target)
    assert open_archive(target).restore_points == ()


def test_other_places_are_refused(store_named: StoreNamed, opened: Open) -> None:
    source = opened(store_named("a"))
    make_archive(source)
    with pytest.raises(UsageError, match="is the archive itself"):
        copied(source, opened(store_named("a")))
    another = store_named("another")
    make_archive(opened(another), copied=False)
    with pytest.raises(RefusedError, match="is another archive"):
        copied(source, opened(another))
    folder = store_named("folder")
    folder.put("holiday/beach.jpg", b"sand")
    with pytest.raises(RefusedError, match=r"is not empty and no archive: there is holiday/beach\.jpg"):
        copied(source, opened(folder))
    assert [entry.key for entry in folder.list()] == ["holiday/beach.jpg"]
    with pytest.raises(NoArchiveError):
        copied(opened(store_named("nothing")), opened(store_named("b")))
    assert list(store_named("b").list()) == []


# Copies beside backups, drills and other copies, with lost answers and with keys that do not fit.


class Meanwhile(FaultyStore):
    """Something happens at its first write below topics/."""

    def __init__(self, inner: Store, happens: Callable[[], None]) -> None:
        super().__init__(inner)
        self.happens: Callable[[], None] | None = happens

    def _before(self, operation: Operation, key: str) -> None:
        if key.startswith(layout.TOPICS) and self.happens is not None:
            happens, self.happens = self.happens, None
            happens()
        super()._before(operation, key)


@pytest.mark.exhaustive
def test_backups_go_on_while_it_copies(store_named: StoreNamed, opened: Open) -> None:
    source, target = opened(store_named("a")), store_named("b")
    make_archive(source)
    assert copied(source, opened(Meanwhile(target, lambda: add_point(source, 3, 0)))).newest == 2
    check_whole(opened(target))
    assert copied(source, opened(target)).restore_points == (3,)
    check_same(source, opened(target))


def test_drills_go_on_while_it_copies(store_named: StoreNamed, opened: Open) -> None:
    """Under data keys of their own."""
    source, target = store_named("a"), store_named("b")
    make_archive(opened(source))
    page = "drills/d/report.html"

    def drill() -> None:
        opened(source).put(page, b"passed")

    assert copied(opened(source), opened(Meanwhile(target, drill))).beside == 1
    assert opened(target).get(page) == b"passed"


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("operation", ["put_new", "commit", "put", "replace"])
def test_a_lost_answer_ends_it_and_the_next_goes_on(
    store_named: StoreNamed, opened: Open, operation: Operation
) -> None:
    source, target = opened(store_named("a")), store_named("b")
    make_archive(source)
    pattern = "topics/*" if operation == "put" else "[!l]*/*"
    with pytest.raises(OutcomeUnknownError):
        copied(source, opened(FaultyStore(target, lost_answer(operation, pattern))))
    copied(source, opened(target))
    target.delete([e.key for e in target.list(layout.SCRATCH)])
    check_same(source, opened(target))


def test_one_copy_at_a_time(store_named: StoreNamed) -> None:
    source, target = store_named("a"), store_named("b")
    make_archive(source)
    copied(source, target)
    with HeldLease(target, "kbackup backup", 60), pytest.raises(LockedError):
        copied(source, target)
    with HeldLease(source, "kbackup backup", 60):
        copied(source, target)


def test_the_key_must_fit_both(store_named: StoreNamed, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(generate_key())

    def sealed(store: Store) -> Store:
        return CryptStore(store, Keyring(store, f"file:{tmp_path / 'key'}"), layout.key_class)

    make_archive(sealed(store_named("a")))
    with pytest.raises(WrongKeyError, match="no key is given"):
        copied(store_named("a"), store_named("b"))
    assert list(store_named("b").list()) == []


# Damage of a source or of its copy costs no segment of the other.


@pytest.mark.exhaustive
def test_a_damaged_source_takes_no_segment_from_its_copy() -> None:
    source, target = copied_at(5)
    due = seen(target)
    (damaged, *_) = sorted(open_archive(source).keys())
    change(source, lambda state: lose_segments(state, {damaged: "is missing"}))
    copied(source, target)
    assert {n: each for n, each in seen(target).items() if n <= 5} == due
    assert damaged in keys_of(target)
    assert damaged not in keys_of(source)
    check_whole(target)
    fresh = MemoryStore()
    copied(source, fresh)
    assert seen(fresh) == seen(source)
    check_whole(fresh)


def test_a_damaged_copy_says_what_it_lacks() -> None:
    source, target = copied_at(5)
    (damaged, *_) = sorted(open_archive(target).keys())
    target.delete([damaged])
    change(target, lambda state: lose_segments(state, {damaged: "is missing"}))
    before = open_archive(target)
    for _ in range(2):
        copied(source, target)
        after = open_archive(target)
        assert damaged not in keys_of(target)
        manifest = after.restore_point(1)
        assert after.losses(manifest) == before.losses(before.restore_point(1))
        check_whole(target)


# Copies refuse a source whose history is another one; damage costs no segment.


def forked() -> tuple[History, History]:
    """Two archives with one history up to restore point 2, and none of the same after it."""
    one = History(MemoryStore())
    one.run(1, {"a": 3, "b": 2})
    one.run(2, {"a": 2})
    return one, History(inner_copy(one.store), topics={**one.topics})


@pytest.mark.parametrize("last", [0, 2, 1])
def test_a_source_that_went_another_way_is_refused(last: int) -> None:
    """Before anything is written, whatever expired there since."""
    source, other = forked()
    target = MemoryStore()
    source.run(3, {"a": 4})
    copied(source.store, target)
    before = unchanged(target)
    with pytest.raises(RefusedError, match="has restore point 3, the source ends at 2") as rolled_back:
        copied(other.store, target)
    assert "promote the copy" in rolled_back.value.hint
    for number in (3, 4, 5):
        other.run(number, {"a": number})
    if last:
        expired(other.store, last=last)
    with pytest.raises(RefusedError, match="has diverged: its restore point 3 is not of the source's history"):
        copied(other.store, target)
    with pytest.raises(RefusedError, match="has diverged"):
        point_copied(other.store, target, "5")
    assert unchanged(target) == before
    assert copied(source.store, target).newest == 3


def test_a_segment_that_another_one_replaced_is_refused() -> None:
    """The source lost its newest restore point, and its next backup wrote the same offsets anew."""
    source, target = MemoryStore(), MemoryStore()
    history = History(source)
    history.run(1, {"a": 3})
    topics = {**history.topics}
    history.run(2, {"a": 2})
    copied(source, target)
    state = open_archive(source)
    commit(source, state.committed, lambda s: lose_points(s, [2]), Author("repair", "", "test"))
    keys = {s.key for s in state.added(1, 2)}
    source.delete([*keys, *map(layout.index_key_of, keys)])
    History(source, topics=topics).run(3, {"a": 3})
    before = unchanged(target)
    with pytest.raises(RefusedError, match="has diverged: the source has another segment topics/a/"):
        copied(source, target)
    assert unchanged(target) == before


# Copy one restore point as an archive of its own.


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.exhaustive(keep=3)
def test_a_restore_point_alone_is_an_archive(store_named: StoreNamed, opened: Open, number: int) -> None:
    source, target = opened(store_named("a")), opened(store_named("b"))
    make_archive(source)
    add_point(source, 3, 0)
    add_point(source, 4, 10)
    report = point_copied(source, target, str(number))
    assert (report.restore_points, report.newest) == ((number,), number)
    assert [p.number for p in open_archive(target).restore_points] == [number]
    assert answers(target, number) == answers(source, number)
    check_whole(target)
    again = point_copied(source, target, str(number))
    assert (again.restore_points, again.objects) == ((), 0)
    for other in {1, 2, 3, 4} - {number}:
        with pytest.raises(RefusedError, match="has other restore points already"):
            point_copied(source, target, str(other))
    promoted = inner_copy(store_named("b"))
    promote(opened(promoted))
    add_point(opened(promoted), number + 1, 30)
    assert [p.number for p in open_archive(opened(promoted)).restore_points] == [number, number + 1]
    check_whole(opened(promoted))
    assert copied(source, target).restore_points == tuple(range(number + 1, 5))
    assert seen(target) == {n: answers(source, n) for n in range(number, 5)}
    check_whole(target)


@pytest.mark.parametrize("number", [3, 5, 6])
def test_a_restore_point_of_an_archive_that_was_expired(number: int) -> None:
    """Records that expired by then may be younger than what it had: backups go on where it ends."""
    source, target = copied_at(0)
    change(source, lambda state: pin_points(state, [5], "2026-01-01T00:00:00Z") if number == 5 else state)
    expired(source, last=4, days=1)
    point_copied(source, target, str(number))
    assert answers(target, number) == answers(source, number)
    check_whole(target)
    promote(target)
    head = open_archive(target).head
    assert head is not None
    History(target, topics={t.name: t for t in head.topics}).run(number + 1, {"a": 3, "b": 3})
    manifest = open_archive(target).restore_point("latest")
    found = content_of(open_archive(target), manifest, manifest.topics)
    for topic in found.topics:
        for part in topic.partitions:
            assert part.segments[-1].count > 0
            assert part.start <= part.segments[0].first
    check_whole(target)


@pytest.mark.exhaustive(keep=1)
def test_a_restore_point_is_copied_whatever_cuts_it_off(store_named: StoreNamed) -> None:
    source = store_named("a")
    make_archive(source)
    add_point(source, 3, 0)
    for inner in crashed(MemoryStore(), lambda store: point_copied(source, store, "2"), step=2):
        assert [p.number for p in reached(inner)] in ([], [2])
        point_copied(source, inner, "2")
        assert answers(inner, 2) == answers(source, 2)
        check_whole(inner)


def test_only_an_empty_place_takes_a_restore_point(store_named: StoreNamed) -> None:
    source, target = store_named("a"), store_named("b")
    make_archive(source)
    copied(source, target)
    with pytest.raises(RefusedError, match="has other restore points already"):
        point_copied(source, target)
    with pytest.raises(UsageError, match="there is no restore point 9"):
        point_copied(source, store_named("c"), "9")
    assert list(store_named("c").list()) == []


# Pins, labels and interruptions of copies, and backups into a promoted copy.


def test_pins_and_labels_come_along() -> None:
    source, target = copied_at(2)
    change(source, lambda state: pin_points(state, [1, 3], "2026-01-01T00:00:00Z"))
    change(source, lambda state: label_point(label_point(state, "before", 2), "after", 4))
    copied(source, target)
    check_same(source, target)
    assert open_archive(target).find_point("after").number == 4
    change(source, lambda state: label_point(release_points(state, [3]), "after", 5))
    assert copied(source, target).restore_points == ()
    check_same(source, target)
    one = MemoryStore()
    point_copied(source, one, "before")
    assert dict(open_archive(one).state.labels) == {"before": 2}
    assert dict(open_archive(one).state.pins) == {}


def begun(store: Store) -> int:
    """A backup begins: the number of its restore point."""
    store.delete([layout.LOCK])
    with HeldLease(store, "kbackup backup", 60) as lease:
        run = begin_point(store, lease, "c", False, "read_committed")
        assert run.interrupted == (run.archive.state.isolation_levels > {"read_committed"})
        return run.next_point


def test_backups_go_on_in_a_promoted_copy() -> None:
    """The source of a promoted copy may be lost; nothing is copied to the promoted archive any more."""
    source, target = copied_at(5)
    before = unchanged(target)
    with pytest.raises(RefusedError, match=f"is a copy of {source.url}") as refused:
        begun(target)
    assert "run 'kbackup promote'" in refused.value.hint
    assert unchanged(target) == before
    due = seen(target)
    report = promote(target)
    assert (report.archive_id, report.origin) == (open_archive(source).info.id, source.url)
    with pytest.raises(RefusedError, match="is not a copy"):
        promote(target)
    assert begun(target) == 6
    for again in (copied, point_copied):
        with pytest.raises(RefusedError, match="is an archive of its own, not a copy"):
            again(source, target)
    head = open_archive(target).head
    assert head is not None
    History(target, topics={t.name: t for t in head.topics}).run(6, {"a": 7, "b": "anew"})
    assert {n: each for n, each in seen(target).items() if n < 6} == due
    check_whole(target)
    with pytest.raises(RefusedError, match="is an archive of its own"):
        copied(source, target)
    other = MemoryStore()
    copied(target, other)
    assert seen(other) == seen(target)
    with pytest.raises(RefusedError, match="has diverged: its restore point 6"):
        copied(source, other)


@pytest.mark.parametrize("reached", [0, 2])
@pytest.mark.exhaustive(keep=1)
def test_an_interrupted_copy_is_a_copy(reached: int) -> None:
    """No backup goes into it; a promoted one has what had come, and no backup takes over what had not."""
    source, partly = copied_at(reached)
    was = seen(partly) if reached else {}
    for inner in crashed(partly, lambda store: copied(source, store)):
        try:
            archive = open_archive(inner)
        except NoArchiveError:
            continue
        if not any(e.key.startswith(layout.TOPICS) for e in inner.list()):
            continue  # nothing was sent yet: an empty archive at most
        with pytest.raises(RefusedError, match="is a copy of"):
            begun(inner)
        points = seen(inner)
        assert points in (was, seen(source))
        interrupted = archive.state.open_run is not None
        promote(inner)
        assert begun(inner) == open_archive(inner).state.next_point
        assert may_salvage(open_archive(inner).state) is not interrupted
        assert seen(inner) == points
        check_whole(inner)


# A copy can retain what its source expired.


@pytest.mark.exhaustive
@pytest.mark.parametrize("keep", [False, True])
def test_the_user_chooses_what_a_copy_keeps(keep: bool) -> None:
    source, target = copied_at(5)
    change(target, lambda state: label_point(pin_points(state, [1], "2026-01-01T00:00:00Z"), "first", 1))
    old = seen(target)
    expired(source, last=1, days=1)
    due = seen(source)
    for _ in range(2):
        copied(source, target, keep)
        swept(target)
        check_whole(target)
        now = seen(target)
        if not keep:
            assert now == due
            continue
        assert {n: each for n, each in now.items() if n <= 5} == old
        assert set(now) == {1, 2, 3, 4, 5, 6}
        state = open_archive(target).state
        assert (dict(state.pins), dict(state.labels)) == ({1: "2026-01-01T00:00:00Z"}, {"first": 1})
    copied(source, target)
    assert set(seen(target)) == {6}
    swept(target)
    check_whole(target)


def test_a_copy_that_keeps_says_which_records_it_never_got() -> None:
    """They expired at the source before they were copied."""
    source, target = copied_at(1)
    old = seen(target)
    expired(source, last=1, days=1)
    lag = open_archive(source).state.starts
    copied(source, target, keep=True)
    assert seen(target)[1] == old[1]
    check_whole(target)
    losses = open_archive(target).losses(open_archive(target).restore_point(6))
    places = {(loss.partition, loss.end) for loss in losses if loss.topic == "b"}
    assert len(places) == 2
    assert places == {(n, start.start) for (topic, _, n), start in lag.items() if topic == "b"}
    assert {topic for topic, _, _ in lag} == {"a", "b"}
    assert {loss.topic for loss in losses} == {"b"}, "of a, created again since, the copy has nothing to go on from"
    for _ in range(2):
        copied(source, target, keep=True)
        assert len(open_archive(target).losses(open_archive(target).restore_point(6))) == len(losses)
    swept(target)
    check_whole(target)
    copied(source, target)
    assert seen(target) == seen(source)


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("reached", [2, 5])
def test_a_copy_that_keeps_can_expire_by_itself(reached: int) -> None:
    """Also what lived when it was copied, and was over when the source let it go."""
    source, target = copied_at(reached)
    expired(source, last=1)
    copied(source, target, keep=True)
    expired(target, last=1)
    swept(target)
    assert seen(target) == seen(source)
    assert keys_of(target) == keys_of(source)
    check_whole(target)
    copied(source, target, keep=True)
    assert set(seen(target)) == {6}


def test_points_expired_in_a_copy_do_not_return() -> None:
    """Also where the source has it still, or took it back."""
    source, target = copied_at(6)
    expired(target, last=2, days=2)
    due = seen(target)
    assert set(due) == {5, 6}
    report = copied(source, target)
    assert (report.restore_points, report.dropped, report.objects) == ((), (), 0)
    assert seen(target) == due
    check_whole(target)
    swept(target)
    check_whole(target)


# Copies of archives whose records expire at the source or at the copy.


@pytest.mark.parametrize("reached", [0, 1, 3, 5, 6])
@pytest.mark.exhaustive(keep=2)
def test_a_copy_follows_what_expired(reached: int) -> None:
    """However far behind it is, whatever is swept at the source; a reader of the copy reads on."""
    source, target = copied_at(reached)
    expired(source, last=2, days=3)
    reader = open_archive(target) if reached else None
    report = copied(source, target)
    assert (report.dropped, report.newest) == (tuple(n for n in range(1, 5) if n <= reached), 6)
    assert seen(target) == seen(source)
    check_whole(target)
    if reader is not None:
        keys = [s.key for p in reader.restore_points for s in reader.segments(reader.manifest(p))]
        assert all(map(target.get, keys))
    swept(target)
    assert seen(target) == seen(source)
    check_whole(target)
    again = copied(source, target)
    assert (again.restore_points, again.dropped, again.objects) == ((), (), 0)


@pytest.mark.exhaustive(keep=1)
def test_a_crash_at_every_write_while_it_follows() -> None:
    """The copy is as it was, or as its source."""
    source, partly = copied_at(4)
    expired(source, last=2, days=3)
    was, due = seen(partly), seen(source)
    for inner in crashed(partly, lambda store: copied(source, store)):
        check_whole(inner)
        assert seen(inner) in (was, due)
        copied(source, inner)
        assert seen(inner) == due
        check_whole(inner)


# An expiration beside a copy deletes what the copy is about to send.


def test_a_copy_that_an_expiration_overtakes_finds_no_damage_and_goes_on() -> None:
    store, target = MemoryStore(), MemoryStore()
    make_archive(store)
    with pytest.raises(RefusedError, match="an expiration beside this command deleted objects") as refused:
        copied(Overtaken(store, lambda: archives.expired(store, before=9)), target)
    assert refused.value.hint == "run the command again"
    copied(store, target)
    check_whole(target)
    assert seen(target) == seen(store)


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_lost_segment_is_damage_only_if_the_newest_catalog_lists_it(is_listed: bool) -> None:
    store = MemoryStore()
    archive = make_archive(store)
    segments = {segment.key: segment for segment in archive.added(0, 2)}
    archives.expired(store, before=9)
    listed = open_archive(store).keys()
    key = min(listed) if is_listed else min(segments.keys() - listed)
    store.delete([key])
    with pytest.raises(CorruptError if is_listed else RefusedError), refuse_if_swept(archive):
        list(read_segment(store, segments[key]))
