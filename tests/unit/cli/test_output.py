"""What commands print: tables, documents, notes, logs and progress.

Names are other people's: whatever stands in them, no terminal is steered, a line is one line, JSON stays JSON."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from operator import itemgetter
from unittest import mock

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kbackup import cli
from kbackup.cli.common.logs import configure_logging
from kbackup.cli.common.output import Reporter, ShownProgress
from kbackup.cli.common.progress import Progress
from kbackup.cli.common.tables import Column, human_age
from kbackup.errors import ClusterError, CorruptError, KbackupError
from kbackup.util.text import human_count, human_duration, human_size, printable, printable_lines, shorten
from kbackup.util.times import ms_of
from tests.support.printed import Terminal

Said = pytest.CaptureFixture[str]
Row = Sequence[str | int | None]


def by_position(*names: str) -> list[Column[Row]]:
    """Return the columns of rows that are tuples."""
    return [Column(name, itemgetter(at)) for at, name in enumerate(names)]


LOSSES: list[Column[Row]] = [
    Column("number", itemgetter(0)),
    Column("losses", itemgetter(1), optional=True, alarming=True),
]
LONG_NAMES = [("payments." * 30)[:239] + end for end in ("-retries-1", "-retries-2")]


def terminal(monkeypatch: pytest.MonkeyPatch, stream: str, columns: int = 200) -> Terminal:
    """Put a terminal in the place of sys.stdout or sys.stderr."""
    screen = Terminal()
    monkeypatch.setattr(sys, stream, screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    return screen


@pytest.mark.parametrize(
    ("columns", "rows", "expected"),
    [
        (
            by_position("topic", "records", "note"),
            [("a\x1b[1m", 1234, None), ("longer", 5, "x")],
            "TOPIC     RECORDS  NOTE\na\\x1b[1m    1,234  -\nlonger          5  x\n",
        ),
        (by_position("topic", "records"), [], "TOPIC  RECORDS\n"),
        (LOSSES, [(1, 0), (2, None)], "NUMBER\n     1\n     2\n"),
        (LOSSES, [(1, 0), (2, 3)], "NUMBER  LOSSES\n     1       0\n     2       3\n"),
        (LOSSES, [], "NUMBER  LOSSES\n"),
        (
            by_position("topic", "state", "records"),
            [("orders", "present", 7), (LONG_NAMES[0], "present", 8)],
            f"TOPIC   STATE    RECORDS\norders  present        7\n{LONG_NAMES[0]}  present        8\n",
        ),
    ],
)
def test_plain_tables(columns: list[Column[Row]], rows: list[Row], expected: str, capsys: Said) -> None:
    """Numbers right, columns that hold nothing hidden, and no padding to a long name."""
    Reporter().table(columns, rows)
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("no_color", [False, True])
def test_losses_are_red_on_a_terminal_with_colors(no_color: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch, "stdout")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    Reporter().table(LOSSES, [(1, 0), (2, 3)])
    assert screen.getvalue().count("\x1b[31m") == (0 if no_color else 1)
    assert ("\x1b[31m     3\x1b[0m" in screen.getvalue()) is not no_color


def test_pipes_have_no_colors(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    Reporter().table(LOSSES, [(2, 3)])
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "age"),
    [(-5, "0s"), (59, "59s"), (61, "1m"), (3 * 3600 + 100, "3h"), (86400 * 40, "40d"), (86400 * 800, "2y")],
)
def test_ages_are_in_their_largest_unit(seconds: int, age: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: ms_of("2026-01-31T12:00:00.000Z") / 1000 + seconds)
    assert human_age("2026-01-31T12:00:00.000Z") == f"{age} ago"


def test_tables_on_a_terminal_take_names_literally(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch, "stdout")
    Reporter().table(by_position("topic"), [("[red]t\x07",)])
    assert "[red]t\\x07" in screen.getvalue()


def test_names_lose_their_middle_on_a_terminal_that_is_too_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch, "stdout", 60)
    Reporter().table(by_position("topic", "records"), [(name, 1234) for name in LONG_NAMES])
    lines = [line.split() for line in screen.getvalue().splitlines()[-2:]]
    assert lines == [[shorten(name, 51), "1,234"] for name in LONG_NAMES]
    assert [name[-10:] for name, _ in lines] == ["-retries-1", "-retries-2"]
    monkeypatch.setenv("COLUMNS", "300")
    Reporter().table(by_position("topic", "why"), [(LONG_NAMES[0], "a text of words")])
    assert LONG_NAMES[0] in screen.getvalue()


@given(st.text(), st.integers(2, 60))
def test_a_long_name_is_shortened_in_its_middle(name: str, width: int) -> None:
    short = shorten(name, width)
    if len(name) <= width:
        assert short == name
        return
    assert (len(short), short[width // 2]) == (width, "\N{HORIZONTAL ELLIPSIS}")
    assert name.startswith(short[: width // 2])
    assert name.endswith(short[width // 2 + 1 :])


def test_fields_are_aligned_and_lines_have_no_control_character(capsys: Said) -> None:
    reporter = Reporter()
    reporter.fields([("archive", "s3://b"), ("runs", 12345)])
    reporter.line("a\nb")
    reporter.document({})
    assert capsys.readouterr() == ("archive: s3://b\nruns:    12,345\na\\nb\n", "")


def test_json_is_one_document_and_nothing_else(capsys: Said) -> None:
    reporter = Reporter(json=True)
    reporter.line("not this")
    reporter.fields([("nor", "this")])
    reporter.table(by_position("nor"), [("this",)])
    reporter.document({"a": (1, None), "b": "é\x1b"})
    with pytest.raises(RuntimeError):
        reporter.document({})
    assert capsys.readouterr().out == "", "the exit code is not known yet"
    reporter.finish(3)
    assert json.loads(capsys.readouterr().out) == {"a": [1, None], "b": "é\x1b", "exit_code": 3}
    Reporter(json=True).finish(0)
    assert capsys.readouterr() == ("", ""), "a command without a document"


def test_a_document_that_is_printed_at_once_is_the_only_one(capsys: Said) -> None:
    reporter = Reporter(json=True)
    reporter.document({"url": "http://h"}, at_once=True)
    assert json.loads(capsys.readouterr().out) == {"url": "http://h"}
    reporter.finish(1, KbackupError("late"))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["orders", "line\nfeed", "\udc80"])
def test_a_document_for_logs_is_one_line(name: str, capsys: Said) -> None:
    reporter = Reporter(json=True, one_line=True)
    reporter.document({"topic": name, "more": [1, 2]})
    reporter.finish(0)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"topic": name, "more": [1, 2], "exit_code": 0}


def test_quiet_silences_notes_alone(capsys: Said) -> None:
    for reporter in (Reporter(), Reporter(quiet=True)):
        reporter.note("note")
        reporter.warning("careful\x00")
        reporter.line("data")
    assert capsys.readouterr() == ("data\ndata\n", "note\nwarning: careful\\x00\nwarning: careful\\x00\n")


@pytest.fixture
def _logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("kbackup")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], level, our_level = before
    root.setLevel(level)
    ours.setLevel(our_level)


@pytest.mark.usefixtures("_logging")
@pytest.mark.parametrize(
    ("verbose", "expected"),
    [
        (0, {"kbackup.x WARNING", "botocore WARNING"}),
        (1, {"kbackup.x WARNING", "kbackup.x INFO", "botocore WARNING"}),
        (2, {"kbackup.x WARNING", "kbackup.x INFO", "kbackup.x DEBUG", "botocore WARNING", "botocore INFO"}),
    ],
)
def test_each_verbose_flag_shows_a_lower_level(verbose: int, expected: set[str], capsys: Said) -> None:
    configure_logging(verbose)
    configure_logging(verbose)
    for name in ("kbackup.x", "botocore"):
        for level in (logging.WARNING, logging.INFO, logging.DEBUG):
            logging.getLogger(name).log(level, "topic \x1b[2J")
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert (out, len(lines)) == ("", len(expected))
    assert {f"{line.split()[3].rstrip(':')} {line.split()[2]}" for line in lines} == expected
    assert all(line.endswith(": topic \\x1b[2J") for line in lines)


def test_sizes_counts_and_durations_are_shown_short() -> None:
    sizes = ["0 B", "1023 B", "1.5 KiB", "5.0 GiB", "1024.0 PiB"]
    assert [human_size(size) for size in (0, 1023, 1536, 5 << 30, 1 << 60)] == sizes
    counts = ["0", "1,234,567", "12.3M", "5.0G", "2.0T"]
    assert [human_count(number) for number in (0, 1234567, 12_345_678, 5e9, 2e12)] == counts
    assert [human_duration(seconds) for seconds in (0.4, 59, 65, 3725)] == ["0s", "59s", "1m05s", "1h02m"]


# Progress, with and without a terminal.


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_progress_without_a_terminal_is_a_line_every_ten_seconds(capsys: Said) -> None:
    clock = Clock()
    with Progress("backup", 1000, 1 << 20, clock=clock) as progress:
        for second in range(1, 22):
            clock.now = second
            progress.advance(records=10, nbytes=10240)
    assert capsys.readouterr().err.splitlines() == [
        "backup: 10%, 100 of 1,000 records, 100.0 KiB of 1.0 MiB, 10 records/s, 10.0 KiB/s, 1m32s left",
        "backup: 20%, 200 of 1,000 records, 200.0 KiB of 1.0 MiB, 10 records/s, 10.0 KiB/s, 1m22s left",
    ]


def test_progress_may_be_silent_and_without_totals(capsys: Said) -> None:
    clock = Clock()
    with Progress("it", None, None, shown=False, clock=clock) as progress:
        clock.now = 20
        progress.advance(records=40)
    assert capsys.readouterr() == ("", "")
    assert progress.status() == "40 records, 0 B, 2 records/s, 0 B/s"


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    bar = terminal(monkeypatch, "stderr")
    with Reporter().progress("[restore]", records=10) as progress:
        progress.advance(records=5)
    assert "[restore]" in bar.getvalue()
    assert "5 of 10 records" in bar.getvalue()


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_bar_and_time_left_fit_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bar = terminal(monkeypatch, "stderr", columns)
    clock = Clock()
    with Progress("run", 2_000_000, 3 << 30, clock=clock) as progress:
        clock.now = 100.0
        progress.advance(records=1_234_567, nbytes=1 << 30)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", bar.getvalue())
    lines = [line.rstrip() for line in re.split(r"[\r\n]", plain) if "left" in line]
    assert lines
    for line in lines:
        assert len(line) <= columns
        assert line.startswith(f"run {'━' * 6}")
        assert line.endswith(", 3m20s left" if columns > 60 else "3m20s left")
        assert "…" not in line
        assert ("1,234,567 of 2,000,000 records" in line) == (columns > 60)
        assert ("12,346 records/s" in line) == (columns > 80)


def test_activity_is_printed_on_terminals_only(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    Reporter().doing("starting Spark")
    assert capsys.readouterr() == ("", "")
    screen = terminal(monkeypatch, "stderr")
    Reporter().doing("starting\x07 Spark")
    Reporter(quiet=True).doing("nothing")
    assert screen.getvalue() == "starting\\x07 Spark\n"


@pytest.mark.parametrize("out", [Terminal(), io.StringIO()])
def test_output_beside_a_bar_is_unchanged(out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither shown on stderr in place of stdout, nor cut into lines of the terminal's width."""
    bar = terminal(monkeypatch, "stderr", 40)
    monkeypatch.setattr(sys, "stdout", out)
    with Reporter().progress("searched", records=2) as progress:
        for _ in range(2):
            with progress.hidden():
                print("wide " * 20)
            progress.advance(records=1)
        shown = len(bar.getvalue())
        with progress.hidden(restart=False):
            print("no line feed", end="")
        progress.advance(records=0)
        if out.isatty():
            assert "searched" not in bar.getvalue()[shown:].rpartition("\x1b[2K")[2]
    assert out.getvalue() == ("wide " * 20 + "\n") * 2 + "no line feed"
    assert "wide" not in bar.getvalue()
    assert "searched" in bar.getvalue()


