"""Text of others (names of topics and groups, what brokers and stores say) as it may go to a terminal or a log."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with all escaped that could steer a terminal or break a line: controls, bidi marks, surrogates."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def printable_lines(text: str) -> str:
    """The same of text that has lines of its own (a traceback): line feeds stay, tabs become blanks."""
    return "\n".join(printable(line.expandtabs()) for line in text.split("\n"))
