"""Tables, fields, documents and notes that commands print."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.cli.common.output import Column, Reporter, human_age
from kbackup.errors import KbackupError
from kbackup.util.text import shorten
from kbackup.util.times import ms_of
from tests.support.terminals import Terminal


def test_plain_tables(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("a\x1b[1m", 1234, None), ("longer", 5, "x")]
    Reporter().table(("topic", "records", "note"), rows)
    assert capsys.readouterr().out == ("TOPIC     RECORDS  NOTE\na\\x1b[1m    1,234  -\nlonger          5  x\n")


def test_tables_without_rows_have_their_head(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter().table(("topic", "records"), [])
    assert capsys.readouterr().out == "TOPIC  RECORDS\n"


LOSSES = ("number", Column("losses", optional=True, alarming=True))


def test_optional_columns_without_a_number_are_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    for rows in ([(1, 0), (2, None)], [(1, 0), (2, 3)], []):
        Reporter().table(LOSSES, rows)
    assert capsys.readouterr().out == (
        "NUMBER\n     1\n     2\nNUMBER  LOSSES\n     1       0\n     2       3\nNUMBER  LOSSES\n"
    )


@pytest.mark.parametrize("no_color", [False, True])
def test_losses_are_red_on_a_terminal_with_colors(no_color: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    Reporter().table(LOSSES, [(1, 0), (2, 3)])
    assert screen.getvalue().count("\x1b[31m") == (0 if no_color else 1)
    assert ("\x1b[31m     3\x1b[0m" in screen.getvalue()) is not no_color


def test_pipes_have_no_colors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert capsys.readouterr().out == "", "the exit code is not known yet"
    reporter.finish(3)
    assert json.loads(capsys.readouterr().out) == {"a": [1, None], "b": "é\x1b", "exit_code": 3}


def test_a_document_that_is_printed_at_once_is_the_only_one(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(json=True)
    reporter.document({"url": "http://h"}, at_once=True)
    assert json.loads(capsys.readouterr().out) == {"url": "http://h"}
    reporter.finish(1, KbackupError("late"))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["orders", "line\nfeed", "\udc80"])
def test_a_document_for_logs_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(json=True, one_line=True)
    reporter.document({"topic": name, "more": [1, 2]})
    reporter.finish(0)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"topic": name, "more": [1, 2], "exit_code": 0}


def test_a_command_without_a_document_prints_none(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter(json=True).finish(0)
    assert capsys.readouterr() == ("", "")


def test_documents_are_silent_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter().document({})
    assert capsys.readouterr() == ("", "")


def test_quiet_silences_notes_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for reporter in (Reporter(), Reporter(quiet=True)):
        reporter.note("note")
        reporter.warning("careful\x00")
        reporter.line("data")
    assert capsys.readouterr() == ("data\ndata\n", "note\nwarning: careful\\x00\nwarning: careful\\x00\n")
