"""The command line. Each command is a module with an object `command`.

A module is imported when its command is called, so that `kbackup --help` starts at once."""

from __future__ import annotations

import difflib
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click
from click.shell_completion import shell_complete

from kbackup import __version__
from kbackup.cli.common.exit_codes import EXIT_CODES
from kbackup.cli.common.frame import State
from kbackup.cli.common.lazy import load_command
from kbackup.cli.common.metrics_file import finish_metrics, requested_metrics_file
from kbackup.cli.common.options import common_options
from kbackup.cli.common.output import Reporter
from kbackup.errors import InterruptedByUserError, KbackupError, UsageError, from_text
from kbackup.metrics.registry import counted, failed
from kbackup.util.printable import printable, printable_lines

COMMANDS = {
    "backup": ("backup", "Back up a cluster into one new restore point."),
    "restore": ("restore", "Restore records, group offsets and settings into a cluster."),
    "list": ("list_cmd", "List an archive's restore points."),
    "info": ("info", "Show what an archive holds and what it lost."),
    "ls": ("ls", "List topics, partitions and segments."),
    "cat": ("cat", "Print records."),
    "find": ("find", "Search keys, values and headers of records."),
    "ui": ("ui", "Show an archive in a browser."),
    "groups": ("groups.command", "Show, plan, set and undo offsets of consumer groups."),
    "mirror": ("mirror", "Mirror clusters by MirrorMaker 2's properties file."),
    "migrate": ("migrate", "Check, watch and archive a migration from ZooKeeper to KRaft."),
    "diff": ("diff", "Compare two restore points, or one with a cluster."),
    "verify": ("verify", "Verify an archive's bytes, or a cluster against an archive."),
    "drill": ("drill.command", "Restore for practice, compare with the archive, and report."),
    "check": ("check", "Check configuration, access and rights before a run."),
    "expire": ("expire", "Expire restore points by policy, and records by age."),
    "keep": ("keep", "Pin a restore point, so that it never expires."),
    "release": ("release", "Remove the pin of a restore point."),
    "label": ("label", "Give a restore point a label."),
    "log": ("log", "Show the history of an archive."),
    "promote": ("promote", "Make a copy an independent archive."),
    "export": ("export", "Write records into Delta tables or Parquet files."),
    "copy": ("copy", "Copy an archive, or what is new in it, to another store."),
    "adopt": ("adopt", "Make an archive of a folder of the Java tool."),
    "repair": ("repair", "Repair an archive that has lost files."),
    "unlock": ("unlock", "Show who holds an archive's lease, and break a dead lease."),
    "key": ("key", "Generate, list and rotate keys of encrypted archives."),
    "config": ("config_cmd", "Show the configuration and where each value came from."),
}
"""Command: (module, short help)."""


class LazyGroup(click.Group):
    """The group of `COMMANDS`; imports a command when it is called or its help is printed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load_command(f"{__name__}.{COMMANDS[cmd_name][0]}") if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            also = f"; did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"no such command: {args[0]}{also}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])


def _print_version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"kbackup {__version__}")
        context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version.",
)
@common_options
def cli() -> None:
    """Back up Apache Kafka to object storage, and restore it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code. Errors are printed on stderr, without a traceback."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    command = next((argument for argument in args if argument in COMMANDS), "")
    counted.begin(command)
    state = State(
        json="--json" in args,
        debug="--debug" in args or os.environ.get("KBACKUP_DEBUG", "0") not in ("", "0"),
    )
    with _sigterm_interrupts():
        return finish_metrics(_guarded(args, command, state), state.metrics)


def _guarded(args: list[str], command: str, state: State) -> int:
    """Run the command line and turn every exception into an exit code."""
    try:
        state.metrics = requested_metrics_file(args, command)
        return _run(args, state)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as shown:
        shown.show()
        return UsageError.exit_code
    except (Exception, KeyboardInterrupt) as raised:  # noqa: BLE001 (the outermost frame: all end in a code)
        if isinstance(raised, BrokenPipeError) and _is_stdout_closed():
            return KbackupError.exit_code
        if state.debug:
            print(printable_lines("".join(traceback.format_exception(raised))), file=sys.stderr)
        return _report(_as_error(raised), state)


def _run(args: list[str], state: State) -> int:
    """Run the command line like click's own `main`, but without its handling of exceptions.

    That takes a socket's broken pipe for stdout's, and an early end of a stream for Ctrl-D."""
    if instruction := os.environ.get("_KBACKUP_COMPLETE"):
        return shell_complete(cli, {}, "kbackup", "_KBACKUP_COMPLETE", instruction)
    with cli.make_context("kbackup", args, obj=state) as context:
        return cli.invoke(context) or 0


def _as_error(raised: BaseException) -> KbackupError:
    """Return the error to print: kbackup's own, also if it comes in an executor's traceback."""
    if _is_interrupt(raised):
        return InterruptedByUserError("interrupted")
    if isinstance(raised, KbackupError):
        return raised
    if isinstance(raised, click.ClickException):
        context = getattr(raised, "ctx", None)
        path = context.command_path if context else "kbackup"
        return UsageError(raised.format_message().rstrip("."), f"try '{path} --help'")
    if known := from_text(str(raised)):
        return known
    last_line = "".join(traceback.format_exception_only(raised)).strip().partition("\n")[0]
    return KbackupError(f"internal error: {last_line}", "run again with --debug to see the traceback")


def _is_interrupt(raised: BaseException | None) -> bool:
    """Return whether an interrupt caused the exception: Spark's cancelled job raises another one over it."""
    while raised is not None:
        if isinstance(raised, KeyboardInterrupt | click.Abort):
            return True
        raised = raised.__context__
    return False


def _report(error: KbackupError, state: State) -> int:
    failed(error)
    for label, text in (("kbackup", error.message), ("hint", error.hint)):
        if text:
            print(f"{label}: {_lines(text)}", file=sys.stderr)
    if state.json and not (state.reporter and state.reporter.documents):
        fields = {"type": type(error).__name__, "message": error.message, "hint": error.hint}
        Reporter(json=True).document({"error": {**fields, "exit_code": error.exit_code}})
    return error.exit_code


def _lines(text: str) -> str:
    """Return a text with all lines but the first indented: a line feed in a name can't fake a line of output."""
    first, *others = map(printable, text.split("\n"))
    return "\n".join([first, *(line if line.startswith("  ") else f"  {line}" for line in others)])


def _is_stdout_closed() -> bool:
    """Return whether the reader of stdout has ended (`kbackup list | head`); if so, discard the rest of the output."""
    poll = select.poll()
    poll.register(sys.stdout, 0)
    closed = any(events & select.POLLERR for _, events in poll.poll(0))
    if closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return closed


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does, with its cleaning up.

    A running Spark replaces the handler of SIGINT: it cancels jobs, which the run would wait for otherwise."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        on_interrupt = signal.getsignal(signal.SIGINT)
        if callable(on_interrupt):
            on_interrupt(signal.SIGINT, frame)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
