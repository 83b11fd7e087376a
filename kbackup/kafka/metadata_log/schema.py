"""The shape of a metadata record: its fields, and from which version on each field is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_ZERO: dict[str, Any] = {
    "bool": False,
    "bytes": b"",
    "float64": 0.0,
    "string": "",
    "uuid": "AAAAAAAAAAAAAAAAAAAAAA",
}


@dataclass(frozen=True)
class Field:
    """One field. `type` is int8, int16, uint16, int32, int64, float64, bool, string, bytes, uuid or struct; `[]`
    before it makes it an array.

    `since` is the first version that has the field, `nullable` the first version where it may be null (None: never).
    A field with a `tag` stands in the tagged section, and only where it differs from `default`. `fields` are those of
    a struct.
    """

    name: str
    type: str
    since: int = 0
    nullable: int | None = None
    tag: int | None = None
    default: Any = ...
    fields: tuple[Field, ...] = ()

    def default_value(self) -> Any:
        """Return the value that stands for an absent field. Kafka's types have one of their own each."""
        if self.default is not ...:
            return self.default
        if self.type.startswith("[]"):
            return []
        if self.type == "struct":
            return {}
        return _ZERO.get(self.type, 0)


@dataclass(frozen=True)
class Schema:
    """A record's name in Kafka, the newest version that is known, and its fields. Version 0 is always the oldest."""

    name: str
    newest: int
    fields: tuple[Field, ...]
