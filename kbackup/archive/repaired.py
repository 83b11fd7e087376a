"""What an archive's repairs mean to whoever looks at it, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbackup.archive.checkpoints import given_up
from kbackup.archive.models import Point
from kbackup.archive.reader import Archive


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


def made_again(archive: Archive, seq: int) -> int | None:
    """The restore point of a repair that gave up number `seq` and had its records again, which may have expired since;
    None where there was none. Who has the records up to `seq` can't tell which of that one's are the same."""
    numbers = given_up(archive.restore_points)
    for link in archive.gone:
        numbers += [range(some.first, some.last + 1) for some in link.given_up]
        if not link.restore_points:
            numbers.append(range((link.parent or 0) + 1, link.last + 1))
    return next((some.stop for some in numbers if seq in some), None)


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
