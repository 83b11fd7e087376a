"""infra/docs/commands.md from click's own objects, and the keys in infra/docs/configuration.md from their table."""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import click

from kbackup.cli import COMMANDS, cli
from kbackup.cli.common.options import archive_option, options, store_options
from kbackup.config import KEYS, Key

_HEAD = """\
# Commands

Look up here each command with its arguments and options.

All commands but `help` and `completion` take the [options of every command](#options-of-every-command). All of these
but `config`, `key generate` and `migrate status` take the
[options of archives](#options-of-every-command-that-opens-an-archive). [One table](#options-of-several-commands) has
shared options. Most options are also [keys of `kbackup.toml` and variables](configuration.md).

Data goes to stdout; notes, progress and warnings go to stderr. On a terminal, a table shows the columns that fit its
width, and a line below it names the others: `--wide` shows them. In a pipe or a file a table has all columns, and
nothing is cut.

`--json` prints one JSON document of [its schema](json/README.md), with its `exit_code` and, if the command failed, an
`error`; `--json=line` prints it on one line. `cat` and `find` print one a line for each record.
[exit-codes.md](exit-codes.md) lists the exit codes.

`COMMAND --help` shows the options below headings, without those that few people need; `--help-all` shows all of them,
and so does `kbackup help --all COMMAND`. So do this page and the manual pages.

This page is written from the code of the commands.
"""


_LIKE = {
    **dict.fromkeys(("export", "mirror run", "migrate archive", "diff"), "backup"),
    **dict.fromkeys(("verify", "drill"), "restore"),
    **{"find": "cat", "groups plan": "groups show", "groups apply": "groups plan"},
    **{"migrate rollback": "migrate status", "repair": "adopt"},
}
"""Commands that name the options which they share with another command, and don't explain them again."""

_SEVERAL = 3
"""An option of this many commands, with the same meaning, stands in the table of options of several commands."""


def commands_document() -> str:
    rows_of: dict[str, Counter[str]] = {}
    for command in all_commands().values():
        for option in _own_options(command):
            rows_of.setdefault(option.opts[-1], Counter())[_row(option)] += 1
    most = {name: counts.most_common(1)[0] for name, counts in rows_of.items()}
    shared = {name: row for name, (row, count) in sorted(most.items()) if count >= _SEVERAL}
    sections = [_HEAD, *(_section(name, command, shared) for name, command in all_commands().items())]
    for title, rows in (
        ("several commands", shared.values()),
        ("every command", map(_row, visible(cli.params))),
        ("every command that opens an archive", map(_row, visible(_archive_params()))),
    ):
        sections.append(f"## Options of {title}\n{_table(rows)}")
    return "\n".join(sections)


def _section(name: str, command: click.Command, shared: dict[str, str]) -> str:
    names = [p.make_metavar(click.Context(command)) for p in command.params if isinstance(p, click.Argument)]
    arguments = f"\nArguments: `{' '.join(names)}`\n" if names else ""
    paragraphs = [f"## kbackup {name}{arguments}\n{inspect.cleandoc(command.help or '')}"]
    if command.epilog:
        paragraphs.append(f"Example: `{command.epilog.removeprefix('Example: ')}`")
    options = _own_options(command)
    explained = [option for option in options if shared.get(option.opts[-1]) == _row(option)]
    if explained:
        paragraphs.append(f"Shared options: {_named(explained)}.")
    options = [option for option in options if option not in explained]
    if like := _LIKE.get(name):
        rows = {_row(option) for option in _own_options(all_commands()[like])}
        same = [option for option in options if _row(option) in rows]
        paragraphs.append(f"Options of [kbackup {like}](#kbackup-{like.replace(' ', '-')}): {_named(same)}.")
        options = [option for option in options if option not in same]
    if options:
        paragraphs.append(_table(map(_row, options)).rstrip())
    return "\n\n".join(paragraphs) + "\n"


