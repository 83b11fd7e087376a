"""What every command runs in: configuration, reporter, errors, exit code and metrics."""

from __future__ import annotations

import difflib
import functools
import importlib
import logging
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import click

from kbackup.cli.common.logs import configure_logging
from kbackup.cli.common.output import Reporter
from kbackup.config import Config, ConfigFiles, Loaded, Setting, exposes_secret, load
from kbackup.config.load import DEFAULT_FILE
from kbackup.errors import EXIT_OK, InterruptedByUserError, KbackupError, UsageError, from_text
from kbackup.metrics.registry import counted
from kbackup.util.text import printable

if TYPE_CHECKING:
    from kbackup.cli.common.notify import Notifier
    from kbackup.metrics.server import MetricsFile

P = ParamSpec("P")
log = logging.getLogger(__name__)

EXIT_CODES: dict[int, str] = {
    0: "done",
    1: "error, or refused by a check before any write",
    2: "a flag, key or value is invalid",
    3: "done, with a loss, a difference, a setting that could not be set or a finding of status; the report names each",
    10: "no archive, not the expected archive or cluster, a finished restore that the target no "
    "longer holds, or a cluster that is not ready to migrate or can't go back",
    11: "another writer holds the archive's lease, or took it over",
    12: "the key of an encrypted archive is wrong or missing",
    13: "damage: bytes differ from format or manifest; a file of a newer kbackup; or the sides of a migration differ",
    14: "source, target, store or schema registry can't be reached or denies access",
    130: "interrupted by SIGINT or SIGTERM",
}
"""The meaning of each exit code; the codes themselves belong to the classes in `kbackup.errors`."""


def as_error(raised: BaseException) -> KbackupError:
    """Return the error to print: kbackup's own, also if it comes in an executor's traceback."""
    # Over an interrupt, Spark's cancelled job raises another exception.
    cause: BaseException | None = raised
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt | click.Abort):
            return InterruptedByUserError("interrupted")
        cause = cause.__context__
    if isinstance(raised, KbackupError):
        return raised
    if isinstance(raised, click.ClickException):
        context = getattr(raised, "ctx", None)
        path = context.command_path if context else "kbackup"
        return UsageError(_click_message(raised), f"try '{path} --help'")
    # An error of a task comes as Java's traceback, in which our own one stands as text.
    known = from_text(str(raised))
    if known is not None:
        return known
    lines = traceback.format_exception_only(raised)
    first_line = "".join(lines).strip().partition("\n")[0]
    return KbackupError(f"internal error: {first_line}", "run again with --debug to see the traceback")


def _click_message(raised: click.ClickException) -> str:
    """Return the message of an error of click in the words of the others."""
    if isinstance(raised, click.NoSuchOption):
        nearest = difflib.get_close_matches(raised.option_name, raised.possibilities or [], n=1)
        advice = f"; did you mean {nearest[0]!r}?" if nearest else ""
        return f"no such option {raised.option_name!r}{advice}"
    text = raised.format_message()
    if isinstance(raised, click.BadParameter) and not isinstance(raised, click.MissingParameter):
        text = f"{_name_of(raised.param)}: {raised.message}"
    text = text.replace("is not a valid integer range", "is not a whole number").replace("integer", "whole number")
    text = re.sub(r"is not in the range x>=(\S+)", r"is less than \1", text).replace(". Did you", "; did you")
    return text[:1].lower() + text[1:].rstrip(".")


def _name_of(parameter: click.Parameter | None) -> str | None:
    """Return how a parameter is called on the command line: by its long option, if it has one."""
    if parameter is None:
        return "argument"
    return parameter.opts[-1] if parameter.opts else parameter.name


def print_error(error: KbackupError) -> None:
    """Print the message and the hint of an error, if it has them."""
    if error.message:
        _print_labelled("kbackup", error.message)
    if error.hint:
        _print_labelled("hint", error.hint)


def _print_labelled(label: str, text: str) -> None:
    lines: list[str] = []
    for line in text.split("\n"):
        line = printable(line)
        # A line feed in a name can't fake a line of its own: all lines but the first are indented.
        if lines and not line.startswith("  "):
            line = f"  {line}"
        lines.append(line)
    print(f"{label}: " + "\n".join(lines), file=sys.stderr)


METRICS_FILE = "--metrics-file"


