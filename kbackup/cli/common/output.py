"""Print the output of a command: tables, lines, progress and one JSON document."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, TextIO, TypeVar

import msgspec

from kbackup.errors import KbackupError, without_credentials
from kbackup.util.text import human_count, human_duration, human_size, json_sign, printable, printable_lines, shorten
from kbackup.util.times import duration_text, ms_of, time_text

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from kbackup.archive.models import TopicState
    from kbackup.archive.query.overview import TopicOverview
    from kbackup.archive.segments.window import Choice


def human_age(moment: str) -> str:
    """Return the age of a time in RFC 3339 in its largest unit: "3h ago"; "0s ago" for a time to come."""
    return f"{duration_text(time.time() - ms_of(moment) / 1000, units=1)} ago"


def topic_name(topic: TopicState | TopicOverview) -> str:
    """Return the name of a topic; a topic that was created again after a deletion has an incarnation, too."""
    if topic.incarnation == 1:
        return topic.name
    return f"{topic.name} (incarnation {topic.incarnation})"


# Tables on stdout: in pipes and files all columns; on a terminal those that fit its width, the important ones first.


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
"""Importance of a column that has no other."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column with rules of its own; a column without any is its name.

    A narrow terminal leaves out the columns of least `importance` first, of equal ones the right one. `optional` hides
    the column if every cell is zero or empty, unless the table has no rows. `alarming` prints its cells in red on a
    terminal, but for zeros and empty cells. `prose` is wrapped between words; other text loses its middle if it does
    not fit.
    """

    name: str
    importance: int = MAIN
    optional: bool = False
    alarming: bool = False
    prose: bool = False


@dataclass(frozen=True, slots=True)
class ColumnOf(Generic[T_contra]):
    """A column of a table whose rows are objects: its name, what its cell shows of a row, and the rules of `Column`."""

    name: str
    cell: Callable[[T_contra], Cell]
    importance: int = MAIN
    optional: bool = False
    alarming: bool = False
    prose: bool = False

    @property
    def head(self) -> Column:
        return Column(self.name, self.importance, self.optional, self.alarming, self.prose)


_WORDS = ("optional", "alarming", "prose")


def columns(text: str) -> list[Column]:
    """Return the columns that a text names with their rules: "topic, partitions 2, losses optional alarming"."""
    made = []
    for column in text.split(", "):
        words = column.split(" ")
        rules = [word for word in words if word.isdecimal() or word in _WORDS]
        name = " ".join(words[: len(words) - len(rules)])
        importance = next((int(word) for word in rules if word.isdecimal()), MAIN)
        made.append(Column(name, importance, "optional" in rules, "alarming" in rules, "prose" in rules))
    return made


def print_table(columns: Sequence[str | Column], rows: Sequence[Sequence[Cell]], *, wide: bool = False) -> list[str]:
    """Print a table; columns of numbers are aligned right, None is "-". Return what the terminal has no room for.

    With `wide` a terminal gets what a pipe gets: all columns, nothing cut."""
    heads: list[Column] = []
    shown: list[int] = []
    right: list[bool] = []
    for at, column in enumerate(columns):
        head = column if isinstance(column, Column) else Column(column)
        cells_below = [row[at] for row in rows]
        if head.optional and rows and not any(cells_below):
            continue
        heads.append(head)
        shown.append(at)
        right.append(all(isinstance(cell, int | float | None) for cell in cells_below))
    cells = []
    texts = []
    for row in rows:
        shown_cells = [row[at] for at in shown]
        cells.append(shown_cells)
        texts.append([printable(cell_text(cell)) for cell in shown_cells])
    if sys.stdout.isatty() and not wide:
        for line in texts:
            # A terminal gets times without seconds: more columns fit.
            line[:] = [_MOMENT.sub(r"\1 \2Z", text) for text in line]
        return _fitted_table(heads, cells, texts, right)
    names = [head.name.upper() for head in heads]
    _plain_table([names, *texts], right)
    return []


def cell_text(cell: Cell) -> str:
    if cell is None:
        return "-"
    # True is an int, too, and reads better as it is.
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def _plain_table(lines: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    widths = []
    for texts, to_right in zip(zip(*lines, strict=True), right, strict=True):
        lengths = [len(text) for text in texts]
        if not to_right:
            # One long name would push the columns after it out of sight in every line: it stands out alone.
            lengths = [length for length in lengths if length <= _PADDED]
        widths.append(max(lengths, default=0))
    for line in lines:
        padded = []
        for text, width, to_right in zip(line, widths, right, strict=True):
            padded.append(text.rjust(width) if to_right else text.ljust(width))
        print((" " * _GAP).join(padded).rstrip(), flush=True)


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def _fit(columns: Sequence[Column], widths: Sequence[int], least: Sequence[int], room: int) -> dict[int, int]:
    """Return the width of each column that fits into `room` characters, by its index. `widths` are those of the longest
    texts, `least` those that the columns need at least."""

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
            shortest = _NAME  # rather lose a minor column than more of a name
        else:
            shortest = _SHORT_NAME
        free = room - _GAP * (len(kept) - 1)
        # Prose is wrapped before names are cut: it gets what the other columns leave.
        others = sum(widths[at] for at in kept if not columns[at].prose)
        for_prose = max(_NAME, free - others)
        wanted = {at: widths[at] for at in kept}
        for at in kept:
            if columns[at].prose:
                wanted[at] = min(widths[at], max(least[at], for_prose))
        longest = max(*wanted.values(), shortest)
        for most in range(longest, shortest - 1, -1):
            fitted = {at: min(width, max(least[at], most)) for at, width in wanted.items()}
            if sum(fitted.values()) <= free:
                return fitted
        if out is None:
            return {0: room}
        kept.remove(out)


def _fitted_table(
    columns: Sequence[Column], rows: list[list[Cell]], texts: list[list[str]], right: list[bool]
) -> list[str]:
    """Print what fits the terminal; return the names of the columns that are left out, and "whole names" if any is cut.

    Rich prints no color if NO_COLOR is set or the terminal has none."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout)
    fitted: dict[int, int] = {}
    # Headings of one line, or, to have more columns, of one word a line.
    in_lines = [[column.name] for column in columns]
    in_words = [column.name.split(" ") for column in columns]
    for headings in (in_lines, in_words):
        heads = [max(map(len, heading)) for heading in headings]
        cells_below = _widths(texts) or heads
        widths = [max(head, below) for head, below in zip(heads, cells_below, strict=True)]
        least = []
        for width, head, is_number in zip(widths, heads, right, strict=True):
            # A number that lost a digit would be another one: numbers and short texts are never cut.
            is_whole = is_number or width <= _SHORT
            least.append(width if is_whole else head)
        fitted = _fit(columns, widths, least, console.width)
        if len(fitted) == len(columns):
            break
    table = Table(box=None, header_style="bold", pad_edge=False)
    for at, width in fitted.items():
        name, prose = columns[at].name, columns[at].prose
        heading_text = name if len(name) <= width else name.replace(" ", "\n")
        table.add_column(Text(heading_text), justify="right" if right[at] else "left", width=width, no_wrap=not prose)
    is_cut = False
    for row, line in zip(rows, texts, strict=True):
        cells = []
        for at, width in fitted.items():
            words = line[at].split(" ") if columns[at].prose else [line[at]]
            is_cut = is_cut or any(len(word) > width for word in words)
            text = " ".join(shorten(word, width) for word in words)
            cells.append(Text(text, "red" if columns[at].alarming and row[at] else ""))
        table.add_row(*cells)
    console.print(table)
    left_out = [column.name for at, column in enumerate(columns) if at not in fitted]
    if is_cut:
        left_out.append("whole names")
    return left_out


