"""The command line. Each command is a module with an object `command`.

A module is imported when its command is called, so that `kbackup --help` starts at once."""

from __future__ import annotations

import difflib
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType

import click
from click.shell_completion import CompletionItem, shell_complete

from kbackup import __version__
from kbackup.cli.common import command_context
from kbackup.cli.common.command_context import EXIT_CODES, FlagValues
from kbackup.cli.common.options import common_options
from kbackup.cli.common.output import Reporter
from kbackup.errors import InterruptedByUserError, KbackupError, UsageError, without_credentials
from kbackup.metrics.registry import counted, failed
from kbackup.systems import systems
from kbackup.util.text import printable_lines

COMMANDS = {
    "init": ("init", "Ask for a backup's configuration, try it, and write it."),
    "backup": ("backup", "Back up a cluster into one new restore point."),
    "restore": ("restore", "Restore records, group offsets and settings into a cluster."),
    "status": ("status", "Show in one line whether an archive is well."),
    "list": ("info:list_command", "List an archive's restore points."),
    "info": ("info", "Show what an archive holds and what it lost."),
    "ls": ("cat:ls_command", "List topics, partitions and segments."),
    "cat": ("cat", "Print records."),
    "find": ("find", "Search keys, values and headers of records."),
    "ui": ("ui", "Show an archive in a browser."),
    "serve": ("serve", "Serve an archive to Kafka's own clients."),
    "serve-user": ("serve_user", "Let a user log in to `kbackup serve`."),
    "groups": ("groups", "Show, plan, set and undo offsets of consumer groups."),
    "schemas": ("schemas", "Show, compare, export and restore schemas of a registry."),
    **{system.command: (f"{system.package}.cli", system.summary) for system in systems()},
    "diff": ("diff", "Compare two restore points, or one with a cluster."),
    "verify": ("verify", "Verify an archive's bytes, or a cluster against an archive."),
    "drill": ("drill", "Restore for practice, compare with the archive, and report."),
    "check": ("check", "Check configuration, access and rights before a run."),
    "expire": ("expire", "Expire restore points by policy, and records by age."),
    "erase": ("erase", "Erase records from all restore points."),
    "rewrite": ("rewrite", "Merge small segments of an archive."),
    "keep": ("points:keep_command", "Pin a restore point, so that it never expires."),
    "release": ("points:release_command", "Remove the pin of a restore point."),
    "label": ("points:label_command", "Give a restore point a label."),
    "log": ("points:log_command", "Show the history of an archive."),
    "promote": ("points:promote_command", "Make a copy an independent archive."),
    "export": ("backup:export_command", "Write records into Delta tables or Parquet files."),
    "copy": ("copy", "Copy an archive, or what is new in it, to another store."),
    "adopt": ("repair:adopt_command", "Make an archive of a folder of the Java tool."),
    "repair": ("repair", "Repair an archive that has lost files."),
    "unlock": ("unlock", "Show who holds an archive's lease, and break a dead lease."),
    "key": ("key", "Generate, list and rotate keys of encrypted archives."),
    "config": ("help_cmd:config_command", "Show the configuration and where each value came from."),
    "completion": ("help_cmd:completion_command", "Print the completion script of a shell."),
    "help": ("help_cmd:help_command", "Show the help of a command."),
}
"""Command: (module, short help). A module with several commands is named with the object: `module:object`. Modules of
this package are named without it."""

GROUPS = {
    "Every day": ("backup", "status", "list", "check"),
    "When it burns": ("restore", "groups", "schemas", "repair", "unlock"),
    "Look into an archive": ("info", "ls", "cat", "find", "diff", "log", "ui", "serve", "export"),
    "Keep an archive": (
        "verify",
        "drill",
        "expire",
        "erase",
        "rewrite",
        "keep",
        "release",
        "label",
        "copy",
        "promote",
        "key",
    ),
    "Clusters": tuple(system.command for system in systems()),
    "Set up": ("init", "config", "serve-user", "adopt", "completion", "help"),
}
"""The commands by task, as help shows them."""

JSON_LINE = "--json=line"
"""The flag --json with a value, which click has no flags for."""

COMPLETION_VARIABLE = "_KBACKUP_COMPLETE"
"""The variable by which the script of a shell calls kbackup to complete a word."""


