"""The options that select a restore point and times: one name for each, in every command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from kbackup.cli.common.aliased_option import AliasedOption
from kbackup.cli.common.key_options import F, key_option, options
from kbackup.config import KEYS

_POINT = ("-b", "--restore-point")
_POINT_ALIASES = ("--backup",)
_TIME_ALIASES = ("--at",)


def point_option(
    help: str = KEYS["restore.restore_point"].doc,
    *,
    default: str | None = None,
    metavar: str = "[N|LABEL|latest]",
    show_default: bool = True,
) -> Callable[[F], F]:
    """Return the option `--restore-point`, whose value a command gets as text."""
    attributes: dict[str, Any] = {"show_default": show_default} if default is not None else {}
    return click.option(
        *_POINT,
        "restore_point",
        cls=AliasedOption,
        aliases=_POINT_ALIASES,
        default=default,
        metavar=metavar,
        help=help,
        **attributes,
    )


def to_time_option(help: str = KEYS["restore.to_time"].doc) -> Callable[[F], F]:
    """Return the option `--to-time`, whose value a command gets as text."""
    return click.option(
        "--to-time", "to_time", cls=AliasedOption, aliases=_TIME_ALIASES, metavar="TIME", help=help
    )


point_key_option = key_option("restore.restore_point", *_POINT, aliases=_POINT_ALIASES)
"""`--restore-point`, into the configuration."""

time_key_options = options(
    key_option("restore.to_time", aliases=_TIME_ALIASES), key_option("restore.from_time")
)
"""`--to-time` and `--from-time`, into the configuration."""