def requested_metrics_file(args: Sequence[str], command: str) -> MetricsFile | None:
    """Return the file of `--metrics-file`, or None. Raises `UsageError` if it can't be written.

    Reads the raw arguments: a command line that click can't parse is counted, too."""
    # The last one counts, as with click.
    path = ""
    for at, argument in enumerate(args):
        if argument == METRICS_FILE:
            path = "".join(args[at + 1 : at + 2])
        elif argument.startswith(f"{METRICS_FILE}="):
            path = argument.partition("=")[2]
    if not path:
        return None
    from kbackup.metrics.server import MetricsFile

    return MetricsFile(path, command)


def finish_metrics(code: int, file: MetricsFile | None) -> int:
    """Count the end, write the metrics and return the exit code: an error if only writing the metrics failed."""
    counted.end(code)
    if file is None:
        return code
    try:
        file.write(counted.snapshot())
    except OSError as error:
        message = printable(f"the metrics were not written: {error}")
        print(f"kbackup: {message}", file=sys.stderr)
        return KbackupError.exit_code if code == EXIT_OK else code
    return code


@contextmanager
def signal_handler(handler: Callable[[int, FrameType | None], None], *numbers: int) -> Iterator[None]:
    """Handle signals, and put back the handlers before at the end. Only a main thread receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous or signal.SIG_DFL)


def interrupt_by(handler: object, stack: FrameType | None) -> None:
    """Call an earlier handler of SIGINT, if there is one, and raise `KeyboardInterrupt` if it does not.

    A shell ignores SIGINT for jobs in the background."""
    # The handler is a number, not a function, if SIGINT was ignored or has its default effect.
    if callable(handler):
        handler(signal.SIGINT, stack)
    raise KeyboardInterrupt


# Commands that are imported when they are called or asked for help.


class LazyGroup(click.Group):
    """A group that imports a subcommand when it is called or its help is printed.

    `subcommands` are the modules by name, in the order of the help: of each its object `command`, or the one that
    `module:object` names."""

    def __init__(self, *args: Any, subcommands: Mapping[str, str], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.subcommands = subcommands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.subcommands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.subcommands:
            return None
        module, _, attribute = self.subcommands[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute or "command")
        return command


# A command's configuration and reporter.


@dataclass
class FlagValues:
    """The values of the flags, collected while click parses them; one for each run, shared by group and command."""

    arguments: list[str] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    config_file: str | None = None
    source_file: str | None = None
    target_file: str | None = None
    json: bool = False
    json_line: bool = False
    quiet: bool = False
    wide: bool = False
    debug: bool = False
    verbose: int = 0
    reporter: Reporter | None = None
    error: KbackupError | None = None
    metrics: MetricsFile | None = None
    accept_rollback: bool = False
    time_zone: tzinfo | None = None
    notifier: Notifier | None = None
    interruption: Callable[[], InterruptedByUserError] | None = None


@dataclass(frozen=True)
class CommandContext:
    """The configuration and the reporter of a command; the first argument of a command with `pass_command_context`."""

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
        if self.config.archive:
            return self.config.archive
        hint = "give --archive, set KBACKUP_ARCHIVE, or archive in kbackup.toml"
        if not Path(DEFAULT_FILE).is_file():
            hint += "; 'kbackup init' asks for all of it and writes that file"
        raise UsageError("no archive is named", hint)


def start_reporter(state: FlagValues) -> Reporter:
    """Configure logging and make the reporter of a command."""
    verbosity = 2 if state.debug else state.verbose
    configure_logging(verbosity)
    state.reporter = Reporter(json=state.json, one_line=state.json_line, quiet=state.quiet, wide=state.wide)
    state.reporter.time_zone = state.time_zone
    return state.reporter


def load_config(state: FlagValues) -> Loaded:
    """Load the configuration with the flags of `state`. Logs its notes, and warns of secrets on the command line."""
    files = ConfigFiles(state.config_file, state.source_file, state.target_file)
    loaded = load(state.settings, files)
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


def pass_command_context(command: Callable[Concatenate[CommandContext, P], int | None]) -> Callable[P, int]:
    """Make a function the body of a command: its first argument is a `CommandContext`, its result the exit code (None
    is 0)."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        invoked = click.get_current_context()
        state = invoked.ensure_object(FlagValues)
        reporter = start_reporter(state)
        loaded = load_config(state)
        # Few commands notify anybody: the others don't wait for the import.
        if loaded.config.notify.url:
            from kbackup.cli.common.notify import notifier_for

            state.notifier = notifier_for(loaded.config, invoked.command_path.partition(" ")[2], invoked.params)
        context = CommandContext(loaded, reporter, state.metrics, state.accept_rollback, state.notifier)
        return command(context, *args, **kwargs) or 0

    return run
