"""Decoded records in programs: columns beside the bytes, records one by one, and frames."""

from __future__ import annotations

import sys
from pathlib import Path

import polars
import pyarrow as pa
import pytest

import kbackup
from kbackup.errors import UsageError
from kbackup.store import open_store
from tests.project.docs.documents import ROOT, blocks
from tests.support.archives import make_archive
from tests.support.schema_archive import make_schema_archive

ITEMS = [{"item": "pen", "count": 3, "note": None}, None, {"item": "ink", "count": 1, "note": "blue"}, None]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> kbackup.ArchiveReader:
    store = open_store(str(tmp_path_factory.mktemp("decoding") / "archive"))
    make_schema_archive(store)
    return kbackup.open_archive(store.url, config={})


@pytest.fixture(scope="module")
def without_schemas(tmp_path_factory: pytest.TempPathFactory) -> kbackup.ArchiveReader:
    store = open_store(str(tmp_path_factory.mktemp("plain") / "archive"))
    make_archive(store)
    return kbackup.open_archive(store.url, config={})


def test_decoded_columns_stand_beside_the_bytes_unasked(archive: kbackup.ArchiveReader) -> None:
    table = pa.Table.from_batches(archive.records("orders"))
    assert table.column_names[-3:] == ["key_decoded", "value_decoded", "decode_error"]
    assert table.column("key").to_pylist()[0] == b"\0\0\0\0\1\2"
    assert table.column("key_decoded").to_pylist() == [1, 2, 3, None]
    assert table.column("value_decoded").to_pylist() == ITEMS
    *none, error = map(str, table.column("decode_error").to_pylist())
    assert none == ["None", "None", "None"]
    assert "key: not AVRO by its schema" in error
    assert "value: the restore point has no schema 99" in error


def test_what_is_not_asked_for_is_not_decoded(archive: kbackup.ArchiveReader) -> None:
    (batch,) = archive.records("plain")
    assert batch.schema.names == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    assert "value_decoded" not in next(archive.records("orders", decode=False)).schema.names
    some = pa.Table.from_batches(archive.records("orders", columns=["value_decoded", "offset"]))
    assert (some.column_names, some.column("value_decoded").to_pylist()) == (["value_decoded", "offset"], ITEMS)


def test_records_have_decoded_keys_and_values_beside_their_bytes(archive: kbackup.ArchiveReader) -> None:
    first, tombstone, _, odd = archive.records("orders", decode=True)
    assert (first.topic, first.partition, first.offset, first.timestamp) == ("orders", 0, 0, 1_700_000_000_000)
    assert (first.key, first.value) == (1, {"item": "pen", "count": 3})
    assert (first.key_bytes, first.value_schema) == (b"\0\0\0\0\1\2", {"type": "AVRO", "id": 2})
    assert (tombstone.key, tombstone.value, tombstone.value_error) == (2, None, "")
    assert (odd.value, odd.value_schema) == (b"\0\0\0\0cgone", None)
    assert odd.value_error == "the restore point has no schema 99"
    (plain,) = archive.records("plain", decode=True)
    assert (plain.key, plain.value, plain.value_error) == (b"key", b"text", "")


def test_the_documented_example_runs(archive: kbackup.ArchiveReader, capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "infra" / "docs" / "python.md"
    (example,) = [code.text for code in blocks("python") if code.document == page and "decode=True" in code.text]
    program = example.replace('open_archive("s3://my-backups/kafka")', f'open_archive("{archive.url}", config={{}})')
    exec(compile(program, "python.md", "exec"), {})
    assert "the restore point has no schema 99" in capsys.readouterr().out


def test_a_frame_is_of_the_library_that_is_asked_for(archive: kbackup.ArchiveReader) -> None:
    pandas_frame = archive.frame("orders")
    assert list(pandas_frame["key_decoded"][:3]) == [1, 2, 3]
    assert pandas_frame["value_decoded"][0]["item"] == "pen"
    polars_frame = archive.frame("orders", kind="polars", columns=["offset", "value_decoded"])
    assert isinstance(polars_frame, polars.DataFrame)
    assert polars_frame["value_decoded"].struct.field("item").to_list() == ["pen", None, "ink", None]
    table = archive.frame("orders", kind="arrow", from_offset=2, to_offset=3)
    assert table.column("value_decoded").to_pylist() == [ITEMS[2]]
    empty = archive.frame("orders", kind="arrow", from_offset=4)
    assert (empty.num_rows, empty.schema) == (0, table.schema)


def test_a_topic_without_schemas_has_the_columns_of_its_bytes(without_schemas: kbackup.ArchiveReader) -> None:
    frame = without_schemas.frame("orders", kind="arrow")
    assert frame.column_names == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]


def test_what_cannot_be_given_is_refused_with_a_hint(
    archive: kbackup.ArchiveReader, without_schemas: kbackup.ArchiveReader
) -> None:
    with pytest.raises(UsageError, match="the restore point has no schemas to decode by"):
        list(without_schemas.records("orders", decode=True))
    with pytest.raises(UsageError, match="does not show by which schemas records of topic plain"):
        archive.frame("plain", decode=True)
    with pytest.raises(UsageError, match="records of topic plain have no column value_decoded"):
        list(archive.records("plain", columns=["value_decoded"]))
    with pytest.raises(UsageError, match="arrows is no kind of frame"):
        archive.frame("orders", kind="arrows")  # type: ignore[call-overload]


def test_a_frame_names_the_package_that_it_lacks(
    archive: kbackup.ArchiveReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(UsageError, match="needs the package polars") as raised:
        archive.frame("orders", kind="polars")
    assert raised.value.hint == "install it: pip install polars"


def test_without_the_schema_libraries_records_are_bytes_unless_decoding_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(str(tmp_path / "archive"))
    make_schema_archive(store)
    archive = kbackup.open_archive(store.url, config={})
    monkeypatch.setitem(sys.modules, "kbackup.kafka.schema_registry", None)
    (*batches,) = archive.records("orders")
    assert "value_decoded" not in batches[0].schema.names
    assert [record.message for record in caplog.records if "not decoded" in record.message] != []
    with pytest.raises(UsageError, match="a library that is not installed"):
        list(archive.records("orders", decode=True))
