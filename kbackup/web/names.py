"""Render names: a long name loses its middle on a narrow screen, but copies and searches get the whole name.

The page holds every character: the style sheet cuts names to the width of the screen.
"""

from __future__ import annotations

from markupsafe import Markup, escape

from kbackup.util.printable import ends, printable

_SHORT = 28  # characters that fit on every screen
_TAIL = 10
_LONG = Markup('<span class="long" title="{0}" aria-label="{0}"><span>{1}</span>{2}</span>')
"""The label is for screen readers, which would set the two ends apart."""


def name(text: str) -> Markup:
    """Return the markup of the name of a topic, a group, a user or a setting."""
    return _cut(text, _TAIL)


def key(text: str) -> Markup:
    """Return the markup of the key of an object; its file name is never cut."""
    return _cut(text, len(text.rpartition("/")[2]))


def _cut(text: str, tail: int) -> Markup:
    shown = printable(text)
    return escape(shown) if len(shown) <= _SHORT else _LONG.format(shown, *ends(shown, tail))
