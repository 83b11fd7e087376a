"""Streams of the output: data on stdout, the rest on stderr; one JSON document; plain text without a terminal."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.cli.common.human import human_count, human_duration, human_size, printable
from kbackup.cli.common.listener import ShownProgress
from kbackup.cli.common.output import Reporter, configure_logging
from kbackup.cli.common.progress import Progress
from kbackup.util.printable import shorten


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_plain_tables(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("a\x1b[1m", 1234, None), ("longer", 5, "x")]
    Reporter().table(("topic", "records", "note"), rows)
    assert capsys.readouterr().out == (
        "TOPIC     RECORDS  NOTE\na\\x1b[1m    1,234  -\nlonger          5  x\n"
    )


def test_tables_without_rows_have_their_head(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter().table(("topic", "records"), [])
    assert capsys.readouterr().out == "TOPIC  RECORDS\n"


def test_tables_on_a_terminal_take_names_literally(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    Reporter().table(("topic",), [("[red]t\x07",)])
    assert "[red]t\\x07" in screen.getvalue()


LONG_NAMES = [("payments." * 30)[:239] + end for end in ("-retries-1", "-retries-2")]


def test_plain_tables_are_not_padded_to_a_long_name(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter().table(("topic", "state", "records"), [("orders", "present", 7), (LONG_NAMES[0], "present", 8)])
    assert capsys.readouterr().out == (
        f"TOPIC   STATE    RECORDS\norders  present        7\n{LONG_NAMES[0]}  present        8\n"
    )


def test_names_lose_their_middle_on_a_terminal_that_is_too_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "60")
    Reporter().table(("topic", "records"), [(name, 1234) for name in LONG_NAMES])
    lines = [line.split() for line in screen.getvalue().splitlines()[-2:]]
    assert lines == [[shorten(name, 51), "1,234"] for name in LONG_NAMES]
    assert [name[-10:] for name, _ in lines] == ["-retries-1", "-retries-2"]


def test_names_stay_whole_on_a_terminal_that_is_wide_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "300")
    Reporter().table(("topic", "why"), [(LONG_NAMES[0], "a text of words")])
    assert LONG_NAMES[0] in screen.getvalue()


@given(st.text(), st.integers(2, 60))
def test_shortened_names(name: str, width: int) -> None:
    short = shorten(name, width)
    if len(name) <= width:
        assert short == name
        return
    assert (len(short), short[width // 2]) == (width, "\N{HORIZONTAL ELLIPSIS}")
    assert name.startswith(short[: width // 2])
    assert name.endswith(short[width // 2 + 1 :])


def test_fields_and_lines(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter()
    reporter.fields([("archive", "s3://b"), ("runs", 12345)])
    reporter.line("a\nb")
    assert capsys.readouterr().out == "archive: s3://b\nruns:    12,345\na\\nb\n"


def test_json_is_one_document_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(json=True)
    reporter.line("not this")
    reporter.fields([("nor", "this")])
    reporter.table(("nor",), [("this",)])
    reporter.document({"a": (1, None), "b": "é\x1b"})
    with pytest.raises(RuntimeError):
        reporter.document({})
    assert json.loads(capsys.readouterr().out) == {"a": [1, None], "b": "é\x1b"}


def test_documents_are_silent_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter().document({})
    assert capsys.readouterr() == ("", "")


def test_quiet_silences_notes_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for reporter in (Reporter(), Reporter(quiet=True)):
        reporter.note("note")
        reporter.warning("careful\x00")
        reporter.line("data")
    assert capsys.readouterr() == ("data\ndata\n", "note\nwarning: careful\\x00\nwarning: careful\\x00\n")


def test_progress_without_a_terminal_is_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress("backup", 1000, 1 << 20, clock=clock) as progress:
        for second in range(1, 22):
            clock.now = second
            progress.advance(records=10, nbytes=10240)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "backup: 100 of 1,000 records, 100.0 KiB of 1.0 MiB, 10 records/s, 10.0 KiB/s, 1m32s left",
        "backup: 200 of 1,000 records, 200.0 KiB of 1.0 MiB, 10 records/s, 10.0 KiB/s, 1m22s left",
    ]


def test_progress_may_be_silent_and_without_totals(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress("it", None, None, shown=False, clock=clock) as progress:
        clock.now = 20
        progress.advance(records=40)
    assert capsys.readouterr() == ("", "")
    assert progress.status() == "40 records, 0 B, 2 records/s, 0 B/s"


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with Reporter().progress("[restore]", records=10) as progress:
        progress.advance(records=5)
    assert "[restore]" in screen.getvalue()
    assert "5 of 10 records" in screen.getvalue()


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_bar_and_time_left_fit_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, clock = Terminal(), Clock()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    with Progress("run", 2_000_000, 3 << 30, clock=clock) as progress:
        clock.now = 100.0
        progress.advance(records=1_234_567, nbytes=1 << 30)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    lines = [line.rstrip() for line in re.split(r"[\r\n]", plain) if "left" in line]
    assert lines
    for line in lines:
        assert len(line) <= columns
        assert line.startswith(f"run {'━' * 6}")
        assert line.endswith(", 3m20s left" if columns > 60 else "3m20s left")
        assert "…" not in line
        assert ("1,234,567 of 2,000,000 records" in line) == (columns > 60)
        assert ("12,346 records/s" in line) == (columns > 80)


def test_what_goes_on_is_said_on_terminals_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Reporter().doing("starting Spark")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    Reporter().doing("starting\x07 Spark")
    Reporter(quiet=True).doing("nothing")
    assert screen.getvalue() == "starting\\x07 Spark\n"


@pytest.mark.parametrize("screen", [Terminal(), io.StringIO()])
def test_what_is_printed_beside_a_bar_is_not_touched(
    screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither shown on stderr in place of stdout, nor cut into lines of the terminal's width."""
    bar = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", bar)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    with Reporter().progress("searched", records=2) as progress:
        for _ in range(2):
            with progress.hidden():
                print("wide " * 20)
            progress.advance(records=1)
        shown = len(bar.getvalue())
        with progress.hidden(restart=False):
            print("no line feed", end="")
        progress.advance(records=0)
        if screen.isatty():
            assert "searched" not in bar.getvalue()[shown:].rpartition("\x1b[2K")[2]
    assert screen.getvalue() == ("wide " * 20 + "\n") * 2 + "no line feed"
    assert "wide" not in bar.getvalue()
    assert "searched" in bar.getvalue()


