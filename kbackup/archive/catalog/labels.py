"""Labels of restore points: names that stand wherever a restore point's number can."""

from __future__ import annotations

import re

from kbackup.errors import UsageError

LATEST = "latest"
"""The word for the newest restore point."""
RESERVED = (LATEST, "all", "source", "target")
"""Words that commands and options take where a restore point can stand."""
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,99}\Z")


def is_label(name: str) -> bool:
    """Return whether `name` can be a label: it is no number and no word of commands such as 'latest'.

    Older versions did not check the labels that a program gave to `kbackup.backup`. So a catalog may have a label that
    is none. It never selects a restore point, since another one may be meant.
    """
    return _LABEL.match(name) is not None and name not in RESERVED


def check_label(name: str) -> None:
    """Raise `UsageError` for a name that can't be a label."""
    if not is_label(name):
        raise UsageError(
            f"label {name!r} can't be used: it is a number, a word of commands, or has other characters",
            "begin with a letter, then use letters, digits, '.', '_' and '-', at most 100",
        )
