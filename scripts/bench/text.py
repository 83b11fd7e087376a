"""Tables for people."""

from __future__ import annotations

from collections.abc import Sequence


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of right-aligned columns."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)
    ]
