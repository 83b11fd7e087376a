"""infra/docs/commands.md: every command with its options, from click's own objects."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator

import click

from kbackup.cli import COMMANDS, cli
from kbackup.cli.common.options import s3_options

_HEAD = """\
# Commands

Made from the code by `python -m scripts.docs`. Options that stand for a key of the configuration can as well be set in
`kbackup.toml` or by a variable: [configuration.md](configuration.md). Exit codes: [exit-codes.md](exit-codes.md).
Data goes to stdout; notes, progress and warnings to stderr. With `--json` stdout has one document
(`cat` and `find`: one a record, each in a line).

An archive is named `s3://bucket/prefix`, `file:///path`, or by a path.
"""


def commands_document() -> str:
    sections = [_HEAD, *(text for name in COMMANDS for text in _sections(name))]
    sections.append(_shared("Options of every command", cli.params))
    sections.append(_shared("Options of every command that opens an archive", _s3_params()))
    return "\n".join(sections)


def _sections(name: str) -> Iterator[str]:
    """A command's, and those of the commands below it."""
    command = cli.get_command(click.Context(cli, info_name="kbackup"), name)
    assert command is not None, name
    yield _command(name, command)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for part in command.list_commands(context):
            below = command.get_command(context, part)
            assert below is not None, part
            yield _command(f"{name} {part}", below)


def _command(name: str, command: click.Command) -> str:
    shared = {param.name for param in (*cli.params, *_s3_params())}
    own = [param for param in command.params if param.name not in shared]
    pieces = " ".join(["kbackup", name, *_usage(command)])
    text = inspect.cleandoc(command.help or "")
    return f"## kbackup {name}\n```\n{pieces}\n```\n\n{text}\n\n{_table(own)}"


def _usage(command: click.Command) -> Iterator[str]:
    yield "[OPTIONS]"
    for param in command.params:
        if isinstance(param, click.Argument):
            yield param.make_metavar(click.Context(command))
    if isinstance(command, click.Group):
        yield f"[{'|'.join(command.list_commands(click.Context(command)))}]"


def _shared(title: str, params: Iterable[click.Parameter]) -> str:
    return f"## {title}\n{_table(params)}"


def _s3_params() -> list[click.Parameter]:
    @s3_options
    def bare() -> None: ...

    return click.command(bare).params


def _table(params: Iterable[click.Parameter]) -> str:
    options = [param for param in params if isinstance(param, click.Option) and not param.hidden]
    if not options:
        return ""
    rows = [f"| {_names(option)} | {_cell(_meaning(option))} |\n" for option in options]
    return "| option | meaning |\n|---|---|\n" + "".join(rows)


def _meaning(option: click.Option) -> str:
    """With the default, where click would show it; a key of the configuration says its own."""
    return f"{option.help or ''}{f' [default {option.default}]' if option.show_default else ''}"


def _names(option: click.Option) -> str:
    takes = "" if option.is_flag or option.count else f" {option.make_metavar(click.Context(cli))}"
    *others, last = [*option.opts, *option.secondary_opts]
    return _cell(", ".join([*(f"`{name}`" for name in others), f"`{last}{takes}`"]))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
