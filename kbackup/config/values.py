"""From what was written (TOML values, text of flags and variables) to values of the right type."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import msgspec

from kbackup.config.keys import Key
from kbackup.config.secrets import is_secret, shown
from kbackup.config.times import FutureTimeError, absolute_text, not_a_time, now_ms
from kbackup.config.windows import parse_duration, parse_range, parse_rule, parse_size
from kbackup.errors import UsageError
from kbackup.util.linear_regex import LinearRegex

_REFERENCE = re.compile(r"(\$?)\$\{(env|file):([^}]*)\}")
# An item between commas; commas within a /regex/ don't count.
_ITEM = re.compile(r"\s*(/.*?/(?=\s*(?:,|$))|[^,]*?)\s*(?:,|$)")
_PATTERNS = ("topics", "exclude_topics", "groups", "exclude_groups", "schemas_topics", "no_schemas_topics")


def convert(key: Key, value: object, where: str) -> object:
    """Return the value in the type of its key.

    `UsageError` names the key, the value unless it is secret, and what the key takes. A time gets its date and its
    zone."""
    if key.kind == "time" and isinstance(value, int | datetime):
        # TOML has numbers and times of its own.
        value = str(value)
    if key.kind == "time" and isinstance(value, str):
        return _absolute(key, value, where)
    try:
        converted = _in_type(key, value)
        items = converted if isinstance(converted, tuple) else (converted,)
        for item in items:
            if isinstance(item, str):
                _check(key, item, where)
    except re.error as error:
        raise UsageError(
            f"{where}: {key.path}: {error.pattern!r} is no regular expression", f"mend it: {error}"
        ) from None
    except (ValueError, msgspec.ValidationError):
        value_text = "" if is_secret(key.path) else f" {shown(key.path, value)!r}"
        raise UsageError(
            f"{where}: {key.path}{value_text} is not {key.expected}", f"set {key.path}: {key.doc}"
        ) from None
    return converted


def _absolute(key: Key, text: str, where: str) -> str:
    """Return a time with its date and its zone. `UsageError` for a text that is no time."""
    try:
        return absolute_text(text, now_ms())
    except FutureTimeError:
        # In a file it may be one later in the day. The command that uses it refuses it, and no other command.
        return text
    except ValueError as error:
        raise not_a_time(f"{where}: {key.path} {text!r}", error) from None


def _in_type(key: Key, value: object) -> object:
    is_text = isinstance(value, str)
    plain = _from_text(key, value) if isinstance(value, str) else value
    # Text of a flag or a variable may stand for a number; a file has numbers of its own.
    converted: object = msgspec.convert(plain, key.type, strict=not is_text)
    return converted


def _check(key: Key, text: str, where: str) -> None:
    """Raise `ValueError`, `re.error`, or a `UsageError` that says more, for a text, or an item of a list, that means
    nothing to its key."""
    if key.path.rpartition(".")[2] in _PATTERNS:
        if len(text) > 2 and text[0] == text[-1] == "/":
            LinearRegex(text[1:-1])
    elif key.path == "restore.map_regex":
        _check_rule(key, text, where)
    elif key.path in ("restore.range", "restore.skip"):
        parse_range(text)


def _check_rule(key: Key, text: str, where: str) -> None:
    try:
        parse_rule(text)
    except ValueError as error:
        raise UsageError(
            f"{where}: {key.path} {text!r} is no pattern=replacement: {error}",
            r"'^=restored.' puts 'restored.' before each name, and '^old\.(.*)=\1' takes 'old.' away",
        ) from None


def entries(key: Key, value: object, where: str) -> dict[str, object]:
    """Return the entries of a table that was written whole: `a=b,c=d`, or TOML's inline table."""
    if isinstance(value, str):
        is_toml = value.lstrip().startswith("{")
        try:
            value = _toml(value) if is_toml else _entries(key, value)
        except ValueError:
            value = None
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: {key.path} is not {key.expected}", "write a=b,c=d or a TOML table")
    return dict(flatten(value))


def _entries(key: Key, text: str) -> dict[str, str]:
    """Return the entries of `a=b,c=d`. `ValueError` for others, and for a group's name that may hold the '='."""
    found: dict[str, str] = {}
    for item in text.split(","):
        if not item.strip():
            continue
        name, value = _pair(item)
        if key.path == "restore.map_group" and "=" in value:
            raise ValueError(item)
        found[name] = value
    return found


def property_text(path: str, value: object, where: str) -> str:
    """Return the text of one entry of a table; lists are joined by commas, as Kafka and Spark write them."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str | int) for item in value):
        return ",".join(str(item) for item in value)
    raise UsageError(f"{where}: {path} is not text, a number, true or false", "write it in quotes")


def flatten(table: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Return (dotted path, value) of every leaf of nested tables."""
    flat: list[tuple[str, object]] = []
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat += flatten(value, f"{prefix}{name}.")
        else:
            flat.append((prefix + name, value))
    return flat


def resolve(value: object, where: str, environ: Mapping[str, str] = os.environ) -> object:
    """Return a value with `${env:NAME}` and `${file:/path}` replaced, in lists too; `$${env:…}` stands for itself.

    `where` names file and key in errors; the text around a reference is never shown.
    """
    if isinstance(value, list):
        return [resolve(item, where, environ) for item in value]
    if not isinstance(value, str):
        return value

    def referenced(match: re.Match[str]) -> str:
        return _referenced(match, where, environ)

    return _REFERENCE.sub(referenced, value)


def has_reference(value: str) -> bool:
    """Return True if `resolve` replaces anything in `value`."""
    return any(not match[1] for match in _REFERENCE.finditer(value))


def escape_references(text: str) -> str:
    """Return the text that `resolve` turns into `text`."""
    return _REFERENCE.sub(r"$\g<0>", text)


def _referenced(match: re.Match[str], where: str, environ: Mapping[str, str]) -> str:
    escaped, kind, name = match.groups()
    if escaped:
        return match[0][1:]
    if kind == "env":
        if name not in environ:
            raise UsageError(f"{where}: the environment variable {name} is not set", "set it, or remove the reference")
        return environ[name]
    try:
        return Path(name).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, ValueError) as error:
        why = "it is not UTF-8 text"
        if isinstance(error, OSError):
            why = (error.strerror or "").lower()
        raise UsageError(f"{where}: can't read the file {name}: {why}", "name a readable file") from None


_FLAG_WORDS = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def _from_text(key: Key, text: str) -> object:
    if key.kind == "size":
        return parse_size(text)
    if key.kind == "rate":
        return parse_size(text.removesuffix("/s"))
    if key.kind == "duration":
        seconds = parse_duration(text)
        return int(seconds) if seconds.is_integer() else seconds
    if key.kind == "flag":
        return _FLAG_WORDS.get(text.lower(), text)
    if key.kind == "number":
        return text.strip().replace("_", "")
    if key.kind == "list":
        if text.lstrip().startswith("["):
            return _toml(text)
        return [item for item in _ITEM.findall(text) if item]
    if key.path == "restore.restore_point" and text.isdecimal():
        # A number may have zeros before it: 007 is 7.
        return int(text)
    return text


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise ValueError(text)
    return name.strip(), value.strip()


def _toml(text: str) -> object:
    return tomllib.loads(f"value = {text}")["value"]
