"""Print tables on stdout: pipes and files get all columns, a terminal the most important ones that fit its width."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from kbackup.util.text import printable, shorten
from kbackup.util.times import duration_text, ms_of

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from kbackup.archive.models import TopicState
    from kbackup.archive.query.overview import TopicOverview

Cell = str | int | float | None
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

_NAME = 24  # characters of a name that stay as long as a minor column can be left out in its place
_SHORT_NAME = 12  # characters of a name that stay on the narrowest terminal
_SHORT = 20  # characters of a text that is never cut, such as a time
_PADDED = 60  # characters up to which a column of text is padded
_GAP = 2  # blanks between columns
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d\.\d{3}Z")
MAIN = 5
"""Importance of a column for which none is given, the highest. Those of 1 are the first to go, also on 80 columns."""


@dataclass(frozen=True, slots=True)
class Column(Generic[T_contra]):
    """A column of a table whose rows are objects: its name, and what its cell shows of a row.

    `value` names an attribute of the row, such as "number", or "schema.version" for an attribute of an attribute; or it
    is a function of the row. `show` makes the cell of the value: `Column("age", "committed_at", human_age)`.

    A narrow terminal leaves out the columns of least `importance` first, of equal ones the right one. `optional` hides
    the column if every cell is zero or empty, unless the table has no rows. `alarming` prints its cells in red on a
    terminal, but for zeros and empty cells. `prose` is wrapped between words; other text loses its middle if it does
    not fit.
    """

    name: str
    value: str | Callable[[T_contra], Any]
    show: Callable[[Any], Cell] | None = None
    importance: int = MAIN
    optional: bool = False
    alarming: bool = False
    prose: bool = False

    def reader(self) -> Callable[[T_contra], Cell]:
        """Return the function that makes the cell of a row."""
        read: Callable[[T_contra], Any] = attrgetter(self.value) if isinstance(self.value, str) else self.value
        show = self.show
        if show is None:
            return read

        def read_and_show(row: T_contra) -> Cell:
            return show(read(row))

        return read_and_show


# What cells show.


def cell_text(cell: Cell) -> str:
    if cell is None:
        return "-"
    # True is an int, too, and reads better as it is.
    is_number = isinstance(cell, int) and not isinstance(cell, bool)
    return f"{cell:,}" if is_number else str(cell)


def or_none(value: Cell) -> Cell:
    """Return None, which a table shows as "-", in the place of zero and of an empty text."""
    return value or None


def in_commas(words: Sequence[str]) -> Cell:
    """Return words with commas between; None if there are none."""
    return ", ".join(words) or None


def human_age(moment: str) -> str:
    """Return the age of a time in RFC 3339 in its largest unit: "3h ago"; "0s ago" for a time to come."""
    return f"{duration_text(time.time() - ms_of(moment) / 1000, units=1)} ago"


def topic_name(topic: TopicState | TopicOverview) -> str:
    """Return the name of a topic; a topic that was created again after a deletion has an incarnation, too."""
    return with_incarnation(topic.name, topic.incarnation)


def with_incarnation(name: str, incarnation: int) -> str:
    """Return the name of a topic, with its incarnation unless that is the first."""
    if incarnation == 1:
        return name
    return f"{name} (incarnation {incarnation})"


# Print a table.


@dataclass(frozen=True, slots=True)
class _FilledColumn:
    """A column with its cells from top to bottom, as values and as texts."""

    column: Column[Any]
    cells: list[Cell]
    texts: list[str]
    is_number: bool

    @staticmethod
    def of(column: Column[Any], cells: list[Cell], short_times: bool) -> _FilledColumn:
        texts = []
        for cell in cells:
            text = printable(cell_text(cell))
            if short_times:
                text = _MOMENT.sub(r"\1 \2Z", text)
            texts.append(text)
        is_number = all(isinstance(cell, int | float | None) for cell in cells)
        return _FilledColumn(column, cells, texts, is_number)


def print_table(columns: Sequence[Column[T]], rows: Sequence[T], *, wide: bool = False) -> list[str]:
    """Print a table; columns of numbers are aligned right, None is "-". Return what the terminal has no room for.

    With `wide` a terminal gets what a pipe gets: all columns, nothing cut."""
    is_fitted = sys.stdout.isatty() and not wide
    filled: list[_FilledColumn] = []
    for column in columns:
        read = column.reader()
        cells = [read(row) for row in rows]
        is_hidden = column.optional and len(rows) > 0 and not any(cells)
        if not is_hidden:
            # A terminal gets times without seconds: more columns fit. Programs read a pipe, and get them whole.
            filled.append(_FilledColumn.of(column, cells, short_times=is_fitted))
    if is_fitted:
        return _print_fitted(filled)
    _print_plain(filled)
    return []


def _print_plain(filled: Sequence[_FilledColumn]) -> None:
    padded_columns = [_padded(column) for column in filled]
    for cells in zip(*padded_columns, strict=True):
        print((" " * _GAP).join(cells).rstrip(), flush=True)


def _padded(filled: _FilledColumn) -> list[str]:
    """Return the heading and the texts of a column, padded to one width."""
    texts = [filled.column.name.upper(), *filled.texts]
    lengths = [len(text) for text in texts]
    if filled.is_number:
        width = max(lengths)
        return [text.rjust(width) for text in texts]
    # One long name would push the columns after it out of sight in every line: it stands out alone.
    width = max((length for length in lengths if length <= _PADDED), default=0)
    return [text.ljust(width) for text in texts]


def _print_fitted(filled: Sequence[_FilledColumn]) -> list[str]:
    """Print what fits the terminal; return the names of the columns that are left out, and "whole names" if any is cut.

    Rich prints no color if NO_COLOR is set or the terminal has none."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout)
    widths = _widths_within(filled, console.width)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for at, width in widths.items():
        _add_heading(table, filled[at], width)
    is_cut = False
    columns_of_cells = []
    for at, width in widths.items():
        cells, is_column_cut = _cells_within(filled[at], width)
        columns_of_cells.append(cells)
        is_cut = is_cut or is_column_cut
    for row in zip(*columns_of_cells, strict=True):
        table.add_row(*row)
    console.print(table)
    left_out = [each.column.name for at, each in enumerate(filled) if at not in widths]
    if is_cut:
        left_out.append("whole names")
    return left_out