def test_a_job_is_shown_phase_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    bar = terminal(monkeypatch, "stderr")
    with ShownProgress(Reporter()) as listener:
        listener.phase("connect")
        listener.phase("copy")
        listener.progress(3, 1024, 10)
        listener.progress(7, 2048, 10)
        listener.phase("commit")
    text = bar.getvalue()
    assert "copy" in text
    assert "7 of 10 records, 2.0 KiB" in text
    assert "connect" not in text
    assert "commit" not in text


def test_a_job_that_prints_nothing_says_every_half_minute_where_it_is(capsys: Said) -> None:
    clock = Clock()
    listener = ShownProgress(Reporter(), clock=clock)
    for clock.now in (29, 31):
        listener.print_if_silent()
    listener.phase("offset map")
    for clock.now in (60, 62, 90, 93):
        listener.print_if_silent()
    assert capsys.readouterr().err.splitlines() == [
        "start: 31s so far",
        "offset map: 31s so far",
        "offset map: 1m02s so far",
    ]


def test_a_job_that_stands_still_says_how_far_it_is(capsys: Said) -> None:
    clock = Clock()
    listener = ShownProgress(Reporter(), clock=clock)
    listener.phase("run")
    listener.progress(50, 1000, 200)
    for clock.now in (29, 31):
        listener.print_if_silent()
    assert capsys.readouterr().err.startswith("run: 25%, 50 of 200 records, ")


