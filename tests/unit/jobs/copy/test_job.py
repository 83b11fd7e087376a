"""A copy is the same archive: new objects alone are sent, damage and other archives are refused."""

from __future__ import annotations

import pytest

from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from kbackup.errors import (
    CorruptError,
    NoArchiveError,
    RefusedError,
    UsageError,
)
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.keyring import KEYS
from tests.support.archives import make_archive, write
from tests.support.copies import Open, StoreNamed, add_point, check_same, check_whole, contents, copied
from tests.support.crash_store import Crash, CrashStore
from tests.support.exhaustive import sample
from tests.support.made_segments import target as partition_of

pytestmark = pytest.mark.exhaustive(keep=2)


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
    for at in sample(range(1, counting.writes + 1, step)):
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
    crashing.at = 14
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
    make_archive(opened(another))
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
