"""infra/docs/commands.md: every command with its options, from click's own objects."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator

import click

from kbackup.cli import COMMANDS, cli
from kbackup.cli.common.options import archive_option, options, s3_options, state_options
from kbackup.cli.common.record_selection import look_options

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


_RECORDS = "Options of cat and find"


def commands_document() -> str:
    sections = [_HEAD, *(text for name in COMMANDS for text in _sections(name))]
    sections.append(_shared(_RECORDS, _record_params()))
    sections.append(_shared("Options of every command", cli.params))
    sections.append(_shared("Options of every command that opens an archive", _archive_params()))
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
    shared = {param.name for param in (*cli.params, *_archive_params())}
    own = [param for param in command.params if param.name not in shared]
    usage = " ".join(["kbackup", name, *_usage(command)])
    text = inspect.cleandoc(command.help or "")
    if name in ("cat", "find"):
        printing = {param.name for param in _record_params()}
        own = [param for param in own if param.name not in printing]
        text += f"\n\nFurther options: [{_RECORDS.lower()}](#{_RECORDS.lower().replace(' ', '-')})."
    table = _table(own)
    return f"## kbackup {name}\n```\n{usage}\n```\n\n{text}\n" + (f"\n{table}" if table else "")


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


def _record_params() -> list[click.Parameter]:
    """Return the options of `cat` and `find`, but for those that choose the state of the archive."""
    state = {param.name for param in _params(state_options)} | {param.name for param in _archive_params()}
    return [param for param in _params(look_options) if param.name not in state]


def _params(decorator: Callable[[Callable[..., None]], Callable[..., None]]) -> list[click.Parameter]:
    """Return the parameters that a decorator gives to a command."""

    @decorator
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
