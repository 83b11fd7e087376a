"""Pins, labels and interruptions of copies, and backups into a promoted copy."""

from __future__ import annotations

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.operations import label_point, may_salvage, pin_points, release_points
from kbackup.archive.lease import HeldLease
from kbackup.archive.reader import open_archive
from kbackup.config.models import Backup
from kbackup.errors import (
    NoArchiveError,
    RefusedError,
)
from kbackup.jobs.backup.job import begin
from kbackup.jobs.copy import promote
from kbackup.store.base import Store
from tests.support.copies import (
    change,
    check_same,
    check_whole,
    copied,
    copied_at,
    point_copied,
    seen,
    unchanged,
)
from tests.support.crash_store import crashed
from tests.support.histories import History
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.exhaustive(keep=2)


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
        run = begin(Backup(), store, "c", lease).run
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
