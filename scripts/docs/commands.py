"""infra/docs/commands.md: every command with its options, from click's own objects."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator

import click

from kbackup.cli import COMMANDS, cli
from kbackup.cli.common.key_options import options
from kbackup.cli.common.options import archive_option, s3_options

_HEAD = """\
# Commands

Each command also takes the [options of every command](#options-of-every-command). All but `config`, `key generate` and
`migrate status` open an archive and take the [options of archives](#options-of-every-command-that-opens-an-archive). An
archive's address is `s3://bucket/prefix`, `file:///path` or a path.

Data goes to stdout; notes, progress and warnings go to stderr. With `--json` a command prints one JSON document; `cat`
and `find` print one for each record, each on a line. [exit-codes.md](exit-codes.md) lists the exit codes. You can also
set most options in `kbackup.toml` or by a variable: see [configuration.md](configuration.md).

`python -m scripts.docs` writes this page from the code.
"""


_LIKE = {
    "find": "cat",
    "groups apply": "groups plan",
    "verify": "restore",
    "drill": "restore",
    "check": "backup",
}
"""Commands that name the options which they share with another command, and don't explain them again."""


def commands_document() -> str:
    sections = [_HEAD, *(_section(name, command) for name, command in _commands().items())]
    sections.append(_shared("Options of every command", cli.params))
    sections.append(_shared("Options of every command that opens an archive", _archive_params()))
    return "\n".join(sections)


def _commands() -> dict[str, click.Command]:
    """Return every command by its name, also those below a group."""
    commands: dict[str, click.Command] = {}
    context = click.Context(cli, info_name="kbackup")
    for name in COMMANDS:
        command = commands[name] = _subcommand(cli, context, name)
        if isinstance(command, click.Group):
            below = click.Context(command)
            for part in command.list_commands(below):
                commands[f"{name} {part}"] = _subcommand(command, below, part)
    return commands


def _subcommand(group: click.Group, context: click.Context, name: str) -> click.Command:
    command = group.get_command(context, name)
    assert command is not None, name
    return command


def _section(name: str, command: click.Command) -> str:
    usage = " ".join(["kbackup", name, *_usage(command)])
    text = inspect.cleandoc(command.help or "")
    options = _own_options(command)
    if like := _LIKE.get(name):
        explained = {_row(option) for option in _own_options(_commands()[like])}
        same = [option for option in options if _row(option) in explained and not _has_default(option)]
        options = [option for option in options if option not in same]
        names = ", ".join(f"`{option.opts[-1]}`" for option in same)
        text += f"\n\nFurther options, as of [kbackup {like}](#kbackup-{like.replace(' ', '-')}): {names}."
    table = _table(options)
    return f"## kbackup {name}\n```\n{usage}\n```\n\n{text}\n" + (f"\n{table}" if table else "")


def _own_options(command: click.Command) -> list[click.Option]:
    shared = {param.name for param in (*cli.params, *_archive_params())}
    return [p for p in command.params if isinstance(p, click.Option) and p.name not in shared]


def _has_default(option: click.Option) -> bool:
    return isinstance(option.default, str | int) and not option.is_flag


def _usage(command: click.Command) -> Iterator[str]:
    yield "[OPTIONS]"
    for param in command.params:
        if isinstance(param, click.Argument):
            yield param.make_metavar(click.Context(command))
    if isinstance(command, click.Group):
        yield f"[{'|'.join(command.list_commands(click.Context(command)))}]"


def _shared(title: str, params: Iterable[click.Parameter]) -> str:
    return f"## {title}\n{_table(params)}"


def _archive_params() -> list[click.Parameter]:
    return _params(options(archive_option, s3_options))


def _params(decorator: Callable[[Callable[..., None]], Callable[..., None]]) -> list[click.Parameter]:
    """Return the parameters that a decorator gives to a command."""

    @decorator
    def bare() -> None: ...

    return click.command(bare).params


def _table(params: Iterable[click.Parameter]) -> str:
    options = [param for param in params if isinstance(param, click.Option) and not param.hidden]
    if not options:
        return ""
    return "| option | meaning |\n|---|---|\n" + "".join(map(_row, options))


def _row(option: click.Option) -> str:
    return f"| {_names(option)} | {_cell(_meaning(option))} |\n"


def _meaning(option: click.Option) -> str:
    """With the default, where click would show it; a key of the configuration says its own."""
    return f"{option.help or ''}{f' [default {option.default}]' if option.show_default else ''}"


def _names(option: click.Option) -> str:
    takes = "" if option.is_flag or option.count else f" {option.make_metavar(click.Context(cli))}"
    *others, last = [*option.opts, *option.secondary_opts]
    return _cell(", ".join([*(f"`{name}`" for name in others), f"`{last}{takes}`"]))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
