"""Print the output of a command: lines, fields, tables, warnings and one JSON document."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import tzinfo
from typing import Self, TextIO

import msgspec

from kbackup.cli.common.colors import colored
from kbackup.cli.common.progress import Progress
from kbackup.cli.common.tables import Cell, Column, T, cell_text, print_table
from kbackup.errors import KbackupError
from kbackup.jobs.finding_kinds import kind_of, loss_finding
from kbackup.util.text import human_duration, json_sign, printable

KEPT_WARNINGS = 20
SILENCE = 30.0
"""Seconds after which a job that has printed nothing says where it is, where stderr is no terminal."""


class Reporter:
    """Prints the output of a command: data on stdout, everything else on stderr. Streams are looked up at each use.

    With `--json` stdout holds exactly one JSON document, printed at the end of the command with its exit code; tables
    and lines print nothing. Without `--json` the document prints nothing. A command calls both.

    `quiet` silences notes and progress, never data, warnings and errors. `one_line` prints the JSON document on one
    line. `time_zone` is the zone of `--tz`, in which times are shown beside UTC; None is that of this machine. `wide`
    prints all columns of tables, on a narrow terminal too. `documents` counts the JSON documents of a
    command: its report, or the records that it has printed. `report`, `summary` and `warnings` keep the document, the
    last line and the first warnings; `loss_warnings` are the first warnings of losses.
    """

    def __init__(self, *, json: bool = False, one_line: bool = False, quiet: bool = False, wide: bool = False) -> None:
        self.time_zone: tzinfo | None = None
        self.json = json
        self.one_line = one_line
        self.quiet = quiet
        self.wide = wide
        self.documents = 0
        self.report: object = None
        self.summary = ""
        self.warnings: list[str] = []
        self.loss_warnings: list[str] = []
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
        if not self.json:
            return
        # Whoever reads records as lines of JSON would take an error's document for one more record.
        is_error_alone = error is not None and not self.documents
        if self._fields is None and not is_error_alone:
            return
        fields = dict(self._fields or {})
        if error is not None:
            fields["error"] = {
                "type": type(error).__name__,
                "message": error.message,
                "hint": error.hint,
                "exit_code": error.exit_code,
            }
        fields["exit_code"] = exit_code
        self._print_document(fields)

    def _print_document(self, fields: Mapping[str, object]) -> None:
        indent = -1 if self.one_line else 2
        _print(json_text(fields, indent), sys.stdout)

    def line(self, text: str = "") -> None:
        self.summary = text or self.summary
        if not self.json:
            _print(printable(text), sys.stdout)

    def level(self, word: str, text: str) -> None:
        """Print a line that begins with a level, which has a color on a terminal. `text` follows the level at once."""
        self.summary = f"{word}{text}"
        if not self.json:
            first = colored(word, sys.stdout)
            _print(f"{first}{printable(text)}", sys.stdout)

    def check(self, word: str, name: str, detail: str, hint: str) -> None:
        """Print the result of a check in one line, and its hint in a second one."""
        self.level(f"{word:<8}", f" {name}: {detail}")
        if hint:
            self.line(f"{'':<8}   hint: {hint}")

    def fields(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Print one `name: value` on each line, values in a column."""
        rows = [(f"{name}:", cell_text(value)) for name, value in pairs]
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.line(f"{name:<{width}} {value}")

    def table(self, columns: Sequence[Column[T]], rows: Iterable[T]) -> None:
        """Print a table with a row for each object."""
        if self.json:
            return
        left_out = print_table(columns, list(rows), wide=self.wide)
        if left_out:
            self.note(f"--wide also shows: {', '.join(left_out)}")

    def note(self, *texts: str) -> None:
        """Print information for people on stderr."""
        if self.quiet:
            return
        for text in texts:
            _print(printable(text), sys.stderr)

    def doing(self, text: str) -> None:
        """Print what the command waits for next, if stderr is a terminal."""
        if sys.stderr.isatty():
            self.note(text)

    def warning(self, *texts: str) -> None:
        # A follower may warn for months: what a notification shows of it are the first ones.
        room = KEPT_WARNINGS - len(self.warnings)
        self.warnings += texts[:room]
        for text in texts:
            _print(f"warning: {printable(text)}", sys.stderr)

    def losses(self, messages: Iterable[str], label: str = "") -> None:
        """Print losses of the archive as warnings, each behind the `label`."""
        for message in messages:
            self._loss(f"{label}{loss_finding(message)}")

    def findings(self, findings: Iterable[str]) -> None:
        """Print the findings of a report as warnings."""
        for finding in findings:
            if kind_of(finding) == "loss":
                self._loss(finding)
            else:
                self.warning(finding)

    def _loss(self, text: str) -> None:
        if len(self.loss_warnings) < KEPT_WARNINGS:
            self.loss_warnings.append(text)
        self.warning(text)

    def progress(
        self,
        label: str,
        *,
        records: int | None = None,
        nbytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Progress:
        """Return a context manager that shows the progress of `label`; pass totals if they are known."""
        return Progress(label, records, nbytes, shown=not self.quiet, clock=clock)


class ShownProgress:
    """A job's listener (`kbackup.metrics.registry.ProgressListener`): one progress for each phase with a count.

    Use it as a context manager: the end removes the bar. `phase_name` is the phase that was reached last, '' before the
    first; `records` of `expected` records are done in it.

    Where stderr is no terminal, a phase that counts nothing, or stands still, is named every `SILENCE` seconds. A
    command that works in rounds (`in_rounds`) has a line for each round, and waits between them: it names no phases.
    """

    def __init__(
        self, reporter: Reporter, *, in_rounds: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reporter = reporter
        self._names_phases = not in_rounds and not reporter.quiet
        self._clock = clock
        self.phase_name = ""
        self.records = 0
        self.expected = 0
        self._progress: Progress | None = None
        self._bar = ExitStack()
        """Ends the progress of the present phase."""
        self._began_at = self._printed_at = clock()
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._began_at = self._printed_at = self._clock()
        if self._names_phases and not sys.stderr.isatty():
            thread = threading.Thread(target=self._break_silence, name="kbackup-silence", daemon=True)
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._bar.close()

    def _break_silence(self) -> None:
        while not self._ended.wait(1.0):
            self.print_if_silent()

    def print_if_silent(self) -> None:
        """Print the phase, and how far it is, unless something was printed within `SILENCE` seconds."""
        # The job goes on meanwhile: its phase may end at any moment.
        progress, phase = self._progress, self.phase_name
        printed_at = self._printed_at
        if progress is not None:
            printed_at = max(printed_at, progress.printed_at)
        now = self._clock()
        if now - printed_at < SILENCE:
            return
        self._printed_at = now
        if progress is not None:
            progress.print_line()
        else:
            self._reporter.note(f"{phase or 'start'}: {human_duration(now - self._began_at)} so far")

    def phase(self, name: str) -> None:
        self._bar.close()
        self.phase_name, self._progress = name, None
        self.records = self.expected = 0
        self._began_at = self._clock()

    def progress(self, records: int, size: int, expected: int) -> None:
        if self._progress is None:
            progress = self._reporter.progress(self.phase_name, clock=self._clock)
            self._progress = self._bar.enter_context(progress)
        self.records, self.expected = records, expected
        self._progress.reach(records, size, expected)


def json_text(value: object, indent: int) -> str:
    """Return JSON with control characters escaped; its content is unchanged. A negative indent makes one line."""
    try:
        text = msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()
    except UnicodeEncodeError:
        # Half a surrogate pair, of an argument or a file name that is not UTF-8: msgspec refuses it, json escapes it.
        python_indent = indent if indent >= 0 else None
        text = json.dumps(value, indent=python_indent)
    lines = []
    for line in text.split("\n"):
        if not line.isprintable():
            line = "".join(json_sign(sign) for sign in line)
        lines.append(line)
    return "\n".join(lines)


def _print(text: str, stream: TextIO) -> None:
    # Flushed line by line: stdout and stderr of a command often go to one log, in their order.
    print(text, file=stream, flush=True)
