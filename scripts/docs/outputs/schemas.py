"""Make the JSON Schema of each command's output."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from scripts.docs.outputs.table import OUTPUTS, WITHOUT_EXIT_CODE

_HEAD = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
_ERROR = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "message": {"type": "string"},
        "hint": {"type": "string"},
        "exit_code": {"type": "integer"},
    },
    "required": ["type", "message", "hint", "exit_code"],
}
_END = {"exit_code": {"type": "integer"}, "error": _ERROR}
"""The fields that every command adds at its end: `error` only if one ended it."""


def output_schemas() -> dict[str, str]:
    """Return the text of each schema by its file name; `error` is that of a command that failed before its report."""
    schemas = {name.replace(" ", "-"): output_schema(name) for name in OUTPUTS}
    schemas["error"] = error_schema()
    return {
        f"{name}.schema.json": json.dumps(value, indent=1, ensure_ascii=False) + "\n" for name, value in schemas.items()
    }


def error_schema() -> dict[str, Any]:
    return {**_HEAD, "type": "object", "properties": _END, "required": ["error", "exit_code"]}


def output_schema(command: str) -> dict[str, Any]:
    """Return the schema of a command's document: that of its model, or any of several."""
    references, parts = msgspec.json.schema_components(OUTPUTS[command], ref_template="#/$defs/{name}")
    for part in parts.values():
        if "description" in part:
            part["description"] = " ".join(part["description"].split())
    for reference in references:
        if command not in WITHOUT_EXIT_CODE:
            form = parts[reference["$ref"].removeprefix("#/$defs/")]
            form["properties"] = {**_END, **form["properties"], "exit_code": _END["exit_code"]}
            form["required"] = [*dict.fromkeys([*form.get("required", ()), "exit_code"])]
    forms = references[0] if len(references) == 1 else {"anyOf": list(references)}
    return {**_HEAD, "title": f"kbackup {command} --json", **forms, "$defs": parts}
