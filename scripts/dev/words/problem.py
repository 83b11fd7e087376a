"""One finding of a rule."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import NamedTuple


class Problem(NamedTuple):
    path: PurePosixPath  # below the root
    line: int
    rule: str  # names, terms, docstrings, sizes, hints
    message: str
    hint: str
    name: str = ""  # as exemptions call the object

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message} ({self.hint})"
