"""Copy one restore point as an archive of its own."""

from __future__ import annotations

import pytest

from kbackup.archive.catalog.operations import pin_points
from kbackup.archive.query.content import content_of
from kbackup.archive.reader import open_archive
from kbackup.errors import (
    RefusedError,
    UsageError,
)
from kbackup.jobs.copy import promote
from tests.support.archives import make_archive
from tests.support.copies import (
    Open,
    StoreNamed,
    add_point,
    answers,
    change,
    check_whole,
    copied,
    copied_at,
    expired,
    inner_copy,
    point_copied,
    reached,
    seen,
)
from tests.support.crash_store import crashed
from tests.support.histories import History
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.exhaustive(keep=2)


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
