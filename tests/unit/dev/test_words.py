"""The rules of `scripts.dev.words`, each on a few lines of source."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from scripts.dev.words import __main__ as command
from scripts.dev.words.check import check_sources, read_sources
from scripts.dev.words.exceptions import Exemption
from scripts.dev.words.names import split_words
from scripts.dev.words.problem import Problem
from scripts.dev.words.progress import is_listed, stale_entries
from scripts.dev.words.texts import FUNCTION_LINES, MODULE_LINES


def check(
    source: str, path: str = "kbackup/store/file.py", exemptions: list[Exemption] | None = None
) -> list[Problem]:
    return check_sources({PurePosixPath(path): source}, exemptions or [])


def messages(source: str, path: str = "kbackup/store/file.py") -> list[str]:
    return [f"{problem.line}: {problem.message}" for problem in check(source, path)]


def test_split_words() -> None:
    assert split_words("_read_HTTPBodyOf2Parts") == ["read", "http", "body", "of", "parts"]
    assert split_words("NotFoundError") == ["error"]
    assert split_words("upload_parts_found") == ["found"]
    assert split_words("replace_placement") == ["replace", "placement"]


def test_riddles_in_functions_and_their_parameters() -> None:
    source = "def _read_some(key, /, found, *told, left_out=1): ...\nasync def those(): ..."
    assert messages(source) == [
        "1: function _read_some: 'some' names nothing",
        "1: parameter found of _read_some: 'found' names nothing",
        "1: parameter left_out of _read_some: 'left' names nothing",
        "1: parameter told of _read_some: 'told' names nothing",
        "2: function those: 'those' names nothing",
    ]


def test_riddles_in_locals_that_live_long() -> None:
    """Five lines are short; parameters and nested functions are not counted twice."""
    lines = ["def read(key):", "    held = found = key", *["    key()"] * 3]
    assert messages("\n".join([*lines, "    return held, found"])) == []
    assert messages("\n".join([*lines, "    key()", "    return held, found"])) == [
        "2: local found of read: 'found' names nothing",
        "2: local held of read: 'held' names nothing",
    ]
    held_back = [line.replace("held = found", "held_back") for line in lines]
    assert messages("\n".join([*held_back, "    key()", "    return held_back"])) == []


def test_riddles_in_attributes_of_self() -> None:
    source = (
        "def __init__(self, other):\n    self._held = self.told_at = other.left = 1\n    self.held_back = 2"
    )
    assert messages(source) == [
        "2: attribute _held: '_held' names nothing",
        "2: attribute told_at: 'told' names nothing",
    ]


def test_riddles_in_classes_modules_and_attributes() -> None:
    source = "class _Told:\n    what: str\n    _left: int = 0\n    fine = 1\n\n    def told_of(self): ..."
    assert messages(source, "kbackup/jobs/place.py") == [
        "1: module place: 'place' names nothing",
        "1: class _Told: 'told' names nothing",
        "2: attribute _Told.what: 'what' names nothing",
        "3: attribute _Told._left: 'left' names nothing",
        "6: function told_of: 'told' names nothing",
    ]
    assert messages("", "kbackup/jobs/told/__init__.py") == ["1: module told: 'told' names nothing"]


def test_words_that_the_glossary_replaces_in_public_names() -> None:
    source = "class Pieces:\n    part: int\n    _part: int\n\ndef _seal(chosen): ...\ndef seal(chosen): ..."
    assert messages(source, "kbackup/jobs/chain.py") == [
        "1: module chain: the glossary has another word for 'chain'",
        "1: class Pieces: the glossary has another word for 'pieces'",
        "2: attribute Pieces.part: the glossary has another word for 'part'",
        "6: function seal: the glossary has another word for 'seal'",
    ]


def test_names_of_tests_are_sentences() -> None:
    path = "tests/unit/test_parts.py"
    assert messages("def test_parts_left_are_kept(): ...\nclass Kept:\n    part: int", path) == []
    source = "def test_what_is_left(): ...\nclass TestParts:\n    def test_whoever_reads(self): ..."
    assert messages(source, path) == [
        "1: test test_what_is_left begins with 'what'",
        "3: test test_whoever_reads begins with 'whoever'",
    ]
    assert messages("def test_whole_parts_are_read(): ...\ndef test_item(): ...", path) == []
    assert messages("def test_parts(wanted): ...", path) == [
        "1: parameter wanted of test_parts: 'wanted' names nothing"
    ]


def test_docstrings_begin_with_what_they_document() -> None:
    source = '''"""What it is."""
NAMES = 1
"""Those names."""


def read():
    """Wherever it reads."""
    return "What is no docstring"


class Reader:
    """It, reads."""
'''
    assert messages(source) == [
        "1: docstring begins with 'What'",
        "3: docstring begins with 'Those'",
        "12: docstring begins with 'It'",
    ]


def test_sizes() -> None:
    body = "    x = 1\n" * (FUNCTION_LINES - 1)
    assert messages(f"def read():\n{body}") == []
    assert messages(f"def read():\n{body}    y = 1") == ["1: function read of 61 lines, more than 60"]
    assert messages("\n" * MODULE_LINES) == []
    assert messages("\n" * (MODULE_LINES + 1)) == ["1: module of 251 lines, more than 250"]


def test_errors_have_a_hint() -> None:
    source = """
