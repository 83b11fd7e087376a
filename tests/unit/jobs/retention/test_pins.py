"""Pins, labels, and the history of an archive after sweeps."""

from __future__ import annotations

import pytest

from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from kbackup.errors import (
    UsageError,
)
from kbackup.jobs.points import history as history_of
from kbackup.jobs.points import label, pin, release, remove_label
from kbackup.jobs.retention import undo
from tests.support.expirations import DAY, check_whole, expired
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.exhaustive(keep=2)


def test_pins(built: MemoryStore) -> None:
    store = built.copy()
    assert pin(store, "latest").pinned == (9,)
    assert not pin(store, "9").changed
    assert pin(store, "2").pinned == (2, 9)
    with pytest.raises(UsageError, match="no restore point 6"):
        pin(store, "6")
    with pytest.raises(UsageError, match="3 is not pinned"):
        release(store, "3")
    expired(store, last=1)
    assert [p.number for p in open_archive(store).restore_points] == [2, 9]
    assert release(store, "2").pinned == (9,)
    expired(store, last=1)
    assert [p.number for p in open_archive(store).restore_points] == [9]
    with pytest.raises(UsageError, match="2 was let go"):
        pin(store, "2")
    check_whole(store, clean=True)


def test_labels(built: MemoryStore) -> None:
    store = built.copy()
    assert label(store, "2", "good").labels == {"good": 2}
    assert label(store, "good", "before-migration").labels == {"good": 2, "before-migration": 2}
    assert open_archive(store).restore_point("good").number == 2
    number = open_archive(store).state.number
    label(store, "2", "good")
    assert open_archive(store).state.number == number, "nothing changed"
    assert label(store, "latest", "good").labels == {"good": 9, "before-migration": 2}
    assert pin(store, "before-migration").pinned == (2,)
    for wrong in ("7", "latest", "7days", "", "a b", "ä", "a" * 101):
        with pytest.raises(UsageError, match="can't be used"):
            label(store, "2", wrong)
    with pytest.raises(UsageError, match="no restore point goood") as raised:
        open_archive(store).restore_point("goood")
    assert "'good'" in raised.value.hint
    release(store, "2")
    expired(store, last=2)
    assert open_archive(store).state.labels == {"good": 9}, "a label does not keep its restore point"
    assert remove_label(store, "good").labels == {}
    with pytest.raises(UsageError, match="no restore point has label 'good'"):
        remove_label(store, "good")
    check_whole(store)


def test_the_history_outlives_sweeps(built: MemoryStore) -> None:
    store = built.copy()
    pin(store, "3")
    label(store, "3", "good")
    expired(store, last=2, grace=DAY)
    undo(store, 60)
    archive = open_archive(store)
    before = history_of(archive)
    assert [row.catalog for row in before] == [*range(1, archive.state.number + 1)]
    assert [row.kind for row in before][-4:] == ["keep", "label", "expire", "undo"]
    assert all(row.at and row.by and row.summary for row in before)
    for last in (5, 3, 2):
        expired(store, last=last)
    archive = open_archive(store)
    assert len([e for e in store.list(layout.CATALOG) if e.key != layout.LATEST]) < 4
    rows = history_of(archive)
    assert rows[: len(before)] == before
    assert [row.catalog for row in rows] == [*range(1, archive.state.number + 1)]
    assert [row.kind for row in rows][len(before) :] == ["expire", "sweep"] * 3
    assert history_of(archive, 4) == rows[-4:]
    assert history_of(archive, 1000) == rows
