"""`kbackup restore --guide`: ask what happened, print the commands that mend it, and run the dry run alone."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

import click

from kbackup.cli.common.command_context import CommandContext, FlagValues
from kbackup.config.times import moment_of
from kbackup.config.windows import parse_address
from kbackup.errors import UsageError
from kbackup.util.text import kbackup_command
from kbackup.util.times import time_text

Words = tuple[str, ...]


class Step(NamedTuple):
    """A command and what it is for. The first step of a case is a dry run."""

    words: Words
    why: str


class GuidedQuestion(NamedTuple):
    """`check` returns the answer to use, or raises `UsageError`."""

    text: str
    default: str | None = None
    check: Callable[[str], str] = str


class Case(NamedTuple):
    """`steps` are made of both answers and of the restore's id."""

    title: str
    first: GuidedQuestion
    second: GuidedQuestion
    steps: Callable[[str, str, str], list[Step]]
    after: str


def _name(answer: str) -> str:
    """Check that an answer can be a name of a topic or a group on a command line."""
    if not answer.strip() or answer.startswith("-"):
        raise UsageError(f"{answer!r} is not a name")
    return answer.strip()


def _record(answer: str) -> str:
    try:
        address = parse_address(answer.strip())
    except ValueError:
        address = None
    if address is None or not address.one:
        raise UsageError(f"{answer} is not the address of a record; give topic:partition:offset")
    return f"{address.topic}:{address.partition}:{address.start}"


def _time(answer: str) -> str:
    zone = click.get_current_context().ensure_object(FlagValues).time_zone
    moment = moment_of("the answer", answer, zone=zone)
    # "2h ago" would be another time in the next command.
    return time_text(moment) if moment is not None else answer


def _point(answer: str) -> str:
    return answer if answer == "latest" else _time(answer)


def _restore(*words: str, id_: str) -> list[Step]:
    """Return the steps of a restore with these options."""
    dry_run = ("restore", *words, "--dry-run")
    restore = ("restore", *words, "--restore-id", id_)
    verify = ("verify", "--against", "target", "--restore-id", id_, "--groups")
    return [
        Step(dry_run, "shows the plan and all that would stop it; writes nothing"),
        Step(restore, "restores; if it is interrupted, run the same line again"),
        Step(verify, "compares every record and group with the archive"),
    ]


def _deleted(topic: str, target: str, id_: str) -> list[Step]:
    renamed = ("--map", f"{topic}={target}") if target else ()
    return _restore("--topic", topic, *renamed, id_=id_)


def _since(topic: str, moment: str, id_: str) -> list[Step]:
    return _restore("--topic", topic, "--to-time", moment, "--map", f"{topic}={topic}-restored", id_=id_)


def _offsets(group: str, moment: str, id_: str) -> list[Step]:
    words = ["--same-offsets", "--group", group]
    if moment != "latest":
        words += ["--to-time", moment]
    return [
        Step(("groups", "plan", *words), "shows the offsets that it would get; writes nothing"),
        Step(("groups", "apply", *words), "sets them, and prints the command that undoes it"),
    ]


def _cluster(servers: str, settings: str, id_: str) -> list[Step]:
    more = ("--with", "acls,configs,quotas") if settings == "yes" else ()
    plan, restore, verify = _restore("--bootstrap-server", servers, *more, id_=id_)
    compare = Step((*verify.words, "--set", f"target.bootstrap.servers={servers}"), verify.why)
    return [plan, restore, compare]


def _poison(address: str, target: str, id_: str) -> list[Step]:
    topic = address.partition(":")[0]
    new_name = target or f"{topic}-restored"
    return _restore("--topic", topic, "--skip", address, "--map", f"{topic}={new_name}", id_=id_)


def _yes_or_no(answer: str) -> str:
    if answer not in ("yes", "no"):
        raise UsageError("answer yes or no")
    return answer


_STOP = "start consumers, then producers"
_TOPIC = "Which topic?"
CASES = (
    Case(
        "a topic was deleted",
        GuidedQuestion(_TOPIC, check=_name),
        GuidedQuestion("Restore it under which name? (Enter: the same)", "", str.strip),
        _deleted,
        f"then {_STOP}",
    ),
    Case(
        "a topic has bad records since some time",
        GuidedQuestion(_TOPIC, check=_name),
        GuidedQuestion("The last good moment? (2026-01-31T14:05:00Z, or '2h ago')", check=_time),
        _since,
        "then let producers and consumers use the restored topic; the other one stays as it is",
    ),
    Case(
        "the offsets of a group are lost",
        GuidedQuestion("Which group?", check=_name),
        GuidedQuestion("As of which time?", "latest", _point),
        _offsets,
        "then start the group's consumers",
    ),
    Case(
        "the cluster is gone",
        GuidedQuestion("Address of the new cluster? (host:port)", check=_name),
        GuidedQuestion("Restore its ACLs, configs and quotas, too? (yes, no)", "yes", _yes_or_no),
        _cluster,
        f"then {_STOP}",
    ),
    Case(
        "one poison record stops consumers",
        GuidedQuestion("Which record? (topic:partition:offset)", check=_record),
        GuidedQuestion("Restore the topic without it under which name? (Enter: <topic>-restored)", "", str.strip),
        _poison,
        "then let consumers use the restored topic",
    ),
)


def run_guide(context: CommandContext) -> int:
    """Ask three questions, print the commands, and run the first one. Return its exit code.

    Raises `UsageError` without a terminal."""
    if not sys.stdin.isatty():
        raise UsageError(
            "--guide asks questions, and stdin is no terminal", "take the commands from the first box of restore.md"
        )
    for number, each in enumerate(CASES, start=1):
        click.echo(f"  {number}  {each.title}")
    number = click.prompt("What happened?", type=click.IntRange(1, len(CASES)), prompt_suffix=" ")
    case = CASES[number - 1]
    first = _ask(case.first)
    second = _ask(case.second)
    word = re.sub("[^A-Za-z0-9]+", "-", first).strip("-") or "restore"
    steps = case.steps(first, second, f"{word[:60]}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    common = _common_words(context)
    click.echo("\nStop producers and consumers first. Then, one line after the other:\n")
    for step in steps:
        click.echo(f"  # {step.why}\n  {kbackup_command(*step.words, *common)}\n")
    click.echo(f"{case.after[:1].upper()}{case.after[1:]}. Now the first one runs:\n")
    command = [sys.executable, "-m", "kbackup", *steps[0].words, *common]
    return subprocess.run(command, check=False).returncode  # noqa: S603 (kbackup itself, with checked answers)


def _ask(question: GuidedQuestion) -> str:
    def checked(answer: str) -> str:
        try:
            return question.check(answer)
        except UsageError as error:
            raise click.UsageError(error.message) from None

    default = question.default
    answer: str = click.prompt(
        question.text, default=default, show_default=bool(default), value_proc=checked, prompt_suffix=" "
    )
    return answer


def _common_words(context: CommandContext) -> Words:
    """Return the options that name the archive and the files of the configuration, as this run got them."""
    state = click.get_current_context().ensure_object(FlagValues)
    words: list[str] = []
    if any(setting.path == "archive" for setting in state.settings):
        words += ["--archive", context.archive]
    if state.config_file is not None:
        words += ["--config", state.config_file]
    if state.target_file is not None:
        words += ["--target-config", state.target_file]
    return tuple(words)