PLAIN_INTERVAL = 10.0
_BAR = 20  # columns


class Progress:
    """Counts records and bytes, and shows them on stderr: a bar on a terminal, elsewhere a line every ten seconds.

    The bar shows the share of bytes if their total is known, else of records. Thread-safe."""

    def __init__(
        self,
        label: str,
        records: int | None,
        nbytes: int | None,
        *,
        shown: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label = printable(label)
        self.total_records, self.total_bytes = records, nbytes
        self.records = self.nbytes = 0
        self._shown, self._clock = shown, clock
        self._started = self._printed_at = clock()
        self._lock = threading.Lock()
        self._bar: RichProgress | None = None

    def __enter__(self) -> Self:
        self._started = self._printed_at = self._clock()
        if self._shown and sys.stderr.isatty():
            self._bar = _rich_bar(self.label)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._show(self._bar)
            self._bar.stop()

    @contextmanager
    def hidden(self, *, restart: bool = True) -> Iterator[None]:
        """Hide the bar while the caller prints to stdout, if stdout is the same terminal.

        `restart` shows the bar afterwards, on a line that must be empty. (Rich would print the output above the
        bar, and add line feeds.)"""
        bar = self._bar if sys.stdout.isatty() else None
        if bar is not None:
            bar.stop()
        try:
            yield
        finally:
            if bar is not None and restart:
                bar.start()

    def advance(self, records: int = 0, nbytes: int = 0) -> None:
        with self._lock:
            self._reach(self.records + records, self.nbytes + nbytes)

    def reach(self, records: int, nbytes: int, expected: int) -> None:
        with self._lock:
            self.total_records = expected
            self._reach(records, nbytes)

    def _reach(self, records: int, nbytes: int) -> None:
        self.records, self.nbytes = records, nbytes
        if self._bar is not None:
            self._show(self._bar)
        elif self._shown and self._clock() - self._printed_at >= PLAIN_INTERVAL:
            self._printed_at = self._clock()
            print(f"{self.label}: {self.status()}", file=sys.stderr, flush=True)

    def status(self, room: int | None = None) -> str:
        """Return records, bytes, rates and the remaining time, in at most `room` columns.

        Leaves out the least important parts if they don't fit, but never the remaining time."""
        seconds = max(self._clock() - self._started, 1e-3)
        records = f"{_of(self.records, self.total_records, human_count)} records"
        size = _of(self.nbytes, self.total_bytes, human_size)
        record_rate = f"{human_count(self.records / seconds)} records/s"
        rate = f"{human_size(self.nbytes / seconds)}/s"
        parts = [records, size, record_rate, rate]
        share = self._share()
        if share:
            parts.append(f"{human_duration(seconds / share - seconds)} left")
        for least in (record_rate, size, rate, records):
            if room is None or len(", ".join(parts)) <= room:
                break
            parts.remove(least)
        return ", ".join(parts)

    def _share(self) -> float | None:
        """Return the share that is done, from 0 to 1; None without a total."""
        done, total = (self.nbytes, self.total_bytes) if self.total_bytes else (self.records, self.total_records)
        return min(done / total, 1.0) if total else None

    def _show(self, bar: RichProgress) -> None:
        share = self._share()
        total = None if share is None else 1.0
        room = bar.console.width - len(self.label) - _BAR - 2  # a space beside the bar on each side
        bar.update(bar.task_ids[0], total=total, completed=share or 0.0, status=self.status(max(room, 0)))


def _of(done: int, total: int | None, text: Callable[[float], str]) -> str:
    return f"{text(done)} of {text(total)}" if total else text(done)


def _rich_bar(label: str) -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=_BAR),
        TextColumn("{task.fields[status]}", markup=False),
    )
    # rich would redirect output for a file or a pipe to stderr
    bar = Progress(*columns, console=Console(file=sys.stderr), transient=True, redirect_stdout=sys.stdout.isatty())
    bar.add_task(label, total=None, status="")
    return bar


