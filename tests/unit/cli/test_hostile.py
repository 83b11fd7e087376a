"""Names are other people's: whatever stands in them, no terminal is steered, a line is one line, JSON stays JSON."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from unittest import mock

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kbackup import cli
from kbackup.cli.common.output import Progress, Reporter, configure_logging
from kbackup.errors import ClusterError, CorruptError
from kbackup.util.text import printable, printable_lines

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
        Reporter().table(("topic", "records", "group"), rows)
    assert harmless(out.getvalue())
    assert out.getvalue().count("\n") == len(rows) + 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@given(st.lists(names, min_size=1, max_size=3))
def test_a_table_on_a_terminal_takes_names_as_they_are(rows: list[str]) -> None:
    screen = Terminal()
    with mock.patch.object(sys, "stdout", screen), mock.patch.dict("os.environ", {"TERM": "dumb"}):
        Reporter().table(("topic",), [(name,) for name in rows])
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


@contextmanager
def failing(error: Exception) -> Iterator[None]:
    """Every command ends with `error`."""

    @click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def command() -> None:
        raise error

    with mock.patch.object(cli.LazyGroup, "get_command", return_value=command):
        yield


@pytest.fixture
def _logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("kbackup")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], level, our_level = before
    root.setLevel(level)
    ours.setLevel(our_level)


@pytest.mark.usefixtures("_logging")
@pytest.mark.parametrize("name", EVIL)
def test_a_log_line_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    logging.getLogger("kbackup.x").warning("group %s is gone", name)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert harmless(said)
    error = ClusterError(name)
    logging.getLogger("kbackup.x").error("it failed", exc_info=error)
    assert harmless(capsys.readouterr().err)
