"""Command lines to copy: printable, quoted for POSIX shells, with the options that this run was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from kbackup.cli.common.frame import FlagValues
from kbackup.config import KEYS, Key, exposes_secret
from kbackup.config.values import escape_references
from kbackup.errors import UsageError
from kbackup.util.text import kbackup_command, shell_line


def command_line(command: click.Command, settings: Mapping[str, object], *flags: str) -> str:
    """Return the command line of `command` that sets `settings`, values by path of the key, and gives `flags`.

    Raises `UsageError` for a value that is not printable."""
    options = {option.name: option.opts for option in command.params}
    words = ["kbackup", command.name or "", *flags]
    for path, value in settings.items():
        long = next(name for name in options[path.replace(".", "_")] if name.startswith("--"))
        words += _words(KEYS[path], long, value)
    return shell_line(*words)


def _words(key: Key, option: str, value: object) -> Iterator[str]:
    """Yield the words that set a key: one option an item of a list and an entry of a table."""
    if isinstance(value, bool):
        yield from [option] if value else []
    elif isinstance(value, Mapping):
        for name, text in value.items():
            yield from _entry(key, option, name, text)
    else:
        for item in value if isinstance(value, list | tuple) else [value]:
            yield from _option(option, escape_references(str(item)))


def _entry(key: Key, option: str, name: str, value: str) -> list[str]:
    """Return the words that set an entry of a table: as NAME=VALUE, or as TOML where NAME does not fit into that."""
    fits = name and name == name.strip() and "=" not in name and escape_references(name) == name
    if fits and (name + value).isprintable():
        return _option(option, f"{name}={escape_references(value)}")
    return ["--set", f"{key.path}={{{_toml(name)} = {_toml(value)}}}"]


def _option(option: str, text: str) -> list[str]:
    if not text.isprintable():
        raise UsageError(
            f"{option} has a character that can't be shown", "select by a /regex/, with escapes such as \\u202e"
        )
    return [f"{option}={text}"] if text.startswith("-") else [option, text]


def _toml(text: str) -> str:
    """Return a TOML string of printable characters that holds no reference to a variable or a file."""
    plain = (sign if sign.isprintable() and sign not in '"\\\\$' else f"\\U{ord(sign):08x}" for sign in text)
    return f'"{"".join(plain)}"'


# The command line of this run, changed by one option, for messages.


def own_command(*, add: str = "", drop: str = "") -> str:
    """Return this run's command line with the option `add`, or without the option `drop`.

    Where it holds a secret, all arguments but the command are dots."""
    context = click.get_current_context()
    state = context.ensure_object(FlagValues)
    added = [add] if add else []
    if any(exposes_secret(setting.path, setting.value) for setting in state.settings):
        return " ".join([context.command_path, "…", *added])
    return kbackup_command(*(word for word in state.arguments if word != drop), *added)
