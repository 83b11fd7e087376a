"""JSON that a JSON Schema describes: read, and held against the schema by jsonschema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jsonschema
import msgspec
import referencing
import referencing.exceptions
import referencing.jsonschema
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import validator_for

from kbackup.errors import UndecodableError
from kbackup.schemas.base import Json, Kind, Schema, misfit


class JsonCodec:
    """Nothing is fetched for a schema: what it refers to is in it, or among its references."""

    kind: Kind = "JSON"

    def __init__(self, schema: Schema) -> None:
        try:
            whole = json.loads(schema.text)
            resources = [(name, _resource(json.loads(text))) for name, text in schema.references]
            kind = validator_for(whole, default=jsonschema.Draft7Validator)
            kind.check_schema(whole)
        except (ValueError, SchemaError) as error:
            why = error.message if isinstance(error, SchemaError) else str(error)
            raise UndecodableError(f"{schema.name} is no JSON Schema: {why}") from error
        known: Any = referencing.Registry().with_resources(resources)
        self._validator = kind(whole, registry=known)

    def decode(self, data: bytes, indexes: Sequence[int] | None = None) -> Json:
        try:
            value: Json = msgspec.json.decode(data)
            self._validator.validate(value)
        except ValidationError as error:
            raise UndecodableError(f"not JSON by its schema: {error.json_path}: {error.message}") from error
        except (msgspec.DecodeError, RecursionError, referencing.exceptions.Unresolvable) as error:
            raise misfit("JSON", error) from error
        return value


def _resource(schema: Any) -> Any:
    return referencing.Resource.from_contents(schema, default_specification=referencing.jsonschema.DRAFT7)
