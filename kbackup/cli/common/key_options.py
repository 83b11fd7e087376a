"""Options that set keys of the configuration, with help and defaults from the table of keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kbackup.cli.common.state_callbacks import record_key, store_file
from kbackup.config import KEYS, Key

F = TypeVar("F", bound=Callable[..., Any])

_METAVARS = {
    "size": "SIZE",
    "duration": "DURATION",
    "time": "TIME",
    "number": "N",
    "text": "TEXT",
    "list": "NAME",
    "table": "NAME=VALUE",
    "restore.backup": "[N|LABEL|latest]",
}


def options(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """One decorator of many; the first stands first in the help."""

    def decorate(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def key_option(
    path: str, *names: str, help: str | None = None, default: str | None = None
) -> Callable[[F], F]:
    """An option that sets the key `path`, with its help and default from the table of keys. `default` is what the help
    says of a command that has a default of its own.

    It is called `--<last part>` unless `names` say otherwise. Lists and tables are given one item a time.
    """
    key = KEYS[path]
    return click.option(
        *(names or _names(key)),
        path.replace(".", "_"),
        default=() if key.kind in ("list", "table") else None,
        multiple=key.kind in ("list", "table"),
        is_flag=key.kind == "flag",
        type=bool if key.kind == "flag" else str,
        metavar=None
        if key.kind == "flag"
        else _METAVARS.get(path) or _METAVARS.get(key.kind) or f"[{key.expected.replace(' or ', '|')}]",
        help=_help(key, help, default),
        expose_value=False,
        callback=record_key(key),
    )


def key_options(*paths: str) -> Callable[[F], F]:
    """`key_option` for each path."""
    return options(*map(key_option, paths))


def client_file_option(section: str) -> Callable[[F], F]:
    """`--<section>-config`"""
    return click.option(
        f"--{section}-config",
        metavar="FILE",
        help=f"Java client properties of the {section} cluster.",
        expose_value=False,
        callback=store_file(section),
    )


def cluster_options(section: str) -> Callable[[F], F]:
    """`--<section>-config` and `--bootstrap-server` for the section "source" or "target"."""
    return options(
        client_file_option(section),
        click.option(
            "--bootstrap-server",
            f"{section}_bootstrap",
            metavar="HOST:PORT",
            help=f"Address of the {section} cluster.",
            expose_value=False,
            callback=record_key(KEYS[section], "bootstrap.servers"),
        ),
    )


def _names(key: Key) -> tuple[str]:
    name = key.path.rpartition(".")[2].replace("_", "-")
    both_ways = key.kind == "flag" and not name.startswith("no-")
    return (f"--{name}/--no-{name}" if both_ways else f"--{name}",)


def _help(key: Key, text: str | None, default: str | None) -> str:
    notes = ["repeatable"] if key.kind in ("list", "table") else []
    default = default or key.default_text
    notes += [f"default {default}"] if default else []
    return f"{text or key.doc} [{', '.join(notes)}]" if notes else text or key.doc