class KbackupError(Exception): ...
class StoreError(KbackupError): ...
class MissingError(StoreError):
    default_hint: str = "check the key"
class AbsentError(MissingError): ...
class OwnError(StoreError):
    def __init__(self): super().__init__("message", "check it")
raise StoreError("message")
raise errors.StoreError("message", "give a key")
raise StoreError("message", hint=computed())
raise MissingError("message")
raise AbsentError("message")
raise OwnError()
raise StoreError(*arguments)
raise ValueError("message")
"""
    assert messages(source) == ["9: StoreError without a hint"]
    assert messages(source, "tests/unit/test_errors.py") == []


@pytest.mark.parametrize(
    "hint",
    [
        "'give a key'",
        "f'give {key}'",
        "'if it is lost, restore it'",
        "'did you mean a?'",
        "HINT",
        "computed",
        "(f'run {a}' if a else 'wait')",
    ],
)
def test_hints_that_say_what_to_do(hint: str) -> None:
    assert (
        messages(f"HINT = 'check the key'\nclass BadError(KbackupError): ...\nBadError('message', {hint})")
        == []
    )


@pytest.mark.parametrize(
    "hint",
    [
        "'it is lost'",
        "f'nothing of {key}'",
        "''",
        "'is it there?'",
        "HINT",
        "('give it' if a else 'a key')",
        "'a ' + key",
    ],
)
def test_hints_that_say_not_what_to_do(hint: str) -> None:
    source = f"HINT = 'the key'\nclass BadError(KbackupError): ...\nBadError('message', {hint})"
    assert [problem.rule for problem in check(source)] == ["hints"]


def test_problems_name_the_line_and_a_better_word() -> None:
    [problem] = check("\ndef copy(theirs): ...")
    assert str(problem) == (
        "kbackup/store/file.py:2: parameter theirs of copy: 'theirs' names nothing "
        "(name the owner: source, peer, other)"
    )


def test_exemptions() -> None:
    exemptions = [
        Exemption("kbackup/store", "part_size", "S3's own word"),
        Exemption("kbackup/store/file.py", "Sums.gaps", "a member of the report"),
    ]
    source = "def part_size(): ...\nclass Sums:\n    gaps: int\n"
    assert check(source, exemptions=exemptions) == []
    assert [str(problem) for problem in check("def part_size(): ...", exemptions=exemptions)] == [
        "kbackup/store/file.py:1: nothing needs the exemption of Sums.gaps (delete it from exceptions.py)"
    ]
    assert len(check(source, "kbackup/jobs/file.py", exemptions)) == 4


def test_folders_that_are_not_yet_clean() -> None:
    entries = ["kbackup/*.py", "kbackup/jobs", "kbackup/store/file.py"]
    listed = [
        PurePosixPath(path) for path in ("kbackup/a.py", "kbackup/jobs/b/a.py", "kbackup/store/file.py")
    ]
    assert all(is_listed(path, entries) for path in listed)
    assert not is_listed(PurePosixPath("kbackup/jobs_more/a.py"), entries)
    assert not is_listed(PurePosixPath("kbackup/store/a.py"), entries)
    assert stale_entries(listed, entries) == []
    assert stale_entries(listed[1:], entries) == ["kbackup/*.py"]


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A problem in a folder that is not listed fails, and so does a listed folder without any."""
    sources = {
        PurePosixPath("kbackup/clean/a.py"): "def read(wanted): ...",
        PurePosixPath("kbackup/listed/a.py"): "def read(left): ...",
    }
    monkeypatch.setattr(command, "read_sources", lambda: sources)
    monkeypatch.setattr(command, "check_sources", lambda given: check_sources(given, []))
    monkeypatch.setattr(command, "NOT_YET_CLEAN", ["kbackup/listed", "kbackup/stale"])
    assert command.main(["--count"]) == 0
    assert "kbackup/clean: 1 (names 1)" in capsys.readouterr().out.splitlines()
    assert command.main(["kbackup/clean"]) == 1
    assert capsys.readouterr().out.startswith("kbackup/clean/a.py:1: parameter wanted of read")
    assert command.main(["kbackup/other"]) == 0
    assert command.main([]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "kbackup/clean/a.py:1: parameter wanted of read: 'wanted' names nothing "
        "(selected, requested, required or expected)",
        "scripts/dev/words/progress.py: kbackup/stale is clean or gone (take it out)",
    ]


def test_every_module_is_read(tmp_path: Path) -> None:
    assert PurePosixPath("kbackup/errors.py") in read_sources()
    (tmp_path / "scripts" / "deep").mkdir(parents=True)
    (tmp_path / "scripts" / "deep" / "a.py").write_text("A = 1\n")
    assert read_sources(tmp_path) == {PurePosixPath("scripts/deep/a.py"): "A = 1\n"}
