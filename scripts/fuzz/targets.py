"""One function for each decoder, and what it starts from."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from awscrt.checksums import crc32c

from kbackup.archive import layout, models
from kbackup.archive.catalog import documents
from kbackup.archive.catalog.documents import TableRef
from kbackup.archive.catalog.state import SCHEMAS
from kbackup.archive.catalog.tables import encode, open_rows
from kbackup.archive.models import Document, dump, load
from kbackup.archive.models.document import text_checksum
from kbackup.archive.restores import offset_map
from kbackup.errors import KbackupError
from kbackup.formats.frames import decompress
from kbackup.formats.index import decode_index, decode_partition_index, encode_index, index_of
from kbackup.formats.offsets import decode_group_offsets
from kbackup.formats.record import blocks, decode, scan
from kbackup.formats.seek import decode_seek_table, seek_table_size
from kbackup.kafka.metadata_log.batches import TornError, decode_batch, encode_batch, read_batches
from kbackup.kafka.metadata_log.codec import Record, encode_record
from kbackup.kafka.metadata_log.entities import reading_of
from kbackup.kafka.metadata_log.image import MetadataImage
from kbackup.kafka.metadata_log.schema_table import CONTROL_RECORDS, RECORDS
from kbackup.store.crypt.frames import (
    FRAME,
    HEADER,
    Cipher,
    decode_header,
    decrypt_frames,
    encrypt_frames,
    new_header,
    plain_size,
)
from kbackup.store.crypt.kek import LocalKek
from kbackup.store.crypt.key_files import decode_file, new_file
from kbackup.types import TopicPartition
from scripts.docs.schemas import DOCUMENTS

_VECTORS = Path(__file__).parents[2] / "formats" / "vectors"
_MOST = 1 << 20
_ROWS = 3
_MAP = layout.restore_key("r", layout.OFFSETS)
Target = Callable[[bytes], None]


def records(data: bytes) -> None:
    """Walked one by one, in chunks as large as the first byte says; then looked into."""
    size = 1 + (data[0] if data else 0) * 8
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    for block in blocks(chunks, None, name="file"):
        decode(block)


def indexed_records(data: bytes) -> None:
    """By an index: the file's first bytes."""
    cut = 1 + 24 * (data[0] % 8) if data else 0
    index = decode_index(data[1 : 1 + cut], "index")
    for block in blocks([data[1 + cut :]], index, name="file"):
        decode(block)


def index(data: bytes) -> None:
    found = decode_index(data, "file")
    assert encode_index(found) == data


def partition_index(data: bytes) -> None:
    decode_partition_index(data, "file")


def group_offsets(data: bytes) -> None:
    decode_group_offsets(data, "file")


def compressed(data: bytes) -> None:
    """Never more than what is allowed, whatever the frames say."""
    size = sum(map(len, decompress([data], "file", _MOST)))
    assert size <= _MOST


