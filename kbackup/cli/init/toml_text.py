"""Write a configuration as TOML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

_BARE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_HEAD = "# Written by kbackup init. All keys: kbackup config --keys\n"


def toml_text(settings: Mapping[str, object]) -> str:
    """Return kbackup.toml with values by key path: text, or lists of text."""
    sections: dict[str, list[str]] = {"": []}
    for path, value in settings.items():
        section, dot, name = path.partition(".")
        if not dot:
            section, name = "", path
        sections.setdefault(section, []).append(f"{_key(name)} = {_value(value)}\n")
    lines = sections.pop("")
    return (
        _HEAD
        + "".join(lines)
        + "".join(f"\n[{_key(section)}]\n{''.join(entries)}" for section, entries in sections.items())
    )


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_string(str(item)) for item in value)}]"
    return _string(str(value))


def _string(text: str) -> str:
    """Return a basic string of TOML, which has the escapes of JSON, and one more character to escape."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
