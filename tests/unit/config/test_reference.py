"""The documents list exactly the keys, variables, controlled properties and exit codes of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from kbackup import errors
from kbackup.cli.common.command_context import EXIT_CODES
from kbackup.config import KEYS, VARIABLES
from kbackup.config.clients import CONTROLLED
from kbackup.errors import KbackupError
from kbackup.metadata.sources import PROPERTIES

DOCS = Path(__file__).parents[3] / "infra" / "docs"


class Key(NamedTuple):
    """A row of the table of keys."""

    path: str
    takes: str
    default: str
    meaning: str


class Code(NamedTuple):
    """A row of the table of exit codes."""

    code: str
    meaning: str
    errors: str


def rows(file: str, heading: str) -> list[list[str]]:
    """Cells of the body of the one table below a heading."""
    _, found, text = (DOCS / file).read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    assert found, f"{file} has no heading {heading}"
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_the_document_has_each_key_with_default_and_meaning() -> None:
    """The option that a row names has the same meaning in commands.md."""
    commands = (DOCS / "commands.md").read_text("utf-8").replace("\\|", "|")
    table = [Key(*row) for row in rows("configuration.md", "Keys")]
    assert [row.path for row in table] == [f"`{path}`" for path in KEYS]
    for row, key in zip(table, KEYS.values(), strict=True):
        assert row.default == (f"`{key.default_text}`" if key.default_text else ""), key.path
        assert key.doc, key.path
        assert row.meaning.startswith(key.doc), key.path
        named = row.meaning.removeprefix(key.doc)
        if named:
            option = named.removeprefix(" Option `--").removesuffix("`.")
            assert re.search(rf"`--(\[no-\])?{option}[ `].*\| {re.escape(key.doc)}", commands), key.path


def test_the_document_has_each_variable_with_its_meaning() -> None:
    assert rows("configuration.md", "Variables that are no keys") == [[f"`{n}`", doc] for n, doc in VARIABLES.items()]


def test_the_document_has_each_property_that_kbackup_sets() -> None:
    assert rows("configuration.md", "Properties that kbackup sets itself") == [
        [f"`{name}`", why] for name, why in CONTROLLED.items()
    ]


def test_the_document_has_each_property_of_a_metadata_source() -> None:
    assert rows("configuration.md", "Sources of metadata") == [
        [f"`{name}`", meaning] for name, meaning in PROPERTIES.items()
    ]


def test_the_document_has_each_exit_code() -> None:
    table = [Code(*row) for row in rows("exit-codes.md", "Codes")]
    assert {row.code: row.meaning for row in table} == {str(code): text for code, text in EXIT_CODES.items()}


@pytest.mark.parametrize("code", EXIT_CODES)
def test_error_classes_of_a_code(code: int) -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, KbackupError)]
    (row,) = [Code(*row) for row in rows("exit-codes.md", "Codes") if row[0] == str(code)]
    assert re.findall(r"`(\w+)`", row.errors) == [kind.__name__ for kind in kinds if kind.exit_code == code]
