"""Progress that commands show, with and without a terminal."""

from __future__ import annotations

import io
import re
import sys

import pytest

from kbackup.cli.common.output import Progress, Reporter, ShownProgress
from tests.support.terminals import Terminal


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


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


def test_activity_is_printed_on_terminals_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Reporter().doing("starting Spark")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    Reporter().doing("starting\x07 Spark")
    Reporter(quiet=True).doing("nothing")
    assert screen.getvalue() == "starting\\x07 Spark\n"


@pytest.mark.parametrize("screen", [Terminal(), io.StringIO()])
def test_output_beside_a_bar_is_unchanged(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
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
