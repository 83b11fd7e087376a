"""Questions of `kbackup restore --guide` and their answers: typed at a terminal, or taken from a file of a runbook."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import BinaryIO, Protocol

import click

from kbackup.errors import UsageError
from kbackup.util.text import join_names, printable


@dataclass(frozen=True)
class GuideQuestion:
    """A question of the guide. `key` is its name in a file of answers.

    `default` is the answer to an empty line; without one, an empty line is no answer. `check` returns the answer to
    use, or raises `UsageError`. `words` complete what is typed.
    """

    key: str
    text: str
    check: Callable[[str], str] = str.strip
    default: str | None = None
    words: Sequence[str] = ()


class GuideAnswers(Protocol):
    """Where the answers to questions come from."""

    def answer(self, question: GuideQuestion) -> str:
        """Return the checked answer to a question."""

    def wait(self, text: str) -> bool:
        """Ask somebody to do something, and wait until it is done. Return False at once where nobody is asked."""

    def finish(self, maybe: Sequence[str]) -> None:
        """Check, once a case has asked all its questions, that no answer is left over but of the questions `maybe`,
        which are not asked each time."""


def yes_or_no(answer: str) -> str:
    """Return yes or no, of these words or their first letters."""
    word = answer.strip().lower()
    for known in ("yes", "no"):
        if word and known.startswith(word):
            return known
    raise UsageError(f"{answer} is neither yes nor no", "answer yes or no")


class TerminalAnswers:
    """Asks at a terminal. A wrong answer is asked for again."""

    def answer(self, question: GuideQuestion) -> str:
        default = f" [{question.default}]" if question.default else ""
        with _completion(question.words):
            while True:
                typed = _read_line(f"{question.text}{default} ")
                if not typed.strip() and question.default is not None:
                    typed = question.default
                elif not typed.strip():
                    continue
                try:
                    return question.check(typed)
                except UsageError as error:
                    hint = f"; {error.hint}" if error.hint else ""
                    click.echo(f"  {printable(error.message + hint)}")

    def wait(self, text: str) -> bool:
        _read_line(f"{text} ")
        return True

    def finish(self, maybe: Sequence[str]) -> None:
        """Nothing is left over at a terminal."""


def _read_line(prompt: str) -> str:
    try:
        return input(prompt)
    except EOFError:
        raise click.Abort from None


@contextmanager
def _completion(words: Sequence[str]) -> Iterator[None]:
    """Complete a line that is typed at a terminal from `words`, by the Tab key."""
    try:
        import readline
    except ImportError:  # some builds of Python have none
        yield
        return

    def complete(typed: str, number: int) -> str | None:
        matches = [word for word in words if word.startswith(typed)]
        return matches[number] if number < len(matches) else None

    before = readline.get_completer()
    delimiters = readline.get_completer_delims()
    # The whole line is one word: names have dots and hyphens, and addresses have colons.
    readline.set_completer_delims("")
    readline.set_completer(complete)
    # The library of macOS has other names for its keys.
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    try:
        yield
    finally:
        readline.set_completer(before)
        readline.set_completer_delims(delimiters)


@dataclass
class FileAnswers:
    """Takes the answers from a TOML file, and prints each question with its answer. A wrong or missing answer is an
    error."""

    file: str
    answers: dict[str, str]
    asked: set[str] = field(default_factory=set)

    def answer(self, question: GuideQuestion) -> str:
        self.asked.add(question.key)
        given = self.answers.get(question.key, question.default)
        if given is None:
            raise UsageError(f"{self.file} has no answer to: {question.text}", f'add a line: {question.key} = "…"')
        click.echo(f"{question.text} {printable(given)}")
        try:
            return question.check(given)
        except UsageError as error:
            raise UsageError(f"{self.file}: {question.key}: {error.message}", error.hint) from None

    def wait(self, text: str) -> bool:
        click.echo(text)
        return False

    def finish(self, maybe: Sequence[str]) -> None:
        unasked = sorted(self.answers.keys() - self.asked - set(maybe))
        if unasked:
            raise UsageError(
                f"{self.file}: no question of this case is called {join_names(unasked, 5)}",
                f"its questions are {', '.join(sorted({*self.asked, *maybe}))}",
            )


def open_answers(file: BinaryIO | None) -> GuideAnswers:
    """Return the answers of a file, or of the terminal if there is no file. Raises `UsageError` without both."""
    if file is not None:
        return FileAnswers(file.name, _read_answers(file))
    if not sys.stdin.isatty():
        raise UsageError(
            "--guide asks questions, and stdin is no terminal",
            "give the answers by --answers FILE, or take the commands from the first box of restore.md",
        )
    return TerminalAnswers()


def _read_answers(file: BinaryIO) -> dict[str, str]:
    try:
        table = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{file.name} is not TOML: {error}", 'write a line for each answer: topic = "orders"'
        ) from None
    return {key: _as_text(file.name, key, value) for key, value in table.items()}


def _as_text(file: str, key: str, value: object) -> str:
    """Return an answer as it would be typed."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, str | int):
        return str(value)
    raise UsageError(f"{file}: {key} is neither text, a number, a time, true nor false", "write it in quotes")
