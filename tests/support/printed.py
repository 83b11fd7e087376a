"""What commands print and import, and their command lines."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kbackup.cli import cli
from kbackup.cli.common.command_context import FlagValues
from kbackup.config import Config, load

_BETWEEN_CELLS = re.compile(r"\s{2,}")


class Printed(NamedTuple):
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def words(self) -> list[str]:
        """Each line with single spaces between its words."""
        return [" ".join(line.split()) for line in self.lines]

    def table(self, first: str) -> list[dict[str, str]]:
        """Return the rows of the table whose first column is `first`, by the names of columns as they are printed."""
        lines = iter(_BETWEEN_CELLS.split(line.strip()) for line in self.lines)
        head = next(cells for cells in lines if cells[0] == first and len(cells) > 1)
        rows = takewhile(lambda cells: len(cells) > 1, lines)
        return [dict(zip(head, cells, strict=False)) for cells in rows]  # the last cell may be empty

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


def parsed_command(words: Sequence[str]) -> Config:
    """Return the configuration that the words of a command line set, without a file and variables."""
    assert words[0] == "kbackup"
    state = FlagValues(json="--json" in words, debug="--debug" in words)
    with cli.make_context("kbackup", list(words[1:]), obj=state) as context:
        command = cli.get_command(context, words[1])
        assert command is not None
        with command.make_context(words[1], list(words[2:]), parent=context, obj=state):
            assert not state.json
            assert not state.debug
            return load(state.settings, environ={}).config


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


_ROOT = Path(__file__).parents[2]
_PREFIX = "import time:"


def loaded_modules(*arguments: str, cwd: Path = _ROOT, env: Mapping[str, str] | None = None) -> set[str]:
    """Run `kbackup` with these arguments, as a user does, and return the names of all modules it imported.

    `env` replaces the environment. `AssertionError` with the command's output when it fails.
    """
    environ = dict(os.environ if env is None else env) | {"PYTHONPATH": str(_ROOT)}
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kbackup", *arguments],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = run.stderr.splitlines()
    other = [line for line in lines if not line.startswith(_PREFIX)]
    assert run.returncode == 0, (run.returncode, run.stdout, other)
    names = {line.rsplit("|", 1)[1].strip() for line in lines if line.startswith(_PREFIX)}
    assert "kbackup.cli" in names
    return names
