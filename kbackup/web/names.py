"""Names on a page: long ones lose their middle there, and are whole when hovered over, in copies and in searches.

The page holds every character: the style sheet cuts off what does not fit, so that a wide screen shows more.
"""

from __future__ import annotations

from markupsafe import Markup, escape

from kbackup.util.printable import ends, printable

_SHORT = 28  # characters that fit on every screen
_TAIL = 10
_LONG = Markup('<span class="long" title="{0}" aria-label="{0}"><span>{1}</span>{2}</span>')
"""The label is for screen readers, which would set the two ends apart."""


def name(text: str) -> Markup:
    """Of a topic, a group, a user, a setting."""
    return _cut(text, _TAIL)


def key(text: str) -> Markup:
    """Of an object: its file name is never cut."""
    return _cut(text, len(text.rpartition("/")[2]))


def _cut(text: str, tail: int) -> Markup:
    shown = printable(text)
    return escape(shown) if len(shown) <= _SHORT else _LONG.format(shown, *ends(shown, tail))
