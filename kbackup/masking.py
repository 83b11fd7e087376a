"""Masks for the functions of `--transform`: replace members of JSON, or whole keys and values.

Each takes a batch of `kbackup.types.RECORDS` and returns another one. A path is `value.customer.name`: the column
(`key` or `value`), and the members on the way, from the outside in. `key` or `value` alone is all of its bytes,
whatever they are.

What a path does not find is left as it is, and so are null keys and values. What could not be looked into is an error,
never let through: a key or value that is no JSON, or a text where a path goes further. Bytes that a serializer of JSON
Schema puts before the JSON stay there. Members beside a path keep their text, digit by digit.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from kbackup.errors import UndecodableError, UsageError
from kbackup.types import RECORDS

Path = str | tuple[str, ...]
Scalar = str | bytes | int | float | bool | None

LEAST_SECRET = 16
"""Bytes that a secret has at least: whoever guesses it finds names by trying them."""

_PARTS = ("key", "value")
_HINT = "mask all of it by the path 'key' or 'value', or leave such records out"
_ID_FRAME = 5  # bytes: 0, and the id of a schema
_GUID_FRAME = 17  # bytes: 1, and the GUID of a schema

_DIGEST = "sha256"


def hash_json(batch: pa.RecordBatch, paths: str | Sequence[Path], secret: str | bytes) -> pa.RecordBatch:
    """Replace what is at `paths` by its HMAC-SHA256 under `secret`, as a text of 64 hexadecimal digits.

    The same text gets the same digest everywhere, so that topics can still be joined by it: as a whole key, as a text
    in JSON, and as a number of the same digits. Null stays null. Of an object, the digest is over its sorted
    members."""
    key = _secret(secret)

    def digest(data: bytes) -> str:
        return hmac.digest(key, data, _DIGEST).hex()

    def whole(data: bytes) -> bytes:
        return digest(data).encode()

    def member(raw: msgspec.Raw) -> object:
        data = bytes(raw).strip()
        match data[:1]:
            case b"n":
                return None
            case b'"':
                return digest(msgspec.json.decode(data, type=str).encode())
            case b"{":
                return digest(msgspec.json.encode(msgspec.json.decode(data), order="sorted"))
            case _:
                return digest(data)

    return _masked(batch, paths, whole, member)


def null_json(batch: pa.RecordBatch, paths: str | Sequence[Path]) -> pa.RecordBatch:
    """Replace what is at `paths` by null. A whole value that is null is a tombstone, by which a compacted topic deletes
    its key, and a compacted topic takes no key that is null."""

    def whole(_data: bytes) -> None:
        return None

    def member(_raw: msgspec.Raw) -> object:
        return None

    return _masked(batch, paths, whole, member)


def fixed(batch: pa.RecordBatch, paths: str | Sequence[Path], value: Scalar) -> pa.RecordBatch:
    """Replace what is at `paths` by `value`, also null in JSON. Whole keys and values get the bytes of a text, or of
    the JSON of another value."""
    if isinstance(value, str):
        as_bytes: bytes | None = value.encode()
    elif isinstance(value, bytes) or value is None:
        as_bytes = value
    else:
        as_bytes = msgspec.json.encode(value)

    def whole(_data: bytes) -> bytes | None:
        return as_bytes

    def member(_raw: msgspec.Raw) -> object:
        if isinstance(value, bytes):
            raise UsageError("fixed: JSON has no bytes", "give a text or a number for a member of JSON")
        return value

    return _masked(batch, paths, whole, member)


def _secret(secret: str | bytes) -> bytes:
    key = secret.encode() if isinstance(secret, str) else secret
    if len(key) < LEAST_SECRET:
        raise UsageError(
            f"the secret of hash_json has {len(key)} bytes", f"give one of {LEAST_SECRET} random bytes or more"
        )
    return key


# Go through the records.

MaskMember = Callable[[msgspec.Raw], object]
"""Gives the new value of a member of JSON, by its text."""
MaskWhole = Callable[[bytes], bytes | None]

_Tree = dict[str, Any]
"""The names of members, each with the tree of what is below it; an empty tree below a name that is masked."""

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


def _masked(batch: pa.RecordBatch, paths: str | Sequence[Path], whole: MaskWhole, member: MaskMember) -> pa.RecordBatch:
    """Return the batch with its masked columns. Each record of these is gone through in Python."""
    trees = _trees(paths)
    columns: list[pa.Array[Any]] = list(batch.columns)
    offsets = batch.column("offset").to_pylist()
    for part, tree in trees.items():
        at = batch.schema.get_field_index(part)
        masked: list[bytes | None] = []
        for offset, data in zip(offsets, columns[at].to_pylist(), strict=True):
            if data is None:
                masked.append(None)
            elif not tree:
                masked.append(whole(data))
            else:
                masked.append(_masked_json(data, tree, member, f"the {part} at offset {offset}"))
        columns[at] = pa.array(masked, RECORDS.field(part).type)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _trees(paths: str | Sequence[Path]) -> dict[str, _Tree]:
    """Return the paths as a tree for each column. A path that ends on the way of another one covers it."""
    if isinstance(paths, str):
        paths = [paths]
    trees: dict[str, _Tree] = {}
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


def _masked_json(data: bytes, tree: _Tree, member: MaskMember, place: str) -> bytes:
    frame = _frame_of(data)
    try:
        masked = _with_masks(msgspec.Raw(data[frame:]), tree, member, place)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UndecodableError(f"{place} is no JSON", _HINT) from None
    return data[:frame] + bytes(masked)


def _frame_of(data: bytes) -> int:
    """Return the number of bytes before the JSON that name its schema. JSON begins with neither of their first
    bytes."""
    if data[:1] == b"\0":
        return _ID_FRAME
    if data[:1] == b"\1":
        return _GUID_FRAME
    return 0


def _with_masks(raw: msgspec.Raw, tree: _Tree, member: MaskMember, place: str) -> msgspec.Raw:
    """Return the text of a value of JSON with its members masked. All others keep their text."""
    text = bytes(raw).lstrip()
    match text[:1]:
        case b"{":
            members = _OBJECT.decode(text)
            for name, below in tree.items():
                if name in members:
                    members[name] = _masked_member(members[name], below, member, f"{name} in {place}")
            return msgspec.Raw(msgspec.json.encode(members))
        case b"[":
            elements = [_with_masks(element, tree, member, place) for element in _LIST.decode(text)]
            return msgspec.Raw(msgspec.json.encode(elements))
        case b"n":
            msgspec.json.decode(text, type=None)
            return raw
        case _:
            msgspec.json.decode(text)
            raise UndecodableError(f"{place} is no object, though a path goes on in it", _HINT)


def _masked_member(raw: msgspec.Raw, below: _Tree, member: MaskMember, place: str) -> msgspec.Raw:
    if below:
        return _with_masks(raw, below, member, place)
    text = bytes(raw).lstrip()
    if text[:1] == b"[":
        elements = [_masked_member(element, below, member, place) for element in _LIST.decode(text)]
        return msgspec.Raw(msgspec.json.encode(elements))
    return msgspec.Raw(msgspec.json.encode(member(raw)))
