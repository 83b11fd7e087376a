"""Tables, fields, documents and notes that commands print."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.cli.common.output import Reporter
from kbackup.util.printable import shorten
from tests.support.terminals import Terminal


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
