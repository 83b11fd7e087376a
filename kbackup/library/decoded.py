"""Decoded records of an archive for programs: one by one, as columns beside the bytes, and as frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from kbackup.archive.segments.rows import SCHEMA
from kbackup.archive.topic_decoders import TopicDecoders
from kbackup.errors import UsageError
from kbackup.formats.record import Row
from kbackup.schemas.base import Json
from kbackup.schemas.columns import DECODE_ERROR, DECODED, decoded_columns
from kbackup.schemas.decoder import Decoded, Decoder, Undecoded
from kbackup.types import TopicPartition

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
"""The columns of records that nobody has asked for others."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record with its key and its value decoded, and their bytes beside them.

    Where `key_schema` is None, `key` is the bytes: it was not decoded, for the reason in `key_error`, or '' where no
    serializer wrote it. The same holds for values. `timestamp` is in milliseconds since 1970.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    headers: tuple[tuple[bytes, bytes | None], ...]
    key: Json | bytes
    value: Json | bytes
    key_bytes: bytes | None
    value_bytes: bytes | None
    key_schema: Mapping[str, Json] | None = None
    value_schema: Mapping[str, Json] | None = None
    key_error: str = ""
    value_error: str = ""


class _Part(NamedTuple):
    """The key or the value of a record: decoded by `schema`, or else the bytes as they are, with the reason."""

    data: Json | bytes
    schema: Mapping[str, Json] | None = None
    error: str = ""


def decoded_record(tp: TopicPartition, row: Row, decoders: Mapping[str, Decoder]) -> Record:
    key = _decoded_part(decoders.get("key"), row.key, row)
    value = _decoded_part(decoders.get("value"), row.value, row)
    return Record(
        topic=tp.topic,
        partition=tp.partition,
        offset=row.offset,
        timestamp=row.timestamp,
        headers=row.headers,
        key=key.data,
        value=value.data,
        key_bytes=row.key,
        value_bytes=row.value,
        key_schema=key.schema,
        value_schema=value.schema,
        key_error=key.error,
        value_error=value.error,
    )


def _decoded_part(decoder: Decoder | None, data: bytes | None, row: Row) -> _Part:
    if decoder is None or data is None:
        return _Part(data)
    made = decoder(data, row.headers)
    if isinstance(made, Decoded):
        return _Part(made.value, made.schema)
    if isinstance(made, Undecoded):
        return _Part(data, error=made.why)
    return _Part(data)


# Columns.


class RecordColumns:
    """The columns of the records of a topic: those of `rows.SCHEMA`, and those of decoded keys and values.

    Without `names` they are `COLUMNS`, and what can be decoded. Raises `UsageError` for a column that is not there.
    """

    def __init__(self, topic: str, names: Sequence[str] | None, decoders: TopicDecoders | None) -> None:
        of_decoding = {*DECODED.values(), DECODE_ERROR}
        types: dict[str, pa.DataType] = {}
        # Schemas are read, and their libraries loaded, only for columns that need them.
        if decoders is not None and (names is None or of_decoding.intersection(names)):
            types = decoders.types(topic)
        available = dict.fromkeys(SCHEMA.names)
        if types:
            for part in types:
                available[DECODED[part]] = None
            available[DECODE_ERROR] = None
        if names is None:
            decoded = [name for name in available if name in of_decoding]
            names = [*COLUMNS, *decoded]
        for name in names:
            if name not in available:
                raise _no_column(topic, name, tuple(available), of_decoding)
        self.names = tuple(names)
        is_error_asked = DECODE_ERROR in self.names
        self._types: dict[str, pa.DataType] = {}
        for part, kind in types.items():
            if is_error_asked or DECODED[part] in self.names:
                self._types[part] = kind
        self._decoders: dict[str, Decoder] = {}
        if self._types and decoders is not None:
            self._decoders = decoders.decoders(topic)

    @property
    def decodes(self) -> bool:
        """True if any column is of decoded keys or values."""
        return bool(self._types)

    @property
    def archived(self) -> tuple[str, ...]:
        """The columns of `rows.SCHEMA` that have to be read."""
        needed = dict.fromkeys(name for name in self.names if name in SCHEMA.names)
        if self._types:
            # Headers are needed as well: serializers may put the id of a schema there.
            needed |= dict.fromkeys([*self._types, "headers"])
        return tuple(needed)

    @property
    def schema(self) -> pa.Schema:
        fields: dict[str, pa.Field[Any]] = {field.name: field for field in SCHEMA}
        for part, kind in self._types.items():
            fields[DECODED[part]] = pa.field(DECODED[part], kind)
        fields[DECODE_ERROR] = pa.field(DECODE_ERROR, pa.string())
        return pa.schema([fields[name] for name in self.names])

    def batches(self, archived: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches of these columns, of batches of the `archived` ones."""
        if not self._types:
            yield from archived
            return
        made_names = [*(DECODED[part] for part in self._types), DECODE_ERROR]
        schema = self.schema
        for batch in archived:
            decoded = decoded_columns(batch, self._decoders, self._types)
            made = dict(zip(made_names, decoded, strict=True))
            arrays: list[pa.Array[Any]] = []
            for name in self.names:
                arrays.append(made[name] if name in made else batch.column(name))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _no_column(topic: str, name: str, available: Sequence[str], of_decoding: set[str]) -> UsageError:
    if name in of_decoding:
        return UsageError(
            f"records of topic {topic} have no column {name}",
            "leave it out: the archive has no schemas by which a serializer wrote them, or was not asked to decode",
        )
    return UsageError(f"records have no column {name}", f"use {', '.join(available)}")


# Frames.

FrameKind = Literal["pandas", "polars", "arrow"]


def frame_of(table: pa.Table, kind: FrameKind) -> Any:
    """Return a table as a frame of another library. Raises `UsageError` if that is not installed."""
    if kind == "arrow":
        return table
    if kind not in ("pandas", "polars"):
        raise UsageError(f"{kind} is no kind of frame", "use pandas, polars or arrow")
    try:
        library = import_module(kind)
    except ImportError as error:
        raise UsageError(
            f"a frame of {kind} needs the package {kind}, which is not installed", f"install it: pip install {kind}"
        ) from error
    return table.to_pandas() if kind == "pandas" else library.from_arrow(table)
