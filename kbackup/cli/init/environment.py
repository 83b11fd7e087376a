"""The environment file of what runs the backup: its variables, its text, and what is left to fill in."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kbackup.cli.init.schedule import Schedule, environment_text, written_values
from kbackup.cli.init.variables import Variable
from kbackup.errors import UsageError

VariableState = Literal["written", "to fill in", "named"]


@dataclass(frozen=True)
class VariableReport:
    """A variable that the backup uses: `written` into the environment file, left `to fill in` there, or only `named`,
    where init writes no such file."""

    name: str
    state: VariableState


@dataclass
class Environment:
    """The environment file of a schedule, with the variables that the backup uses. `path` is None where nothing of ours
    runs the backup."""

    schedule: Schedule
    path: Path | None
    variables: list[Variable]
    present: str = ""
    text: str = ""
    to_fill_in: tuple[str, ...] = ()

    @property
    def secrets(self) -> list[str]:
        """The secret variables whose values are known."""
        return [variable.name for variable in self.variables if variable.is_secret and variable.value]

    @property
    def is_changed(self) -> bool:
        if self.path is not None and self.path.exists():
            # A file that others may read is written anew, for its owner alone.
            is_open = self.path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
            return self.text != self.present or is_open != 0
        return True

    def complete(self, writes_secrets: bool) -> None:
        """Make the text of the file, with or without the values of secrets."""
        self.present = read_text(self.path) if self.path is not None else ""
        values: dict[str, str | None] = {}
        for variable in self.variables:
            is_written = writes_secrets or not variable.is_secret
            values[variable.name] = variable.value if is_written else None
        self.text = environment_text(self.schedule, self.present, values)
        filled = self.values()
        self.to_fill_in = tuple(name for name in values if not filled.get(name))

    def values(self) -> dict[str, str]:
        """Return the variables that the backup gets from the file."""
        return written_values(self.schedule, self.text)

    def report(self) -> tuple[VariableReport, ...]:
        reports = []
        for variable in self.variables:
            state: VariableState = "written"
            if self.path is None:
                state = "named"
            elif variable.name in self.to_fill_in:
                state = "to fill in"
            reports.append(VariableReport(variable.name, state))
        return tuple(reports)


def read_text(path: Path) -> str:
    """Return the text of a file, "" if there is none."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        reason = "it is not UTF-8 text"
        if isinstance(error, OSError):
            reason = (error.strerror or str(error)).lower()
        raise UsageError(f"can't read {path}: {reason}", "make it readable for this user, or move it away") from None
