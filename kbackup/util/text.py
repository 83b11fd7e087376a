"""Numbers and lists of names in messages, and the form of ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

ArchiveId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$", max_length=32)]
"""The id of an archive. Users' key commands get it: no other text may reach their scripts."""
SomeArchiveId = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{32})?\Z")]
"""The id of an archive, or '' for none."""


def shorten(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Join the first names, and say how many more there are: 'a, b and 3 more', or between '; ' 'a; b; and 3 more'."""
    comma = "" if between == ", " else between.rstrip()
    more = f"{comma} and {len(names) - most:,} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def plural(number: int, noun: str) -> str:
    """1 and "group" is "1 group"; 2,000 are "2,000 groups"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
