"""The pure state: what a restore point has after any sequence of operations, and what each operation refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kbackup.archive.catalog import copies, operations, retention
from kbackup.archive.catalog.documents import Link, Origin
from kbackup.archive.catalog.state import State
from kbackup.archive.models import Manifest
from kbackup.errors import KbackupError, LeaseLostError, RefusedError, UsageError
from kbackup.types import Incarnation
from tests.support.exhaustive import sample
from tests.support.made_segments import a_segment
from tests.unit.archive.catalog.rows import ARCHIVE, AT, grown, keys_of, new_point, open_run

ORIGIN = Origin(archive="file:///source", catalog=Link(number=1, checksum="sha256:" + "0" * 64))
TOPICS = ("s", "t")


@dataclass
class Listed:
    """The content of a restore point at its commit: its incarnations and the keys of its segments."""

    incarnations: tuple[Incarnation, ...]
    keys: frozenset[str]


@dataclass
class Model:
    """A model of the archive's state without the catalog's tables. `ends` are of living incarnations."""

    points: dict[int, Listed] = field(default_factory=dict)
    expired: frozenset[str] = frozenset()
    damaged: frozenset[str] = frozenset()

    def keys(self, number: int) -> set[str]:
        return {*self.points[number].keys} - self.expired - self.damaged

    def copy(self) -> Model:
        return Model(dict(self.points), self.expired, self.damaged)


def check(state: State, model: Model) -> None:
    """The restore points of `state` are those of `model`, with their segments."""
    assert {p.number for p in state.restore_points} == model.points.keys()
    assert len(state.points) == len(model.points), "no restore point is listed twice"
    counts = retention.records_by_point(state)
    rows = {row["key"]: row for row in state.segments.dicts()}
    assert len(rows) == len(state.segments), "no segment is listed twice"
    for number, listed in model.points.items():
        have = keys_of(state, number, listed.incarnations)
        assert have == model.keys(number), number
        assert counts[number] == sum(rows[key]["count"] for key in have)
    assert rows.keys() == {key for number in model.points for key in model.keys(number)}, "rows of no point"
    places: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for row in rows.values():
        place = (row["topic"], row["incarnation"], row["partition"])
        places.setdefault(place, []).append((row["first"], row["last"]))
    for ranges in places.values():
        assert all(a[1] < b[0] for a, b in pairwise(sorted(ranges))), "segments overlap"
    assert {*state.pins} | {*state.labels.values()} <= model.points.keys()
    assert not {*state.past_manifests} & model.points.keys()
    assert len(state.past_manifests) == len(state.past)
    for life in state.lives.values():
        assert not (life.retired and any((life[:2]) in p.incarnations for p in model.points.values())), life
    for rows_of in state.tables().values():
        assert len(rows_of.chunks) <= 3


class Machine(RuleBasedStateMachine):
    """An archive and a copy of it. Each rule is one catalog."""

    @initialize()
    def start(self) -> None:
        self.state = State(ARCHIVE)
        self.dropped: set[str] = set()
        self.model = Model()
        self.runs = 0
        self.given: dict[Incarnation, str] = {}
        self.reserved: dict[Incarnation, str] = {}
        self.ends: dict[Incarnation, int] = {}
        self.living: dict[str, Incarnation] = {}
        self.numbers = 0
        self.undoable: list[tuple[State, State, Model, Model]] = []
        self.copy = State(ARCHIVE)
        self.copied = Model()
        self.begin("read_committed")
        self.reserve({*TOPICS}, same=False)
        for _ in range(3):
            self.add_point(set(), [1, 2])

    def step(self, state: State) -> None:
        if state is not self.state:
            self.dropped |= {*self.state.segments.columns("key")[0]} - {*state.segments.columns("key")[0]}
            self.state = replace(state, number=self.state.number + 1)

    @property
    def run(self) -> str:
        return f"r{self.runs}"

    @property
    def is_open(self) -> bool:
        return self.state.open_run is not None

    @rule(level=st.sampled_from(["read_committed", "read_uncommitted"]), ended=st.booleans())
    @precondition(lambda self: self.points_of_run or not self.is_open)
    def another_run(self, level: str, ended: bool) -> None:
        if ended and self.is_open:
            self.step(operations.end_run(self.state, self.run))
            with pytest.raises(LeaseLostError):
                operations.end_run(self.state, self.run)
        self.begin(level)

    def begin(self, level: str) -> None:
        closed = self.run
        self.runs += 1
        self.step(operations.begin_run(self.state, open_run(self.run, level)))  # type: ignore[arg-type]
        with pytest.raises(LeaseLostError):
            operations.end_run(self.state, closed)
        self.reserved = {}
        self.points_of_run = 0

    @rule(recreated=st.sets(st.sampled_from(TOPICS)), same=st.booleans())
    def reserve(self, recreated: set[str], same: bool) -> None:
        """Topics that were created (again): an interrupted run may have reserved the same number for the same id."""
        requested: dict[Incarnation, str] = {}
        for topic in recreated:
            topic_id = f"{topic}{0 if same else self.state.number}"
            requested[topic, operations.next_incarnation(self.state, topic, topic_id)] = topic_id
        self.step(operations.reserve_incarnations(self.state, self.run, requested))
        for key, topic_id in requested.items():
            assert self.given.get(key, topic_id) == topic_id, "an incarnation number is given twice"
            assert not any(key in p.incarnations for p in self.model.points.values())
        self.given |= requested
        self.reserved |= requested

    @rule(deleted=st.sets(st.sampled_from(TOPICS)), sizes=st.lists(st.integers(0, 2), min_size=2, max_size=2))
    def add_point(self, deleted: set[str], sizes: list[int]) -> None:
        self.points_of_run += 1
        number = self.state.next_point
        assert number > self.numbers, "a restore point's number is given twice"
        self.numbers = number
        here = {**self.living, **{key[0]: key for key in sorted(self.reserved)}}
        self.living = {topic: key for topic, key in here.items() if topic not in deleted}
        added = []
        for (topic, incarnation), size in zip(self.living.values(), sizes, strict=False):
            for _ in range(size):
                end = self.ends.get((topic, incarnation), 0)
                added.append(a_segment(topic, end, end + 1, incarnation=incarnation))
                self.ends[topic, incarnation] = end + 3  # a gap, as transactions leave them
        incarnations = {key: self.given[key] for key in self.living.values()}
        self.step(operations.add_point(self.state, *new_point(number, added, incarnations, self.run)))
        older = [p.keys for n, p in self.model.points.items()]
        keys = {key for each in older for key in each if _incarnation_of(key) in incarnations}
        keys |= self._hidden(incarnations) | {s.key for s in added}
        self.model.points[number] = Listed(tuple(incarnations), frozenset(keys))
        self.reserved = {key: v for key, v in self.reserved.items() if key not in incarnations}

    def _hidden(self, incarnations: dict[Incarnation, str]) -> set[str]:
        """Segments that the state has of living incarnations: those that no restore point is left of but the newest."""
        return {key for key in self.state.segments.columns("key")[0] if _incarnation_of(key) in incarnations}

    @rule(data=st.data())
    @precondition(lambda self: len(self.model.points) > 1)
    def expire(self, data: st.DataObject) -> None:
        newest = max(self.model.points)
        free = [n for n in self.model.points if n != newest and n not in self.state.pins]
        going = data.draw(st.sets(st.sampled_from(free)) if free else st.just(set()))
        cutoff = data.draw(st.integers(-1, max(self.ends.values(), default=0))) * 1000
        before, old = self.state, self.model.copy()
        after = retention.expire_points(before, going)
        after = retention.expire_records(after, retention.old_starts(after, cutoff))
        self.step(after)
        if self.state is before:
            return
        for number in going:
            del self.model.points[number]
        dropped = {*before.segments.columns("key")[0]} - {*self.state.segments.columns("key")[0]}
        held = {key for number in self.state.pins for key in self.model.keys(number)}
        assert not dropped & held, "a pinned restore point lost records"
        aged = {
            row["key"] for row in before.segments.dicts() if row["key"] in dropped and row["max_timestamp"] < cutoff
        }
        self.model.expired |= aged
        self.undoable.append((before, self.state, old, self.model.copy()))

    @rule(twice=st.booleans())
    @precondition(lambda self: self.undoable and self.state.swept < self.undoable[-1][0].number)
    def retention(self, twice: bool) -> None:
        before, after, old, new = self.undoable.pop()
        listed = self.model.points.keys()
        lost = {p.number for p in after.restore_points} - listed
        came_back = {p.number for p in before.restore_points} - {p.number for p in after.restore_points}
        if came_back <= listed and self.state.starts == before.starts:
            assert retention.undo_expiration(self.state, before, after) is self.state
            return
        if lost or came_back & listed or self.state.starts != after.starts:
            with pytest.raises(RefusedError, match="have expired since"):
                retention.undo_expiration(self.state, before, after)
            return
        back = retention.undo_expiration(self.state, before, after)
        if twice:  # another process did the same
            back = retention.undo_expiration(back, before, after)
        self.step(back)
        for number in old.points.keys() - new.points.keys():
            self.model.points[number] = old.points[number]
        self.model.expired -= new.expired - old.expired

    @rule()
    @precondition(lambda self: self.undoable)
    def mark_swept(self) -> None:
        self.step(retention.mark_swept(self.state, self.state.number - 1))
        for before, after, _, _ in self.undoable:
            with pytest.raises(RefusedError, match="deleted already"):
                retention.undo_expiration(self.state, before, after)
        self.undoable = []

    @rule(data=st.data())
    @precondition(lambda self: self.model.points)
    def pin_and_label(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.model.points)))
        step: Callable[[], State] = data.draw(
            st.sampled_from(
                [
                    lambda: operations.pin_points(self.state, [number], AT),
                    lambda: operations.release_points(self.state, [number]),
                    lambda: operations.label_point(self.state, "a", number),
                    lambda: replace(self.state, next_point=self.state.next_point + 2),
                ]
            )
        )
        self.step(step())

    @rule(data=st.data())
    def lose_segments(self, data: st.DataObject) -> None:
        keys = self.state.segments.columns("key")[0]
        damaged = data.draw(st.sets(st.sampled_from(keys), max_size=2)) if keys else set()
        rows = {row["key"]: row for row in self.state.segments.dicts()}
        self.step(retention.lose_segments(self.state, dict.fromkeys(damaged, "it is missing")))
        self.model.damaged |= damaged
        said = {(r["point"], r["topic"], r["incarnation"], r["start"]) for r in self.state.losses.dicts()}
        for key in damaged:
            assert (rows[key]["point"], *_incarnation_of(key), rows[key]["first"]) in said

    @rule(data=st.data())
    @precondition(lambda self: len(self.model.points) > 1)
    def lose_a_point(self, data: st.DataObject) -> None:
        newest = max(self.model.points)
        number = data.draw(st.sampled_from([n for n in self.model.points if n != newest]))
        self.model.points.pop(number)
        self.step(retention.lose_points(self.state, [number]))
        for _, _, old, new in self.undoable:  # an undo takes back what its expiration let go, not this one
            old.points.pop(number, None)
            new.points.pop(number, None)

    @rule(keep=st.booleans())
    @precondition(lambda self: self.model.points)
    def copy_archive(self, keep: bool) -> None:
        run = open_run(f"c{self.state.number}")
        begun = operations.begin_run(replace(self.copy, number=self.copy.number + 1), run)
        before = self.copied.copy()
        try:
            state = copies.follow_source(begun, self.state, run.run, ORIGIN, keep)
        except RefusedError:
            return
        self.copy = operations.end_run(state, run.run)
        numbers = {p.number for p in self.copy.restore_points}
        new = {n for n in self.model.points if n >= begun.next_point}
        kept = before.points.keys() if keep else before.points.keys() & self.model.points.keys()
        assert numbers == new | {*kept}, "restore points of the copy"
        points = {n: self.model.points.get(n, before.points.get(n)) for n in numbers}
        assert all(listed is not None for listed in points.values())
        # a copy may have what was damaged at the source since, and lack what the source dropped and took back
        for number in new:
            listed = self.model.points[number]
            have = keys_of(self.copy, number, listed.incarnations)
            assert keys_of(self.state, number, listed.incarnations) - self.dropped <= have <= listed.keys
        self.copied = Model({n: p for n, p in points.items() if p is not None})
        promoted = copies.promote(self.copy)
        assert promoted.origin is None

    @rule(data=st.data())
    @precondition(lambda self: self.model.points)
    def copy_of_one(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.model.points)))
        one = copies.only_point(self.state, number)
        expected = Model({number: self.model.points[number]}, self.model.expired, self.model.damaged)
        check(one, expected)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "state"):
            check(self.state, self.model)
            assert self.numbers < self.state.next_point
            for (topic, incarnation), _ in self.given.items():
                assert self.state.highest[topic] >= incarnation


def _incarnation_of(key: str) -> Incarnation:
    folder = key.split("/")[1]
    topic, _, number = folder.partition("@")
    return topic, int(number or 1)


def test_every_sequence_of_operations() -> None:
    examples = len(sample(range(80), 8, regular=40))
    run_state_machine_as_test(Machine, settings=settings(max_examples=examples, stateful_step_count=25, deadline=None))


# Each operation of writers and of retention refuses what it must; a refusal names the obstacle.


Operation = Callable[[State], State]

_NEXT = new_point(4, [a_segment("t", 30, 39)], {("t", 1): "id"})
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


def _foreign(number: int, *documents: str) -> tuple[Manifest, pa.Table]:
    return new_point(number, [a_segment("t", 30, 39)], {("t", 1): "id"}, documents=documents)


def _closed(state: State) -> State:
    return operations.begin_run(state, open_run("later"))


def _pinned(state: State) -> State:
    return operations.pin_points(state, [2], AT)


_CLOSED = "another writer has ended this run"
_GONE = "restore point 1 expired or was lost"
_WENT = "more restore points or records have expired since that expiration"
_ORIGIN = Origin(archive="a", catalog=Link(number=1, checksum=""))
LOST: dict[str, tuple[Operation, str]] = {
    "end of a run that was closed": (lambda s: operations.end_run(_closed(s), "r"), _CLOSED),
    "end of a run that ended": (lambda s: operations.end_run(operations.end_run(s, "r"), "r"), _CLOSED),
    "point of a run that was closed": (lambda s: operations.add_point(_closed(s), *_NEXT), _CLOSED),
    "reservation of a run that was closed": (
        lambda s: operations.reserve_incarnations(_closed(s), "r", {("u", 1): "id-u"}),
        _CLOSED,
    ),
}
MISNAMED: dict[str, tuple[Operation, str]] = {
    "pin of a point that never was": (lambda s: operations.pin_points(s, [2, 7], AT), "restore point 7 does not exist"),
    "pin of a point that was let go": (lambda s: operations.pin_points(_let_go(s), [1], AT), _GONE),
    "release of a point that was let go": (lambda s: operations.release_points(_let_go(s), [1]), _GONE),
    "label of a point that was let go": (lambda s: operations.label_point(_let_go(s), "a", 1), _GONE),
    "label that is not there": (lambda s: operations.label_point(s, "a", None), "no restore point has label 'a'"),
    "expiration of a point that was let go": (lambda s: retention.expire_points(_let_go(s), [1]), _GONE),
}
REFUSED: dict[str, tuple[Operation, str]] = {
    "number that was given": (
        lambda s: operations.add_point(s, *new_point(3, [], {})),
        "restore point 3 is not the next one, 4",
    ),
    "number that was let go": (
        lambda s: operations.add_point(_let_go(s), *new_point(1, [], {})),
        "restore point 1 is not the next one, 4",
    ),
    "number that skips one": (
        lambda s: operations.add_point(s, *new_point(5, [], {})),
        "restore point 5 is not the next one, 4",
    ),
    "document of an older point": (
        lambda s: operations.add_point(s, *_foreign(4, s.restore_points[0].documents[0])),
        "restore point 4 refers to points/0000000001-r/manifest.json, which the newest one does not",
    ),
    "incarnation that skips one": (
        lambda s: operations.reserve_incarnations(s, "r", {("t", 3): "id-3"}),
        "topic t: incarnation 3 can't follow 1",
    ),
    "first incarnation that is no first": (
        lambda s: operations.reserve_incarnations(s, "r", {("u", 2): "id-u"}),
        "topic u: incarnation 2 can't follow 0",
    ),
    "expiration of a pinned point": (
        lambda s: retention.expire_points(_pinned(s), [1, 2]),
        "restore point 2 is pinned",
    ),
    "expiration of the newest point": (lambda s: retention.expire_points(s, [3]), "restore point 3 is the newest one"),
    "expiration of records of a pinned point": (
        lambda s: retention.expire_records(_pinned(s), _STARTS),
        "t-0: a pinned restore point has records below offset 10",
    ),
    "undo in a copy": (_undone(lambda s: replace(s, origin=_ORIGIN)), "this archive is a copy"),
    "undo of what was swept": (
        _undone(lambda s: retention.mark_swept(s, 1)),
        "objects of that expiration may be deleted already",
    ),
    "undo below a later expiration of points": (_undone(lambda s: retention.expire_points(s, [2])), _WENT),
    "undo below a later expiration of records": (_undone(lambda s: retention.expire_records(s, _STARTS)), _WENT),
}
ERRORS: dict[type[KbackupError], dict[str, tuple[Operation, str]]] = {
    LeaseLostError: LOST, UsageError: MISNAMED, RefusedError: REFUSED,
}  # fmt: skip
ALLOWED: dict[str, Operation] = {
    "end": lambda s: operations.end_run(s, "r"),
    "add a point": lambda s: operations.add_point(s, *_NEXT),
    "add a point with a document of the newest": lambda s: operations.add_point(
        s, *_foreign(4, s.restore_points[-1].documents[0])
    ),
    "reserve": lambda s: operations.reserve_incarnations(s, "r", {("t", 2): "id-2"}),
    "pin": lambda s: operations.pin_points(s, [1], AT),
    "label": lambda s: operations.label_point(s, "a", 1),
    "expire points": _let_go,
    "expire records": lambda s: retention.expire_records(operations.pin_points(s, [1], AT), {}),
    "expire records that no pinned point has": lambda s: retention.expire_records(s, _STARTS),
    "undo": _undone(),
    "undo after a backup": _undone(lambda s: operations.add_point(s, *_NEXT)),
    "undo after a pin": _undone(lambda s: operations.pin_points(s, [2], AT)),
}
"""The neighbours of the refused ones: without these a refusal of everything would pass."""


@pytest.mark.parametrize(("error", "name"), [(error, name) for error, rows in ERRORS.items() for name in rows])
def test_an_operation_that_is_wrong_for_the_state_is_refused(error: type[KbackupError], name: str) -> None:
    operation, message = ERRORS[error][name]
    state = grown(3)
    with pytest.raises(error) as raised:
        operation(state)
    assert message in raised.value.message
    assert raised.value.hint
    assert (state.next_point, len(state.restore_points), dict(state.pins)) == (4, 3, {}), "a value"


@pytest.mark.parametrize("name", ALLOWED)
def test_an_operation_that_fits_the_state_is_done(name: str) -> None:
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
