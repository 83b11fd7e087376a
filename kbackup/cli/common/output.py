"""Print the output of a command: data on stdout, everything else on stderr.

With `--json` stdout holds exactly one JSON document, and tables and lines print nothing. Without `--json` the document
prints nothing. A command calls both.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TextIO

import msgspec

from kbackup.cli.common.progress import Progress
from kbackup.util.printable import printable, printable_lines, shorten

Cell = str | int | float | None

_NAME = 24  # characters of a name that a table keeps on a terminal, however narrow
_PADDED = 60  # characters up to which a column of text is padded
_GAP = 2  # blanks between columns


class Reporter:
    """Prints the output of a command. Streams are looked up at each use.

    `quiet` silences notes and progress, never data, warnings and errors. `documents` counts the printed JSON documents:
    none or one.
    """

    def __init__(self, *, json: bool = False, quiet: bool = False) -> None:
        self.json = json
        self.quiet = quiet
        self.documents = 0

    def document(self, value: object) -> None:
        """Print the JSON document: anything that msgspec can encode. A second call raises `RuntimeError`."""
        if not self.json:
            return
        if self.documents:
            raise RuntimeError("a command prints one JSON document")
        self.documents += 1
        _print(_json(value), sys.stdout)

    def line(self, text: str = "") -> None:
        if not self.json:
            _print(printable(text), sys.stdout)

    def fields(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Print one `name: value` on each line, values in a column."""
        rows = [(f"{name}:", cell_text(value)) for name, value in pairs]
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.line(f"{name:<{width}} {value}")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Print a table; columns of numbers are aligned right, None is "-".

        On a narrow terminal, names lose their middle. Elsewhere nothing is cut."""
        if self.json:
            return
        cells = [tuple(row) for row in rows]
        right = [all(isinstance(row[at], int | float | None) for row in cells) for at in range(len(columns))]
        text = [[printable(cell_text(cell)) for cell in row] for row in cells]
        if sys.stdout.isatty():
            _rich_table(columns, text, right)
        else:
            _plain_table(columns, text, right)

    def note(self, text: str) -> None:
        """Print information for people on stderr."""
        if not self.quiet:
            _print(printable(text), sys.stderr)

    def doing(self, text: str) -> None:
        """Print what the command waits for next, if stderr is a terminal."""
        if sys.stderr.isatty():
            self.note(text)

    def warning(self, text: str) -> None:
        _print(f"warning: {printable(text)}", sys.stderr)

    def progress(self, label: str, *, records: int | None = None, nbytes: int | None = None) -> Progress:
        """Return a context manager that shows the progress of `label`; pass totals if they are known."""
        return Progress(label, records, nbytes, shown=not self.quiet)


def cell_text(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def _json(value: object) -> str:
    """Return indented JSON with control characters escaped; its content is unchanged."""
    try:
        text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    except UnicodeEncodeError:  # half a surrogate pair: an argument or a file name that is not UTF-8
        text = json.dumps(msgspec.to_builtins(value, str_keys=True), indent=2)
    lines = text.split("\n")
    return "\n".join(line if line.isprintable() else "".join(map(_escaped, line)) for line in lines)


def json_line(value: object) -> str:
    """Return JSON in one line, with control characters escaped; text must be Unicode."""
    text = msgspec.json.encode(value).decode()
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(sign: str) -> str:
    return sign if sign.isprintable() else json.dumps(sign)[1:-1]


def _print(text: str, stream: TextIO) -> None:
    print(text, file=stream, flush=True)


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
        _print((" " * _GAP).join(cells).rstrip(), sys.stdout)


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


def _rich_table(columns: Sequence[str], rows: list[list[str]], right: list[bool]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name, to_right in zip(columns, right, strict=True):
        table.add_column(name, justify="right" if to_right else "left", overflow="fold")
    console = Console(file=sys.stdout)
    for row in _fitted(columns, rows, console.width):
        table.add_row(*map(Text, row))
    console.print(table)


class _Stderr(logging.Handler):
    """Writes to the present sys.stderr: a progress bar replaces it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            _print(self.format(record), sys.stderr)
        except (OSError, ValueError):
            self.handleError(record)


class _Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(  # noqa: N802 (logging's name)
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        return printable_lines(super().formatException(ei))


def configure_logging(verbose: int = 0) -> None:
    """Log to stderr: warnings; with `verbose` 1 kbackup's INFO, with 2 its DEBUG and the libraries' INFO.

    The libraries' DEBUG is never logged: those of botocore and librdkafka hold credentials.
    """
    handler = _Stderr()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(
        handlers=[handler], level=logging.INFO if verbose > 1 else logging.WARNING, force=True
    )
    levels = {0: logging.WARNING, 1: logging.INFO}
    logging.getLogger("kbackup").setLevel(levels.get(verbose, logging.DEBUG))
    # py4j logs the end of a JVM after Ctrl-C; our errors hold its other messages
    logging.getLogger("py4j").setLevel(logging.NOTSET if verbose > 1 else logging.CRITICAL)
    # librdkafka logs ten lines a second while a broker is down; our errors hold its last message
    logging.getLogger("kbackup.librdkafka").setLevel(logging.WARNING if verbose else logging.CRITICAL)
