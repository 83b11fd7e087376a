"""Masks of fields of Avro.

Avro names neither fields nor types in its bytes, so a record can be walked through with its schema beside: what is
beside a path is copied as it is. A value that is decoded and encoded again may become another one: a union does not
say of a value which branch it was in, and logical types are narrower in Python.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import msgspec
from fastavro._read_py import skip_data
from fastavro.io.binary_decoder import BinaryDecoder
from fastavro.io.binary_encoder import BinaryEncoder

from kbackup.errors import KbackupError, UndecodableError
from kbackup.schemas.avro import AvroCodec
from kbackup.schemas.base import misfit
from kbackup.schemas.masks import Mask, Scalar, Tree, refuse_path

_RECORDS = ("record", "error")
_BITS = {"int": 32, "long": 64}


def masked_avro(codec: AvroCodec, data: bytes, tree: Tree, mask: Mask, place: str) -> bytes:
    """Return Avro with the fields of a tree masked, all of it for an empty one.

    `UndecodableError` for data that its schema does not fit, and for a value without fields where a path goes on;
    `UsageError` for a type that can't hold what the mask puts there."""
    if codec.is_bare_bytes:
        return _masked_bytes(data, tree, mask, place)
    walk = _Walk(codec, data, mask)
    try:
        walk.value(codec.schema, tree, place)
        masked = walk.end()
    except KbackupError:
        raise
    except Exception as error:
        raise misfit("AVRO", error) from error
    # The walk does not look into what it skips: whether consumers can read the record shows only now.
    try:
        codec.decode(masked)
    except UndecodableError as error:
        codec.decode(data)
        # It could be read before: the mask put a text there that is none of its logical type, such as a UUID.
        raise UndecodableError(f"{place} could not be read any more, masked by {mask.name}: {error.message}") from None
    return masked


def _masked_bytes(data: bytes, tree: Tree, mask: Mask, place: str) -> bytes:
    """Mask a value of the type of bytes, which stands without its length."""
    if tree:
        refuse_path(place, "bytes")
    made = _as_bytes(mask.of(data))
    if made is None:
        mask.refuse(place, "bytes")
    return made


def _as_bytes(value: Scalar) -> bytes | None:
    """Return the bytes of a text or of bytes; None for other values."""
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else None


