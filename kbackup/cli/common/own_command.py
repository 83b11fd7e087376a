"""The command line of this run, changed by one option, for messages."""

from __future__ import annotations

import click

from kbackup.cli.common.frame import State
from kbackup.config import exposes_secret
from kbackup.util.commands import kbackup_command


def own_command(*, add: str = "", drop: str = "") -> str:
    """Return this run's command line with the option `add`, or without the option `drop`.

    Where it holds a secret, all arguments but the command are dots."""
    context = click.get_current_context()
    state = context.ensure_object(State)
    added = [add] if add else []
    if any(exposes_secret(setting.path, setting.value) for setting in state.settings):
        return " ".join([context.command_path, "…", *added])
    return kbackup_command(*(word for word in state.arguments if word != drop), *added)
