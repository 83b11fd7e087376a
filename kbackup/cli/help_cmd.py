"""`kbackup help`, `completion` and `config`: what there is to say about kbackup itself."""

from __future__ import annotations

from collections.abc import Sequence

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ZshComplete

from kbackup.cli.common.command_context import CommandContext, pass_command_context
from kbackup.cli.common.options import common_options, key_option, spark_options, store_options
from kbackup.cli.common.output import ColumnOf
from kbackup.config import KEYS, VARIABLES, Key, Setting, settings_in_effect, show_value, shown
from kbackup.errors import UsageError


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    words = context.params.get("words") or ()
    below = _context_of(context.find_root(), words)
    if not isinstance(below.command, click.Group):
        return []
    return below.command.shell_complete(below, incomplete)


@click.command("help", epilog="Example: kbackup help groups plan")
@click.argument("words", metavar="[COMMAND]...", nargs=-1, shell_complete=_complete)
@click.pass_context
def help_command(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, as COMMAND --help does; without COMMAND, the help of kbackup."""
    click.echo(_context_of(context.find_root(), words).get_help())


def _context_of(context: click.Context, words: tuple[str, ...]) -> click.Context:
    """Return the context of the command that the words name below `context`. Raises `UsageError` if there is none."""
    for word in words:
        if not isinstance(context.command, click.Group):
            path = context.command_path
            raise UsageError(f"{path} has no command {word}", f"run 'kbackup help {path.partition(' ')[2]}'")
        _, help_command, _ = context.command.resolve_command(context, [word])
        if help_command is None:  # while a shell completes, click returns None instead of an error
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


_KEY_COLUMNS: Sequence[ColumnOf[Key]] = (
    ColumnOf("key", lambda key: key.path),
    ColumnOf("takes", lambda key: key.expected, importance=1, prose=True),
    ColumnOf("default", lambda key: key.default_text, importance=2),
    ColumnOf("meaning", lambda key: key.doc, prose=True),
)
"""The columns of `kbackup config --keys`."""
_VARIABLE_COLUMNS: Sequence[ColumnOf[tuple[str, str]]] = (
    ColumnOf("variable", lambda variable: variable[0]),
    ColumnOf("meaning", lambda variable: variable[1], prose=True),
)
_SETTING_COLUMNS: Sequence[ColumnOf[tuple[Setting, object]]] = (
    ColumnOf("key", lambda each: each[0].path),
    ColumnOf("value", lambda each: _text(each[0].path, each[1])),
    ColumnOf("from", lambda each: str(each[0].origin)),
)
"""The columns of `kbackup config`, whose rows are settings, each with the value that may be shown."""


@click.command("config", epilog="Example: kbackup config --keys")
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
        reporter.table_of(_KEY_COLUMNS, keys)
        reporter.line()
        reporter.table_of(_VARIABLE_COLUMNS, VARIABLES.items())
        described = [{"key": k.path, "takes": k.expected, "default": k.default, "meaning": k.doc} for k in keys]
        reporter.document({"keys": described, "variables": VARIABLES})
        return
    from kbackup.cli.common.notify import RequestBody, Webhook

    notify = context.config.notify
    RequestBody(notify.body)  # raises for a template that makes no JSON
    if notify.url:
        Webhook(notify.url, notify.headers)  # raises for an invalid URL
    settings = [(setting, shown(setting.path, setting.value)) for setting in settings_in_effect(context.loaded)]
    reporter.table_of(_SETTING_COLUMNS, settings)
    reporter.note(*context.loaded.notes)
    documents = [{"key": s.path, "value": value, "origin": s.origin._asdict()} for s, value in settings]
    reporter.document({"settings": documents, "notes": context.loaded.notes})


def _text(path: str, value: object) -> str:
    key = KEYS.get(path)
    return show_value(key, value) if key else str(value)
