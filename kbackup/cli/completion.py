"""`kbackup completion`: print a shell's completion script."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

_SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options in a shell.

    bash: source <(kbackup completion bash) in ~/.bashrc; zsh the same in ~/.zshrc, after compinit; fish: kbackup
    completion fish > ~/.config/fish/completions/kbackup.fish.
    """
    from kbackup.cli import COMPLETION_VARIABLE

    script = _SHELLS[shell](context.find_root().command, {}, "kbackup", COMPLETION_VARIABLE).source()
    click.echo(script)
