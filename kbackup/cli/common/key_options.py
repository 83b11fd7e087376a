"""Options that set keys of the configuration, with help and defaults from the table of keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from kbackup.cli.common.aliased_option import AliasedOption
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
    "restore.restore_point": "[N|LABEL|latest]",
}


def options(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return one decorator made of many, in the order of the help."""

    def decorate(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def key_option(
    path: str,
    *names: str,
    help: str | None = None,
    default: str | None = None,
    aliases: Sequence[str] = (),
) -> Callable[[F], F]:
    """Return an option that sets the key `path`, with help and default from the table of keys.

    Its name is `--<last part of the path>`, unless `names` are given. `default` replaces the default in the help, for
    commands with a default of their own. Lists and tables take one item for each use of the option. `aliases` are
    former names that keep working.
    """
    key = KEYS[path]
    return click.option(
        *(names or _names(key)),
        path.replace(".", "_"),
        cls=AliasedOption,
        aliases=aliases,
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
        shell_complete=lambda context, parameter, start: [w for w in key.choices if w.startswith(start)],
    )


def key_options(*paths: str) -> Callable[[F], F]:
    """Return a `key_option` for each path."""
    return options(*map(key_option, paths))


def client_file_option(section: str) -> Callable[[F], F]:
    """Return the option `--<section>-config`."""
    return click.option(
        f"--{section}-config",
        type=click.Path(),
        metavar="FILE",
        help=f"Java client properties of the {section} cluster.",
        expose_value=False,
        callback=store_file(section),
    )


def cluster_options(section: str) -> Callable[[F], F]:
    """Return `--<section>-config` and `--bootstrap-server` for the section "source" or "target"."""
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
    default = default or ("" if key.default is False else key.default_text)
    notes += [f"default {default}"] if default else []
    return f"{text or key.doc} [{', '.join(notes)}]" if notes else text or key.doc
