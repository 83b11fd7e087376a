"""An archive whose records carry schema ids, and whose restore points hold the schemas."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import fastavro
import msgspec

from kbackup.archive.models import Schemas, TopicState, UsedSchemas
from kbackup.archive.run import open_or_create
from kbackup.archive.schemas import merged
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.schemas.base import SchemaReference, SchemaVersion, SubjectSettings
from kbackup.store.base import Store
from tests.support.archives import commit_point, topic_state, write_block
from tests.support.plain_records import Plain, block_of

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "item", "type": "string"}, {"name": "count", "type": "long"}],
}
ORDER_2 = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
MONEY = 'syntax = "proto3"; package shop; message Money { string currency = 1; int64 cents = 2; }'
CART = 'syntax = "proto3"; package shop; import "money.proto"; message Cart { string item = 1; Money price = 2; }'
EVENT = {"type": "object", "properties": {"kind": {"type": "string"}, "size": {"type": "integer"}}}


def schema_version(subject: str, number: int, schema_id: int, schema: object, kind: str = "AVRO", **more: Any) -> Any:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return SchemaVersion(subject=subject, version=number, id=schema_id, type=kind, schema=text, **more)


MONEY_REFERENCE = (SchemaReference(name="money.proto", subject="money.proto", version=1),)
FIRST = (
    schema_version("carts-value", 1, 5, CART, "PROTOBUF", references=MONEY_REFERENCE),
    schema_version("events-value", 1, 6, EVENT, "JSON"),
    schema_version("money.proto", 1, 4, MONEY, "PROTOBUF"),
    schema_version("orders-key", 1, 1, '"long"'),
    schema_version("orders-value", 1, 2, ORDER),
)
SECOND = (*FIRST, schema_version("orders-value", 2, 3, ORDER_2))
SETTINGS = (SubjectSettings(subject="", config={"compatibilityLevel": "BACKWARD"}),)


def avro(schema: Any, value: object) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def framed(schema_id: int, rest: bytes) -> bytes:
    return b"\0" + struct.pack(">I", schema_id) + rest


def order(key: int, value: Mapping[str, object], schema_id: int = 2) -> Plain:
    schema: Any = ORDER if schema_id == 2 else ORDER_2
    return Plain(framed(1, avro("long", key)), framed(schema_id, avro(schema, value)))


NIGHTS: tuple[tuple[dict[str, list[Plain]], tuple[SchemaVersion, ...]], ...] = (
    (
        {
            "carts": [Plain(b"anna", framed(5, b"\0" + b"\x0a\x03ink" + b"\x12\x08\x0a\x03EUR\x10\xfa\x01"))],
            "events": [Plain(None, framed(6, b'{"kind": "seen", "size": 7}'))],
            "orders": [order(1, {"item": "pen", "count": 3}), Plain(framed(1, avro("long", 2)), None)],
            "plain": [Plain(b"key", b"text")],
        },
        FIRST,
    ),
    (
        {
            "orders": [
                order(3, {"item": "ink", "count": 1, "note": "blue"}, 3),
                Plain(framed(1, b"\xff"), framed(99, b"gone")),
            ]
        },
        SECOND,
    ),
)
"""What each restore point adds, and the schemas that it holds."""


@dataclass
class SchemaArchive:
    """Made night by night; `topics` are as of the last one."""

    store: Store
    topics: dict[str, TopicState] = field(default_factory=dict)
    segments: dict[str, list[Segment]] = field(default_factory=dict)
    nights: int = 0

    def night(self, records: Mapping[str, Sequence[Plain]], versions: Iterable[SchemaVersion] | None) -> None:
        self.nights += 1
        added: list[Segment] = []
        for name, plain in records.items():
            held = self.segments.setdefault(name, [])
            start = held[-1].last + 1 if held else 0
            block = block_of(plain, range(start, start + len(plain)))
            made = write_block(self.store, SegmentTarget(name, 1, 0, 1 << 24, "none"), block)
            held += made
            added += made
            before = self.topics.get(name)
            state = topic_state(name, [(0, start + len(plain), held)], captured=self.nights)
            used = merged(before.schemas if before else (), used_by(plain))
            self.topics[name] = msgspec.structs.replace(state, schemas=used, counted=start + len(plain))
        every = [msgspec.structs.replace(t, captured=self.nights) for _, t in sorted(self.topics.items())]
        schemas = None
        if versions is not None:
            at = f"2026-01-0{self.nights}T00:00:00.000Z"
            held_versions = tuple(versions)
            schemas = Schemas(
                captured_at=at, registry="http://r", kept="used", versions=held_versions, settings=SETTINGS
            )
        commit_point(open_or_create(self.store), self.nights, topics=every, segments=added, schemas=schemas)


def used_by(records: Sequence[Plain]) -> list[UsedSchemas]:
    parts: tuple[tuple[Literal["key", "value"], list[bytes | None]], ...] = (
        ("key", [r.key for r in records]),
        ("value", [r.value for r in records]),
    )
    counted = []
    for part, fields in parts:
        framed_ones = [data for data in fields if data and len(data) >= 5 and data[0] == 0]
        ids: dict[str, int] = {}
        for data in framed_ones:
            text = str(struct.unpack_from(">I", data, 1)[0])
            ids[text] = ids.get(text, 0) + 1
        there = sum(data is not None for data in fields)
        sure = sum(len(data) != 8 for data in framed_ones)
        counted.append(UsedSchemas(part=part, fields=there, framed=len(framed_ones), sure=sure, ids=ids))
    return counted


def make_schema_archive(store: Store) -> SchemaArchive:
    archive = SchemaArchive(store)
    for records, versions in NIGHTS:
        archive.night(records, versions)
    return archive
