"""Actors in greenlets: each call of their store is a step that a scheduler makes."""

from __future__ import annotations

import builtins
import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
from greenlet import GreenletExit, getcurrent, greenlet

from kbackup.archive import layout, reader, run
from kbackup.archive.catalog import commit, sweep, tables
from kbackup.archive.catalog.documents import Derived
from kbackup.archive.catalog.tables import encode
from kbackup.archive.models import dump
from kbackup.archive.reader import Archive
from kbackup.archive.segments.table import decode_table
from kbackup.errors import KbackupError
from kbackup.store.base import Buffer, Failed, ObjectInfo
from tests.support.memory_store import MemoryStore

Actor = Callable[["SteppedStore"], object]
Visible = Callable[[str, str], bool]
"""Tell whether a call (method, key) is a step. Calls that no other actor can observe or disturb need not be."""


class SteppedStore(MemoryStore):
    """A store whose calls hand over to the scheduler first, inside of an actor."""

    scheduler: Scheduler | None = None

    def _step(self, method: str, key: str, call: Callable[[], Any]) -> Any:
        actor = getcurrent()
        if self.scheduler is None or not isinstance(actor, SteppedActor):
            return call()
        if self.scheduler.visible(method, key):
            self.scheduler.main.switch()
        try:
            answer = call()
        except KbackupError as error:
            actor.told(method, key, type(error).__name__)
            raise
        actor.told(method, key, answer)
        return answer

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        return self._step("get", key, lambda: super(SteppedStore, self).get_with_etag(key))  # type: ignore[no-any-return]

    def stat(self, key: str) -> ObjectInfo:
        return self._step("stat", key, lambda: super(SteppedStore, self).stat(key))  # type: ignore[no-any-return]

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        page = self._step("list", prefix, lambda: [*super(SteppedStore, self).list(prefix, start_after)])
        return iter(page)

    def put(self, key: str, data: Buffer) -> str:
        return self._step("put", key, lambda: super(SteppedStore, self).put(key, data))  # type: ignore[no-any-return]

    def put_new(self, key: str, data: Buffer) -> str:
        return self._step("put_new", key, lambda: super(SteppedStore, self).put_new(key, data))  # type: ignore[no-any-return]

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        """A step a key: a process may die between any two."""
        failed: builtins.list[Failed] = []
        for key in keys:
            failed += self._step("delete", key, lambda k=key: super(SteppedStore, self).delete([k]))  # type: ignore[misc]
        return failed

    @classmethod
    def of(cls, store: MemoryStore, clock: Callable[[], float]) -> SteppedStore:
        """A copy of `store`, whose next objects have the times of `clock`."""
        made = cls("memory://stepped", clock)
        made._objects, made._keys = dict(store._objects), [*store._keys]
        return made

    def content(self) -> int:
        return hash(frozenset((k, bytes(o.data), o.modified) for k, o in self._objects.items()))


class SteppedActor(greenlet):  # type: ignore[misc]  # greenlet has no types
    def __init__(self, name: str, work: Callable[[], object]) -> None:
        super().__init__(self._body)
        self.name, self.work = name, work
        self.numbers = 0
        self.answers = 0
        self.error: BaseException | None = None

    def _body(self) -> None:
        try:
            self.work()
        except KbackupError as error:
            self.error = error

    def told(self, method: str, key: str, answer: object) -> None:
        self.answers = hash((self.answers, method, key, _value(answer)))


def _value(answer: object) -> object:
    """Without etags, which count the writes of a store."""
    if isinstance(answer, ObjectInfo):
        return answer.key, answer.size, answer.modified
    if isinstance(answer, builtins.list):
        return tuple(map(_value, answer))
    return answer[0] if isinstance(answer, tuple) else None if isinstance(answer, str) else answer


