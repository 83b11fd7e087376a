"""Reading Java's `.properties` files, as `java.util.Properties.load` documents them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kbackup.errors import UsageError

_BLANK = " \t\f"
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.)", re.DOTALL)
_KEY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*(?:[=:][ \t\f]*)?", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(data: bytes, name: str) -> dict[str, str]:
    """Keys and values of a properties file (ISO 8859-1, as Java reads it); the last of equal keys wins.

    `name` stands in errors, which never show a value.
    """
    values: dict[str, str] = {}
    for number, line in _logical_lines(data.decode("latin-1")):
        try:
            key = next(_KEY.finditer(line))
            values[_unescape(key[1])] = _unescape(line[key.end() :])
        except ValueError:
            raise UsageError(
                f"{name}: line {number} has a malformed escape", "write four hexadecimal digits after \\u"
            ) from None
    return values


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of its first line, logical line): comments and blank lines gone, continued lines joined."""
    joined, first = "", 0
    for number, raw in enumerate(re.split(r"\r\n|\n|\r", text), start=1):
        line = raw.lstrip(_BLANK)
        if not first and (not line or line[0] in "#!"):
            continue
        first = first or number
        if _continues(line):
            joined += line[:-1]
            continue
        yield first, joined + line
        joined, first = "", 0
    if joined:
        yield first, joined


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] != "u":
            return _LETTERS.get(code, code)
        if len(code) == 1:
            raise ValueError
        return chr(int(code[1:], 16))

    units = _ESCAPE.sub(
        replace, text
    )  # Java's escapes are UTF-16 units: two make a character beyond the first plane
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
