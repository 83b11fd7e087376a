"""Numbered captures of a restore on a target: restores/<id>/<name>-<n>.json, from 1, created and never replaced."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Generic, TypeVar

from kbackup.archive import layout
from kbackup.archive.models import Document, dump, load
from kbackup.errors import AlreadyExistsError
from kbackup.store.base import Store

D = TypeVar("D", bound=Document)


class NumberedCaptures(Generic[D]):
    """The captures of one restore on `state`: documents of one `kind`, in files of one `name`."""

    def __init__(self, kind: type[D], name: str, state: Store, restore_id: str) -> None:
        self._kind = kind
        self._name = name
        self.state = state
        self.restore_id = restore_id

    def numbers(self) -> list[int]:
        """The numbers of the captures, ascending."""
        prefix = layout.restore_key(self.restore_id, f"{self._name}-")
        pattern = re.compile(rf"{self._name}-([1-9][0-9]*)\.json")
        names = (entry.key.rpartition("/")[2] for entry in self.state.list(prefix))
        return sorted(int(found[1]) for name in names if (found := pattern.fullmatch(name)))

    def read(self, number: int) -> D:
        """The capture of that number; `NotFoundError` where there is none."""
        key = self._key(number)
        return load(self._kind, self.state.get(key), key)

    def every(self) -> list[D]:
        """The captures, by number."""
        return [self.read(number) for number in self.numbers()]

    def create(self, make: Callable[[int], D]) -> int:
        """Store what `make` returns for the next free number; returns that number."""
        number = max(self.numbers(), default=0) + 1
        while True:
            try:
                self.state.put_new(self._key(number), dump(make(number)))
            except AlreadyExistsError:
                number += 1
                continue
            return number

    def _key(self, number: int) -> str:
        return layout.restore_key(self.restore_id, f"{self._name}-{number}.json")