def test_a_command_in_rounds_names_no_phases(capsys: Said) -> None:
    clock = Clock()
    with ShownProgress(Reporter(), in_rounds=True, clock=clock):
        assert not [thread for thread in threading.enumerate() if thread.name == "kbackup-silence"]


# Names that would steer a terminal.


EVIL = (
    "\x1b]0;owned\x07\x1b[2J",
    "a\nkbackup: all is well",
    "a\r\x1b[1Adone",
    "\x9b31mC1",
    "pay\u202eslip",
    "\u2028\u2029\x85\x0b\x0c",
    "half \ud800 a pair \udc9b",
    "tab\tand\x00nul\x7f",
    "=cmd|' /C calc'!A0",
    "[red]markup[/red]",
    "%s %(message)s {0}",
)
# every character, and those that matter more often than chance has them
names = st.text() | st.text(st.sampled_from("".join(EVIL)), max_size=20) | st.sampled_from(EVIL)
STEERING = st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"], codec=None), min_size=1)


def harmless(text: str) -> bool:
    """Nothing but what is seen, and line feeds."""
    return all(line.isprintable() for line in text.split("\n"))


@contextmanager
def screens() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        yield out, err


@given(names | STEERING)
def test_printable_is_printable_and_loses_nothing(name: str) -> None:
    assert printable(name).isprintable()
    assert printable(name) == name or not name.isprintable()
    assert harmless(printable_lines(name))
    assert printable_lines(name).count("\n") == name.count("\n")


