"""The environment file of a unit: text that systemd reads by `EnvironmentFile=`, or kubectl by `--from-env-file=`.

systemd's rules are those of `parse_env_file_internal` in its `src/basic/env-file.c`: almost those of a shell, without
variables in values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A variable that systemd, kubectl and shells take."""

_BLANKS = " \t\n\r"
_LINE_ENDS = "\n\r"
_COMMENTS = "#;"
_ESCAPED = '"\\`$'
"""What a backslash takes its meaning from between double quotes. Before other characters, the backslash stays."""
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]*")


class Assignment(NamedTuple):
    """A variable in the text of a file, from `start` to before `end`."""

    name: str
    value: str
    start: int
    end: int


def parse(text: str) -> list[Assignment]:
    """Return the assignments of a file as systemd takes them; lines that it ignores are left out."""
    found: list[Assignment] = []
    at = 0
    while at < len(text):
        start = at
        if text[at] in _BLANKS:
            at += 1
        elif text[at] in _COMMENTS:
            at = _end_of_line(text, at)
        else:
            line_end = _end_of_line(text, at)
            sign = text.find("=", at, line_end)
            if sign < 0:
                at = line_end
                continue
            name = text[start:sign].rstrip(_BLANKS)
            value, at = _read_value(text, sign + 1)
            if NAME.fullmatch(name):
                found.append(Assignment(name, value, start, at))
    return found


def values_of(text: str) -> dict[str, str]:
    """Return the variables that a unit has from a file. Of two assignments of a variable, the later one counts."""
    return {assignment.name: assignment.value for assignment in parse(text)}


def _end_of_line(text: str, at: int) -> int:
    while at < len(text) and text[at] not in _LINE_ENDS:
        at += 1
    return at


def _read_value(text: str, at: int) -> tuple[str, int]:
    """Return the value that begins at `at`, and the place after it: the end of its line, or of the text."""
    value = ""
    # Quotes count only before the first character without quotes.
    is_bare = False
    # The length of the value without blanks at its end, which don't belong to it unless they are escaped.
    kept = 0
    while at < len(text) and text[at] not in _LINE_ENDS:
        sign = text[at]
        at += 1
        if sign == "\\":
            escaped = text[at : at + 1]
            at += 1
            is_bare = True
            if escaped not in _LINE_ENDS:
                value += escaped
            kept = len(value)
        elif sign in "'\"" and not is_bare:
            quoted, at = _read_quoted(text, at, sign)
            value += quoted
            kept = len(value)
        elif sign in _BLANKS:
            if is_bare:
                value += sign
        else:
            is_bare = True
            value += sign
            kept = len(value)
    return value[:kept], min(at, len(text))


def _read_quoted(text: str, at: int, quote: str) -> tuple[str, int]:
    """Return the text between quotes, whose first one is before `at`, and the place after the second one."""
    value = ""
    while at < len(text) and text[at] != quote:
        sign = text[at]
        at += 1
        if sign == "\\" and quote == '"':
            escaped = text[at : at + 1]
            at += 1
            if escaped == "\n":
                continue
            if escaped not in _ESCAPED:
                value += sign
            value += escaped
        else:
            value += sign
    return value, at + 1


def assignment(name: str, value: str) -> str:
    """Return the line of a variable, which systemd and shells read alike."""
    if _PLAIN.fullmatch(value):
        return f"{name}={value}\n"
    escaped = re.sub(r'(["\\`$])', r"\\\1", value)
    return f'{name}="{escaped}"\n'


def completed(text: str, values: Mapping[str, str | None]) -> str:
    """Return the text of a file of systemd with these variables. A variable without a value (None) keeps the value that
    it has in the text, and stands there with an empty one if it has none. Everything else in the text stays."""
    present = values_of(text)
    for old in reversed(parse(text)):
        value = values.get(old.name)
        if value is not None and value != present[old.name]:
            # The line goes with its end, and the new one comes last.
            rest = text[old.end :].removeprefix("\n")
            text = text[: old.start] + rest
    remaining = values_of(text)
    missing = {name: value for name, value in values.items() if name not in remaining}
    if not missing:
        return text
    if text and not text.endswith("\n"):
        text += "\n"
    for name, value in missing.items():
        text += assignment(name, value or "")
    return text