KEPT_WARNINGS = 20


class Reporter:
    """Prints the output of a command: data on stdout, everything else on stderr. Streams are looked up at each use.

    With `--json` stdout holds exactly one JSON document, printed at the end of the command with its exit code; tables
    and lines print nothing. Without `--json` the document prints nothing. A command calls both.

    `quiet` silences notes and progress, never data, warnings and errors. `one_line` prints the JSON document on one
    line. `wide` prints all columns of tables, on a narrow terminal too. `documents` counts the JSON documents of a
    command: its report, or the records that it has printed. `report`, `summary` and `warnings` keep the document, the
    last line and the first warnings.
    """

    def __init__(self, *, json: bool = False, one_line: bool = False, quiet: bool = False, wide: bool = False) -> None:
        self.json = json
        self.one_line = one_line
        self.quiet = quiet
        self.wide = wide
        self.documents = 0
        self.report: object = None
        self.summary = ""
        self.warnings: list[str] = []
        self._fields: dict[str, object] | None = None

    def document(self, value: object, *, at_once: bool = False) -> None:
        """Take the JSON document, an object that msgspec can encode: `finish` prints it, or this call with `at_once`.

        A second call raises `RuntimeError`."""
        self.report = value
        if not self.json:
            return
        if self.documents:
            raise RuntimeError("a command prints one JSON document")
        self.documents += 1
        fields: dict[str, object] = msgspec.to_builtins(value, str_keys=True)
        if at_once:
            self._print_document(fields)
        else:
            self._fields = fields

    def finish(self, exit_code: int, error: KbackupError | None = None) -> None:
        """Print the JSON document with the exit code and the error of the command, if there is anything to print.

        After records or a document that was printed at once, errors go to stderr alone."""
        if not self.json or (self._fields is None and (error is None or self.documents)):
            return
        failure: dict[str, object] = {}
        if error is not None:
            named = {"type": type(error).__name__, "message": error.message, "hint": error.hint}
            failure = {"error": {**named, "exit_code": error.exit_code}}
        fields = self._fields or {}
        self._print_document({**fields, **failure, "exit_code": exit_code})

    def _print_document(self, fields: Mapping[str, object]) -> None:
        _print(json_text(fields, indent=-1 if self.one_line else 2), sys.stdout)

    def line(self, text: str = "") -> None:
        self.summary = text or self.summary
        if not self.json:
            _print(printable(text), sys.stdout)

    def check(self, word: str, name: str, detail: str, hint: str) -> None:
        """Print the result of a check in one line, and its hint in a second one."""
        self.line(f"{word:<8} {name}: {detail}")
        if hint:
            self.line(f"{'':<8}   hint: {hint}")

    def fields(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Print one `name: value` on each line, values in a column."""
        rows = [(f"{name}:", cell_text(value)) for name, value in pairs]
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.line(f"{name:<{width}} {value}")

    def table(self, columns: Sequence[str | Column], rows: Iterable[Sequence[Cell]]) -> None:
        """Print a table of rows that have a cell for each column."""
        if self.json:
            return
        left_out = print_table(columns, list(rows), wide=self.wide)
        if left_out:
            self.note(f"--wide also shows: {', '.join(left_out)}")

    def table_of(self, columns: Sequence[ColumnOf[T]], rows: Iterable[T]) -> None:
        """Print a table with a row for each object."""
        heads = [column.head for column in columns]
        cells = []
        for row in rows:
            cells.append([column.cell(row) for column in columns])
        self.table(heads, cells)

    def note(self, *texts: str) -> None:
        """Print information for people on stderr."""
        for text in () if self.quiet else texts:
            _print(printable(text), sys.stderr)

    def doing(self, text: str) -> None:
        """Print what the command waits for next, if stderr is a terminal."""
        if sys.stderr.isatty():
            self.note(text)

    def warning(self, *texts: str) -> None:
        self.warnings += texts[: KEPT_WARNINGS - len(self.warnings)]
        for text in texts:
            _print(f"warning: {printable(text)}", sys.stderr)

    def progress(self, label: str, *, records: int | None = None, nbytes: int | None = None) -> Progress:
        """Return a context manager that shows the progress of `label`; pass totals if they are known."""
        return Progress(label, records, nbytes, shown=not self.quiet)


def json_text(value: object, indent: int) -> str:
    """Return JSON with control characters escaped; its content is unchanged. A negative indent makes one line."""
    try:
        text = msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()
    except UnicodeEncodeError:  # half a surrogate pair: an argument or a file name that is not UTF-8
        text = json.dumps(value, indent=indent if indent >= 0 else None)
    lines = []
    for line in text.split("\n"):
        lines.append(line if line.isprintable() else "".join(map(json_sign, line)))
    return "\n".join(lines)


def _print(text: str, stream: TextIO) -> None:
    print(text, file=stream, flush=True)


class _Stderr(logging.Handler):
    """Writes to the present sys.stderr: a progress bar replaces it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            _print(self.format(record), sys.stderr)
        except (OSError, ValueError):
            self.handleError(record)


class _Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        record.message = printable(without_credentials(record.message))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 (logging's name)
        return printable_lines(without_credentials(super().formatException(ei)))


def configure_logging(verbose: int = 0) -> None:
    """Log to stderr: warnings; with `verbose` 1 kbackup's INFO, with 2 its DEBUG and the libraries' INFO.

    The libraries' DEBUG is never logged: those of botocore and librdkafka hold credentials.
    """
    handler = _Stderr()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO if verbose > 1 else logging.WARNING, force=True)
    levels = {0: logging.WARNING, 1: logging.INFO}
    logging.getLogger("kbackup").setLevel(levels.get(verbose, logging.DEBUG))
    # py4j logs the end of a JVM after Ctrl-C; our errors hold its other messages
    logging.getLogger("py4j").setLevel(logging.NOTSET if verbose > 1 else logging.CRITICAL)
    # urllib3 logs a traceback where a connection was cut within headers, which the store asks for again
    logging.getLogger("urllib3.connection").setLevel(logging.NOTSET if verbose > 1 else logging.ERROR)
    # Azure's logins list all that they tried; our error holds what to do
    logging.getLogger("azure.identity").setLevel(logging.NOTSET if verbose > 1 else logging.CRITICAL)
    # librdkafka logs ten lines a second while a broker is down; our errors hold its last message
    logging.getLogger("kbackup.librdkafka").setLevel(logging.WARNING if verbose else logging.CRITICAL)


class ShownProgress(ExitStack):
    """A job's listener (`kbackup.metrics.registry.ProgressListener`): one progress for each phase with a count.

    Use it as a context manager: the end removes the bar."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__()
        self._reporter = reporter
        self._name = ""
        self._progress: Progress | None = None

    def phase(self, name: str) -> None:
        self.close()
        self._name, self._progress = name, None

    def progress(self, records: int, size: int, expected: int) -> None:
        if self._progress is None:
            self._progress = self.enter_context(self._reporter.progress(self._name))
        self._progress.reach(records, size, expected)


def show_window(choice: Choice, reporter: Reporter) -> None:
    """Print the window that a restore would read: bounds and reasons as notes, excluded records as warnings."""
    bounds = []
    if choice.from_time is not None:
        bounds.append(f"from {time_text(choice.from_time)}")
    if choice.to_time is not None:
        bounds.append(f"up to {time_text(choice.to_time)}")
    if bounds:
        both = "both " if len(bounds) > 1 else ""
        reporter.note(f"  records {' '.join(bounds)}, {both}included")
    if choice.ranges:
        reporter.note(f"  offsets {', '.join(choice.ranges)}, the end of each range excluded")
    if choice.skipped:
        # A skipped offset has no end; the name of its topic may have a hyphen.
        has_ranges = any("-" in each.rpartition(":")[2] for each in choice.skipped)
        kept = ", the end of each range kept" if has_ranges else ""
        reporter.note(f"  without offsets {', '.join(choice.skipped)}{kept}")
    if choice.where:
        reporter.note(f"  only records with {choice.where}")
    reporter.note(*(f"  {note}" for note in choice.notes))
    reporter.warning(*choice.left_out)