def test_printable_escapes_what_is_not_seen() -> None:
    assert printable("plain é 漢") == "plain é 漢"
    assert printable("\x1b\n\x00\u202e\ud800") == "\\x1b\\n\\x00\\u202e\\ud800"


@given(names)
@example("\n".join(EVIL))
def test_each_of_a_reporters_ways_is_one_line(name: str) -> None:
    reporter = Reporter()
    ways: list[Callable[[], None]] = [
        lambda: reporter.line(name),
        lambda: reporter.note(name),
        lambda: reporter.warning(name),
        lambda: reporter.fields([("topic", name)]),
        lambda: print(Progress(name, 1, 1).label),
    ]
    for way in ways:
        with screens() as (out, err):
            way()
        said = out.getvalue() + err.getvalue()
        assert said.endswith("\n")
        assert said[:-1].isprintable()


@given(st.lists(st.tuples(names, st.integers(), names), max_size=5))
def test_a_table_has_a_line_a_row(rows: list[tuple[str, int, str]]) -> None:
    with screens() as (out, _):
        Reporter().table(by_position("topic", "records", "group"), rows)
    assert harmless(out.getvalue())
    assert out.getvalue().count("\n") == len(rows) + 1


@given(st.lists(names, min_size=1, max_size=3))
def test_a_table_on_a_terminal_takes_names_as_they_are(rows: list[str]) -> None:
    screen = Terminal()
    with mock.patch.object(sys, "stdout", screen), mock.patch.dict("os.environ", {"TERM": "dumb"}):
        Reporter().table(by_position("topic"), [(name,) for name in rows])
    assert harmless(screen.getvalue())


@given(st.dictionaries(names, names | st.lists(names)))
def test_a_document_is_json_that_steers_nothing(document: dict[str, object]) -> None:
    with screens() as (out, _):
        reporter = Reporter(json=True)
        reporter.document(document)
        reporter.finish(0)
    assert harmless(out.getvalue())
    # two halves of a pair are one character to JSON
    assert json.loads(out.getvalue()) == json.loads(json.dumps({**document, "exit_code": 0}))


@contextmanager
def failing(error: Exception) -> Iterator[None]:
    """Every command ends with `error`."""

    @click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def command() -> None:
        raise error

    with mock.patch.object(cli.CommandGroup, "get_command", return_value=command):
        yield


@given(names, names)
def test_an_error_has_no_line_that_looks_like_another(message: str, hint: str) -> None:
    with screens() as (out, err), failing(CorruptError(f"topic {message}", f"look at {hint}")):
        assert cli.main(["verify", "--json"]) == CorruptError.exit_code
    assert harmless(err.getvalue())
    begins = [line for line in err.getvalue().splitlines() if not line.startswith("  ")]
    assert [line.partition(" ")[0] for line in begins] == ["kbackup:", "hint:"]
    said = json.loads(out.getvalue())["error"]["message"]
    assert said == json.loads(json.dumps(f"topic {message}"))


def test_a_traceback_steers_nothing() -> None:
    with screens() as (_, err), failing(ClusterError("".join(EVIL))):
        cli.main(["verify", "--debug"])
    assert "Traceback" in err.getvalue()
    assert harmless(err.getvalue())


@pytest.mark.usefixtures("_logging")
@pytest.mark.parametrize("name", EVIL)
def test_a_log_line_is_one_line(name: str, capsys: Said) -> None:
    configure_logging()
    logging.getLogger("kbackup.x").warning("group %s is gone", name)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert harmless(said)
    logging.getLogger("kbackup.x").error("it failed", exc_info=ClusterError(name))
    assert harmless(capsys.readouterr().err)
