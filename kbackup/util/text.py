"""Numbers and lists of names in messages."""

from __future__ import annotations

from collections.abc import Sequence


def shorten(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Join the first names, and say how many more there are: 'a, b and 3 more', or between '; ' 'a; b; and 3 more'."""
    comma = "" if between == ", " else between.rstrip()
    more = f"{comma} and {len(names) - most:,} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def plural(number: int, noun: str) -> str:
    """1 and "group" is "1 group"; 2,000 are "2,000 groups"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
