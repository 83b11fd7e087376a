"""Decode Protobuf by the text of a schema and by a descriptor."""

from __future__ import annotations

import base64
import json
import shutil
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from kbackup.errors import UndecodableError
from kbackup.schemas.base import Schema
from kbackup.schemas.decoder import codec_of
from kbackup.schemas.protobuf import compiled, protobuf_codec
from tests.support.codec_samples import MONEY, PROTO


def test_protobuf_by_text_and_by_descriptor() -> None:
    codec = protobuf_codec(Schema("PROTOBUF", PROTO, (("money.proto", MONEY),)))
    order = (b"\x08\x2a\x12\x06\x08\x80\xbe\xf7\xcb\x06\x1a\x0e\x0a\x03EUR\x11" + struct.pack("<d", 1.5))[:-1]
    with pytest.raises(UndecodableError, match="not PROTOBUF by its schema"):
        codec.decode(order, (1,))
    order = b"\x08\x2a\x12\x06\x08\x80\xbe\xf7\xcb\x06\x1a\x0e\x0a\x03EUR\x11" + struct.pack("<d", 1.5)
    found = codec.decode(order + b"\x22\x02\x00\xff\x2a\x02\x01\x02\x30\x01", (1,))
    assert found == {
        "id": 42,
        "placed_at": "2026-01-31T10:52:48Z",
        "price": {"currency": "EUR", "amount": 1.5},
        "blob": "AP8=",
        "parts": [1, 2],
        "state": "PAID",
    }
    assert codec.decode(b"", (1,)) == {"id": 0, "blob": "", "parts": [], "state": "NEW"}
    assert codec.decode(b"\x0a\x02me") == {"owner": "me"}
    assert codec.decode(b"\x0a\x02it", (0, 0)) == {"what": "it"}
    with pytest.raises(UndecodableError, match=r"its schema has no message 0\.1"):
        codec.decode(b"", (0, 1))


def test_protobuf_runs_nothing_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would take modules from the current directory first."""
    (tmp_path / "grpc_tools").mkdir()
    for name in ("grpc_tools/__init__.py", "grpc_tools/protoc.py", "sitecustomize.py", "google.py"):
        (tmp_path / name).write_text("open('was-run', 'w').close(); raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    assert codec_of(Schema("PROTOBUF", MONEY)).decode(b"") == {"currency": "", "amount": 0.0}
    assert not (tmp_path / "was-run").exists()


def test_protobuf_by_a_compiler_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    with pytest.raises(UndecodableError, match=r"the schema can't be compiled: protoc ended with 1; "):
        codec_of(Schema("PROTOBUF", MONEY))


def test_protobuf_of_text_and_descriptors_together() -> None:
    """Whichever of a schema and what it refers to is text, and whichever is described."""
    files = {
        file.name: base64.b64encode(file.SerializeToString()).decode()
        for file in PARSED_SET.file
        if not file.name.startswith("google/")
    }
    for main in (PROTO, files["shop.proto"]):
        for money in (MONEY, files["money.proto"]):
            codec = protobuf_codec(Schema("PROTOBUF", main, (("money.proto", money),)))
            found = codec.decode(b"\x1a\x05\x0a\x03EUR", (1,))
            assert isinstance(found, dict)
            assert found["price"] == {"currency": "EUR", "amount": 0.0}


@given(st.binary(max_size=40))
def test_protobuf_of_any_bytes(data: bytes) -> None:
    with suppress(UndecodableError):
        json.dumps(PARSED.decode(data, (1,)), allow_nan=False)


def _described() -> FileDescriptorSet:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "shop.proto").write_text(PROTO)
        Path(folder, "money.proto").write_text(MONEY)
        return compiled(Path(folder), "shop.proto", "shop.proto")


PARSED_SET = _described()
PARSED = protobuf_codec(Schema("PROTOBUF", PROTO, (("money.proto", MONEY),)))