def seek_table(data: bytes) -> None:
    """The end of a file that is larger by as much as the first byte says."""
    before = data[0] if data else 0
    size = len(data) - 1 + before
    if len(data) - 1 < seek_table_size(data[1:], size, "file"):
        return
    table = decode_seek_table(data[1:], size, "file")
    for position in (0, table.plain_size // 2, table.plain_size - 1):
        table.locate(position, 1)


def catalog_table(data: bytes) -> None:
    """As every table of a catalog, with the size and checksum that the catalog says."""
    sha256 = hashlib.sha256(data).hexdigest()
    store: Any = _Kept(data)
    for schema in SCHEMAS.values():
        ref = TableRef(key="file", size=len(data), sha256=sha256, rows=_ROWS)
        try:
            open_rows(store, schema, [ref]).read()
        except KbackupError:
            continue


def offset_table(data: bytes) -> None:
    """With its sum put right: else nothing gets past that."""
    bare = re.sub(rb"sha256:[0-9a-f]{64}", offset_map._NO_SUM, data)
    table = offset_map.decode(bare.replace(offset_map._NO_SUM, offset_map._sum(bare), 1), _MAP)
    offset_map.previous_of(table)


def document(data: bytes) -> None:
    """As every kind of JSON file, with its checksum put right where it is JSON at all."""
    try:
        right = re.sub(
            rb'"checksum"\s*:\s*"[^"]*"', b'"checksum":"%s"' % text_checksum(data).encode(), data, count=1
        )
    except (msgspec.DecodeError, RecursionError):
        right = data
    for kind in DOCUMENTS.values():
        try:
            load(kind, right, "file")
        except KbackupError:
            continue


def sealed(data: bytes) -> None:
    """An encrypted object, under any data key."""
    assert 0 <= plain_size(len(data)) <= len(data)
    header = decode_header(data, "file")
    decrypt_frames(Cipher(bytes(32), header, "archive", "file"), memoryview(data)[HEADER:], "file")


def key_file(data: bytes) -> None:
    """Of data keys; unwrapped by some key."""
    file = decode_file(data, "file")
    LocalKek(bytes(32)).unwrap(file.wrapped(), "archive")


def metadata_log(data: bytes) -> None:
    """Batches of a controller's log, as they are."""
    try:
        list(read_batches(io.BytesIO(data), "file", len(data)))
    except TornError:
        return


def metadata_batch(data: bytes) -> None:
    """One batch, with its format and its checksum put right. Its records can be encoded again, and replayed."""
    body = data[21:]
    batch = data[:16].ljust(16, b"\0") + b"\x02" + crc32c(body).to_bytes(4, "big") + body
    image = MetadataImage()
    for record in decode_batch(batch, "file", 0).records:
        encode_record(record.record)
        image.replay(record.record)
    reading_of(image, "")


TARGETS: dict[str, Target] = {
    "records": records,
    "indexed_records": indexed_records,
    "index": index,
    "partition_index": partition_index,
    "group_offsets": group_offsets,
    "compressed": compressed,
    "seek_table": seek_table,
    "catalog_table": catalog_table,
    "offset_table": offset_table,
    "document": document,
    "sealed": sealed,
    "key_file": key_file,
    "metadata_log": metadata_log,
    "metadata_batch": metadata_batch,
}


def one(name: str, data: bytes) -> None:
    """What is no `KbackupError` comes out."""
    try:
        TARGETS[name](data)
    except KbackupError:
        return


def corpus(name: str) -> Iterator[bytes]:
    """What to start from: the published vectors, good and bad, and files that kbackup writes."""
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
        store = _Kept()
        offset_map.write_map(store, "r", [_runs()])  # type: ignore[arg-type]
        yield store.data
    elif name == "document":
        yield from map(dump, _documents())
    elif name == "sealed":
        for size in (0, 1, FRAME + 1):
            header = new_header(bytes(16))
            frames = encrypt_frames(
                Cipher(bytes(32), header, "archive", "file"), memoryview(bytes(size)), 0, last=True
            )
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
                yield encode_batch(7, 1, 9, [Record(schema.name, number, version, own, bool(own))] * 2)


class _Kept:
    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    def get(self, key: str) -> bytes:
        return self.data

    def put(self, key: str, data: bytes) -> str:
        self.data = data
        return key


def _rows(schema: pa.Schema) -> pa.Table:
    """Rows of a table of a catalog: some value for each kind of column."""
    values = {
        pa.string(): "t",
        pa.bool_(): True,
        pa.int32(): 1,
        pa.int64(): 1 << 40,
        pa.list_(pa.string()): ["k"],
    }
    row = {field.name: values[field.type] for field in schema}
    return pa.Table.from_pylist([row] * _ROWS, schema=schema)


def _runs() -> pa.Table:
    runs = tuple(np.array(values, np.int64) for values in ([0, 9], [5, 20], [3, 1]))
    return offset_map.runs_table({TopicPartition("t", 0): (runs[0], runs[1], runs[2])})


def _documents() -> Iterator[Document]:
    yield models.ArchiveInfo(id="a", created_at="2026-01-01T00:00:00.000Z")
    state = models.PartitionState(partition=0, start=0, end=9, log_start=0, log_end=9, records=9, bytes=99)
    topic = models.TopicState(
        name="t", id="i", incarnation=1, captured=1, state="present", partitions=(state,)
    )
    ref = models.document_ref("points/0000000001-a/groups.json", b"")
    yield models.Manifest(
        archive_id="a",
        number=1,
        run="r",
        previous=None,
        tool="kbackup",
        started_at="",
        committed_at="",
        totals=models.Totals(
            topics=1, partitions=1, segments=1, records=9, bytes=99, stored_bytes=99, groups=1
        ),
        captures=(models.Capture(number=1, started_at="", groups=ref, metadata=ref),),
        topics=(topic,),
        losses=(models.Loss(kind="retention", topic="t", partition=0, start=0, end=1, message="m"),),
    )
    offsets = (models.GroupOffset(topic="t", partition=0, offset=4),)
    group = models.Group(group="g", type="consumer", state="empty", offsets=offsets)
    yield models.Groups(captured_at="", groups=(group,))
    table = documents.TableRef(key="tables/0000000002-a-0.parquet", size=9, sha256="0" * 64, rows=1)
    yield documents.Catalog(
        archive_id="a",
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
    yield documents.Latest(archive_id="a", number=2)
    yield documents.Derived(archive_id="a", catalog=2)
