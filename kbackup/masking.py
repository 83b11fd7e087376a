"""Masks for the functions of `--transform`: replace fields of keys and values, or whole keys and values.

Each takes a batch of `kbackup.types.RECORDS` and returns another one. A path is `value.customer.name`: the column
(`key` or `value`), and the names on the way, from the outside in. `key` or `value` alone is all of it.

Keys and values are JSON, with or without the bytes that a serializer of JSON Schema puts before it. With the `schemas`
that a function gets, those that name a schema are Avro, Protobuf or JSON by that schema, and can be decoded by it
afterwards. Without a schema, a whole key or value is its bytes, whatever they are.

What a path does not find is left as it is, and so are null keys and values. What could not be looked into is an error,
never let through: a key or value that is no JSON or does not fit its schema, or a text where a path goes further.
Members of JSON beside a path keep their text, digit by digit, and so do fields of Avro. Protobuf is serialized anew.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from kbackup.errors import UndecodableError, UsageError
from kbackup.schemas.base import Headers
from kbackup.schemas.decoder import FramedPayload, NamedSchemas
from kbackup.schemas.json_masks import masked_json
from kbackup.schemas.masks import HINT, Mask, Scalar, Tree
from kbackup.types import RECORDS

__all__ = ["fixed", "hashed", "nulled"]

Path = str | tuple[str, ...]

LEAST_SECRET = 16
"""Bytes that a secret has at least: whoever guesses it finds names by trying them."""

_PARTS = ("key", "value")
_ID_FRAME = 5  # bytes: 0, and the id of a schema
_GUID_FRAME = 17  # bytes: 1, and the GUID of a schema

_DIGEST = "sha256"


def hashed(
    batch: pa.RecordBatch, paths: str | Sequence[Path], secret: str | bytes, schemas: NamedSchemas | None = None
) -> pa.RecordBatch:
    """Replace what is at `paths` by its HMAC-SHA256 under `secret`, as a text of 64 hexadecimal digits.

    The same text gets the same digest everywhere, so that topics can still be joined by it: as a whole key, as a text
    in JSON, Avro or Protobuf, and as a number of the same digits. Null stays null. Of an object of JSON, the digest is
    over its sorted members. By a schema, only a field of texts or bytes can hold a digest."""
    key = _secret(secret)

    def digest(data: bytes) -> str:
        return hmac.digest(key, data, _DIGEST).hex()

    return _masked(batch, paths, Mask("hashed", digest=digest), schemas)


def nulled(batch: pa.RecordBatch, paths: str | Sequence[Path], schemas: NamedSchemas | None = None) -> pa.RecordBatch:
    """Replace what is at `paths` by null; a field of Protobuf is cleared. A whole value that is null is a tombstone, by
    which a compacted topic deletes its key, and a compacted topic takes no key that is null."""
    return _masked(batch, paths, Mask("nulled"), schemas)


def fixed(
    batch: pa.RecordBatch, paths: str | Sequence[Path], value: Scalar, schemas: NamedSchemas | None = None
) -> pa.RecordBatch:
    """Replace what is at `paths` by `value`, also null in JSON and Avro. Whole keys and values without a schema get the
    bytes of a text, or of the JSON of another value. By a schema, the value must be of the field's type."""
    return _masked(batch, paths, Mask("fixed", value), schemas)


def _secret(secret: str | bytes) -> bytes:
    key = secret.encode() if isinstance(secret, str) else secret
    if len(key) < LEAST_SECRET:
        raise UsageError(
            f"the secret of hashed has {len(key)} bytes", f"give one of {LEAST_SECRET} random bytes or more"
        )
    return key


# Go through the records.