def _widths_within(filled: Sequence[_FilledColumn], room: int) -> dict[int, int]:
    """Return the width of each column that fits into `room` characters, by its index."""
    columns = [each.column for each in filled]
    # Headings of one line, or, to have more columns, of one word a line.
    in_lines = [[column.name] for column in columns]
    in_words = [column.name.split(" ") for column in columns]
    fitted: dict[int, int] = {}
    for headings in (in_lines, in_words):
        widths: list[int] = []
        least: list[int] = []
        for each, heading in zip(filled, headings, strict=True):
            head = max(len(word) for word in heading)
            lengths = [len(text) for text in each.texts]
            width = max([head, *lengths])
            # A number that lost a digit would be another one: numbers and short texts are never cut.
            is_whole = each.is_number or width <= _SHORT
            least_width = width if is_whole else head
            widths.append(width)
            least.append(least_width)
        fitted = _fit(columns, widths, least, room)
        if len(fitted) == len(columns):
            break
    return fitted


def _fit(columns: Sequence[Column[Any]], widths: Sequence[int], least: Sequence[int], room: int) -> dict[int, int]:
    """Return the width of each column that fits into `room` characters, by its index.

    `widths` are the widths of the longest texts, `least` the widths that the columns need at least."""

    def rank(at: int) -> tuple[int, int]:
        """Order columns by importance; of equal ones the right one goes first."""
        return columns[at].importance, -at

    kept = list(range(len(columns)))
    while True:
        # The first column names the row: it always stays.
        out = min(kept[1:], key=rank, default=None)
        if out is None:
            shortest = 1
        elif columns[out].importance < MAIN:
            # Rather lose a minor column than more of a name.
            shortest = _NAME
        else:
            shortest = _SHORT_NAME
        gaps = _GAP * (len(kept) - 1)
        wanted = _wanted_widths(columns, kept, widths, least, room - gaps)
        fitted = _shortened(wanted, least, shortest, room - gaps)
        if fitted is not None:
            return fitted
        if out is None:
            return {0: room}
        kept.remove(out)


def _wanted_widths(
    columns: Sequence[Column[Any]], kept: Sequence[int], widths: Sequence[int], least: Sequence[int], free: int
) -> dict[int, int]:
    """Return the width that each of the kept columns would take, of `free` characters for all of them."""
    # Prose is wrapped before names are cut: it gets what the other columns leave.
    others = sum(widths[at] for at in kept if not columns[at].prose)
    for_prose = max(_NAME, free - others)
    wanted = {}
    for at in kept:
        wanted[at] = widths[at]
        if columns[at].prose:
            wanted[at] = min(widths[at], max(least[at], for_prose))
    return wanted


def _shortened(wanted: Mapping[int, int], least: Sequence[int], shortest: int, free: int) -> dict[int, int] | None:
    """Cut the widest columns, down to `shortest` characters, until all fit; None if they don't fit then either."""
    longest = max(*wanted.values(), shortest)
    for most in range(longest, shortest - 1, -1):
        fitted = {}
        for at, width in wanted.items():
            fitted[at] = min(width, max(least[at], most))
        if sum(fitted.values()) <= free:
            return fitted
    return None


def _add_heading(table: RichTable, filled: _FilledColumn, width: int) -> None:
    from rich.text import Text

    name = filled.column.name
    heading = name if len(name) <= width else name.replace(" ", "\n")
    justify: Literal["left", "right"] = "right" if filled.is_number else "left"
    table.add_column(Text(heading), justify=justify, width=width, no_wrap=not filled.column.prose)


def _cells_within(filled: _FilledColumn, width: int) -> tuple[list[Any], bool]:
    """Return the cells of a column in Rich's form, and whether any text lost its middle."""
    from rich.text import Text

    column = filled.column
    is_cut = False
    cells = []
    for value, text in zip(filled.cells, filled.texts, strict=True):
        words = text.split(" ") if column.prose else [text]
        is_cut = is_cut or any(len(word) > width for word in words)
        fitting = " ".join(shorten(word, width) for word in words)
        style = "red" if column.alarming and value else ""
        cells.append(Text(fitting, style))
    return cells, is_cut
