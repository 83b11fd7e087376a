"""The frame that every command runs in: its configuration and its reporter."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import click

from kbackup.cli.common.output import Reporter, configure_logging
from kbackup.config import Config, Files, Loaded, Setting, exposes_secret, load
from kbackup.errors import KbackupError, UsageError

if TYPE_CHECKING:
    from kbackup.cli.common.notify.notifier import Notifier
    from kbackup.metrics.exposition import MetricsFile

P = ParamSpec("P")
log = logging.getLogger(__name__)


@dataclass
class State:
    """The values of the flags, collected while click parses them; one for each run, shared by group and command."""

    arguments: list[str] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    files: Files = field(default_factory=Files)
    json: bool = False
    json_line: bool = False
    quiet: bool = False
    debug: bool = False
    verbose: int = 0
    reporter: Reporter | None = None
    error: KbackupError | None = None
    metrics: MetricsFile | None = None
    accept_rollback: bool = False
    notifier: Notifier | None = None


@dataclass(frozen=True)
class Frame:
    """The configuration and the reporter of a command; the first argument of a command with `pass_frame`."""

    loaded: Loaded
    reporter: Reporter
    metrics: MetricsFile | None = None
    accept_rollback: bool = False
    notifier: Notifier | None = None

    @property
    def config(self) -> Config:
        return self.loaded.config

    @property
    def archive(self) -> str:
        """The archive's URL. Raises `UsageError` if none is named."""
        if not self.config.archive:
            raise UsageError(
                "no archive is named", "give --archive, set KBACKUP_ARCHIVE, or archive in kbackup.toml"
            )
        return self.config.archive


def start_reporter(state: State) -> Reporter:
    """Configure logging and make the reporter of a command."""
    configure_logging(2 if state.debug else state.verbose)
    state.reporter = Reporter(json=state.json, one_line=state.json_line, quiet=state.quiet)
    return state.reporter


def load_config(state: State) -> Loaded:
    """Load the configuration with the flags of `state`. Logs its notes, and warns of secrets on the command line."""
    loaded = load(state.settings, state.files)
    for setting in state.settings:
        if exposes_secret(setting.path, setting.value):
            log.warning(
                "%s is on the command line, which every user of this machine can read: "
                "write ${env:NAME} or ${file:/path}",
                setting.path,
            )
    for note in loaded.notes:
        log.info(note)
    return loaded


def pass_frame(command: Callable[Concatenate[Frame, P], int | None]) -> Callable[P, int]:
    """Make a function the body of a command: its first argument is a `Frame`, its result the exit code (None is 0)."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        context = click.get_current_context()
        state = context.ensure_object(State)
        reporter = start_reporter(state)
        loaded = load_config(state)
        state.notifier = _notifier(loaded.config, context)
        frame = Frame(loaded, reporter, state.metrics, state.accept_rollback, state.notifier)
        return command(frame, *args, **kwargs) or 0

    return run


def _notifier(config: Config, context: click.Context) -> Notifier | None:
    if not config.notify.url:
        return None
    from kbackup.cli.common.notify.notifier import notifier_for

    return notifier_for(config, context.command_path.partition(" ")[2], context.params)
