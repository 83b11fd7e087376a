"""The decoders of all that is read from an archive or a metadata log, one function each."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable
from typing import Any

import msgspec
from awscrt.checksums import crc32c

from kbackup.archive import layout
from kbackup.archive.catalog.documents import TableRef
from kbackup.archive.catalog.state import SCHEMAS
from kbackup.archive.catalog.tables import open_rows
from kbackup.archive.models import load, text_checksum
from kbackup.archive.restores import map_parts, offset_map
from kbackup.errors import KbackupError
from kbackup.formats.frames import decode_seek_table, decompress, seek_table_size
from kbackup.formats.index import decode_group_offsets, decode_index, decode_partition_index, encode_index
from kbackup.formats.record import decode
from kbackup.formats.stream import blocks
from kbackup.migrate.metadata_log.codec import encode_record
from kbackup.migrate.metadata_log.image import MetadataImage, reading_of
from kbackup.migrate.metadata_log.log import TornError, decode_batch, read_batches
from kbackup.store.crypt.frames import HEADER, Cipher, decode_header, decrypt_frames, plain_size
from kbackup.store.crypt.kek import LocalKek
from kbackup.store.crypt.keyring import decode_file
from scripts.docs.schemas import DOCUMENTS
from tests.unit.fuzz.corpus import ROWS, OneObject

_MOST = 1 << 20
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
    """Read the data as every table of a catalog, with the size and checksum that the catalog says."""
    sha256 = hashlib.sha256(data).hexdigest()
    store: Any = OneObject(data)
    for schema in SCHEMAS.values():
        ref = TableRef(key="file", size=len(data), sha256=sha256, rows=ROWS)
        try:
            open_rows(store, schema, [ref]).read()
        except KbackupError:
            continue


def offset_table(data: bytes) -> None:
    """With its sum put right: else nothing gets past that."""
    bare = re.sub(rb"sha256:[0-9a-f]{64}", offset_map._NO_SUM, data)
    table = offset_map.decode(bare.replace(offset_map._NO_SUM, offset_map._sum(bare), 1), _MAP)
    map_parts.previous_of(table)


def document(data: bytes) -> None:
    """Read the data as every kind of JSON file, with its checksum put right where it is JSON at all."""
    try:
        right = re.sub(rb'"checksum"\s*:\s*"[^"]*"', b'"checksum":"%s"' % text_checksum(data).encode(), data, count=1)
    except (msgspec.DecodeError, RecursionError):
        right = data
    for kind in DOCUMENTS.values():
        try:
            load(kind, right, "file")
        except KbackupError:
            continue


def encrypted(data: bytes) -> None:
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
    "sealed": encrypted,
    "key_file": key_file,
    "metadata_log": metadata_log,
    "metadata_batch": metadata_batch,
}


def one(name: str, data: bytes) -> None:
    """Run a target on `data`; raises any error that is no `KbackupError`."""
    try:
        TARGETS[name](data)
    except KbackupError:
        return