def _masked(
    batch: pa.RecordBatch, paths: str | Sequence[Path], mask: Mask, schemas: NamedSchemas | None
) -> pa.RecordBatch:
    """Return the batch with its masked columns. Each record of these is gone through in Python."""
    trees = _trees(paths)
    columns: list[pa.Array[Any]] = list(batch.columns)
    offsets = batch.column("offset").to_pylist()
    headers: list[Headers] = [()] * len(batch)
    if schemas is not None:
        headers = [_headers(each or ()) for each in batch.column("headers").to_pylist()]
    for part, tree in trees.items():
        at = batch.schema.get_field_index(part)
        masked: list[bytes | None] = []
        for offset, data, carried in zip(offsets, columns[at].to_pylist(), headers, strict=True):
            place = f"the {part} at offset {offset}"
            framed: FramedPayload | None = None
            if schemas is not None and data is not None:
                framed = _framed(schemas, part, data, carried, place)
            if data is None:
                masked.append(None)
            elif framed is None:
                masked.append(_masked_plain(data, tree, mask, place))
            elif not tree and mask.is_null:
                masked.append(None)
            else:
                masked.append(framed.front + _masked_payload(framed, tree, mask, place))
        columns[at] = pa.array(masked, RECORDS.field(part).type)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _trees(paths: str | Sequence[Path]) -> dict[str, Tree]:
    """Return the paths as a tree for each column. A path that ends on the way of another one covers it."""
    if isinstance(paths, str):
        paths = [paths]
    trees: dict[str, Tree] = {}
    # Short paths first: what is masked as a whole is not looked into.
    split = [tuple(path.split(".")) if isinstance(path, str) else tuple(path) for path in paths]
    for names in sorted(split, key=len):
        if not names or names[0] not in _PARTS or not all(names):
            shown = ".".join(names)
            raise UsageError(f"{shown!r} is no path", "begin it with key or value, as in value.customer.name")
        tree = trees
        for name in names[:-1]:
            if name in tree and not tree[name]:
                break
            tree = tree.setdefault(name, {})
        else:
            tree.setdefault(names[-1], {})
    return trees


def _headers(headers: Sequence[dict[str, Any]]) -> Headers:
    return [(header["key"].encode(), header["value"]) for header in headers]


# Keys and values that name a schema.


def _framed(schemas: NamedSchemas, part: str, data: bytes, headers: Headers, place: str) -> FramedPayload | None:
    """Return what a frame names and holds, None without a frame."""
    try:
        return schemas.payload(part, data, headers)
    except UndecodableError as error:
        raise UndecodableError(
            f"{place} begins like one that names a schema: {error.message}",
            f"if no serializer wrote the {part}s of this topic, mask them without schemas",
        ) from None


def _masked_payload(framed: FramedPayload, tree: Tree, mask: Mask, place: str) -> bytes:
    """Return what stands behind a frame, masked."""
    here = f"{place} (schema {framed.schema})"
    try:
        # Each format is loaded where it is needed: its library may be missing.
        if framed.codec.kind == "AVRO":
            from kbackup.schemas.avro import AvroCodec
            from kbackup.schemas.avro_masks import masked_avro

            assert isinstance(framed.codec, AvroCodec)  # noqa: S101 (by its kind)
            return masked_avro(framed.codec, framed.payload, tree, mask, here)
        if framed.codec.kind == "PROTOBUF":
            from kbackup.schemas.protobuf import ProtobufCodec
            from kbackup.schemas.protobuf_masks import masked_protobuf

            assert isinstance(framed.codec, ProtobufCodec)  # noqa: S101 (by its kind)
            message = framed.codec.whole_message(framed.payload, framed.indexes)
            return masked_protobuf(message, tree, mask, here)
    except UndecodableError as error:
        if place in error.message:
            raise
        raise UndecodableError(f"{here}: {error.message}", HINT) from None
    return masked_json(framed.payload, tree, mask, here)


# Keys and values that name none.


def _masked_plain(data: bytes, tree: Tree, mask: Mask, place: str) -> bytes | None:
    if not tree:
        return _whole(data, mask)
    frame = _frame_of(data)
    return data[:frame] + masked_json(data[frame:], tree, mask, place)


def _whole(data: bytes, mask: Mask) -> bytes | None:
    """Return what stands in the place of all bytes of a key or value."""
    value = mask.of(data)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes) or value is None:
        return value
    return msgspec.json.encode(value)


def _frame_of(data: bytes) -> int:
    """Return the number of bytes before the JSON that name its schema. JSON begins with neither of their first
    bytes."""
    if data[:1] == b"\0":
        return _ID_FRAME
    if data[:1] == b"\1":
        return _GUID_FRAME
    return 0
