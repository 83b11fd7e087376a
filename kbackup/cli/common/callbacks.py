"""Callbacks of options: they put a value into the `FlagValues` of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from kbackup.cli.common.command_context import FlagValues
from kbackup.config import Key, Setting, SettingOrigin
from kbackup.config.times import absolute_text, named_zone, not_a_time, now_ms

Callback = Callable[[click.Context, click.Parameter, Any], None]


def record_key(key: Key, entry: str = "") -> Callback:
    """Return a callback that records the value of a key, or of an entry of a table."""

    def record(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is None or value == ():
            return
        settings = context.ensure_object(FlagValues).settings
        origin = _origin_of(parameter)
        if entry:
            settings.append(Setting(f"{key.path}.{entry}", value, origin))
            return
        if key.kind == "table":
            for text in value:
                settings.append(_entry(key.path, text, origin))
            return
        if key.kind == "time":
            value = zoned(context, parameter, value)
        elif key.kind == "list":
            value = _items(key, value)
        settings.append(Setting(key.path, value, origin))

    return record


def _origin_of(parameter: click.Parameter) -> SettingOrigin:
    flag = parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name
    return SettingOrigin("flag", flag)


def _items(key: Key, given: tuple[str, ...]) -> list[str]:
    if key.choices:
        # The words of a choice have no commas in them: one option may give several.
        return ",".join(given).split(",")
    return list(given)


def _entry(table: str, text: str, origin: SettingOrigin) -> Setting:
    """Return the setting of an entry of a table, of a text such as "retention.ms=-1"."""
    name, value = _pair(text)
    _check_one_sign(f"{table}.{name}", value)
    return Setting(f"{table}.{name}", value, origin)


def record_settings(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    """Record the values of `--set`, each a path and a value. A callback."""
    settings = context.ensure_object(FlagValues).settings
    origin = SettingOrigin("flag", "--set")
    for text in values:
        path, value = _pair(text)
        _check_one_sign(path, value)
        settings.append(Setting(path, value, origin))


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise click.BadParameter("expected name=value")
    return name.strip(), value


def _check_one_sign(path: str, text: str) -> None:
    """Refuse a new name of a group with '=' in it: the '=' may as well belong to the old name."""
    if path.startswith("restore.map_group.") and "=" in text:
        old = path.removeprefix("restore.map_group.")
        raise click.BadParameter(
            f"{old}={text} has two meanings: a group's name may hold '='; write it as TOML, for instance "
            f'--set \'restore.map_group={{"{old}" = "{text}"}}\''
        )


def zoned(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return a time with its date and its zone: the zone of `--tz`, which is read first, or of this machine. A callback
    of options that take a time."""
    if value is None:
        return None
    zone = context.ensure_object(FlagValues).time_zone
    try:
        return absolute_text(value, now_ms(), zone)
    except ValueError as error:
        raise not_a_time(f"{parameter.opts[0]} {value}", error) from None


def time_zone(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Remember the zone of `--tz`. A callback."""
    if value is None:
        return
    try:
        context.ensure_object(FlagValues).time_zone = named_zone(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def store(name: str) -> Callback:
    """Return a callback that sets an attribute of `FlagValues`, if the flag is given."""

    def set_attribute(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            setattr(context.ensure_object(FlagValues), name, value)

    return set_attribute