class CommandGroup(command_context.LazyGroup):
    """The group of `COMMANDS`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            also = f"; did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"no such command: {name}{also}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands without importing them."""
        items = []
        for name, (_, text) in COMMANDS.items():
            if name.startswith(incomplete):
                items.append(CompletionItem(name, help=text))
        # Not the method of `click.Group`, which would import every command for its help.
        items += click.Command.shell_complete(self, ctx, incomplete)
        return items

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in GROUPS.items():
            if not names:
                continue  # no system is installed
            with formatter.section(title):
                # Names are padded to one width, so that the columns of all sections stand below one another.
                formatter.write_dl([(f"{name:<10}", COMMANDS[name][1]) for name in names])
        # Not the method of `click.Group`, which would list the commands once more.
        click.Command.format_options(self, ctx, formatter)
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])


def _print_version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"kbackup {__version__}")
        context.exit()


@click.group(
    cls=CommandGroup,
    subcommands={name: module if "." in module else f"{__name__}.{module}" for name, (module, _) in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
@common_options
def cli() -> None:
    """Back up Apache Kafka to object storage, and restore it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code. Errors are printed on stderr, without a traceback."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    # Not from click, because the metrics count a command line that click refuses, too.
    command = next((argument for argument in args if argument in COMMANDS), "")
    counted.begin(command)
    # These flags count from the start: an error of click's parser is printed by them, too.
    json_line = JSON_LINE in args
    debug = "--debug" in args or os.environ.get("KBACKUP_DEBUG", "0") not in ("", "0")
    state = FlagValues(arguments=args, json="--json" in args or json_line, json_line=json_line, debug=debug)
    with command_context.signal_handler(_interrupt, signal.SIGTERM):
        code = _guarded(partial(_run, args, command, state), state)
        if state.notifier is not None:
            state.notifier.run_ended(code, state.reporter, state.error)
        # The document comes last: the exit code in it counts an error of the metrics, too.
        ended = command_context.finish_metrics(code, state.metrics)
        return _guarded(partial(_print_document, ended, state), state)


def _guarded(work: Callable[[], int], state: FlagValues) -> int:
    """Do the work and turn every exception into an exit code."""
    try:
        return work()
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as shown:
        shown.show()
        return UsageError.exit_code
    except (Exception, KeyboardInterrupt) as raised:  # noqa: BLE001 (the outermost frame: all end in a code)
        if isinstance(raised, BrokenPipeError) and _is_stdout_closed():
            return KbackupError.exit_code
        if state.debug:
            # Errors of libraries have the addresses of their requests, with signatures.
            lines = traceback.format_exception(raised)
            text = without_credentials("".join(lines))
            print(printable_lines(text), file=sys.stderr)
        error = command_context.as_error(raised)
        if isinstance(error, InterruptedByUserError) and state.interruption is not None:
            error = state.interruption()
        state.error = error
        failed(error)
        command_context.print_error(error)
        return error.exit_code


def _run(args: list[str], command: str, state: FlagValues) -> int:
    """Run the command line like click's own `main`, but without its handling of exceptions.

    That takes a socket's broken pipe for stdout's, and an early end of a stream for Ctrl-D."""
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        return shell_complete(cli, {}, "kbackup", COMPLETION_VARIABLE, instruction)
    state.metrics = command_context.requested_metrics_file(args, command)
    with cli.make_context("kbackup", plain_arguments(args), obj=state) as context:
        return cli.invoke(context) or 0


def plain_arguments(args: Sequence[str]) -> list[str]:
    """Return arguments as click parses them: `main` has read the value of --json=line."""
    plain: list[str] = []
    for argument in args:
        # click knows --json as a flag alone, which takes no value.
        if argument == JSON_LINE:
            argument = "--json"
        plain.append(argument)
    return plain


def _print_document(code: int, state: FlagValues) -> int:
    reporter = state.reporter or Reporter(json=state.json, one_line=state.json_line)
    reporter.finish(code, state.error)
    return code


def _is_stdout_closed() -> bool:
    """Return whether the reader of stdout has ended (`kbackup list | head`); if so, discard the rest of the output."""
    poll = select.poll()
    poll.register(sys.stdout, 0)
    closed = any(events & select.POLLERR for _, events in poll.poll(0))
    if closed:
        # Python flushes stdout at its end, and would report the closed pipe once more.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
    return closed


def _interrupt(number: int, stack: FrameType | None) -> None:
    """Let SIGTERM end a run as Ctrl-C does, with its cleaning up.

    A running Spark replaces the handler of SIGINT: it cancels jobs, which the run would wait for otherwise."""
    command_context.interrupt_by(signal.getsignal(signal.SIGINT), stack)
