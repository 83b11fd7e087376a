"""Callbacks of options: they put a value into the `State` of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from kbackup.cli.common.frame import State
from kbackup.config import Key, Origin, Setting


def record_key(key: Key, entry: str = "") -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback that records the value of a key, or of an entry of a table."""

    def record(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is None or value == ():
            return
        settings = context.ensure_object(State).settings
        origin = Origin(
            "flag",
            parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name,
        )
        if entry:
            settings.append(Setting(f"{key.path}.{entry}", value, origin))
        elif key.kind == "table":
            settings.extend(Setting(f"{key.path}.{name}", text, origin) for name, text in map(_pair, value))
        else:
            settings.append(Setting(key.path, _listed(key, value) if key.kind == "list" else value, origin))

    return record


def _listed(key: Key, values: tuple[str, ...]) -> list[str]:
    """Return the items of a list: one a flag. Words of a choice have no commas, so a flag may give several of them."""
    return [item for text in values for item in (text.split(",") if key.choices else [text])]


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise click.BadParameter("expected name=value")
    return name.strip(), value


def store_flag(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback that sets an attribute of the state, if the flag is given."""

    def store(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            setattr(context.ensure_object(State), name, value)

    return store


def store_file(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback that sets a file of the state, if the flag is given."""

    def store(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value:
            state = context.ensure_object(State)
            state.files = state.files._replace(**{name: value})

    return store


def record_settings(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    """Record the keys of `--set`."""
    pairs = map(_pair, values)
    origin = Origin("flag", "--set")
    context.ensure_object(State).settings.extend(Setting(path, value, origin) for path, value in pairs)


def ignore_value(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Ignore the value: `kbackup.cli.common.metrics_file` reads it before click does."""
