"""Text of others (names of topics and groups, what brokers and stores say) as it may be shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with all escaped that could steer a terminal or break a line: controls, bidi marks, surrogates."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def printable_lines(text: str) -> str:
    """Return text with lines of its own (a traceback) as printable text: line feeds stay, tabs become blanks."""
    return "\n".join(printable(line.expandtabs()) for line in text.split("\n"))


def ends(text: str, tail: int) -> tuple[str, str]:
    """`text` without its last `tail` characters, and those: long names differ mostly at their ends, so that only the
    first of the two may be cut off."""
    at = max(len(text) - tail, 0)
    return text[:at], text[at:]


def shorten(text: str, width: int) -> str:
    """`text` in `width` characters at most (2 or more), with an ellipsis in place of its middle where it is longer."""
    if len(text) <= width:
        return text
    head, tail = ends(text, (width - 1) // 2)
    return f"{head[: width - 1 - len(tail)]}\N{HORIZONTAL ELLIPSIS}{tail}"
