"""What a command printed, for the fixture `kbackup` that runs one."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, Protocol


class Printed(NamedTuple):
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line."""
        return [line.split() for line in self.lines]

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def records(self) -> list[Any]:
        """The document of each line."""
        return list(map(json.loads, self.lines))


class Kbackup(Protocol):
    """Runs a command, and checks its exit code."""

    def __call__(self, *args: str, code: int = 0) -> Printed: ...
