"""`kbackup help`, `completion` and `config`: show the help, the completion script of a shell, the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ZshComplete

from kbackup.cli.common.command_context import CommandContext, pass_command_context
from kbackup.cli.common.help import SectionedCommand, show_all_options
from kbackup.cli.common.options import common_options, key_option, spark_options, store_options
from kbackup.cli.common.tables import Column
from kbackup.config import KEYS, VARIABLES, Key, SettingOrigin, settings_in_effect, show_value, shown
from kbackup.errors import UsageError


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    words = context.params.get("words") or ()
    below = _context_of(context.find_root(), words)
    if not isinstance(below.command, click.Group):
        return []
    return below.command.shell_complete(below, incomplete)


@click.command("help", epilog="Example: kbackup help groups plan")
@click.argument("words", metavar="[COMMAND]...", nargs=-1, shell_complete=_complete)
@click.option("--all", "all_", is_flag=True, help="Show all options, as COMMAND --help-all does.")
@click.pass_context
def help_command(context: click.Context, words: tuple[str, ...], all_: bool) -> None:
    """Show the help of a command, as COMMAND --help does; without COMMAND, the help of kbackup."""
    asked = _context_of(context.find_root(), words)
    if all_:
        show_all_options(asked)
    click.echo(asked.get_help())


def _context_of(context: click.Context, words: tuple[str, ...]) -> click.Context:
    """Return the context of the command that the words name below `context`. Raises `UsageError` if there is none."""
    for word in words:
        if not isinstance(context.command, click.Group):
            path = context.command_path
            raise UsageError(f"{path} has no command {word}", f"run 'kbackup help {path.partition(' ')[2]}'")
        _, help_command, _ = context.command.resolve_command(context, [word])
        if help_command is None:
            # While a shell completes a word, click returns None instead of an error.
            break
        context = click.Context(help_command, info_name=word, parent=context)
    return context


_SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command("completion", epilog="Example: kbackup completion bash")
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and, from the archive of kbackup.toml, names in a shell.

    bash: source <(kbackup completion bash) in ~/.bashrc; zsh the same in ~/.zshrc, after compinit; fish: kbackup
    completion fish > ~/.config/fish/completions/kbackup.fish.
    """
    from kbackup.cli import COMPLETION_VARIABLE

    script = _SHELLS[shell](context.find_root().command, {}, "kbackup", COMPLETION_VARIABLE).source()
    click.echo(script)


_KEY_COLUMNS: Sequence[Column[Key]] = (
    Column("key", "path"),
    Column("takes", "expected", importance=1, prose=True),
    Column("default", "default_text", importance=2),
    Column("meaning", "doc", prose=True),
)
"""The columns of `kbackup config --keys`."""


class _Variable(NamedTuple):
    name: str
    meaning: str


_VARIABLE_COLUMNS: Sequence[Column[_Variable]] = (Column("variable", "name"), Column("meaning", "meaning", prose=True))


class _ShownSetting(NamedTuple):
    """A setting, and its value as it may be shown: secrets are hidden."""

    path: str
    value: object
    origin: SettingOrigin


def _value(setting: _ShownSetting) -> str:
    key = KEYS.get(setting.path)
    return show_value(key, setting.value) if key else str(setting.value)


_SETTING_COLUMNS: Sequence[Column[_ShownSetting]] = (
    Column("key", "path"),
    Column("value", _value),
    Column("from", "origin", str),
)
"""The columns of `kbackup config`."""


@click.command("config", cls=SectionedCommand, epilog="Example: kbackup config --keys")
@click.option("--show", "output", flag_value="show", default="show", help="Show all values and where each came from.")
@click.option("--keys", "output", flag_value="keys", help="Show all keys with type, default and meaning.")
@key_option("archive", "-a", "--archive")
@store_options
@spark_options
@common_options
@pass_command_context
def config_command(context: CommandContext, output: str) -> None:
    """Show the configuration and where each value came from; secrets are hidden."""
    reporter = context.reporter
    if output == "keys":
        keys = KEYS.values()
        reporter.table(_KEY_COLUMNS, keys)
        reporter.line()
        variables = [_Variable(name, meaning) for name, meaning in VARIABLES.items()]
        reporter.table(_VARIABLE_COLUMNS, variables)
        described = []
        for key in keys:
            described.append({"key": key.path, "takes": key.expected, "default": key.default, "meaning": key.doc})
        reporter.document({"keys": described, "variables": VARIABLES})
        return
    from kbackup.cli.common.notify import RequestBody, Webhook

    notify = context.config.notify
    # These raise for a template that makes no JSON and for an invalid URL: better now than after the next run.
    RequestBody(notify.body)
    if notify.url:
        Webhook(notify.url, notify.headers)
    settings = []
    for setting in settings_in_effect(context.loaded):
        value = shown(setting.path, setting.value)
        settings.append(_ShownSetting(setting.path, value, setting.origin))
    reporter.table(_SETTING_COLUMNS, settings)
    reporter.note(*context.loaded.notes)
    documents = []
    for each in settings:
        documents.append({"key": each.path, "value": each.value, "origin": each.origin._asdict()})
    reporter.document({"settings": documents, "notes": context.loaded.notes})
