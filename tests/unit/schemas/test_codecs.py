"""Schemas of many imports, invalid schemas, and schemas in files."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from kbackup.errors import UndecodableError, UsageError
from kbackup.schemas.base import Schema
from kbackup.schemas.decoder import codec_of, file_codec
from tests.support.codec_samples import MONEY, PROTO


def described(name: str, *imports: str) -> str:
    file = FileDescriptorProto(name=name, dependency=imports)
    file.message_type.add(name=f"M{name.removesuffix('.proto').strip('_')}")
    return base64.b64encode(file.SerializeToString()).decode()


AVRO_CHAIN = [(f"A{n}", json.dumps({"type": "array", "items": f"A{n + 1}" if n < 999 else "int"})) for n in range(1000)]


def test_protobuf_of_many_imports() -> None:
    """1,500 files, each the next one's import."""
    chain = tuple((f"a{n}.proto", described(f"a{n}.proto", f"a{n + 1}.proto")) for n in range(1500))
    last = (("a1500.proto", described("a1500.proto")),)
    assert codec_of(Schema("PROTOBUF", described("m", "a0.proto"), chain + last)).decode(b"") == {}


def test_protobuf_of_types_that_are_not_googles() -> None:
    own = 'syntax = "proto3"; package google.protobuf; message Timestamp { string said = 1; }'
    main = 'syntax = "proto3"; import "own.proto"; message A { google.protobuf.Timestamp at = 1; }'
    codec = codec_of(Schema("PROTOBUF", main, (("own.proto", own),)))
    with pytest.raises(UndecodableError, match="not PROTOBUF by its schema"):
        codec.decode(b"\x0a\x04\x0a\x02hi")


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (Schema("AVRO", "{"), "no Avro schema"),
        (Schema("AVRO", '{"type": "record"}'), "no Avro schema"),
        (Schema("AVRO", '["null", "shop.Money"]'), "no Avro schema: .*shop.Money"),
        (Schema("AVRO", '"A0"', tuple(AVRO_CHAIN)), "no Avro schema: RecursionError"),
        (Schema("JSON", "nothing"), "no JSON Schema"),
        (Schema("JSON", "5"), "no JSON Schema"),
        (Schema("JSON", "null"), "no JSON Schema"),
        (Schema("JSON", '{"not": ' * 5000 + "true" + "}" * 5000), "no JSON Schema: RecursionError"),
        (Schema("PROTOBUF", "message"), "can't be compiled"),
        (Schema("PROTOBUF", PROTO), r"can't be compiled: .*money\.proto"),
        (Schema("PROTOBUF", PROTO, (("../money.proto", MONEY),)), "leads out of its folder"),
        (Schema("PROTOBUF", PROTO, (("/tmp/money.proto", MONEY),)), "leads out of its folder"),
        (Schema("PROTOBUF", PROTO, (("a\0b", MONEY),)), "can't be compiled: embedded null"),
        (Schema("PROTOBUF", PROTO, (("a" * 300, MONEY),)), "can't be compiled: .*too long"),
        (Schema("PROTOBUF", PROTO, (("money.proto", "\udcff"),)), "can't be compiled: "),
        (Schema("PROTOBUF", "CgVhYmM="), "no Protobuf schema|can't be compiled"),
        (Schema("PROTOBUF", described("__main__.proto", "a.proto")), "no Protobuf schema: KeyError: 'a.proto'"),
        (
            Schema(
                "PROTOBUF",
                described("m", "a.proto"),
                (("a.proto", described("a", "b.proto")), ("b.proto", described("b", "a.proto"))),
            ),
            "no Protobuf schema: CycleError",
        ),
    ],
)
def test_schemas_that_are_none(schema: Schema, why: str) -> None:
    with pytest.raises(UndecodableError, match=why):
        codec_of(schema)


def test_schemas_in_files(tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text('{"type": "array", "items": "shop.Money"}')
    (tmp_path / "shop.Money.avsc").write_text(
        '{"type": "record", "name": "shop.Money", "fields": [{"name": "amount", "type": "int"}]}'
    )
    assert file_codec(tmp_path / "order.avsc").decode(b"\x02\x06\x00") == [{"amount": 3}]
    (tmp_path / "shop.proto").write_text(PROTO)
    (tmp_path / "money.proto").write_text(MONEY)
    for name in ("Order", "shop.Order"):
        assert file_codec(tmp_path / "shop.proto", name).decode(b"\x08\x05") == {
            "id": 5,
            "blob": "",
            "parts": [],
            "state": "NEW",
        }
    assert file_codec(tmp_path / "shop.proto", "Cart.Line").decode(b"\x0a\x02it") == {"what": "it"}
    with pytest.raises(UsageError, match=r"no message Other in shop\.proto; name one of its messages: shop\.Cart"):
        file_codec(tmp_path / "shop.proto", "Other")


@pytest.mark.parametrize(
    ("name", "text", "message", "hint"),
    [
        ("a.txt", b"", None, "no schema by its name"),
        ("a.avsc", b"\xff", None, "is not UTF-8"),
        ("a.avsc", b"{", None, "no Avro schema"),
        ("a.avsc", b'"string"', "M", "name a message only with a Protobuf file"),
        ("a.proto", b"message", None, "can't be compiled"),
        ("a.pb", b"\xff", None, "no set of file descriptors"),
        ("a.desc", b"", None, "no set of file descriptors"),
        ("a.json", b"null", None, "no JSON Schema"),
        ("gone.avsc", None, None, "no such file"),
        ("gone.proto", None, None, "no such file"),
    ],
)
def test_files_that_can_not_be_used(
    tmp_path: Path, name: str, text: bytes | None, message: str | None, hint: str
) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text)
    with pytest.raises(UsageError, match=hint):
        file_codec(tmp_path / name, message)
