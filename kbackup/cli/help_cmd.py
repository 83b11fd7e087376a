"""`kbackup help` and `kbackup completion`."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ZshComplete

from kbackup.errors import UsageError


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the commands below those that are complete."""
    words = context.params.get("words") or ()
    below = _context_of(context.find_root(), words)
    return below.command.shell_complete(below, incomplete) if isinstance(below.command, click.Group) else []


@click.command("help")
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


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options in a shell.

    bash: source <(kbackup completion bash) in ~/.bashrc; zsh the same in ~/.zshrc, after compinit; fish: kbackup
    completion fish > ~/.config/fish/completions/kbackup.fish.
    """
    from kbackup.cli import COMPLETION_VARIABLE

    script = _SHELLS[shell](context.find_root().command, {}, "kbackup", COMPLETION_VARIABLE).source()
    click.echo(script)
