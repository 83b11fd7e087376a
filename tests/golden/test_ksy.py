"""Read the Java tool's archive and the vectors with the compiled Kaitai Struct descriptions, an independent reader."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.golden.java_archive import PARTITIONS, Partition
from tests.golden.vectors import FORMATS, each, record_of, refused
from tests.unit.formats.reference import Record, a_record

READERS = {
    "records": "KafkaBackupRecords",
    "segment_index": "KafkaBackupSegmentIndex",
    "partition_index": "KafkaBackupPartitionIndex",
}
BEYOND = {"bad_offset_repeated", "bad_gap", "bad_offset_order", "bad_start_order", "bad_name_path"}
"""Refusals that depend on a neighbour or a name, which the descriptions state in prose only."""


def compiled(description: str) -> Any:
    return importlib.import_module(f"tests.golden.ksy.kafka_backup_{description}")


def read(description: str, data: bytes) -> Any:
    return getattr(compiled(description), READERS[description]).from_bytes(data)


def nullable(field: Any) -> bytes | None:
    return None if field.len_octets < 0 else bytes(field.octets)


def as_record(parsed: Any) -> Record:
    timestamp = parsed.timestamp if parsed.timestamp_type >= 0 else None
    headers = [(header.key.decode(), nullable(header.value)) for header in parsed.headers]
    return a_record(
        parsed.offset,
        kind=parsed.timestamp_type,
        timestamp=timestamp,
        key=nullable(parsed.key),
        value=nullable(parsed.value),
        headers=headers,
    )


@pytest.mark.parametrize("description", READERS)
def test_the_compiled_reader_is_that_of_the_description(description: str) -> None:
    digest = hashlib.sha256((FORMATS / f"{description}.ksy").read_bytes()).hexdigest()
    source = Path(compiled(description).__file__).read_text()
    assert digest in source, f"compile formats/{description}.ksy anew: kaitai-struct-compiler, target python"


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_the_ksy_reads_the_files_of_the_java_tool(partition: Partition) -> None:
    in_archive: list[Record] = []
    entries: list[tuple[str, int]] = []
    for path in partition.segments():
        data = path.read_bytes()
        records = [as_record(r) for r in read("records", data).records]
        name = path.name.removesuffix("_records")
        index = read("segment_index", path.with_name(name + "_index").read_bytes()).entries
        assert [entry.offset for entry in index] == [r.offset for r in records]
        assert [entry.position + entry.len_record for entry in index][-1:] == [len(data)][: len(index)]
        in_archive += records
        entries.append((name, records[0].offset if records else 0))
    assert in_archive == partition.truth()
    segments = read("partition_index", partition.index_bytes()).segments
    assert [(segment.name, segment.start_offset) for segment in segments] == entries


@each("records")
def test_the_ksy_of_records_reads_the_vectors(data: bytes, vector: dict[str, Any]) -> None:
    assert [as_record(r) for r in read("records", data).records] == [record_of(r) for r in vector["records"]]


@refused("records", "index", "partition_index")
def test_bad_vectors_are_refused(kind: str, name: str, data: bytes, vector: dict[str, Any]) -> None:
    description = "segment_index" if kind == "index" else kind
    if name in BEYOND:
        read(description, data)
        return
    with pytest.raises((compiled(description).kaitaistruct.ValidationFailedError, EOFError, UnicodeDecodeError)):
        read(description, data)


@each("index")
def test_the_ksy_of_segment_indexes_reads_the_vectors(data: bytes, vector: dict[str, Any]) -> None:
    entries = read("segment_index", data).entries
    assert [[entry.offset, entry.position, entry.len_record] for entry in entries] == vector["index"]


@each("partition_index")
def test_the_ksy_of_partition_indexes_reads_the_vectors(data: bytes, vector: dict[str, Any]) -> None:
    segments = read("partition_index", data).segments
    assert [[segment.name, segment.start_offset] for segment in segments] == vector["entries"]
