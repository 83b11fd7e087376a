"""Print the output of a command: data on stdout, everything else on stderr.

With `--json` stdout holds exactly one JSON document, printed at the end of the command with its exit code; tables and
lines print nothing. Without `--json` the document prints nothing. A command calls both.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TextIO

import msgspec

from kbackup.cli.common.progress import Progress
from kbackup.cli.common.table import Cell, Column, cell_text, print_table
from kbackup.errors import KbackupError
from kbackup.util.printable import printable, printable_lines

KEPT_WARNINGS = 20


class Reporter:
    """Prints the output of a command. Streams are looked up at each use.

    `quiet` silences notes and progress, never data, warnings and errors. `one_line` prints the JSON document on one
    line. `documents` counts the JSON documents of a command: its report, or the records that it has printed. `report`,
    `summary` and `warnings` keep the document, the last line and the first warnings.
    """

    def __init__(self, *, json: bool = False, one_line: bool = False, quiet: bool = False) -> None:
        self.json = json
        self.one_line = one_line
        self.quiet = quiet
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
        """Print the JSON document with the exit code and the error of the command, if there is anything to tell.

        After records or a document that was printed at once, errors go to stderr alone."""
        if not self.json or (self._fields is None and (error is None or self.documents)):
            return
        failure = {} if error is None else {"error": _error_fields(error)}
        self._print_document({**(self._fields or {}), **failure, "exit_code": exit_code})

    def _print_document(self, fields: Mapping[str, object]) -> None:
        _print(json_text(fields, indent=-1 if self.one_line else 2), sys.stdout)

    def line(self, text: str = "") -> None:
        self.summary = text or self.summary
        if not self.json:
            _print(printable(text), sys.stdout)

    def fields(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Print one `name: value` on each line, values in a column."""
        rows = [(f"{name}:", cell_text(value)) for name, value in pairs]
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.line(f"{name:<{width}} {value}")

    def table(self, columns: Sequence[str | Column], rows: Iterable[Sequence[Cell]]) -> None:
        """Print a table, as `print_table` does."""
        if not self.json:
            print_table(columns, [*rows])

    def note(self, text: str) -> None:
        """Print information for people on stderr."""
        if not self.quiet:
            _print(printable(text), sys.stderr)

    def doing(self, text: str) -> None:
        """Print what the command waits for next, if stderr is a terminal."""
        if sys.stderr.isatty():
            self.note(text)

    def warning(self, text: str) -> None:
        self.warnings += [text] if len(self.warnings) < KEPT_WARNINGS else []
        _print(f"warning: {printable(text)}", sys.stderr)

    def progress(self, label: str, *, records: int | None = None, nbytes: int | None = None) -> Progress:
        """Return a context manager that shows the progress of `label`; pass totals if they are known."""
        return Progress(label, records, nbytes, shown=not self.quiet)


def _error_fields(error: KbackupError) -> dict[str, object]:
    fields = {"type": type(error).__name__, "message": error.message, "hint": error.hint}
    return {**fields, "exit_code": error.exit_code}


def json_text(value: object, indent: int) -> str:
    """Return JSON with control characters escaped; its content is unchanged. A negative indent makes one line."""
    try:
        text = msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()
    except UnicodeEncodeError:  # half a surrogate pair: an argument or a file name that is not UTF-8
        text = json.dumps(value, indent=indent if indent >= 0 else None)
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
    # urllib3 logs a traceback where a connection was cut within headers, which the store asks for again
    logging.getLogger("urllib3.connection").setLevel(logging.NOTSET if verbose > 1 else logging.ERROR)
    # librdkafka logs ten lines a second while a broker is down; our errors hold its last message
    logging.getLogger("kbackup.librdkafka").setLevel(logging.WARNING if verbose else logging.CRITICAL)
