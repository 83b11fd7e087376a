"""The check of `--json` by schemas, which every test makes: it notices what a schema does not say."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kbackup import cli
from scripts.docs.commands import all_commands, subcommands
from scripts.docs.outputs import OUTPUTS, WITHOUT_JSON
from tests.support import output_schemas
from tests.support.output_schemas import SCHEMAS, find_problem

LOG = {
    "archive": "s3://b",
    "history": [{"catalog": 1, "kind": "backup", "run": "r", "by": "h", "at": "", "summary": ""}],
    "exit_code": 0,
}


def test_every_command_has_a_schema() -> None:
    leaves = {name for name, command in all_commands().items() if not subcommands(command)}
    assert set(OUTPUTS) == leaves - WITHOUT_JSON


def test_a_document_of_its_schema_is_accepted() -> None:
    assert find_problem("log", LOG) == ""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"new": 1}, "'new' was unexpected"),
        ({"archive": 1}, "$.archive: 1 is not of type 'string'"),
        ({"history": [{"catalog": 1}]}, "is a required property"),
        ({"exit_code": None}, "$.exit_code"),
    ],
)
def test_another_document_is_a_problem(change: dict[str, object], problem: str) -> None:
    assert problem in find_problem("log", LOG | change)


def test_a_document_without_an_exit_code_is_a_problem() -> None:
    assert "'exit_code' is a required property" in find_problem("log", {"archive": "", "history": []})


def test_a_command_without_a_schema_is_a_problem() -> None:
    assert find_problem("nothing", {}).startswith("kbackup nothing prints JSON without a schema")


@pytest.fixture
def caught() -> Iterator[list[str]]:
    """The problems that the check has noticed in this test, which don't fail it."""
    yield output_schemas.problems
    output_schemas.problems.clear()


def test_commands_of_tests_are_checked(caught: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_schemas, "SCHEMAS", SCHEMAS / "none")
    assert cli.main(["config", "--json"]) == 0
    assert cli.main(["config", "--jsn", "--json"]) == 2
    noticed = [problem.split(":")[0] for problem in caught]
    caught.clear()
    assert noticed == [f"kbackup {name} prints JSON without a schema" for name in ("config", "error")]


def test_schemas_say_more_than_object() -> None:
    """Each names the fields of its document."""
    for file in SCHEMAS.iterdir():
        schema = json.loads(file.read_text("utf-8"))
        forms = schema.get("anyOf") or [schema]
        for form in forms:
            part = schema["$defs"][form["$ref"].rpartition("/")[2]] if "$ref" in form else form
            assert len(part["properties"]) > 1, file.name
