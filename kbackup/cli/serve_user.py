"""`kbackup serve-user`: add a user to the file of users of `kbackup serve`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kbackup.cli.common.command_context import CommandContext, pass_command_context
from kbackup.cli.common.options import common_options
from kbackup.errors import UsageError
from kbackup.serve.users import write_user


@click.command("serve-user", epilog="Example: kbackup serve-user /etc/kbackup/users anna")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("name")
@common_options
@pass_command_context
def command(context: CommandContext, file: Path, name: str) -> None:
    """Let the user NAME log in to `kbackup serve`, or give the user another password.

    The password is asked for, or read from the standard input if that is no terminal. FILE keeps no passwords: only
    what proves that somebody knows one. A server that runs reads the file again.
    """
    write_user(file, name, _password())
    context.reporter.line(f'user {name} may log in: set serve.users = "{file.absolute()}"')
    context.reporter.document({"file": str(file), "user": name})


def _password() -> str:
    if sys.stdin.isatty():
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return password
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise UsageError("the standard input has no password", "write the password into it, on one line")
    return password
