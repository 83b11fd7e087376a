"""What an archive's repairs mean to whoever looks at it, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbackup.archive.models import Point


def history(points: Iterable[Point]) -> list[str]:
    """A line for each restore point that was made of files: what is no more, and what nobody could tell."""
    said: list[str] = []
    for point in points:
        if point.repaired is None:
            continue
        made = f"restore point {point.seq} of {point.committed_at}"
        if point.repaired.why == "adopted":
            said.append(f"{made} was adopted from a folder of the Java tool")
        elif point.repaired.restore_points:
            said.append(f"{are_lost(point.repaired.restore_points)}: {made} was made of what was found")
        else:
            said.append(f"what was before is lost: {made} was made of what was found")
        said += [f"not known: {what}" for what in point.repaired.not_known]
    return said


def are_lost(numbers: Sequence[int]) -> str:
    many = len(numbers) > 1
    return f"restore point{'s' if many else ''} {_spans(numbers)} {'are' if many else 'is'} lost"


def _spans(numbers: Iterable[int]) -> str:
    """'1, 3 to 5'"""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][-1] == number - 1:
            found[-1] = [found[-1][0], number]
        else:
            found.append([number])
    return ", ".join(" to ".join(map(str, span)) for span in found)
