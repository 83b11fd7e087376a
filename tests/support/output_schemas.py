"""The check of what commands print with `--json`, as a part of every test run (a pytest plugin).

Each document and record that a command prints in this process is validated by its schema, which must name every field.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import jsonschema
import msgspec
import pytest

from kbackup.cli.common import record_formats
from kbackup.cli.common.output import Reporter

SCHEMAS = Path(__file__).parents[2] / "infra" / "docs" / "json"
_MADE_BY_TESTS = {"it"}
"""Commands that tests add to kbackup's."""

problems: list[str] = []


def pytest_configure() -> None:
    _wrap(Reporter, "document", before=_remember_command)
    _wrap(Reporter, "_print_document", before=_check_document)
    _wrap(record_formats, "document", after=lambda record: _check("cat", record))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[Any]:
    """Fail a test in which a command printed a document that is not as its schema says."""
    result = yield
    found = "\n".join(problems)
    problems.clear()
    if found:
        pytest.fail(found, pytrace=False)
    return result


def find_problem(command: str, document: object) -> str:
    """Return how a document of a command differs from its schema; "" if it does not."""
    file = SCHEMAS / f"{command.replace(' ', '-')}.schema.json"
    if not file.is_file():
        return f"kbackup {command} prints JSON without a schema: add it to scripts/docs/schemas.py"
    plain = json.loads(json.dumps(msgspec.to_builtins(document, str_keys=True)))
    error = jsonschema.exceptions.best_match(_validator(file).iter_errors(plain))
    if error is None:
        return ""
    hint = "if that is meant, run: python -m scripts.docs"
    return f"kbackup {command} --json: {error.json_path}: {error.message[:300]}; {hint}"


def _check(command: str, document: object) -> None:
    if problem := find_problem(command, document):
        problems.append(problem)


def _remember_command(reporter: Reporter, *_: object, **__: object) -> None:
    context = click.get_current_context(silent=True)
    if context is not None:
        vars(reporter)["command_of_test"] = context.command_path.partition(" ")[2]


def _check_document(reporter: Reporter, fields: Mapping[str, object]) -> None:
    command = vars(reporter).get("command_of_test")
    if command is None and set(fields) == {"error", "exit_code"}:
        command = "error"
    if command is not None and command not in _MADE_BY_TESTS:
        _check(command, fields)


@functools.cache
def _validator(file: Path) -> jsonschema.Draft202012Validator:
    schema = json.loads(file.read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(_closed(schema))


def _closed(schema: Any) -> Any:
    """Return the schema without any field but those that it names."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(item) for name, item in schema.items()}
    return {"additionalProperties": False, **closed} if isinstance(closed.get("properties"), dict) else closed


def _wrap(
    owner: Any,
    name: str,
    before: Callable[..., None] = lambda *_, **__: None,
    after: Callable[[Any], None] = lambda _: None,
) -> None:
    """Call `before` with the arguments of each call of a function, and `after` with its result."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        result = original(*args, **kwargs)
        after(result)
        return result

    setattr(owner, name, wrapped)
