"""Opening archives: whole ones, and those that something is wrong with."""

from __future__ import annotations

import json

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.retention import expire_points
from kbackup.archive.derived import derived_files
from kbackup.archive.lease import HeldLease
from kbackup.archive.query.content import group_offsets
from kbackup.archive.query.groups import groups_overview
from kbackup.archive.reader import open_archive
from kbackup.archive.run import begin_writing, open_or_create
from kbackup.errors import NoArchiveError, UsageError
from kbackup.kafka.groups.admin import _GROUP as ADMIN_GROUP
from kbackup.kafka.groups.admin import probe_groups
from tests.support.faulty_store import FaultyStore
from tests.support.made_segments import committed, state, target, write


def test_nothing_there(store: FaultyStore) -> None:
    with pytest.raises(NoArchiveError, match="there is no archive at "):
        open_archive(store)
    open_or_create(store)
    archive = open_archive(store)
    assert archive.head is None
    with pytest.raises(NoArchiveError, match="has no restore point"):
        archive.restore_point("latest")


def test_restore_points_in_order_and_by_number(store: FaultyStore) -> None:
    committed(store, 1, None)
    committed(store, 3, 1)
    committed(store, 12, 3)
    archive = open_archive(store)
    assert [p.number for p in archive.restore_points] == [1, 3, 12]
    assert archive.head == archive.restore_point("latest") == archive.restore_point(12)
    assert archive.restore_point("3").previous == 1
    for unknown in (2, "2", 4, "03", "9" * 5000, "newest"):
        with pytest.raises(UsageError, match=f"there is no restore point {unknown}"):
            archive.restore_point(unknown)


def test_a_run_that_has_only_begun_adds_no_restore_point(store: FaultyStore) -> None:
    committed(store, 1, None)
    with HeldLease(store, "kbackup test", 60) as lease:
        begin_writing(store, lease, "backup")
        archive = open_archive(store)
    assert [p.number for p in archive.restore_points] == [1]
    assert archive.state.open_run is not None


def test_an_opened_archive_stays_at_its_catalog(store: FaultyStore) -> None:
    first, _ = committed(store, 1, None)
    reader = open_archive(store)
    committed(store, 2, 1)
    assert [p.number for p in reader.restore_points] == [1]
    reader.reopen()
    assert [p.number for p in reader.restore_points] == [1, 2]
    assert [p.number for p in first.restore_points] == [1]


def test_reopen_reads_only_new_objects(store: FaultyStore) -> None:
    """Nothing but a LIST where there is no later catalog; then no table twice."""
    for number in range(1, 90):
        segments = write(store, target(threshold=1 << 20), range(10 * number, 10 * number + 10))
        committed(store, number, number - 1 or None, segments, [state((0, 0, 10), number=number)])
    reader = open_archive(store)
    reader.restore_point("latest")
    assert [s.first for s in reader.added(85, 89)] == [860, 870, 880, 890]
    before = set(store.calls)
    store.calls.clear()
    reader.reopen()
    assert len(reader.added(85, 89)) == 4
    assert store.calls == [], "LISTs are not among them"
    segments = write(store, target(threshold=1 << 20), range(900, 910))
    committed(store, 90, 89, segments, [state((0, 0, 10), number=90)])
    store.calls.clear()
    reader.reopen()
    assert [s.first for s in reader.added(89, 90)] == [900]
    assert store.calls[0] == ("get", layout.catalog_key(reader.state.number))
    assert before.isdisjoint(store.calls)
    assert len(reader.segments(reader.restore_point("latest"))) == 90


def test_a_restore_point_that_was_let_go_is_called_so(store: FaultyStore) -> None:
    for number in (1, 2, 3):
        committed(store, number, number - 1 or None)
    archive = open_archive(store)
    commit(
        store, archive.committed, lambda s: expire_points(s, {2}), Author("expire", "another", "2 was let go")
    )
    with pytest.raises(UsageError, match="restore point 2 was let go") as raised:
        open_archive(store).restore_point(2)
    assert "the nearest is 1 and 3" in raised.value.hint


def test_own_groups_of_an_old_archive_are_not_read(store: FaultyStore) -> None:
    own = [
        layout.mirror_group("A", "B"),
        layout.progress_group("drill-7"),
        layout.reader_group("backup", "r"),
        layout.reader_group("verify", "v"),
        *probe_groups(2),
        ADMIN_GROUP,
    ]
    offsets = dict.fromkeys([*own, "billing", "kbackup-groups-page"], 3)
    segments = write(store, target(), range(10))
    archive, _ = committed(store, 1, None, segments, [state((0, 0, 10), number=1)], offsets)
    theirs = ["billing", "kbackup-groups-page"]
    head = archive.restore_point("latest")
    assert sorted(g.group for g in archive.groups(head).groups) == theirs
    assert sorted(group_offsets(archive, head.topics)[0]) == theirs, "a restore sets no others"
    assert [g.group for g in groups_overview(archive, head).groups] == theirs
    (file,) = (data for key, data in derived_files(archive).items() if "consumer_offsets" in key)
    assert json.loads(file) == offsets, "files that a former version derived stay valid"