class Scheduler:
    """One execution: actors that wait for their next step."""

    def __init__(self, store: SteppedStore, actors: Sequence[Actor], visible: Visible) -> None:
        self.store, self.visible = store, visible
        self.main = getcurrent()
        store.scheduler = self
        self.actors = [SteppedActor(f"{n}", lambda work=work: work(store)) for n, work in enumerate(actors)]  # type: ignore[misc]
        for actor in self.actors:
            actor.switch()  # up to its first step

    def step(self, number: int) -> None:
        self.actors[number].switch()

    def waiting(self) -> builtins.list[int]:
        return [n for n, actor in enumerate(self.actors) if not actor.dead]

    def position(self) -> tuple[object, ...]:
        return (self.store.content(), *((a.answers, a.dead) for a in self.actors))

    def ends(self) -> tuple[str, ...]:
        """Return how each actor ended: the class of its error, or ''."""
        return tuple(type(a.error).__name__ if a.error else "" for a in self.actors)

    def close(self) -> None:
        self.store.scheduler = None
        for actor in self.actors:
            if not actor.dead:
                actor.throw(GreenletExit)


# Tokens, times and threads that make executions repeat.


def _one_by_one(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    return [function(item) for item in items]


_files: dict[object, Any] = {}
"""Parquet files of tables, and tables of files: they are the same in a thousand executions."""


def _encode(rows: pa.Table) -> bytes:
    key = (str(rows.schema), str(rows.to_pydict()))
    if key not in _files:
        _files[key] = encode(rows)
    return _files[key]  # type: ignore[no-any-return]


def _decode(
    data: bytes, name: str, schema: pa.Schema, columns: Sequence[str] | None = None, rows: int | None = None
) -> pa.Table:
    key = (data, name, columns and (*columns,), rows)
    if key not in _files:
        _files[key] = decode_table(data, name, schema, columns, rows)
    return _files[key]  # type: ignore[no-any-return]


def _mark_derived(archive: Archive) -> None:
    mark = Derived(archive_id=archive.info.id, catalog=archive.state.number)
    archive.store.put(layout.DERIVED, dump(mark))


_outside = [0]


def _uuid4() -> SimpleNamespace:
    actor = getcurrent()
    if isinstance(actor, SteppedActor):
        actor.numbers += 1
        text = f"{actor.name}:{actor.numbers}"
    else:
        _outside[0] += 1
        text = f"outside:{_outside[0]}"
    return SimpleNamespace(hex=hashlib.md5(text.encode(), usedforsecurity=False).hexdigest())


@contextmanager
def repeatable() -> Iterator[None]:
    """Tokens, times and threads of the archive's code as executions need them. Of the derived files `derived.json` is
    written alone: the others follow from the catalog that it names."""
    uuids = SimpleNamespace(uuid4=_uuid4)
    with (
        mock.patch.object(run, "uuid", uuids),
        mock.patch.object(commit, "uuid", uuids),
        mock.patch.object(run, "now", return_value="2026-01-01T00:00:00.000Z"),
        mock.patch.object(commit, "now", return_value="2026-01-01T00:00:00.000Z"),
        mock.patch.object(run, "refresh_derived", _mark_derived),
        mock.patch.object(tables, "encode", _encode),
        mock.patch.object(tables, "decode_table", _decode),
        mock.patch.object(reader, "in_threads", _one_by_one),
        mock.patch.object(sweep, "in_threads", _one_by_one),
    ):
        yield


# A checker of interleavings: the archive's own code as actors whose steps are calls of one store in memory.
# An execution replays a schedule: which actor makes the next call. From each state every actor is tried. A state is the
# store's content, with what each actor was answered so far: an actor's future follows from these, so a state that was
# visited is not explored again. Actors that are never scheduled again are those that crashed: the invariants and the
# epilogue (later runs, a sweep) are checked in every state, which is a crash of every actor at every step.
# Random tokens are numbered by actor, so that executions repeat. Thread pools work one call after the other.


@dataclass
class Report:
    """`interleavings` are complete schedules that the visited states stand for."""

    complete: bool = False
    """True where every schedule was explored; else those with the most changes of actor remain."""
    executions: int = 0
    states: int = 0
    interleavings: int = 0
    seconds: float = 0.0
    ends: set[tuple[str, ...]] = field(default_factory=set)
    """The ends of the actors, each time that all had ended: the class of an error, or ''."""

    def __str__(self) -> str:
        return (
            f"{self.interleavings} interleavings, {self.states} states, {self.executions} executions, "
            f"{self.seconds:.1f} s, {'all' if self.complete else 'bounded'}"
        )


class ViolationError(AssertionError):
    """An invariant does not hold after `schedule`."""

    def __init__(self, schedule: Sequence[int], why: object) -> None:
        super().__init__(f"{why}\nafter steps of actors {''.join(map(str, schedule))}")


@dataclass
class StateChecker:
    """Check each state once, and hand a copy of it (of each one in `every`) to the epilogue."""

    check: Callable[[SteppedStore], object]
    epilogue: Callable[[MemoryStore], None]
    every: int
    passed: set[int] = field(default_factory=set)

    def check_state(self, scheduler: Scheduler, schedule: Sequence[int]) -> None:
        store, content = scheduler.store, scheduler.store.content()
        if content in self.passed:
            return
        self.passed.add(content)
        scheduler.store.scheduler = None
        try:
            self.check(store)
            if len(self.passed) % self.every == 0:
                self.epilogue(store.copy())
        except (AssertionError, KbackupError) as error:
            raise ViolationError(schedule, error) from error
        finally:
            store.scheduler = scheduler


def explore(
    make: Callable[[], tuple[SteppedStore, Sequence[Actor]]],
    check: Callable[[SteppedStore], object],
    epilogue: Callable[[MemoryStore], None] = lambda store: None,
    visible: Visible = lambda method, key: True,
    limit: int = 1_000_000,
    every: int = 1,
) -> Report:
    """Every interleaving of the actors that `make` makes beside their store. `check` reads a store in every state and
    raises; `epilogue` is handed a copy of the store of every state (of each one in `every`) and may change it."""
    report, began = Report(), time.monotonic()
    paths: dict[object, list[object]] = {}
    ended: set[object] = set()
    stack = deque[tuple[int, ...]]([()])  # schedules with the fewest changes of actor first
    checker = StateChecker(check, epilogue, every)

    with repeatable():
        while stack and report.executions < limit:
            prefix = stack.popleft()
            store, actors = make()
            scheduler = Scheduler(store, actors, visible)
            report.executions += 1
            try:
                for number in prefix[:-1]:
                    scheduler.step(number)
                schedule = [*prefix[:-1]]
                before: object = scheduler.position()
                following: int | None = prefix[-1] if prefix else None
                if following is None:
                    checker.check_state(scheduler, schedule)
                    paths[before] = []
                    stack += [(n,) for n in scheduler.waiting()]
                while following is not None:
                    schedule.append(following)
                    try:
                        scheduler.step(following)
                    except AssertionError as error:
                        raise ViolationError(schedule, error) from error
                    here = scheduler.position()
                    paths[before].append(here)
                    if here in paths:
                        break
                    paths[here] = []
                    checker.check_state(scheduler, schedule)
                    waiting = scheduler.waiting()
                    if not waiting:
                        ended.add(here)
                        report.ends.add(scheduler.ends())
                        break
                    goes_on = following if following in waiting else waiting[0]
                    stack += [(*schedule, n) for n in waiting if n != goes_on]
                    following, before = goes_on, here
            finally:
                scheduler.close()
    report.complete = not stack
    report.states = len(paths)
    report.interleavings = _count(paths, ended)
    report.seconds = time.monotonic() - began
    return report


def _count(paths: dict[object, list[object]], ended: set[object]) -> int:
    """Count the paths that lead from the first state to one where all actors have ended. Steps only go on: no path is a
    circle."""
    counts: dict[object, int] = dict.fromkeys(ended, 1)
    first = next(iter(paths))
    stack = [first]
    while stack:
        state = stack[-1]
        missing = [each for each in paths[state] if each not in counts]
        if state in counts or not missing:
            counts.setdefault(state, sum(counts[each] for each in paths[state]))
            stack.pop()
        else:
            stack += missing
    return counts[first]
