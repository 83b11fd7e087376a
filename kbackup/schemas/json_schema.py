"""JSON that a JSON Schema describes: read, and held against the schema by jsonschema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jsonschema
import msgspec
import referencing
import referencing.jsonschema
from jsonschema.exceptions import ValidationError
from jsonschema.validators import validator_for

from kbackup.errors import UndecodableError
from kbackup.schemas.base import Json, Kind, Schema, misfit, of_others
from kbackup.schemas.linear_regex import bounded, linear


class JsonCodec:
    """Nothing is fetched for a schema: what it refers to is in it, or among its references."""

    kind: Kind = "JSON"

    def __init__(self, schema: Schema) -> None:
        """Raises what the libraries do for a schema that is none, or that refers to one."""
        whole = json.loads(schema.text)
        kind = _checked(whole, jsonschema.Draft7Validator)
        known: Any = referencing.Registry()
        for name, text in schema.references:
            other = json.loads(text)
            with of_others(f"{name}, which it refers to,", "JSON Schema"):
                _checked(other, kind)
            known = known.with_resource(name, _resource(other))
        self._validator = linear(kind)(whole, registry=known)

    def decode(self, data: bytes, indexes: Sequence[int] | None = None) -> Json:
        try:
            value: Json = msgspec.json.decode(data)
            with bounded():
                self._validator.validate(value)
        except ValidationError as error:
            raise UndecodableError(f"not JSON by its schema: {error.json_path}: {error.message}") from error
        except Exception as error:
            # what the schema refers to may be nothing, or no schema: `re.error`, `UnknownType`, ...
            raise misfit("JSON", error) from error
        return value


def _checked(schema: Any, default: Any) -> Any:
    """Return the validator class of the draft that `schema` names; raise if it is invalid by that draft."""
    kind = validator_for(schema, default=default)
    kind.check_schema(schema)
    return kind


def _resource(schema: Any) -> Any:
    return referencing.Resource.from_contents(schema, default_specification=referencing.jsonschema.DRAFT7)
