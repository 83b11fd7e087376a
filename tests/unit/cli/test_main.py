"""The frame: exit codes of every error, what is said where, signals, and what is not imported."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import click
import pytest

from kbackup import cli, errors
from kbackup.cli.common.frame import EXIT_CODES, Frame, pass_frame
from kbackup.cli.common.options import common_options
from kbackup.errors import EXIT_LOSS, CorruptError, KbackupError, LockedError

Run = Callable[[Callable[[Frame], int | None]], int]


def tree(root: type[KbackupError] = KbackupError) -> list[type[KbackupError]]:
    """The classes of `kbackup.errors`; what other modules derive from them they keep to themselves."""
    children = [child for child in root.__subclasses__() if child.__module__ == errors.__name__]
    return [root, *(found for child in children for found in tree(child))]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Runs a function as the body of a command `it`; arguments go behind its name."""
    monkeypatch.chdir(tmp_path)

    def runner(body: Callable[[Frame], int | None], *args: str) -> int:
        command = click.command("it")(common_options(pass_frame(body)))
        monkeypatch.setitem(cli.COMMANDS, "it", ("it", "It."))
        monkeypatch.setitem(sys.modules, "kbackup.cli.it", SimpleNamespace(command=command))
        return cli.main(["it", *args])

    return runner


def failing(error: BaseException) -> Callable[[Frame], NoReturn]:
    def body(frame: Frame) -> NoReturn:
        raise error

    return body


@pytest.mark.parametrize("kind", tree(), ids=lambda kind: kind.__name__)
def test_every_error_ends_in_the_code_of_its_class(
    kind: type[KbackupError], run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(failing(kind("segment x: broken", "do this"))) == kind.exit_code
    assert kind.exit_code in EXIT_CODES
    out, err = capsys.readouterr()
    assert (out, err) == ("", "kbackup: segment x: broken\nhint: do this\n")


def test_exit_codes_are_those_of_the_classes() -> None:
    assert set(EXIT_CODES) == {kind.exit_code for kind in tree()} | {errors.EXIT_OK, EXIT_LOSS}


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn: dict[str, int] = {}
    parents = [1]
    for line in (errors.__doc__ or "").splitlines():
        words = line.replace("│", " ").replace("├── ", "    ").replace("└── ", "    ").split()
        if not words or not words[0].endswith("Error"):
            continue
        depth = (len(line) - len(line.lstrip(" │├└─"))) // 4
        code = int(words[1]) if len(words) > 1 and words[1].isdigit() else parents[depth - 1]
        parents[depth:] = [code]
        drawn[words[0]] = code
    assert drawn == {kind.__name__: kind.exit_code for kind in tree()}


def test_results_are_codes(run: Callable[..., int]) -> None:
    assert run(lambda frame: None) == 0
    assert run(lambda frame: EXIT_LOSS) == 3


def test_json_holds_the_error_where_nothing_was_printed(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(failing(LockedError("archive a is locked", "wait")), "--json") == 11
    out, err = capsys.readouterr()
    told = {"type": "LockedError", "message": "archive a is locked", "hint": "wait", "exit_code": 11}
    assert json.loads(out) == {"error": told, "exit_code": 11}
    assert err == "kbackup: archive a is locked\nhint: wait\n"


def test_json_is_one_document_also_when_it_fails_later(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def body(frame: Frame) -> int:
        frame.reporter.document({"bad": 1})
        raise CorruptError("1 segment is bad")

    assert run(body, "--json") == 13
    told = {"type": "CorruptError", "message": "1 segment is bad", "hint": "", "exit_code": 13}
    assert json.loads(capsys.readouterr().out) == {"bad": 1, "error": told, "exit_code": 13}


def test_json_holds_the_exit_code_of_metrics_that_were_not_written(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def body(frame: Frame) -> None:
        frame.reporter.document({"good": 1})
        tmp_path.rename(tmp_path.with_name("gone"))

    assert run(body, "--json", "--metrics-file", str(tmp_path / "kbackup.prom")) == 1
    assert json.loads(capsys.readouterr().out) == {"good": 1, "exit_code": 1}


@pytest.mark.parametrize(("args", "code"), [(["config"], 0), (["config", "--jsn"], 2), (["list", "-a", "s3://"], 2)])
def test_json_for_logs_is_one_line_with_the_exit_code(
    args: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*args, "--json=line"]) == code
    (line,) = capsys.readouterr().out.splitlines()
    document = json.loads(line)
    assert document["exit_code"] == code
    assert ("error" in document) is (code != 0)


def test_errors_of_executors_are_known_by_their_marker(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    lost = errors.UnreachableError("source at h:1 did not answer", "is it up?")
    assert run(failing(RuntimeError(f"Job aborted: {lost.marker()}\n\tat java"))) == 14
    assert capsys.readouterr().err == "kbackup: source at h:1 did not answer\nhint: is it up?\n"


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("by nought\nand more"), EOFError("by nought"), BrokenPipeError("by nought")]
)
def test_internal_errors_show_their_last_line(
    error: Exception, run: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "_is_stdout_closed", lambda: False)
    assert run(failing(error)) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"kbackup: internal error: {type(error).__name__}: by nought\nhint: run again with --debug")
    assert "Traceback" not in said
    assert run(failing(error), "--debug") == 1
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("KBACKUP_DEBUG", "1")
    assert run(failing(error)) == 1
    assert "Traceback" in capsys.readouterr().err


def test_interruptions(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "kbackup: interrupted\n"
    for follows in (RuntimeError("job cancelled"), KbackupError("a task failed")):
        follows.__context__ = KeyboardInterrupt()
        assert run(failing(follows)) == 130
        assert capsys.readouterr().err == "kbackup: interrupted\n"


def test_messages_cannot_steer_the_terminal(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing(KbackupError("group \x1b[2J\u202e\nline two"))) == 1
    assert capsys.readouterr().err == "kbackup: group \\x1b[2J\\u202e\n  line two\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["confg"], "kbackup: no such command: confg; did you mean config?\nhint: try 'kbackup --help'\n"),
        (["config", "--jsn"], "--json"),
        (["config", "--set", "nothing"], "name=value"),
        (["config", "extra"], "hint: try 'kbackup config --help'"),
        ([], "Usage: kbackup"),
    ],
)
def test_usage_errors(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(args) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["--version"], ["config", "--help"]])
def test_help_ends_with_0(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(args) == 0
    assert "kbackup" in capsys.readouterr().out


def test_help_names_commands_and_codes(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["--help"])
    out = capsys.readouterr().out
    for text in [*cli.COMMANDS, *map(str, EXIT_CODES)]:
        assert f"\n  {text} " in out
