"""A checker of interleavings: the archive's own code as actors whose steps are calls of one store in memory.

An execution replays a schedule: which actor makes the next call. From each state every actor is tried. A state is the
store's content, with what each actor was answered so far: an actor's future follows from these, so a state that was
visited is not explored again. Actors that are never scheduled again are those that crashed: the invariants and the
epilogue (later runs, a sweep) are checked in every state, which is a crash of every actor at every step.

Random tokens are numbered by actor, so that executions repeat. Thread pools work one call after the other."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kbackup.errors import KbackupError
from tests.support.memory_store import MemoryStore
from tests.unit.archive.catalog.repeatable import repeatable
from tests.unit.archive.catalog.stepping import Actor, Scheduler, SteppedStore, Visible


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
