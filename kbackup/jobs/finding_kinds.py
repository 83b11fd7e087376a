"""Kinds of findings.

Stored reports of restores and drills have findings as text (formats/restores.md). What a drill says of the archive, and
what a notification names first, depends on the kind of each. Texts of these kinds are written by this module alone, and
only here the kind of a finding, also of one that an earlier version stored, is read from its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

FindingKind = Literal["loss", "unread group", "nothing compared", "other"]
"""- `loss`: records that the archive itself lacks, because they were found missing or damaged.
- `unread group`: a group whose offsets the cluster did not tell. Then nothing is known to differ.
- `nothing compared`: there was no record to compare.
- `other`: something differs from the archive, was refused by the target, or is left there."""

NOTHING_COMPARED = "nothing was compared: there is no record in what was chosen"
_LOSS = "loss: "
_UNREAD = re.compile(r"group .* can't be read: ", re.DOTALL)


def loss_finding(message: str) -> str:
    """Return the finding of a loss of the archive."""
    return f"{_LOSS}{message}"


def unread_group(group: str, why: str) -> str:
    """Return the finding of a group whose offsets the cluster did not tell."""
    return f"group {group} can't be read: {why}"


def kind_of(finding: str) -> FindingKind:
    if finding.startswith(_LOSS):
        return "loss"
    if _UNREAD.match(finding) is not None:
        return "unread group"
    if finding == NOTHING_COMPARED:
        return "nothing compared"
    return "other"


def of_kind(kind: FindingKind, findings: Iterable[str]) -> tuple[str, ...]:
    return tuple(finding for finding in findings if kind_of(finding) == kind)
