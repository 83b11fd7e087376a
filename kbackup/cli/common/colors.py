"""Colors of levels on a terminal. The words say everything: a color only helps the eye to find them."""

from __future__ import annotations

import os
from typing import TextIO

_RED, _GREEN, _YELLOW, _DIM = "31", "32", "33", "2"
_COLORS = {"ok": _GREEN, "passed": _GREEN, "warning": _YELLOW, "critical": _RED, "failed": _RED, "skipped": _DIM}
"""The attributes of ECMA-48 for a level or a result, by its word in lower case. Other words have no color."""


def has_colors(stream: TextIO) -> bool:
    """Return whether to print colors on a stream: on a terminal that knows them, unless the user wants none.

    https://no-color.org: any value of NO_COLOR but an empty one means none."""
    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not is_plain


def colored(word: str, stream: TextIO) -> str:
    """Return a level in its color, if `stream` has colors. Blanks around the word stay outside of the color."""
    level = word.strip()
    color = _COLORS.get(level.lower())
    if color is None or not has_colors(stream):
        return word
    return word.replace(level, f"\x1b[{color}m{level}\x1b[0m", 1)
