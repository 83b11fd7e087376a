"""`kbackup restore --guide`: its cases, and the commands that it prints."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import click
import pytest

from kbackup.cli import cli
from kbackup.cli.common.command_context import FlagValues
from kbackup.cli.guide import CASES, Case
from kbackup.config.times import named_zone
from kbackup.errors import UsageError
from tests.support.printed import Kbackup

ANSWERS = (
    ("orders", "", "restore --topic orders"),
    ("orders", "2026-01-31T14:05:00Z", "restore --topic orders --to-time 2026-01-31T14:05:00Z --map orders="),
    ("shipping", "latest", "groups plan --same-offsets --group shipping"),
    ("broker:9092", "yes", "restore --bootstrap-server broker:9092 --with acls,configs,quotas"),
    ("orders:2:1376", "", "restore --topic orders --skip orders:2:1376 --map orders=orders-restored"),
)


@pytest.mark.parametrize(("case", "answers"), list(zip(CASES, ANSWERS, strict=True)), ids=[c.title for c in CASES])
def test_commands_are_valid_and_only_the_first_is_a_dry_run(case: Case, answers: tuple[str, str, str]) -> None:
    first, second, begins = answers
    steps = case.steps(first, second, "an-id")
    assert " ".join(steps[0].words).startswith(begins)
    dry = [step.words[1] == "plan" or "--dry-run" in step.words for step in steps]
    assert dry == [True] + [False] * (len(steps) - 1)
    for step in steps:
        command: click.Command = cli
        context, words = click.Context(cli, obj=FlagValues(), **cli.context_settings), list(step.words)
        while isinstance(command, click.Group):
            _, found, words = command.resolve_command(context, words)
            assert found is not None, step
            command = found
            context = (
                click.Context(command, parent=context)
                if isinstance(command, click.Group)
                else command.make_context(command.name, words, parent=context)
            )


@pytest.mark.parametrize(
    ("number", "question", "answer"),
    [
        (4, "first", "orders:2"),
        (4, "first", "orders:2:1-3"),
        (3, "second", "maybe"),
        (0, "first", "-x"),
        (0, "first", " "),
    ],
)
def test_answers_that_are_none(number: int, question: str, answer: str) -> None:
    with pytest.raises(UsageError):
        getattr(CASES[number], question).check(answer)


def test_a_time_is_the_same_in_each_command() -> None:
    with click.Context(cli, obj=FlagValues(time_zone=named_zone("Europe/Berlin"))):
        assert CASES[1].second.check("2026-01-31T14:05") == "2026-01-31T13:05:00.000Z"
        assert CASES[1].second.check("2h ago").endswith("Z")


def test_without_a_terminal_the_guide_fails(kbackup: Kbackup, root: str) -> None:
    printed = kbackup("restore", root, "--guide", code=2)
    assert "--guide asks questions, and stdin is no terminal" in printed.err


def test_the_guide_asks_prints_and_runs_the_dry_run(root: str, tmp_path: Path) -> None:
    """Wrong answers are asked for again. The dry run ends with its own exit code: no target is named."""
    screen, end = pty.openpty()
    (tmp_path / "kbackup.toml").write_text(f'archive = "{root}"\n')
    os.write(screen, b"7\n5\norders\norders:2:1376\n\n")
    done = subprocess.run(
        [sys.executable, "-m", "kbackup", "restore", "--guide"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdin=end,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    for each in (screen, end):
        with suppress(OSError):
            os.close(each)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "orders is not the address of a record" in done.stdout
    assert "kbackup restore --topic orders --skip orders:2:1376 --map orders=orders-restored --dry-run" in (done.stdout)
