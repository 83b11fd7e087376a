"""Opening archives: whole ones, and those that something is wrong with."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kbackup.archive import layout
from kbackup.archive.commit import open_or_create, seal_unfinished
from kbackup.archive.models import ArchiveInfo, dump
from kbackup.archive.reader import open_archive
from kbackup.errors import CorruptError, NoArchiveError, UsageError
from tests.support.faulty_store import FaultyStore
from tests.unit.archive.making import TOPIC, committed, intend, state, target, write


def test_nothing_there(store: FaultyStore) -> None:
    with pytest.raises(NoArchiveError, match="there is no archive at "):
        open_archive(store)
    open_or_create(store)
    archive = open_archive(store)
    assert archive.head is None
    with pytest.raises(NoArchiveError, match="has no restore point"):
        archive.restore_point("latest")


def test_restore_points_in_order_and_by_number(store: FaultyStore) -> None:
    archive = open_or_create(store)
    committed(store, 1, None)
    intend(archive, 2, 1)
    seal_unfinished(archive, "next")
    committed(store, 3, 1)
    committed(store, 12, 3)
    archive = open_archive(store)
    assert [m.seq for m in archive.restore_points] == [1, 3, 12]
    assert archive.head == archive.restore_point("latest") == archive.restore_point(12)
    assert archive.restore_point("3").parent == 1
    for unknown in (2, "2", 4, "03", "newest"):
        with pytest.raises(UsageError, match=f"there is no restore point {unknown}"):
            archive.restore_point(unknown)


def test_a_missing_manifest_breaks_the_chain(store: FaultyStore) -> None:
    for seq in (1, 2, 3):
        committed(store, seq, seq - 1 or None)
    store.delete([layout.backup_key(2, layout.MANIFEST)])
    with pytest.raises(CorruptError, match="restore point 3 names 2 as its predecessor, but that is 1"):
        _ = open_archive(store).restore_points


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": "other"}, "says format 'other'"),
        ({"version": 2}, "has version 2, known is 1"),
        ({"seq": 9}, "does not match its own checksum"),
        ({"surprise": 1}, "surprise"),
        ({"status": "great"}, "great"),
    ],
)
def test_a_manifest_that_was_changed_is_refused(
    change: dict[str, object], why: str, store: FaultyStore
) -> None:
    committed(store, 1, None)
    key = layout.backup_key(1, layout.MANIFEST)
    store.put(key, json.dumps(json.loads(store.get(key)) | change).encode())
    with pytest.raises(CorruptError, match=why) as raised:
        _ = open_archive(store).restore_points
    assert key in raised.value.message


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[]", b"null"])
def test_what_is_no_json_object_is_refused(data: bytes, store: FaultyStore) -> None:
    open_or_create(store)
    store.put(layout.ARCHIVE, data)
    with pytest.raises(CorruptError, match=r"file archive\.json"):
        open_archive(store)


def test_a_manifest_of_another_archive_or_number_is_refused(store: FaultyStore) -> None:
    committed(store, 1, None)
    store.put(layout.backup_key(2, layout.MANIFEST), store.get(layout.backup_key(1, layout.MANIFEST)))
    with pytest.raises(CorruptError, match="says restore point 1"):
        _ = open_archive(store).restore_points
    store.put(layout.ARCHIVE, dump(ArchiveInfo(id="another", created_at="2020-01-01T00:00:00.000Z")))
    with pytest.raises(CorruptError, match="belongs to archive"):
        _ = open_archive(store).restore_points


@pytest.mark.parametrize("name", [layout.SEGMENTS, layout.GROUPS, layout.METADATA])
def test_the_files_beside_a_manifest_are_those_it_names(name: str, store: FaultyStore) -> None:
    archive, point = committed(store, 1, None)
    reads: dict[str, Callable[[], object]] = {
        layout.SEGMENTS: lambda: open_archive(store).added(point),
        layout.GROUPS: lambda: archive.groups(point),
        layout.METADATA: lambda: archive.metadata(point),
    }
    key = layout.backup_key(1, name)
    data = store.get(key)
    reads[name]()
    store.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptError, match="is not what its manifest says"):
        reads[name]()
    store.delete([key])
    with pytest.raises(CorruptError, match="is missing"):
        reads[name]()


def test_the_segments_that_a_restore_point_stands_on(store: FaultyStore) -> None:
    first = write(store, target(1), range(9)) + write(store, target(0), range(30))
    committed(store, 1, None, first, [state((0, 0, 30), (1, 0, 9), seq=1)])
    second = write(store, target(0), range(30, 40)) + write(store, target(0, incarnation=2), range(5))
    point = [state((0, 0, 40), (1, 0, 9), seq=2)]
    committed(store, 2, 1, second, point)
    archive = open_archive(store)
    found = archive.segments(archive.restore_point(2))
    ours = [s for s in [*first, *second] if s.incarnation == 1]
    assert found == sorted(ours, key=lambda s: (s.partition, s.first))
    assert archive.segments(archive.restore_point(1)) == sorted(first, key=lambda s: (s.partition, s.first))
    renewed = [state((0, 0, 5), seq=2, incarnation=2)]
    assert [s.incarnation for s in archive.segments(archive.restore_point(2), renewed)] == [2]
    assert archive.segments(archive.restore_point(2), []) == []
    assert {s.topic for s in found} == {TOPIC}