def _own_options(command: click.Command) -> list[click.Option]:
    shared = {param.name for param in (*cli.params, *_archive_params())}
    return [option for option in visible(command.params) if option.name not in shared]


def visible(params: Iterable[click.Parameter]) -> list[click.Option]:
    return [param for param in params if isinstance(param, click.Option) and not param.hidden]


def _named(options: Iterable[click.Option]) -> str:
    return ", ".join(f"`{option.opts[-1]}`" for option in options)


def _archive_params() -> list[click.Parameter]:
    @options(archive_option, store_options)
    def bare() -> None: ...

    return click.command(bare).params


def _table(rows: Iterable[str]) -> str:
    return "| option | meaning |\n|---|---|\n" + "".join(rows)


def _row(option: click.Option) -> str:
    """With the default, where click would show it; a key of the configuration says its own."""
    default = f" [default {option.default}]" if option.show_default else ""
    return f"| {_names(option)} | {_cell((option.help or '') + default)} |\n"


def _names(option: click.Option) -> str:
    if option.secondary_opts:
        return f"`--[no-]{option.opts[-1].removeprefix('--')}`"
    takes = "" if option.is_flag or option.count else f" {option.make_metavar(click.Context(cli))}"
    *others, last = option.opts
    return _cell(", ".join([*(f"`{name}`" for name in others), f"`{last}{takes}`"]))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def all_commands() -> dict[str, click.Command]:
    """Return every command by its name, also those below a group."""
    commands: dict[str, click.Command] = {}
    context = click.Context(cli, info_name="kbackup")
    for name in COMMANDS:
        command = commands[name] = _subcommand(cli, context, name)
        commands |= {f"{name} {part}": below for part, below in subcommands(command).items()}
    return commands


def subcommands(command: click.Command) -> dict[str, click.Command]:
    """Return the commands below a group by their names; none below another command."""
    if not isinstance(command, click.Group):
        return {}
    context = click.Context(command)
    return {part: _subcommand(command, context, part) for part in command.list_commands(context)}


def _subcommand(group: click.Group, context: click.Context, name: str) -> click.Command:
    command = group.get_command(context, name)
    assert command is not None, name
    return command


PAGE = "infra/docs/configuration.md"
_KEYS_HEAD = "| key | takes | default | meaning |\n|---|---|---|---|\n"
_NOUN = re.compile(r"^an? (\w+) such as [^,]+")
_LIMIT = re.compile(r", at least (\S+)$")


def configuration_document(root: Path) -> str:
    """Return the page with the table of keys made anew."""
    text = (root / PAGE).read_text("utf-8")
    before, head, rest = text.partition(_KEYS_HEAD)
    assert head, f"{PAGE} has no table of keys"
    return before + head + "".join(map(_key_row, KEYS.values())) + rest[rest.index("\n\n") + 1 :]


def _key_row(key: Key) -> str:
    default = f"`{key.default_text}`" if key.default_text else ""
    option = _option_names().get(key.path)
    meaning = f"{key.doc} Option {option}." if option else key.doc
    return f"| `{key.path}` | {_takes(key)} | {default} | {meaning} |\n"


@functools.cache
def _option_names() -> dict[str, str]:
    """Return the option that commands.md explains in the words of a key, by the key's path."""
    paths = {path.replace(".", "_"): path for path in KEYS}
    options = {}
    for command in all_commands().values():
        for option in visible(command.params):
            path = paths.get(option.name or "")
            if path and (option.help or "").startswith(KEYS[path].doc):
                options[path] = f"`{option.opts[-1]}`"
    return options


def _takes(key: Key) -> str:
    """Return the kind of value, as `How values are written` names it, with limits and choices."""
    if key.kind in ("time", "table"):
        return key.kind
    unit = "s" if key.kind == "duration" else ""
    text = _LIMIT.sub(rf" ≥ \1{unit}", _NOUN.sub(r"\1", key.expected))
    text = re.sub(r"^a ", "", text).replace("true or false", "flag")
    return "list" if text == "list of text" else text.replace("list of ", "list: ")
