"""What a command says when Ctrl-C or SIGTERM ends it: what is done, what is left, and the command that goes on.

A command registers what describes its state. It is asked once, after the interrupt: it makes no request, and says only
what the command knows by then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import click

from kbackup.cli.common.command_context import FlagValues
from kbackup.cli.common.output import ShownProgress
from kbackup.errors import InterruptedByUserError


def when_interrupted(describe: Callable[[], InterruptedByUserError]) -> None:
    """Have `describe` make the error of the running command if the command is interrupted."""
    click.get_current_context().ensure_object(FlagValues).interruption = describe


def interrupted(state: str, hint: str) -> InterruptedByUserError:
    """Return the error of an interrupted command: `state` says what is done, `hint` what is left to do."""
    return InterruptedByUserError(f"interrupted: {state}", hint)


@dataclass
class SameState:
    """The same state at any time: of a command that changes nothing, or that another run goes on with."""

    state: str
    hint: str

    def __call__(self) -> InterruptedByUserError:
        return interrupted(self.state, self.hint)


@dataclass
class StateByPhase:
    """States by the phase of a job that was reached, each with its hint. `otherwise` counts for all other phases."""

    shown: ShownProgress
    states: dict[str, tuple[str, str]]
    otherwise: tuple[str, str]

    def __call__(self) -> InterruptedByUserError:
        state, hint = self.states.get(self.shown.phase_name, self.otherwise)
        return interrupted(state, hint)
