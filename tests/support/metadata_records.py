"""Records of a metadata log for tests: a Hypothesis strategy of every known kind, and logs in a folder."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from kbackup.kafka.metadata_log.codec import CONTROL_RECORDS, RECORDS, MetadataRecord, RecordSchema, SchemaField
from kbackup.kafka.metadata_log.log import encode_batch

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    **{kind: st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for kind, bits in _BITS.items()},
    "uint16": st.integers(0, 0xFFFF),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    "bytes": st.binary(max_size=9),
    "uuid": st.binary(min_size=16, max_size=16).map(lambda b: base64.urlsafe_b64encode(b).decode()[:22]),
}


def _values(field: SchemaField, version: int) -> st.SearchStrategy[Any]:
    kind = field.type.removeprefix("[]")
    one = _struct(field.fields, version) if kind == "struct" else _SIMPLE[kind]
    values = one if kind == field.type else st.lists(one, max_size=3)
    may_be_null = field.nullable is not None and version >= field.nullable
    return values | st.none() if may_be_null else values


def _struct(fields: tuple[SchemaField, ...], version: int) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({f.name: _values(f, version) for f in fields if f.since <= version})


@st.composite
def _record(
    draw: st.DrawFn, number: int, schema: RecordSchema, control: bool, version: int | None = None
) -> MetadataRecord:
    """Draw a record of a kind, in one version or in any."""
    if version is None:
        version = draw(st.integers(0, schema.newest))
    data = draw(_struct(schema.fields, version)) | ({"version": version} if control else {})
    return MetadataRecord(schema.name, number, version, data, control)


METADATA = st.one_of([_record(number, schema, control=False) for number, schema in RECORDS.items()])
CONTROL = st.one_of([_record(number, schema, control=True) for number, schema in CONTROL_RECORDS.items()])
BY_KIND = {
    (schema.name, version): _record(number, schema, control, version)
    for table, control in ((RECORDS, False), (CONTROL_RECORDS, True))
    for number, schema in table.items()
    for version in range(schema.newest + 1)
}
"""By name and version."""
HEADER = MetadataRecord("SnapshotHeaderRecord", 3, 0, {"version": 0, "lastContainedLogTimestamp": 0}, control=True)
FOOTER = MetadataRecord("SnapshotFooterRecord", 4, 0, {"version": 0}, control=True)


def write_segment(folder: Path, base_offset: int, *batches: Sequence[MetadataRecord], epoch: int = 1) -> Path:
    """Write a segment whose batches have these records."""
    path = folder / f"{base_offset:020}.log"
    path.write_bytes(_encode(base_offset, epoch, batches))
    return path


def write_snapshot(folder: Path, end_offset: int, *batches: Sequence[MetadataRecord], epoch: int = 1) -> Path:
    """Write a snapshot whose batches have these records, between its header and its footer."""
    path = folder / f"{end_offset:020}-{epoch:010}.checkpoint"
    path.write_bytes(_encode(0, epoch, [[HEADER], *batches, [FOOTER]]))
    return path


def _encode(offset: int, epoch: int, batches: Sequence[Sequence[MetadataRecord]]) -> bytes:
    data = b""
    for records in batches:
        data += encode_batch(offset, epoch, 1_700_000_000_000, records)
        offset += len(records)
    return data
