"""Read, write and refuse the examples of the written specification, which were made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
import pytest

from kbackup.errors import CorruptError
from kbackup.formats import frames, record
from kbackup.formats import index as indexes
from tests.golden.vectors import FORMATS, VECTORS, each, expected, record_of, refused
from tests.support.record_blocks import index_of
from tests.unit.formats.reference import encode_record, from_batch, to_batch

Vector = dict[str, Any]


def table(index: indexes.SegmentIndex) -> list[list[int]]:
    rows = zip(index.offsets.tolist(), index.positions.tolist(), index.lengths.tolist(), strict=True)
    return [list(row) for row in rows]


READERS: dict[str, Callable[[bytes], object]] = {
    "records": lambda data: list(record.blocks([data], None, name="file")),
    "index": lambda data: indexes.decode_index(data, "file"),
    "partition_index": lambda data: indexes.decode_partition_index(data, "file"),
    "group_offsets": lambda data: indexes.decode_group_offsets(data, "file"),
    "zst": lambda data: list(frames.decompress([data], "file")),
}


@pytest.mark.parametrize("kind", READERS)
def test_every_vector_is_listed(kind: str) -> None:
    assert {path.stem for path in (VECTORS / kind).glob("*.hex")} == set(expected(kind))
    assert any("refused" in vector for vector in expected(kind).values())


@refused(*READERS)
def test_a_damaged_file_is_refused_at_its_byte(kind: str, name: str, data: bytes, vector: Vector) -> None:
    words = rf"^file at byte {vector['at']}: " if "at" in vector else "^file"
    with pytest.raises(CorruptError, match=words):
        READERS[kind](data)
    if kind == "records":  # byte by byte, too
        with pytest.raises(CorruptError, match=words):
            list(record.blocks([data[i : i + 1] for i in range(len(data))], None, name="file"))


@each("records")
def test_record_files_decode_to_their_records_and_encode_to_their_bytes(data: bytes, vector: Vector) -> None:
    made = [record_of(row) for row in vector["records"]]
    blocks = list(record.blocks([data], None, name="file"))
    assert [r for block in blocks for r in from_batch(record.decode(block))] == made
    assert b"\x01" + record.encode(to_batch(made)).data.tobytes() == data
    assert b"\x01" + b"".join(map(encode_record, made)) == data
    index = index_of(blocks)
    assert table(index) == vector.get("index", [])
    reread = record.blocks([data], indexes.decode_index(indexes.encode_index(index), "index"), name="file")
    assert [r for block in reread for r in from_batch(record.decode(block))] == made


@each("index")
def test_index_files_decode_to_their_tables_and_encode_to_their_bytes(data: bytes, vector: Vector) -> None:
    index = indexes.decode_index(data, "file")
    assert table(index) == vector["index"]
    assert indexes.encode_index(index) == data


@each("partition_index")
def test_partition_indexes_decode_and_encode_to_their_bytes(data: bytes, vector: Vector) -> None:
    entries = [indexes.PartitionIndexEntry(name, start) for name, start in vector["entries"]]
    assert indexes.decode_partition_index(data, "file") == entries
    assert indexes.encode_partition_index(entries) == data


def group_schema() -> jsonschema.Draft202012Validator:
    schema = json.loads((FORMATS / "schema" / "group_offsets.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@each("group_offsets")
def test_group_offsets_decode_and_encode_to_their_bytes(data: bytes, vector: Vector) -> None:
    assert indexes.decode_group_offsets(data, "file") == vector["offsets"]
    assert (indexes.encode_group_offsets(vector["offsets"]) == data) == vector.get("writers", True)
    group_schema().validate(json.loads(data))


@pytest.mark.parametrize("text", ['{"a":-1}', '{"a":1.5}', '["a",1]', '{"a":null}', '{"a":9223372036854775808}'])
def test_the_schema_of_group_offsets_refuses(text: str) -> None:
    assert not group_schema().is_valid(json.loads(text))


@each("zst")
def test_compressed_files_decompress_whole_and_by_located_frame(data: bytes, vector: Vector) -> None:
    made = [record_of(row) for row in vector["records"]]
    plain = b"\x01" + record.encode(to_batch(made)).data.tobytes()
    assert b"".join(frames.decompress([data], "file")) == plain
    seek = frames.decode_seek_table(data, len(data), "file")
    assert np.stack((seek.compressed, seek.plain), axis=1).tolist() == vector["frames"]
    for (position, length), (start, size, skip) in vector["locate"]:
        assert seek.locate(position, length) == (start, size, skip)
        got = frames.extract(data[start : start + size], skip, length, "file")
        assert got == plain[position : position + length]


@pytest.mark.parametrize("case", json.loads((VECTORS / "rotation.json").read_text()), ids=lambda c: str(c["why"]))
def test_segments_rotate_at_the_threshold(case: Vector) -> None:
    rest = np.array(case["lengths"], np.int64)
    counts = []
    while len(rest):
        counts.append(record.rotation_cut(rest, 1, case["threshold"]))
        rest = rest[counts[-1] :]
    assert counts == case["segments"]
