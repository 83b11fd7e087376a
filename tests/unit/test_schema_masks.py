"""Masks of keys and values that name a schema: they stay what the schema describes."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import message_factory
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from kbackup.errors import UndecodableError, UsageError
from kbackup.masking import fixed, hashed, nulled
from kbackup.schemas.base import Schema
from kbackup.schemas.decoder import HEADERS, ByRegistry, Decoded, NamedSchemas
from kbackup.schemas.protobuf import protobuf_codec
from tests.support.record_blocks import plain
from tests.unit.formats.reference import to_batch

SECRET = "0123456789abcdef"

ADDRESS = {"type": "record", "name": "A", "fields": [{"name": "c", "type": "string"}]}
PERSON: dict[str, Any] = {
    "type": "record",
    "name": "shop.Person",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "mail", "type": ["null", {"type": "string", "avro.java.string": "String"}]},
        {"name": "any", "type": ["int", "long", "string", "null"]},
        {"name": "photo", "type": "bytes"},
        {"name": "hair", "type": {"type": "enum", "name": "Hair", "symbols": ["NONE", "SOME"]}},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 4}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "born", "type": {"type": "int", "logicalType": "date"}},
        {"name": "paid", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": ["null", {"type": "array", "items": "string"}]},
        {"name": "labels", "type": {"type": "map", "values": ["null", "string"]}},
        {"name": "friends", "type": {"type": "array", "items": "shop.Person"}},
        {"name": "address", "type": ["null", ADDRESS]},
    ],
}
PROTO = """
syntax = "proto3";
package shop;
message Other { string x = 1; }
message Person {
  string name = 1; int64 id = 2; bytes photo = 3; repeated string tags = 4; optional string mail = 5; State state = 6;
  map<string, string> labels = 7; map<int32, Person> by_number = 8; repeated Person friends = 9; bool vip = 10;
  oneof contact { string phone = 11; Address address = 12; }
  enum State { NEW = 0; PAID = 1; }
  message Address { string street = 1; }
}
"""
OLD_PROTO = 'syntax = "proto2"; message Old { required string name = 1; }'
EVENT = {"type": "object", "properties": {"kind": {"type": "string"}}}


class Registry:
    """Schemas by id, as an archive has them."""

    schemas: ClassVar[Mapping[int, Schema]] = {
        1: Schema("AVRO", '"string"'),
        2: Schema("AVRO", '"bytes"'),
        3: Schema("AVRO", json.dumps(PERSON)),
        5: Schema("PROTOBUF", PROTO),
        6: Schema("JSON", json.dumps(EVENT)),
        8: Schema("PROTOBUF", OLD_PROTO),
        9: Schema("AVRO", '"long"'),
    }

    def schema(self, schema_id: int | str) -> Schema:
        if not isinstance(schema_id, int) or schema_id not in self.schemas:
            raise UndecodableError(f"the restore point has no schema {schema_id}")
        return self.schemas[schema_id]


BY_PART = {part: ByRegistry(Registry(), header) for part, header in HEADERS.items()}
SCHEMAS = NamedSchemas(BY_PART)
MESSAGES = protobuf_codec(Registry.schemas[5])


def batch_of(*values: bytes | None, key: bytes | None = b"4711", headers: Any = ()) -> pa.RecordBatch:
    return to_batch([plain(n, key=key, value=value, headers=headers) for n, value in enumerate(values)])


def values_of(batch: pa.RecordBatch) -> list[Any]:
    return batch.column("value").to_pylist()


def framed(schema_id: int, rest: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + rest


def digest(data: bytes) -> str:
    return hmac.new(SECRET.encode(), data, hashlib.sha256).hexdigest()


def shown(value: bytes, part: str = "value") -> Any:
    """Return what a framed value is by its schema."""
    made = BY_PART[part](value, ())
    assert isinstance(made, Decoded), made
    return made.value


def avro(value: object, schema: Any = PERSON) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def person(**fields: Any) -> dict[str, Any]:
    """Return a person of Avro."""
    usual = {
        "id": 4711,
        "name": "Jane",
        "mail": "jane@x.org",
        "any": 5,
        "photo": b"\xff\x00",
        "hair": "SOME",
        "code": b"abcd",
        "uuid": UUID(int=7),
        "born": 100,
        "paid": Decimal("1.20"),
        "tags": ["a", "b"],
        "labels": {"mail": "m", "x": "y", "none": None},
        "friends": [],
        "address": {"c": "Rome"},
    }
    return usual | fields


def avro_person(**fields: Any) -> bytes:
    return framed(3, avro(person(**fields)))


def message(**fields: Any) -> Message:
    made: type[Message] = message_factory.GetMessageClass(MESSAGES.file.message_types_by_name["Person"])
    return made(**fields)


def proto_person(**fields: Any) -> bytes:
    """Return a framed person of Protobuf, the second message of its file."""
    return framed(5, b"\x02\x02" + message(**fields).SerializeToString())


# Avro.


def test_a_text_of_avro_becomes_its_digest_and_all_else_keeps_its_bytes() -> None:
    before = avro_person()
    (masked,) = values_of(hashed(batch_of(before), "value.name", SECRET, SCHEMAS))
    assert masked == before.replace(b"\x08Jane", b"\x80\x01" + digest(b"Jane").encode())
    assert shown(masked) == shown(before) | {"name": digest(b"Jane")}


def test_the_same_text_has_one_digest_as_json_as_avro_and_as_key() -> None:
    key = framed(1, avro("4711", "string"))
    masked = hashed(batch_of(avro_person(name="4711", any="4711"), key=key), ["key", "value.any"], SECRET, SCHEMAS)
    expected = digest(b"4711")
    assert [shown(each or b"") for each in masked.column("key").to_pylist()] == [expected]
    assert shown(values_of(masked)[0])["any"] == expected
    plain_key = hashed(batch_of(b"{}"), "key", SECRET, SCHEMAS)
    assert plain_key.column("key").to_pylist() == [expected.encode()], "without a frame: all of its bytes"


def test_a_number_becomes_its_digest_in_a_union_that_has_texts() -> None:
    (masked,) = values_of(hashed(batch_of(avro_person(any=4711)), "value.any", SECRET, SCHEMAS))
    assert shown(masked)["any"] == digest(b"4711")


def test_null_of_avro_stays_null_under_a_digest() -> None:
    before = avro_person(mail=None, any=None, tags=None, address=None)
    paths = ["value.mail", "value.any", "value.tags", "value.address.c", "value.labels.none"]
    assert values_of(hashed(batch_of(before, None), paths, SECRET, SCHEMAS)) == [before, None]


def test_null_takes_the_branch_of_a_union_that_is_null() -> None:
    paths = ["value.mail", "value.any", "value.tags", "value.address", "value.labels.mail", "value.labels.x"]
    (masked,) = values_of(nulled(batch_of(avro_person()), paths, SCHEMAS))
    after = shown(masked)
    assert [after[name] for name in ("mail", "any", "tags", "address")] == [None] * 4
    assert after["labels"] == {"mail": None, "x": None, "none": None}
    assert after["name"] == "Jane"


def test_lists_and_records_within_themselves_are_gone_into() -> None:
    inner = person(name="Inner", tags=["c"])
    before = avro_person(friends=[inner, person(name="Last", friends=[inner])])
    paths = ["value.friends.name", "value.tags", "value.friends.address.c"]
    (masked,) = values_of(hashed(batch_of(before), paths, SECRET, SCHEMAS))
    after = shown(masked)
    assert after["name"] == "Jane"
    assert after["tags"] == [digest(b"a"), digest(b"b")]
    assert [each["name"] for each in after["friends"]] == [digest(b"Inner"), digest(b"Last")]
    assert after["friends"][1]["friends"][0]["name"] == "Inner"
    assert after["friends"][0]["address"] == {"c": digest(b"Rome")}
    assert after["friends"][0]["tags"] == ["c"]


def test_blocks_that_give_their_size_are_gone_into() -> None:
    blocks = {"type": "record", "name": "B", "fields": [{"name": "x", "type": {"type": "array", "items": "string"}}]}
    registry = Registry()
    registry.schemas = {7: Schema("AVRO", json.dumps(blocks))}  # type: ignore[misc]
    parts = {part: ByRegistry(registry, header) for part, header in HEADERS.items()}
    # Two items in a block of four bytes, one in a block of its own, and the end.
    data = framed(7, b"\x03\x08\x02a\x02b\x02\x02c\x00")
    (masked,) = values_of(fixed(batch_of(data), "value.x", "-", NamedSchemas(parts)))
    assert masked == framed(7, b"\x04\x02-\x02-\x02\x02-\x00")


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("name", "x", "x"),
        ("mail", None, None),
        ("id", 7, 7),
        ("any", 7, 7),
        ("any", 1 << 40, 1 << 40),
        ("photo", b"\x01", "AQ=="),
        ("photo", "ab", "YWI="),
        ("hair", "NONE", "NONE"),
        ("code", b"wxyz", "d3h5eg=="),
        ("uuid", str(UUID(int=1)), str(UUID(int=1))),
        ("born", 0, "1970-01-01"),
        ("paid", b"\x01", "0.01"),
        ("tags", "t", ["t", "t"]),
    ],
)
def test_a_fixed_value_takes_the_type_of_its_field(field: str, value: Any, expected: object) -> None:
    before = avro_person()
    (masked,) = values_of(fixed(batch_of(before), f"value.{field}", value, SCHEMAS))
    assert shown(masked) == shown(before) | {field: expected}


def test_a_fixed_value_stands_where_null_was_too() -> None:
    before = avro_person(mail=None, tags=None)
    (masked,) = values_of(fixed(batch_of(before), ["value.mail", "value.tags"], "x", SCHEMAS))
    assert shown(masked)["mail"] == "x"
    assert shown(masked)["tags"] is None, "a list that is not there has no texts to replace"


@pytest.mark.parametrize("field", ["id", "hair", "code", "uuid", "born", "paid"])
def test_a_type_that_holds_no_digest_refuses_it_by_name(field: str) -> None:
    with pytest.raises(UsageError) as refused:
        hashed(batch_of(avro_person()), f"value.{field}", SECRET, SCHEMAS)
    assert f"hashed: {field} in the value at offset 0 (schema 3) is of type " in refused.value.message
    assert "can't hold a digest" in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize("path", ["address", "labels", "friends"])
def test_what_has_fields_is_masked_by_these(path: str) -> None:
    with pytest.raises(UsageError, match="can't hold") as refused:
        hashed(batch_of(avro_person(friends=[person()])), f"value.{path}", SECRET, SCHEMAS)
    assert refused.value.hint.startswith(("name the fields inside it", "null it"))


def test_a_type_without_null_refuses_null() -> None:
    with pytest.raises(UsageError, match=r"nulled: name in .* is of type string, which can't hold null"):
        nulled(batch_of(avro_person()), "value.name", SCHEMAS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 5),
        ("id", "x"),
        ("id", 1 << 63),
        ("id", True),
        ("id", 1.5),
        ("born", 1 << 31),
        ("hair", "RED"),
        ("code", b"too long"),
        ("name", None),
        ("photo", 5),
    ],
)
def test_a_fixed_value_of_another_type_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{field} in the value at offset 0"):
        fixed(batch_of(avro_person()), f"value.{field}", value, SCHEMAS)


def test_a_text_that_is_none_of_its_logical_type_is_not_written() -> None:
    with pytest.raises(UndecodableError, match="could not be read any more, masked by fixed"):
        fixed(batch_of(avro_person()), "value.uuid", "no uuid", SCHEMAS)


def test_a_path_that_goes_on_in_a_text_is_never_let_through() -> None:
    with pytest.raises(UndecodableError, match="is of type string, though a path goes on in it"):
        nulled(batch_of(avro_person()), "value.mail.host", SCHEMAS)
    with pytest.raises(UndecodableError, match="is of type bytes, though a path goes on in it"):
        nulled(batch_of(framed(2, b"x")), "value.mail", SCHEMAS)


def test_bytes_without_a_length_are_masked_as_a_whole() -> None:
    before = framed(2, b"Jane")
    assert values_of(hashed(batch_of(before), "value", SECRET, SCHEMAS)) == [framed(2, digest(b"Jane").encode())]
    assert values_of(fixed(batch_of(before), "value", b"x", SCHEMAS)) == [framed(2, b"x")]


def test_a_whole_value_that_is_null_is_a_tombstone_with_a_schema_too() -> None:
    assert values_of(nulled(batch_of(avro_person()), "value", SCHEMAS)) == [None]


@pytest.mark.parametrize(
    "data",
    [avro_person()[:-1], avro_person() + b"\0", framed(7, b"x"), framed(3, b""), framed(5, b"\x02"), framed(6, b"x")],
)
def test_data_that_do_not_fit_their_schema_are_never_let_through(data: bytes) -> None:
    with pytest.raises(UndecodableError, match="the value at offset 1"):
        fixed(batch_of(avro_person(), data), "value.name", "x", SCHEMAS)


def test_a_number_that_begins_like_a_frame_is_an_error_and_no_guess() -> None:
    with pytest.raises(UndecodableError, match="the key at offset 0 begins like one that names a schema") as refused:
        hashed(batch_of(None, key=struct.pack(">q", 1 << 40)), "key", SECRET, SCHEMAS)
    assert refused.value.hint == "if no serializer wrote the keys of this topic, mask them without schemas"


def test_values_without_a_frame_are_json_as_before() -> None:
    batch = batch_of(b'{"name": "Jane", "id": 1.10}', avro_person())
    first, second = values_of(hashed(batch, "value.name", SECRET, SCHEMAS))
    assert first == f'{{"name":"{digest(b"Jane")}","id":1.10}}'.encode()
    assert shown(second)["name"] == digest(b"Jane")
    with pytest.raises(UndecodableError, match="the value at offset 0 is no JSON"):
        hashed(batch_of(b"Jane"), "value.name", SECRET, SCHEMAS)


def test_a_schema_that_a_header_names_is_found() -> None:
    headers = [("__value_schema_id", struct.pack(">bI", 0, 3))]
    before = avro(person())
    (masked,) = values_of(hashed(batch_of(before, headers=headers), "value.name", SECRET, SCHEMAS))
    assert shown(framed(3, masked)) == shown(framed(3, before)) | {"name": digest(b"Jane")}


_TEXT = st.text(max_size=5)
_PEOPLE = st.fixed_dictionaries(
    {
        "name": _TEXT,
        "mail": st.none() | _TEXT,
        "any": st.none() | _TEXT | st.integers(-(2**62), 2**62),
        "photo": st.binary(max_size=5),
        "tags": st.none() | st.lists(_TEXT, max_size=3),
        "labels": st.dictionaries(st.sampled_from(["mail", "x", "y"]), st.none() | _TEXT, max_size=3),
    }
)


@given(fields=_PEOPLE, path=st.sampled_from(["name", "mail", "any", "photo", "tags", "labels.mail", "nowhere"]))
def test_only_what_is_at_a_path_changes(fields: dict[str, Any], path: str) -> None:
    before = avro_person(**fields)
    (masked,) = values_of(fixed(batch_of(before), f"value.{path}", "masked", SCHEMAS))
    name, _, _ = path.partition(".")
    assert {k: v for k, v in shown(masked).items() if k != name} == {
        k: v for k, v in shown(before).items() if k != name
    }
    assert len(values_of(fixed(batch_of(masked), f"value.{path}", "masked", SCHEMAS))[0]) == len(masked)
    if path == "nowhere":
        assert masked == before


@given(
    data=st.sampled_from(
        [avro_person(friends=[person()]), proto_person(name="Jane", labels={"mail": "m"}, tags=["a"])]
    ),
    at=st.integers(5, 300),
    byte=st.integers(0, 255),
    path=st.sampled_from(["name", "labels.mail", "tags", "friends.name"]),
)
def test_altered_data_are_masked_or_refused(data: bytes, at: int, byte: int, path: str) -> None:
    altered = bytearray(data)
    altered[at % len(data)] = byte
    try:
        (masked,) = values_of(fixed(batch_of(bytes(altered)), f"value.{path}", "x", SCHEMAS))
    except (UndecodableError, UsageError):
        return
    if masked[0] == 0:
        shown(masked)


# Protobuf.


def test_a_text_of_protobuf_becomes_its_digest() -> None:
    before = proto_person(name="Jane", photo=b"\xff", tags=["a", "b"], labels={"mail": "m", "x": "y"}, id=7)
    paths = ["value.name", "value.photo", "value.tags", "value.labels.mail", "value.mail"]
    (masked,) = values_of(hashed(batch_of(before), paths, SECRET, SCHEMAS))
    after = message()
    after.ParseFromString(masked[7:])
    assert masked[:7] == before[:7]
    assert after == message(
        name=digest(b"Jane"),
        photo=digest(b"\xff").encode(),
        tags=[digest(b"a"), digest(b"b")],
        labels={"mail": digest(b"m"), "x": "y"},
        id=7,
    )


def test_messages_within_messages_are_gone_into() -> None:
    inner = message(name="Inner", address={"street": "Via"})
    before = proto_person(name="Jane", friends=[inner], by_number={3: inner, 4: inner})
    paths = ["value.friends.name", "value.by_number.3.address.street"]
    (masked,) = values_of(fixed(batch_of(before), paths, "x", SCHEMAS))
    after = shown(masked)
    assert after["name"] == "Jane"
    assert after["friends"][0]["name"] == "x"
    assert after["by_number"]["3"]["address"]["street"] == "x"
    assert after["by_number"]["4"]["address"]["street"] == "Via"


def test_null_clears_fields_of_protobuf() -> None:
    before = proto_person(name="Jane", id=7, tags=["a"], labels={"mail": "m", "x": "y"}, address={"street": "Via"})
    paths = ["value.name", "value.id", "value.tags", "value.labels.mail", "value.address"]
    (masked,) = values_of(nulled(batch_of(before), paths, SCHEMAS))
    after = message()
    after.ParseFromString(masked[7:])
    assert after == message(labels={"x": "y"})


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [("id", 5, 5), ("vip", False, False), ("state", "NEW", "NEW"), ("state", 0, "NEW"), ("photo", "ab", "YWI=")],
)
def test_a_fixed_value_takes_the_type_of_a_field_of_protobuf(field: str, value: Any, expected: object) -> None:
    before = proto_person(id=7, vip=True, state=1, photo=b"x")
    (masked,) = values_of(fixed(batch_of(before), f"value.{field}", value, SCHEMAS))
    assert shown(masked)[field] == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [("id", "x"), ("id", True), ("id", 1 << 63), ("id", 1.5), ("vip", 1), ("state", "RED"), ("name", 5), ("name", b"x"),
     ("address", "x"), ("labels", "x"), ("photo", 5)],
)  # fmt: skip
def test_a_field_of_protobuf_of_another_type_refuses_by_name(field: str, value: Any) -> None:
    before = proto_person(id=7, vip=True, state=1, photo=b"x", name="x", labels={"a": "b"}, address={"street": "x"})
    with pytest.raises(UsageError, match=f"fixed: {field} in the value at offset 0"):
        fixed(batch_of(before), f"value.{field}", value, SCHEMAS)


@pytest.mark.parametrize("path", ["value", "value.id", "value.address", "value.labels", "value.state", "value.vip"])
def test_only_texts_and_bytes_of_protobuf_hold_a_digest(path: str) -> None:
    before = proto_person(id=7, vip=True, state=1, labels={"a": "b"}, address={"street": "x"})
    with pytest.raises(UsageError, match="can't hold a digest"):
        hashed(batch_of(before), path, SECRET, SCHEMAS)


def test_a_required_field_is_not_cleared() -> None:
    before = framed(8, b"\0\x0a\x01x")
    with pytest.raises(UsageError, match="is of type required string, which can't hold null"):
        nulled(batch_of(before), "value.name", SCHEMAS)


def test_a_path_that_goes_on_in_a_text_of_protobuf_is_never_let_through() -> None:
    for path in ("value.name.x", "value.labels.a.x"):
        with pytest.raises(UndecodableError, match="is of type string, though a path goes on in it"):
            nulled(batch_of(proto_person(name="x", labels={"a": "b"})), path, SCHEMAS)


def test_fields_that_a_message_does_not_have_are_never_let_through() -> None:
    unknown = proto_person(name="x") + b"\xfa\x01\x04Jane"
    with pytest.raises(UndecodableError, match="it has fields that the schema does not have"):
        nulled(batch_of(unknown), "value.name", SCHEMAS)


def test_nothing_of_a_field_that_is_given_twice_is_left() -> None:
    twice = framed(5, b"\x02\x02\x0a\x04Jane\x0a\x01x")
    assert values_of(fixed(batch_of(twice), "value.name", "y", SCHEMAS)) == [framed(5, b"\x02\x02\x0a\x01y")]
    emptied = framed(5, b"\x02\x02\x0a\x04Jane\x0a\x00")
    assert values_of(fixed(batch_of(emptied), "value.name", "y", SCHEMAS)) == [framed(5, b"\x02\x02")]


def test_maps_are_always_written_the_same_way() -> None:
    entries = {f"k{n}": "v" for n in range(20)}
    turned = dict(reversed(entries.items()))
    one, other = values_of(
        fixed(batch_of(proto_person(labels=entries), proto_person(labels=turned)), "value.labels.k7", "x", SCHEMAS)
    )
    assert one == other


# JSON Schema.


def test_json_behind_a_frame_is_masked_as_json() -> None:
    before = framed(6, b'{"kind":"Jane","n":1.10}')
    (masked,) = values_of(hashed(batch_of(before), "value.kind", SECRET, SCHEMAS))
    assert masked == framed(6, f'{{"kind":"{digest(b"Jane")}","n":1.10}}'.encode())
    assert values_of(hashed(batch_of(framed(6, b'"Jane"')), "value", SECRET, SCHEMAS)) == [
        framed(6, f'"{digest(b"Jane")}"'.encode())
    ]
