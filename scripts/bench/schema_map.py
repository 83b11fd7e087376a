"""python -m scripts.bench.schema_map: what it costs a worker to map the ids of schemas, and `verify` to check them.

Records of a small value go through one worker's loop: by ids alone, as where a topic has a subject, and by decoding
each, as where it has none, in Avro, Protobuf and JSON. No broker and no store take part. It is the processor's time.
"""

from __future__ import annotations

import argparse
import hashlib
import struct
import tempfile
import time
from dataclasses import replace
from typing import NamedTuple

from kbackup.archive.models import DocumentRef, Schemas, dump
from kbackup.formats.record import encode
from kbackup.jobs.schemas.judgement import How, JudgedPart
from kbackup.jobs.schemas.rewrite import ArchivedCodecs, CheckedRewrite, NewIds, SchemaRewrite
from kbackup.schemas.base import SchemaVersion
from kbackup.store import open_store
from kbackup.types import RECORDS, RecordBlock, TopicPartition

AVRO = """{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "item",
"type": "string"}, {"name": "price", "type": "double"}, {"name": "paid", "type": "boolean"}]}"""
PROTOBUF = 'syntax = "proto3"; message Order { int64 id = 1; string item = 2; double price = 3; bool paid = 4; }'
ITEM = b"a pen of some length"
PRICE = struct.pack("<d", 1.25)
SOURCE = TopicPartition("orders", 0)


class Sample(NamedTuple):
    version: SchemaVersion
    payload: bytes


SAMPLES = [
    Sample(
        SchemaVersion(subject="avro", version=1, id=1, schema=AVRO),
        b"\xd0\x0f" + bytes([2 * len(ITEM)]) + ITEM + PRICE + b"\x01",
    ),
    Sample(
        SchemaVersion(subject="protobuf", version=1, id=2, type="PROTOBUF", schema=PROTOBUF),
        b"\x00\x08\xe8\x07\x12" + bytes([len(ITEM)]) + ITEM + b"\x19" + PRICE + b"\x20\x01",
    ),
    Sample(
        SchemaVersion(subject="json", version=1, id=3, type="JSON", schema='{"type": "object"}'),
        b'{"id": 1000, "item": "a pen of some length", "price": 1.25, "paid": true}',
    ),
]


def block_of(sample: Sample, records: int) -> RecordBlock:
    import pyarrow as pa

    value = struct.pack(">BI", 0, sample.version.id) + sample.payload
    rows: dict[str, list[object]] = {
        "offset": list(range(records)),
        "timestamp_type": [0] * records,
        "timestamp": [1] * records,
        "key": [b"key"] * records,
        "value": [value] * records,
        "headers": [[] for _ in range(records)],
    }
    return encode(pa.RecordBatch.from_pydict(rows, schema=RECORDS))


def judged(how: How, sample: Sample) -> JudgedPart:
    return JudgedPart(topic=SOURCE.topic, part="value", how=how, certain=(sample.version.id,))


def fresh(block: RecordBlock) -> RecordBlock:
    """Return a copy, as what is mapped is changed."""
    return replace(block, data=block.data.copy())


def seconds(rewrite: SchemaRewrite, block: RecordBlock, rounds: int) -> float:
    """Return the least time that a block takes; the first one compiles."""
    rewrite(SOURCE, fresh(block))
    times: list[float] = []
    for _ in range(rounds):
        copy = fresh(block)
        began = time.process_time()
        _, unmapped = rewrite(SOURCE, copy)
        times.append(time.process_time() - began)
        if unmapped:
            raise AssertionError(unmapped[0].words)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000, help="of a block")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(archived_codecs(folder), given.records, given.rounds)


def archived_codecs(folder: str) -> ArchivedCodecs:
    """Return what decodes by the samples' schemas, kept in a folder as an archive keeps them."""
    versions = tuple(sample.version for sample in SAMPLES)
    data = dump(Schemas(captured_at="", registry="http://registry", kept="all", versions=versions))
    store = open_store(folder)
    store.put_new("schemas.json", data)
    digest = hashlib.sha256(data).hexdigest()
    return ArchivedCodecs(store, DocumentRef(key="schemas.json", size=len(data), sha256=digest))


def measure(codecs: ArchivedCodecs, records: int, rounds: int) -> None:
    new = NewIds({1: 101, 2: 102, 3: 103})
    for sample in SAMPLES:
        block = block_of(sample, records)
        subject, decoding = judged("subject", sample), judged("decoding", sample)
        works = {
            "by subject": SchemaRewrite(new, [subject]),
            "by decoding": SchemaRewrite(new, [decoding], "keep", codecs),
            "checked by verify": CheckedRewrite(new, [subject], "keep", codecs),
        }
        for name, work in works.items():
            each = seconds(work, block, rounds) / records
            print(f"{sample.version.type:9} {name:18} {each * 1e9:8,.0f} ns a record {1 / each:12,.0f} records/s")


if __name__ == "__main__":
    main()
