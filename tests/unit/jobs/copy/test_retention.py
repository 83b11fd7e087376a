"""Copies of archives whose records expire at the source or at the copy."""

from __future__ import annotations

import pytest

from kbackup.archive.reader import open_archive
from tests.support.copies import check_whole, copied, copied_at, expired, seen, swept
from tests.support.crash_store import crashed

pytestmark = pytest.mark.exhaustive(keep=2)


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
