"""`kbackup help`: show the help of a command."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from kbackup.errors import UsageError


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the commands below those that are complete."""
    words = context.params.get("words") or ()
    below = _context_of(context.find_root(), words)
    return below.command.shell_complete(below, incomplete) if isinstance(below.command, click.Group) else []


@click.command("help")
@click.argument("words", metavar="[COMMAND]...", nargs=-1, shell_complete=_complete)
@click.pass_context
def command(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, as COMMAND --help does; without COMMAND, that of kbackup."""
    click.echo(_context_of(context.find_root(), words).get_help())


def _context_of(context: click.Context, words: tuple[str, ...]) -> click.Context:
    """Return the context of the command that the words name below `context`. Raises `UsageError` if there is none."""
    for word in words:
        if not isinstance(context.command, click.Group):
            raise UsageError(
                f"{context.command_path} has no command {word}", f"run 'kbackup help {_words(context)}'"
            )
        _, command, _ = context.command.resolve_command(context, [word])
        if command is None:  # while a shell completes, click returns None instead of an error
            break
        context = click.Context(command, info_name=word, parent=context)
    return context


def _words(context: click.Context) -> str:
    return context.command_path.partition(" ")[2]
