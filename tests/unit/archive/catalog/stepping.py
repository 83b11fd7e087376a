"""Actors in greenlets: each call of their store is a step that a scheduler makes."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

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