class _Walk:
    """A walk through the data of a record. What was read and not replaced is copied."""

    def __init__(self, codec: AvroCodec, data: bytes, mask: Mask) -> None:
        self._named = codec.named_types
        self._data = data
        self._mask = mask
        self._stream = io.BytesIO(data)
        self._decoder = BinaryDecoder(self._stream)
        self._out = io.BytesIO()
        self._encoder = BinaryEncoder(self._out)
        self._copied = 0

    def value(self, schema: Any, tree: Tree | None, place: str) -> None:
        """Go through a value: skip it without a tree, replace it where the tree is empty, and else go on in it."""
        if tree is None:
            skip_data(self._decoder, schema, {"writer": self._named})
        elif tree:
            self._go_on(self._resolved(schema), tree, place)
        else:
            self._replace(self._resolved(schema), place)

    def end(self) -> bytes:
        """Return the masked data, with all that is left over: it is for the codec to judge."""
        self._stream.seek(0, io.SEEK_END)
        self._copy()
        return self._out.getvalue()

    def _copy(self) -> None:
        """Copy what was read since the last copy."""
        at = self._stream.tell()
        self._out.write(self._data[self._copied : at])
        self._copied = at

    def _leave_out(self) -> None:
        """Leave out what was read since the last copy."""
        self._copied = self._stream.tell()

    def _resolved(self, schema: Any) -> Any:
        """Return a type itself for its name."""
        if isinstance(schema, list):
            return schema
        return self._named.get(_kind(schema), schema)

    def _go_on(self, schema: Any, tree: Tree, place: str) -> None:
        if isinstance(schema, list):
            branch = schema[self._decoder.read_index()]
            self.value(branch, tree, place)
            return
        kind = _kind(schema)
        if kind in _RECORDS:
            for field in schema["fields"]:
                name = field["name"]
                self.value(field["type"], tree.get(name), f"{name} in {place}")
        elif kind == "map":
            for _ in self._items():
                name = self._decoder.read_utf8()
                self.value(schema["values"], tree.get(name), f"{name} in {place}")
        elif kind == "array":
            for _ in self._items():
                self.value(schema["items"], tree, place)
        elif kind != "null":
            refuse_path(place, kind)

    def _items(self) -> Iterator[None]:
        """Go through the items of an array or a map. Their blocks are written without the number of their bytes, which
        may become another one."""
        while True:
            self._copy()
            count = self._decoder.read_long()
            if count < 0:
                count = -count
                self._decoder.read_long()  # the number of bytes
            self._leave_out()
            self._encoder.write_long(count)
            if not count:
                return
            for _ in range(count):
                yield

    def _replace(self, schema: Any, place: str) -> None:
        if isinstance(schema, list):
            self._replace_union(schema, place)
            return
        kind = _kind(schema)
        if kind == "array":
            for _ in self._items():
                self.value(schema["items"], {}, place)
            return
        if kind == "null" and self._mask.keeps_null:
            return
        self._copy()
        made = self._held(schema, self._made_of(schema, place))
        if made is None:
            self._refuse(schema, place)
        self._leave_out()
        self._out.write(made)

    def _replace_union(self, union: Sequence[Any], place: str) -> None:
        self._copy()
        index = self._decoder.read_index()
        branch = self._resolved(union[index])
        was_null = _kind(branch) == "null"
        if was_null and self._mask.keeps_null:
            return
        may_be_null = any(_kind(self._resolved(each)) == "null" for each in union)
        if _kind(branch) == "array" and not (self._mask.is_null and may_be_null):
            self._replace(branch, place)
            return
        value = self._made_of(branch, place)
        # A value stays in its branch if that can hold what is put there.
        others = [number for number in range(len(union)) if number != index]
        for number in [index, *others]:
            made = self._held(self._resolved(union[number]), value)
            if made is not None:
                self._leave_out()
                self._encoder.write_index(number)
                self._out.write(made)
                return
        # Null hides nothing: it stays where a text can't be put, as for a list that is not there.
        if not was_null:
            self._refuse(union, place)

    def _made_of(self, schema: Any, place: str) -> Scalar:
        """Read a value, and return what stands in its place."""
        text = self._read_text(schema)
        if text is None and self._mask.digest is not None:
            self._refuse(schema, place)
        return self._mask.of(text or b"")

    def _read_text(self, schema: Any) -> bytes | None:
        """Read a value, and return its text as JSON has it; the bytes of bytes, and None for what has fields."""
        decoder: Any = self._decoder
        text: bytes
        match _kind(schema):
            case "string":
                text = decoder.read_utf8().encode()
            case "bytes":
                text = decoder.read_bytes()
            case "fixed":
                text = decoder.read_fixed(schema["size"])
            case "int" | "long":
                text = str(decoder.read_long()).encode()
            case "float":
                text = msgspec.json.encode(decoder.read_float())
            case "double":
                text = msgspec.json.encode(decoder.read_double())
            case "boolean":
                text = msgspec.json.encode(decoder.read_boolean())
            case "enum":
                text = schema["symbols"][decoder.read_enum()].encode()
            case _:
                skip_data(decoder, schema, {"writer": self._named})
                return None
        return text

    def _held(self, schema: Any, value: Scalar) -> bytes | None:
        """Return the bytes of a value in a type; None if the type can't hold it. A logical type holds no digest, which
        would be no number or UUID, and else what it is made of."""
        if isinstance(schema, dict) and schema.get("logicalType") and self._mask.digest is not None:
            return None
        out = io.BytesIO()
        encoder = BinaryEncoder(out)
        kind = _kind(schema)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        as_bytes = _as_bytes(value)
        if kind == "null" and value is None:
            return b""
        if kind == "boolean" and isinstance(value, bool):
            encoder.write_boolean(value)
        elif kind in _BITS and is_number and isinstance(value, int) and -1 <= value >> _BITS[kind] - 1 <= 0:
            encoder.write_long(value)
        elif kind == "float" and is_number:
            encoder.write_float(value)
        elif kind == "double" and is_number:
            encoder.write_double(value)
        elif kind == "string" and isinstance(value, str):
            encoder.write_utf8(value)
        elif kind == "bytes" and as_bytes is not None:
            encoder.write_bytes(as_bytes)
        elif kind == "fixed" and as_bytes is not None and len(as_bytes) == schema["size"]:
            encoder.write_fixed(as_bytes)
        elif kind == "enum" and value in schema["symbols"]:
            encoder.write_enum(schema["symbols"].index(value))
        else:
            return None
        return out.getvalue()

    def _refuse(self, schema: Any, place: str) -> NoReturn:
        is_nest = not isinstance(schema, list) and _kind(schema) in (*_RECORDS, "map")
        self._mask.refuse(place, self._described(schema), is_nest=is_nest)

    def _described(self, schema: Any) -> str:
        """Return a type in words."""
        if isinstance(schema, list):
            return " or ".join(self._described(self._resolved(branch)) for branch in schema)
        kind = _kind(schema)
        if not isinstance(schema, dict):
            return kind
        logical = schema.get("logicalType")
        if logical:
            # The codec has its own name of the logical type decimal.
            is_own = str(logical).startswith("kbackup-")
            return f"{kind} ({'decimal' if is_own else logical})"
        return f"{kind} of {schema['size']} bytes" if kind == "fixed" else kind


def _kind(schema: Any) -> str:
    """Return the kind of a type that is no union."""
    kind: str = schema if isinstance(schema, str) else schema["type"]
    return kind