def test_a_job_is_shown_phase_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with ShownProgress(Reporter()) as listener:
        listener.phase("connect")
        listener.phase("copy")
        listener.progress(3, 1024, 10)
        listener.progress(7, 2048, 10)
        listener.phase("commit")
    text = screen.getvalue()
    assert "copy" in text
    assert "7 of 10 records, 2.0 KiB" in text
    assert "connect" not in text
    assert "commit" not in text


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
def test_logging(verbose: int, expected: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(verbose)
    configure_logging(verbose)
    for name in ("kbackup.x", "botocore"):
        for level in (logging.WARNING, logging.INFO, logging.DEBUG):
            logging.getLogger(name).log(level, "topic \x1b[2J")
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert len(lines) == len(expected)
    assert {f"{line.split()[3].rstrip(':')} {line.split()[2]}" for line in lines} == expected
    assert all(line.endswith(": topic \\x1b[2J") for line in lines)


def test_human_numbers() -> None:
    assert [human_size(size) for size in (0, 1023, 1536, 5 << 30, 1 << 60)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
        "1024.0 PiB",
    ]
    assert [human_count(number) for number in (0, 1234567, 12_345_678, 5e9, 2e12)] == [
        "0",
        "1,234,567",
        "12.3M",
        "5.0G",
        "2.0T",
    ]
    assert [human_duration(seconds) for seconds in (0.4, 59, 65, 3725)] == ["0s", "59s", "1m05s", "1h02m"]


def test_printable() -> None:
    assert printable("plain é 漢") == "plain é 漢"
    assert printable("\x1b\n\x00\u202e\ud800") == "\\x1b\\n\\x00\\u202e\\ud800"
