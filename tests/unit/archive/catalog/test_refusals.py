"""Each operation of writers and of retention refuses what it must; a refusal names the obstacle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kbackup.archive.catalog import operations, retention
from kbackup.archive.catalog.documents import Link, Origin
from kbackup.archive.catalog.operations import NewPoint
from kbackup.archive.catalog.state import State
from kbackup.errors import KbackupError, LeaseLostError, RefusedError, UsageError
from tests.unit.archive.catalog.rows import ARCHIVE, AT, grown, new_point, open_run, point, segment, table

Operation = Callable[[State], State]

_NEXT = new_point(4, [segment("t", 30, 39)], {("t", 1): "id"})
_STARTS = {("t", 1, 0): 10}


def _let_go(state: State) -> State:
    return retention.expire_points(state, [1])


def _undone(change: Operation = lambda state: state) -> Operation:
    """`change` between an expiration of restore point 1 and its undo."""

    def undone(state: State) -> State:
        before = replace(state, number=1)
        after = replace(_let_go(before), number=2)
        return retention.undo_expiration(change(after), before, after)

    return undone


def _foreign(number: int, *documents: str) -> NewPoint:
    return NewPoint(point(number, "r", documents), table([segment("t", 30, 39)]), {("t", 1): "id"})


REFUSED: dict[str, tuple[Operation, type[KbackupError], str]] = {
    "end of a run that was closed": (
        lambda s: operations.end_run(operations.begin_run(s, open_run("later")), "r"),
        LeaseLostError,
        "this run was closed by another writer",
    ),
    "end of a run that ended": (
        lambda s: operations.end_run(operations.end_run(s, "r"), "r"),
        LeaseLostError,
        "this run was closed by another writer",
    ),
    "point of a run that was closed": (
        lambda s: operations.add_point(operations.begin_run(s, open_run("later")), "r", _NEXT),
        LeaseLostError,
        "this run was closed by another writer",
    ),
    "reservation of a run that was closed": (
        lambda s: operations.reserve_incarnations(
            operations.begin_run(s, open_run("later")), "r", {("u", 1): "id-u"}
        ),
        LeaseLostError,
        "this run was closed by another writer",
    ),
    "number that was given": (
        lambda s: operations.add_point(s, "r", new_point(3, [], {})),
        RefusedError,
        "restore point 3 is not the next one, 4",
    ),
    "number that was let go": (
        lambda s: operations.add_point(_let_go(s), "r", new_point(1, [], {})),
        RefusedError,
        "restore point 1 is not the next one, 4",
    ),
    "number that skips one": (
        lambda s: operations.add_point(s, "r", new_point(5, [], {})),
        RefusedError,
        "restore point 5 is not the next one, 4",
    ),
    "document of an older point": (
        lambda s: operations.add_point(s, "r", _foreign(4, s.restore_points[0].documents[0])),
        RefusedError,
        "restore point 4 refers to points/0000000001-r/manifest.json, which the newest one does not",
    ),
    "incarnation that skips one": (
        lambda s: operations.reserve_incarnations(s, "r", {("t", 3): "id-3"}),
        RefusedError,
        "topic t: incarnation 3 can't follow 1",
    ),
    "first incarnation that is no first": (
        lambda s: operations.reserve_incarnations(s, "r", {("u", 2): "id-u"}),
        RefusedError,
        "topic u: incarnation 2 can't follow 0",
    ),
    "pin of a point that never was": (
        lambda s: operations.pin_points(s, [2, 7], AT),
        UsageError,
        "restore point 7 does not exist",
    ),
    "pin of a point that was let go": (
        lambda s: operations.pin_points(_let_go(s), [1], AT),
        UsageError,
        "restore point 1 was let go",
    ),
    "release of a point that was let go": (
        lambda s: operations.release_points(_let_go(s), [1]),
        UsageError,
        "restore point 1 was let go",
    ),
    "label of a point that was let go": (
        lambda s: operations.label_point(_let_go(s), "a", 1),
        UsageError,
        "restore point 1 was let go",
    ),
    "label that is not there": (
        lambda s: operations.label_point(s, "a", None),
        UsageError,
        "no restore point has label 'a'",
    ),
    "expiration of a point that was let go": (
        lambda s: retention.expire_points(_let_go(s), [1]),
        UsageError,
        "restore point 1 was let go",
    ),
    "expiration of a pinned point": (
        lambda s: retention.expire_points(operations.pin_points(s, [2], AT), [1, 2]),
        RefusedError,
        "restore point 2 is pinned",
    ),
    "expiration of the newest point": (
        lambda s: retention.expire_points(s, [3]),
        RefusedError,
        "restore point 3 is the newest one",
    ),
    "expiration of records of a pinned point": (
        lambda s: retention.expire_records(operations.pin_points(s, [2], AT), _STARTS),
        RefusedError,
        "t-0: a pinned restore point has records below offset 10",
    ),
    "undo in a copy": (
        _undone(lambda s: replace(s, origin=Origin(archive="a", catalog=Link(number=1, checksum="")))),
        RefusedError,
        "this archive is a copy",
    ),
    "undo of what was swept": (
        _undone(lambda s: retention.mark_swept(s, 1)),
        RefusedError,
        "objects of that expiration may be deleted already",
    ),
    "undo below a later expiration of points": (
        _undone(lambda s: retention.expire_points(s, [2])),
        RefusedError,
        "restore points or records went since that expiration",
    ),
    "undo below a later expiration of records": (
        _undone(lambda s: retention.expire_records(s, _STARTS)),
        RefusedError,
        "restore points or records went since that expiration",
    ),
}
ALLOWED: dict[str, Operation] = {
    "end": lambda s: operations.end_run(s, "r"),
    "add a point": lambda s: operations.add_point(s, "r", _NEXT),
    "add a point with a document of the newest": lambda s: operations.add_point(
        s, "r", _foreign(4, s.restore_points[-1].documents[0])
    ),
    "reserve": lambda s: operations.reserve_incarnations(s, "r", {("t", 2): "id-2"}),
    "pin": lambda s: operations.pin_points(s, [1], AT),
    "label": lambda s: operations.label_point(s, "a", 1),
    "expire points": _let_go,
    "expire records": lambda s: retention.expire_records(operations.pin_points(s, [1], AT), {}),
    "expire records that no pinned point has": lambda s: retention.expire_records(s, _STARTS),
    "undo": _undone(),
    "undo after a backup": _undone(lambda s: operations.add_point(s, "r", _NEXT)),
    "undo after a pin": _undone(lambda s: operations.pin_points(s, [2], AT)),
}
"""The neighbours of the refused ones: without these a refusal of everything would pass."""


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    operation, error, message = REFUSED[name]
    state = grown(3)
    with pytest.raises(error) as raised:
        operation(state)
    assert message in raised.value.message
    assert raised.value.hint
    assert (state.next_point, len(state.restore_points), dict(state.pins)) == (4, 3, {}), "a value"


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name: str) -> None:
    assert ALLOWED[name](grown(3)).archive_id == ARCHIVE


def test_salvage_takes_one_isolation_level() -> None:
    state = grown(1)
    assert operations.may_salvage(state)
    assert not operations.may_salvage(operations.begin_run(state, open_run("later", "read_uncommitted")))


def test_records_of_a_pinned_point_are_never_chosen() -> None:
    state = grown(3)
    assert retention.old_starts(state, 20_000) == {("t", 1, 0): 20}
    assert retention.old_starts(operations.pin_points(state, [2], AT), 20_000) == {}
    assert retention.old_starts(state, 20_000, [("t", 1)]) == {}
