"""Copies of archives: the same again, whatever cuts them off, and never anything over what somebody else wrote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kbackup.archive import layout
from kbackup.archive.commit import seal_unfinished
from kbackup.archive.content import content_of
from kbackup.archive.expire import prepare, publish, what_stays
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Intent, Point, dump, load
from kbackup.archive.reader import open_archive
from kbackup.errors import (
    CorruptError,
    LockedError,
    NoArchiveError,
    OutcomeUnknownError,
    RefusedError,
    UsageError,
    WrongKeyError,
)
from kbackup.jobs.copy import CopyReport, copy_archive
from kbackup.jobs.copy_point import copy_point
from kbackup.jobs.listen import Silent
from kbackup.jobs.verify import verify
from kbackup.store.base import Store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.key_files import KEYS
from kbackup.store.crypt.keyring import Keyring
from tests.support.archives import T0, commit_point, group_at, make_archive, topic_state, write
from tests.support.crash_store import Crash, CrashStore
from tests.support.exhaustive import sample
from tests.support.faulty_store import FaultyStore, Operation, lost_answer
from tests.support.memory_store import MemoryStore
from tests.unit.archive.making import target as partition_of

OWN = (layout.LOCK, KEYS)
"""What a copy has of its own: its lease, and the data key of what it derived."""


Place = Callable[[str], MemoryStore]
Open = Callable[[Store], Store]


@pytest.fixture
def place() -> Place:
    return defaultdict[str, MemoryStore](MemoryStore).__getitem__


@pytest.fixture(params=["plain", "encrypted"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "plain":
        return lambda store: store
    (tmp_path / "key").write_text(generate_key())
    return lambda store: CryptStore(store, Keyring(store, f"file:{tmp_path / 'key'}"))


def copied(source: Store, target: Store) -> CopyReport:
    return copy_archive(source, target, 60, Silent())


def contents(store: Store) -> dict[str, bytes]:
    """In the clear; what says when it was written, without that."""
    keys = [entry.key for entry in store.list() if not entry.key.startswith(OWN)]
    return {key: store.get(key) for key in keys if not key.endswith("/" + layout.REFRESHED)}


def finished(store: Store) -> set[str]:
    return {entry.key for entry in store.list() if entry.key.endswith("/" + layout.REFRESHED)}


def check_same(source: Store, target: Store) -> None:
    assert contents(target) == contents(source)
    assert finished(target) == finished(source)
    check_whole(target)


def check_whole(store: Store) -> None:
    """An archive that lacks nothing that it promises."""
    report = verify(store, "all", True, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    assert report.findings == ()


def add_point(store: Store, seq: int, first: int) -> None:
    """Restore point `seq` of a topic 'more': ten records from `first`, all in all from 0."""
    archive = open_archive(store)
    to = partition_of()._replace(topic="more")
    segments = write(store, to, range(first, first + 10))
    head = archive.head
    assert head is not None
    before = [s for s in archive.segments(head) if s.topic == "more"]
    state = topic_state("more", seq, "present", [(0, first + 10, [*before, *segments])])
    carried = [t for t in head.topics if t.name != "more"]
    topics = sorted([*carried, state], key=lambda t: t.name)
    commit_point(archive, seq, topics, segments, [group_at("billing", ("more", 0, first))])


def test_a_copy_is_the_same_archive(place: Place, opened: Open) -> None:
    source, target = opened(place("a")), opened(place("b"))
    make_archive(source)
    report = copied(source, target)
    check_same(source, target)
    assert (report.restore_points, report.newest, report.found) == ((1, 2), 2, 0)
    raw = place("a"), place("b")
    for entry in raw[0].list():
        if entry.key.startswith((KEYS, "topics/")) and "segment_" in entry.key:
            assert raw[1].get(entry.key) == raw[0].get(entry.key), "as it is stored"
    assert report.objects == sum("segment_" in entry.key for entry in raw[0].list())
    assert report.bytes == sum(entry.size for entry in raw[0].list() if "segment_" in entry.key)


def test_again_it_takes_only_what_is_new(place: Place, opened: Open) -> None:
    source, target = opened(place("a")), opened(place("b"))
    make_archive(source)
    copied(source, target)
    before = {entry.key: entry.etag for entry in target.list() if entry.key != layout.LOCK}
    assert copied(source, target).restore_points == ()
    assert {entry.key: entry.etag for entry in target.list() if entry.key != layout.LOCK} == before
    add_point(source, 3, 0)
    report = copied(source, target)
    assert report.restore_points == (3,)
    assert report.objects == sum("/more/segment_" in entry.key for entry in target.list())
    check_same(source, target)


def test_topics_that_a_later_point_left_out_get_their_files_too(place: Place, opened: Open) -> None:
    source, target = opened(place("a")), opened(place("b"))
    make_archive(source)
    for seq in range(3, 19):
        add_point(source, seq, 10 * (seq - 3))
    assert copied(source, target).restore_points == tuple(range(1, 19))
    mine, theirs = contents(target), contents(source)
    folds = {key for key in mine.keys() | theirs.keys() if key.startswith(layout.CHECKPOINTS)}
    assert {k: v for k, v in mine.items() if k not in folds} == {
        k: v for k, v in theirs.items() if k not in folds
    }
    assert open_archive(target).covered is not None
    check_whole(target)


def test_runs_that_never_committed(place: Place, opened: Open) -> None:
    source, target = opened(place("a")), opened(place("b"))
    make_archive(source)
    key = layout.backup_key(2, layout.INTENT)
    intent = load(Intent, source.get(key), key)
    for seq in (3, 4):
        source.put(layout.backup_key(seq, layout.INTENT), dump(msgspec.structs.replace(intent, seq=seq)))
        if seq == 3:
            seal_unfinished(open_archive(source), "another")
    left = write(source, partition_of()._replace(topic="orders", partition=1), range(100, 110))
    assert copied(source, target).restore_points == (1, 2)
    there = {entry.key for entry in target.list()}
    assert layout.backup_key(3, layout.MANIFEST) in there
    assert layout.backup_key(4, layout.INTENT) not in there
    assert left[0].key not in there
    check_whole(target)


def test_restores_and_drills_go_along(place: Place, opened: Open) -> None:
    source, target = opened(place("a")), opened(place("b"))
    make_archive(source)
    for key in ("restores/x/map/0/a-0.parquet", "restores/x/plan.json", "drills/d/report.json"):
        source.put(key, b"first")
    assert copied(source, target).beside == 3
    source.put("drills/d/report.json", b"again")
    source.put("restores/x/report.json", b"done")
    assert copied(source, target).beside == 2
    assert contents(target) == contents(source)


@pytest.mark.exhaustive(keep=2)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_every_write(place: Place, opened: Open, after: bool) -> None:
    """The destination is whole at each moment as far as it goes, and the next copy ends what was begun."""
    source = opened(place("a"))
    make_archive(source)
    step = 3 if isinstance(source, CryptStore) else 1  # it is the same order of the same writes
    source.put("restores/x/note.txt", b"nobody's")
    counting = CrashStore(place("counted"))
    copied(source, opened(counting))
    assert counting.writes > 40
    for at in sample(range(1, counting.writes + 1, step)):
        name = f"crashed at {at}"
        crashing = CrashStore(place(name), at, after)
        with pytest.raises(Crash):
            copied(source, opened(crashing))
        inner = place(name)
        inner.delete([layout.LOCK])  # it ran out
        try:
            check_whole(opened(inner))
        except NoArchiveError:
            assert all(entry.key.startswith(layout.SCRATCH) for entry in inner.list())
        copied(source, opened(inner))
        inner.delete([e.key for e in inner.list(layout.SCRATCH)])
        check_same(source, opened(inner))


def test_what_is_not_whole_is_sent_again(place: Place, opened: Open) -> None:
    source, target = opened(place("a")), place("b")
    make_archive(source)
    crashing = CrashStore(target)
    segments = [s for p in open_archive(source).restore_points for s in open_archive(source).added(p)]
    crashing.at = 14
    with pytest.raises(Crash):
        copied(source, opened(crashing))
    target.delete([layout.LOCK])
    keys = [entry.key for entry in target.list(layout.TOPICS)]
    assert keys
    target.put(keys[0], b"cut")
    report = copied(source, opened(target))
    assert report.found == len(keys) - 1
    assert report.objects == 2 * len(segments) - report.found
    check_same(source, opened(target))


def test_damage_is_not_copied(place: Place, opened: Open) -> None:
    source, target = place("a"), place("b")
    make_archive(opened(source))
    key = next(e.key for e in source.list("topics/orders/segment_partition_001") if "_records" in e.key)
    whole = source.get(key)
    source.put(key, whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CorruptError, match=key):
        copied(opened(source), opened(target))
    assert key not in {entry.key for entry in target.list()}
    assert open_archive(opened(target)).restore_points == []
    source.put(key, whole)
    copied(opened(source), opened(target))
    check_same(opened(source), opened(target))


def test_a_damaged_table_is_not_copied(place: Place) -> None:
    source, target = place("a"), place("b")
    make_archive(source)
    key = layout.backup_key(2, layout.GROUPS)
    source.put(key, source.get(key).replace(b"billing", b"billinh"))
    with pytest.raises(CorruptError, match=f"file {key} is not what its manifest says"):
        copied(source, target)
    assert open_archive(target).restore_points == []


def test_other_places_are_refused(place: Place, opened: Open) -> None:
    source = opened(place("a"))
    make_archive(source)
    with pytest.raises(UsageError, match="is the archive itself"):
        copied(source, opened(place("a")))
    another = place("another")
    make_archive(opened(another))
    with pytest.raises(RefusedError, match="is another archive"):
        copied(source, opened(another))
    folder = place("folder")
    folder.put("holiday/beach.jpg", b"sand")
    with pytest.raises(RefusedError, match=r"is not empty and no archive: there is holiday/beach\.jpg"):
        copied(source, opened(folder))
    assert [entry.key for entry in folder.list()] == ["holiday/beach.jpg"]
    with pytest.raises(NoArchiveError):
        copied(opened(place("nothing")), opened(place("b")))
    assert list(place("b").list()) == []


def test_a_copy_that_was_backed_up_into_is_refused(place: Place, opened: Open) -> None:
    source, target = opened(place("a")), opened(place("b"))
    make_archive(source)
    copied(source, target)
    add_point(target, 3, 0)
    with pytest.raises(RefusedError, match=r"no copy of .* any more"):
        copied(source, target)
    add_point(source, 3, 5)
    theirs = contents(target)
    with pytest.raises(RefusedError, match=r"it has backups/0000000003/manifest\.json of its own"):
        copied(source, target)
    assert contents(target) == theirs
    with pytest.raises(RefusedError, match="any more"):
        copied(target, source)


def test_an_intent_of_its_own_is_refused(place: Place) -> None:
    source, target = place("a"), place("b")
    make_archive(source)
    copied(source, target)
    key = layout.backup_key(2, layout.INTENT)
    intent = msgspec.structs.replace(load(Intent, source.get(key), key), seq=3, run_id="theirs")
    target.put(layout.backup_key(3, layout.INTENT), dump(intent))
    for _ in range(2):
        with pytest.raises(RefusedError, match=r"0000000003/intent\.json of its own"):
            copied(source, target)
        if not any(run.seq == 3 for run in open_archive(source).runs):
            add_point(source, 3, 0)


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


def test_backups_go_on_while_it_copies(place: Place, opened: Open) -> None:
    source, target = opened(place("a")), place("b")
    make_archive(source)
    assert copied(source, opened(Meanwhile(target, lambda: add_point(source, 3, 0)))).newest == 2
    check_whole(opened(target))
    assert copied(source, opened(target)).restore_points == (3,)
    check_same(source, opened(target))


def test_drills_go_on_while_it_copies(place: Place, opened: Open) -> None:
    """Under data keys of their own."""
    source, target = place("a"), place("b")
    make_archive(opened(source))
    page = "drills/d/report.html"

    def drill() -> None:
        opened(source).put(page, b"passed")

    assert copied(opened(source), opened(Meanwhile(target, drill))).beside == 1
    assert opened(target).get(page) == b"passed"


@pytest.mark.parametrize("operation", ["put_new", "commit", "put", "replace"])
def test_a_lost_answer_ends_it_and_the_next_goes_on(place: Place, opened: Open, operation: Operation) -> None:
    source, target = opened(place("a")), place("b")
    make_archive(source)
    with pytest.raises(OutcomeUnknownError):
        copied(source, opened(FaultyStore(target, lost_answer(operation, "[!l]*/*"))))
    copied(source, opened(target))
    target.delete([e.key for e in target.list(layout.SCRATCH)])
    check_same(source, opened(target))


def test_one_copy_at_a_time(place: Place) -> None:
    source, target = place("a"), place("b")
    make_archive(source)
    copied(source, target)
    with HeldLease(target, "kbackup backup", 60), pytest.raises(LockedError):
        copied(source, target)
    with HeldLease(source, "kbackup backup", 60):
        copied(source, target)


def test_the_key_must_fit_both(place: Place, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(generate_key())

    def sealed(store: Store) -> Store:
        return CryptStore(store, Keyring(store, f"file:{tmp_path / 'key'}"))

    make_archive(sealed(place("a")))
    with pytest.raises(WrongKeyError, match="no key is given"):
        copied(place("a"), place("b"))
    assert list(place("b").list()) == []


def point_copied(source: Store, target: Store, wanted: str = "latest") -> CopyReport:
    return copy_point(source, target, wanted, 60, Silent())


def answers(store: Store, seq: int) -> tuple[object, ...]:
    """What a restore of that restore point would be made of."""
    archive = open_archive(store)
    manifest = archive.restore_point(seq)
    content = content_of(archive, manifest, manifest.topics)
    return (
        content.topics,
        content.groups,
        [store.get(s.key) for s in archive.segments(manifest)],
        archive.losses(seq),
    )


@pytest.mark.parametrize("seq", [1, 2, 3, 4])
@pytest.mark.exhaustive(keep=3)
def test_a_restore_point_alone_is_an_archive(place: Place, opened: Open, seq: int) -> None:
    source, target = opened(place("a")), opened(place("b"))
    make_archive(source)
    add_point(source, 3, 0)
    add_point(source, 4, 10)
    report = point_copied(source, target, str(seq))
    assert (report.restore_points, report.newest) == ((seq,), seq)
    assert [p.seq for p in open_archive(target).restore_points] == [seq]
    assert answers(target, seq) == answers(source, seq)
    check_whole(target)
    again = point_copied(source, target, str(seq))
    assert (again.restore_points, again.objects) == ((), 0)
    for other in {1, 2, 3, 4} - {seq}:
        with pytest.raises(RefusedError, match="is no copy of restore point"):
            point_copied(source, target, str(other))
    if seq > 1:
        with pytest.raises(RefusedError, match="is no copy of"):
            copied(source, target)
    add_point(target, seq + 1, 30)
    assert [p.seq for p in open_archive(target).restore_points] == [seq, seq + 1]
    check_whole(target)


def test_a_restore_point_of_an_archive_that_was_expired(place: Place) -> None:
    source, target = place("a"), place("b")
    make_archive(source)
    for seq in (3, 4, 5):
        add_point(source, seq, seq * 10)
    archive = open_archive(source)
    publish(archive, prepare(archive, {1, 3, 4}, what_stays(archive, {1, 3, 4}), T0 + 8000, ()), lambda: None)
    for seq in (2, 5):
        target = place(f"of {seq}")
        point_copied(source, target, str(seq))
        assert answers(target, seq) == answers(source, seq)
        check_whole(target)


@pytest.mark.exhaustive(keep=1)
def test_a_restore_point_is_copied_whatever_cuts_it_off(place: Place) -> None:
    source = place("a")
    make_archive(source)
    add_point(source, 3, 0)
    counting = CrashStore(place("counted"))
    point_copied(source, counting, "2")
    for at in sample(range(1, counting.writes + 1, 2)):
        left = place(f"copy {at}")
        with pytest.raises(Crash):
            point_copied(source, CrashStore(left, at, after=at % 4 == 1), "2")
        assert [p.seq for p in reached(left)] in ([], [2])
        left.delete([layout.LOCK])
        point_copied(source, left, "2")
        assert answers(left, 2) == answers(source, 2)
        check_whole(left)


def reached(store: Store) -> list[Point]:
    try:
        return open_archive(store).restore_points
    except NoArchiveError:
        return []


def test_only_an_empty_place_takes_a_restore_point(place: Place) -> None:
    source, target = place("a"), place("b")
    make_archive(source)
    copied(source, target)
    with pytest.raises(RefusedError, match="is no copy of restore point 2"):
        point_copied(source, target)
    with pytest.raises(UsageError, match="there is no restore point 9"):
        point_copied(source, place("c"), "9")
    assert list(place("c").list()) == []
