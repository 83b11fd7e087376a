"""The inputs that are changed at random."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from kbackup.archive import models
from kbackup.archive.catalog import documents
from kbackup.archive.catalog.state import SCHEMAS
from kbackup.archive.catalog.tables import encode
from kbackup.archive.models import Document, dump
from kbackup.archive.restores import map_parts, offset_map
from kbackup.errors import KbackupError
from kbackup.formats.index import encode_index
from kbackup.formats.stream import scan
from kbackup.migrate.metadata_log.codec import CONTROL_RECORDS, RECORDS, MetadataRecord
from kbackup.migrate.metadata_log.log import encode_batch
from kbackup.store.crypt.frames import FRAME, Cipher, encrypt_frames, new_header
from kbackup.store.crypt.kek import LocalKek
from kbackup.store.crypt.keyring import new_file
from kbackup.types import TopicPartition
from tests.support.map_parts import write_map
from tests.support.record_blocks import index_of

_VECTORS = Path(__file__).parents[3] / "formats" / "vectors"
ROWS = 3


def corpus(name: str) -> Iterator[bytes]:
    """Yield the first inputs of a target: the published vectors, good and bad, and files that kbackup writes."""
    folder = {"compressed": "zst", "indexed_records": "records"}.get(name, name)
    yield b""
    for path in sorted((_VECTORS / folder).glob("*.hex")):
        data = _bytes_of(path)
        yield data
        if name == "indexed_records":
            try:
                own = encode_index(index_of([scan(data[1:], name="file")]))
            except KbackupError:
                continue
            yield bytes([(len(own) - 1) // 24]) + own + data
    yield from _written(name)


def _bytes_of(vector: Path) -> bytes:
    """Hexadecimal digits, 'text' in quotes, and comments from '#' on."""
    digits = ""
    for token in re.finditer(r"'(?P<text>[^']*)'|#[^\n]*|(?P<hex>[0-9a-f]+)", vector.read_text("utf-8")):
        digits += (token["text"] or "").encode().hex() + (token["hex"] or "")
    return bytes.fromhex(digits)


def _written(name: str) -> Iterator[bytes]:
    if name == "seek_table":
        for path in sorted((_VECTORS / "zst").glob("*.hex")):
            data = _bytes_of(path)
            yield from (bytes([0]) + data, bytes([max(0, min(255, len(data) - 33))]) + data[-33:])
    elif name == "catalog_table":
        for schema in SCHEMAS.values():
            yield from (encode(schema.empty_table()), encode(_rows(schema)))
    elif name == "offset_table":
        store = OneObject()
        write_map(store, "r", [map_parts.MapPart(_runs())])  # type: ignore[arg-type]
        yield store.data
    elif name == "document":
        yield from map(dump, _documents())
    elif name == "sealed":
        for size in (0, 1, FRAME + 1):
            header = new_header(bytes(16))
            frames = encrypt_frames(Cipher(bytes(32), header, "archive", "file"), memoryview(bytes(size)), 0)
            yield header.encode() + frames
    elif name == "key_file":
        yield new_file(LocalKek(bytes(32)), {bytes(16): bytes(32)}, "name", "archive")[1]
    elif name in ("metadata_log", "metadata_batch"):
        yield from _metadata_batches()


def _metadata_batches() -> Iterator[bytes]:
    """Every known record, in its oldest and its newest version: its fields have their default."""
    for table in (RECORDS, CONTROL_RECORDS):
        for number, schema in table.items():
            for version in {0, schema.newest}:
                own = {"version": version} if table is CONTROL_RECORDS else {}
                yield encode_batch(7, 1, 9, [MetadataRecord(schema.name, number, version, own, bool(own))] * 2)


class OneObject:
    """A store of one object, whatever its key."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    def get(self, key: str) -> bytes:
        return self.data

    def put(self, key: str, data: bytes) -> str:
        self.data = data
        return key


def _rows(schema: pa.Schema) -> pa.Table:
    """Rows of a table of a catalog: some value for each kind of column."""
    values = {pa.string(): "t", pa.bool_(): True, pa.int32(): 1, pa.int64(): 1 << 40, pa.list_(pa.string()): ["k"]}
    row = {field.name: values[field.type] for field in schema}
    return pa.Table.from_pylist([row] * ROWS, schema=schema)


def _runs() -> pa.Table:
    runs = tuple(np.array(values, np.int64) for values in ([0, 9], [5, 20], [3, 1]))
    return offset_map.runs_table({TopicPartition("t", 0): (runs[0], runs[1], runs[2])})


def _documents() -> Iterator[Document]:
    yield models.ArchiveInfo(id="0" * 32, created_at="2026-01-01T00:00:00.000Z")
    state = models.PartitionState(partition=0, start=0, end=9, log_start=0, log_end=9, records=9, bytes=99)
    topic = models.TopicState(name="t", id="i", incarnation=1, captured=1, state="present", partitions=(state,))
    ref = models.document_ref("points/0000000001-a/groups.json", b"")
    yield models.Manifest(
        archive_id="0" * 32,
        number=1,
        run="r",
        previous=None,
        tool="kbackup",
        started_at="",
        committed_at="",
        totals=models.Totals(topics=1, partitions=1, segments=1, records=9, bytes=99, stored_bytes=99, groups=1),
        captures=(models.Capture(number=1, started_at="", groups=ref, metadata=ref),),
        topics=(topic,),
        losses=(models.Loss(kind="retention", topic="t", partition=0, start=0, end=1, message="m"),),
    )
    offsets = (models.GroupOffset(topic="t", partition=0, offset=4),)
    group = models.Group(group="g", type="consumer", state="empty", offsets=offsets)
    yield models.Groups(captured_at="", groups=(group,))
    table = documents.TableRef(key="tables/0000000002-a-0.parquet", size=9, sha256="0" * 64, rows=1)
    yield documents.Catalog(
        archive_id="0" * 32,
        number=2,
        previous=documents.Link(number=1, checksum="sha256:" + "0" * 64),
        operation=documents.Operation(kind="backup", token="t", run="r", by="h", at="", summary="s"),
        next_point=2,
        isolation_levels=("read_committed",),
        open_run=documents.OpenRun(
            run="r", command="backup", host="h", started_at="", isolation_level="read_committed"
        ),
        origin=documents.Origin(archive="s3://b/p", catalog=documents.Link(number=1, checksum="")),
        pins=(documents.Pin(point=1, at=""),),
        labels=(documents.Label(name="n", point=1),),
        tables=documents.Tables(points=(table,), segments=(table,)),
    )
    yield documents.Latest(archive_id="0" * 32, number=2)
    yield documents.Derived(archive_id="0" * 32, catalog=2)
