"""The schemas of `--json`, by which every test checks what commands print."""

from __future__ import annotations

import json

import pytest

from kbackup import cli
from scripts.docs.commands import all_commands, subcommands
from scripts.docs.schemas import OUTPUTS, WITHOUT_JSON
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


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (LOG | {"new": 1}, "'new' was unexpected"),
        (LOG | {"archive": 1}, "$.archive: 1 is not of type 'string'"),
        (LOG | {"history": [{"catalog": 1}]}, "is a required property"),
        (LOG | {"exit_code": None}, "$.exit_code"),
        ({"archive": "", "history": []}, "'exit_code' is a required property"),
    ],
)
def test_another_document_is_a_problem(document: dict[str, object], problem: str) -> None:
    assert find_problem("log", LOG) == ""
    assert problem in find_problem("log", document)


def test_commands_of_tests_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_schemas, "SCHEMAS", SCHEMAS / "none")
    assert cli.main(["config", "--json"]) == 0
    assert cli.main(["config", "--jsn", "--json"]) == 2
    noticed = [problem.split(":")[0] for problem in output_schemas.problems]
    output_schemas.problems.clear()  # which would fail this test
    assert noticed == [f"kbackup {name} prints JSON without a schema" for name in ("config", "error")]


def test_schemas_say_more_than_object() -> None:
    """Each names the fields of its document."""
    for file in SCHEMAS.glob("*.json"):
        schema = json.loads(file.read_text("utf-8"))
        for form in schema.get("anyOf") or [schema]:
            part = schema["$defs"][form["$ref"].rpartition("/")[2]] if "$ref" in form else form
            assert len(part["properties"]) > 1, file.name
