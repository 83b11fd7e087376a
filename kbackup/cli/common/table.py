"""Print tables on stdout: plain in pipes and files, fitted to the width of a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from kbackup.util.printable import printable, shorten

Cell = str | int | float | None

_NAME = 24  # characters of a name that a table keeps on a terminal, however narrow
_PADDED = 60  # characters up to which a column of text is padded
_GAP = 2  # blanks between columns


@dataclass(frozen=True, slots=True)
class Column:
    """A column with rules of its own; a column without any is its name.

    `optional` hides it if every cell is zero or empty, unless the table has no rows. `alarming` prints its cells in red
    on a terminal, but for zeros and empty cells.
    """

    name: str
    optional: bool = False
    alarming: bool = False


def print_table(columns: Sequence[str | Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table; columns of numbers are aligned right, None is "-".

    On a narrow terminal, names lose their middle. Elsewhere nothing is cut."""
    named = [column if isinstance(column, Column) else Column(column) for column in columns]
    shown = [
        at
        for at, column in enumerate(named)
        if not column.optional or not rows or any(row[at] for row in rows)
    ]
    heads = [named[at] for at in shown]
    cells = [[row[at] for at in shown] for row in rows]
    right = [all(isinstance(row[at], int | float | None) for row in cells) for at in range(len(heads))]
    if sys.stdout.isatty():
        _rich_table(heads, cells, right)
    else:
        _plain_table([head.name for head in heads], [_texts(row) for row in cells], right)


def cell_text(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def _texts(row: Sequence[Cell]) -> list[str]:
    return [printable(cell_text(cell)) for cell in row]


def _plain_table(columns: Sequence[str], rows: list[list[str]], right: list[bool]) -> None:
    lines = [[name.upper() for name in columns], *rows]
    widths = [
        width if to_right else max((len(line[at]) for line in lines if len(line[at]) <= _PADDED), default=0)
        for at, (width, to_right) in enumerate(zip(_widths(lines), right, strict=True))
    ]
    for line in lines:
        cells = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        print((" " * _GAP).join(cells).rstrip(), flush=True)


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def _fitted(columns: Sequence[str], rows: list[list[str]], room: int) -> list[list[str]]:
    """Return the rows with names shortened to fit `room` characters, the widest column first.

    Text with blanks is not shortened: it is wrapped."""
    widths = _widths([columns, *rows])
    for at in sorted(range(len(columns)), key=lambda at: -widths[at]):
        excess = sum(widths) + _GAP * (len(columns) - 1) - room
        if excess > 0 and not any(" " in row[at] for row in rows):
            widths[at] = min(widths[at], max(widths[at] - excess, _NAME))
    return [
        [cell if " " in cell else shorten(cell, width) for cell, width in zip(row, widths, strict=True)]
        for row in rows
    ]


def _rich_table(columns: Sequence[Column], rows: list[list[Cell]], right: list[bool]) -> None:
    """Rich prints no color if NO_COLOR is set or the terminal has none."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column, to_right in zip(columns, right, strict=True):
        table.add_column(column.name, justify="right" if to_right else "left", overflow="fold")
    console = Console(file=sys.stdout)
    texts = _fitted([column.name for column in columns], list(map(_texts, rows)), console.width)
    for row, line in zip(rows, texts, strict=True):
        styles = (
            "red" if column.alarming and cell else "" for column, cell in zip(columns, row, strict=True)
        )
        table.add_row(*map(Text, line, styles))
    console.print(table)
