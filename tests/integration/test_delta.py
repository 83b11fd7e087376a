"""Delta tables and Parquet files hold every record of an archive once, at each restore point."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from kbackup.archive.lease import HeldLease
from kbackup.archive.reader import open_archive
from kbackup.config.models import Export
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.export.destination import Destination
from kbackup.jobs.export.job import DeltaTable, ExportJob, ExportReport, export_delta, export_parquet
from kbackup.spark.delta import delta_session, hadoop_options
from kbackup.store import S3Options, open_store
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from scripts.dev.kafka import Broker
from scripts.dev.s3 import Minio
from tests.conftest import options_of
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.integration.zoo import Zoo
from tests.support.archives import make_archive
from tests.support.export_jobs import export_job
from tests.support.exported import Exported, exported, parquet_table
from tests.support.plain_records import Plain
from tests.support.schema_archive import NIGHTS, ORDER, SchemaArchive, avro, framed, order
from tests.support.truth import archive_records


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    return delta_session(spark)


@pytest.fixture(scope="module")
def options(minio_server: Minio) -> S3Options:
    return options_of(minio_server)


@pytest.fixture(scope="module")
def zoo_table(zoo: Zoo, kbackup: Kbackup, archive_bucket: str) -> str:
    """One table of the whole zoo, on the S3 server."""
    url = f"s3://{archive_bucket}/{secrets.token_hex(6)}"
    (report,) = kbackup.run("export", "--archive", zoo.archive.url, "--delta", url, "--one-table")["exports"]
    assert [table["restore_points"] for table in report["tables"]] == [[1, 2]]
    assert report["restore_point"] == 3
    return url


def held(store: Store, newest: int) -> Exported:
    """Return the records of restore points up to number `newest`, of all incarnations."""
    archive = open_archive(store)
    records: Exported = {}
    for number in range(1, newest + 1):
        point = archive.restore_point(number)
        for t in point.topics:
            records[t.name, t.incarnation] = archive_records(store, t.name, point, t.incarnation)
    # without empty partitions and topics, which a table can't show
    full = {key: {p: rows for p, rows in topic.items() if rows} for key, topic in records.items()}
    return {key: topic for key, topic in full.items() if topic}


def test_every_record_of_every_restore_point_by_time_travel(
    zoo: Zoo, zoo_table: str, session: SparkSession, options: S3Options
) -> None:
    hadoop = hadoop_options({"s3": options}, zoo_table)
    table = DeltaTable(session, zoo_table, hadoop)
    jvm: Any = session._jvm
    history = jvm.io.delta.tables.DeltaTable.forPath(session._jsparkSession, table.path, hadoop).history()
    notes = {row.getAs("version"): json.loads(row.getAs("userMetadata")) for row in history.collectAsList()}
    assert {version: note["restorePoint"] for version, note in notes.items()} == {0: 1, 1: 2}
    first = session.read.format("delta").options(**hadoop).option("versionAsOf", 0).load(table.path)
    rows = first.toArrow()
    assert rows.num_rows == notes[0]["records"]
    assert exported(rows) == held(zoo.archive.store, 1)
    assert exported(table.rows().toArrow()) == held(zoo.archive.store, 3)


def test_an_export_again_adds_nothing(zoo: Zoo, zoo_table: str, kbackup: Kbackup, options: S3Options) -> None:
    destination = Destination.at(zoo_table, {"s3": options})
    before = {entry.key for entry in destination.store.list() if "_kbackup/" not in entry.key}
    arguments = ("export", "--archive", zoo.archive.url, "--delta", zoo_table, "--one-table")
    for hinted in (True, False):
        if not hinted:  # nobody knows how far it is but the table itself
            destination.own.delete(["reached.json"])
        done = kbackup(*arguments)
        assert (done.code, done.document["exports"][0]["tables"]) == (0, []), done.err
    assert {entry.key for entry in destination.store.list() if "_kbackup/" not in entry.key} == before


def test_two_at_once_others_and_unusable_arguments_are_refused(
    zoo: Zoo, zoo_table: str, kbackup: Kbackup, options: S3Options, archive: Archive, tmp_path: Path
) -> None:
    arguments = ("export", "--delta", zoo_table, "--archive")
    with HeldLease(Destination.at(zoo_table, {"s3": options}).own, "kbackup export", 60):
        assert kbackup(*arguments, zoo.archive.url, "--one-table").code == 11
    assert kbackup(*arguments, zoo.archive.url).code == 1
    assert kbackup(*arguments, zoo.archive.url, "--one-table", "-t", zoo.topic("odd")).code == 1
    make_archive(archive.store)
    refused = kbackup(*arguments, archive.url, "--one-table")
    assert refused.code == 1
    assert "holds records of archive" in refused.err
    for unusable, code in (
        (("export", "--archive", str(tmp_path)), 2),
        (("export", "--archive", str(tmp_path), "--delta", str(tmp_path / "d")), 10),
        (("backup", "--archive", str(tmp_path), "--follow", "--delta", str(tmp_path / "d")), 2),
    ):
        assert kbackup(*unusable).code == code, unusable


def test_files_of_the_zoo(zoo: Zoo, kbackup: Kbackup, archive_bucket: str, options: S3Options) -> None:
    url = f"s3://{archive_bucket}/{secrets.token_hex(6)}"
    arguments = ("export", "--archive", zoo.archive.url, "--parquet", url)
    kbackup.run(*arguments)
    store = open_store(url, {"s3": options})
    assert exported(parquet_table(store)) == held(zoo.archive.store, 3)
    files = {entry.key: entry.etag for entry in store.list("topic=")}
    points = [json.loads(store.get(f"_kbackup/points/{n:010d}.json")) for n in (1, 2)]
    assert {file["path"] for point in points for file in point["files"]} == files.keys()
    store.delete(["_kbackup/points/0000000002.json"])  # as if it had been killed before
    assert kbackup(*arguments).document["exports"][0]["tables"][0]["restore_points"] == [2]
    assert {entry.key: entry.etag for entry in store.list("topic=")} == files
    assert kbackup(*arguments).document["exports"][0]["tables"] == []


def test_a_table_for_each_topic_in_a_directory(
    kbackup: Kbackup, spark: SparkSession, session: SparkSession, broker: Broker, topic_name: str, tmp_path: Path
) -> None:
    """Kept in step by the backup itself; one that fails leaves the restore point, and the next one makes it good."""
    hidden = f"_{topic_name}"
    for topic in (topic_name, hidden):
        broker.create_topic(topic, 2)
        topics.produce(broker, topic, 0, [b"first"])
    store, url = FileStore(tmp_path / "archive"), str(tmp_path / "tables of mine")
    backup = ("backup", "--archive", str(tmp_path / "archive"), "-t", topic_name, "-t", hidden, "--delta", url)
    assert kbackup(*backup).code == 0
    topics.produce(broker, topic_name, 1, [b"second", None])
    with HeldLease(Destination.at(url, {}).own, "kbackup export", 60):
        behind = kbackup(*backup)
    assert behind.code == 11
    assert behind.document["restore_point"] == 2
    assert "restore point 2 is committed, but an export to the Delta tables" in behind.err
    topics.produce(broker, hidden, 0, [b"third"])
    assert kbackup(*backup).code == 0
    tables = {topic: DeltaTable(session, f"{url}/{topic}", {}).rows().toArrow() for topic in (topic_name, hidden)}
    assert exported(pa.concat_tables(tables.values())) == held(store, 3)
    assert sorted(map(str, tables[topic_name].column("restorePoint").to_pylist())) == ["1", "2", "2"]
    assert set(tables[topic_name].column("partitions").to_pylist()) == {2}
    session.sql(f"OPTIMIZE delta.`{url}/{topic_name}`")  # other files, the same rows


def test_decoded_columns_grow_with_the_schemas(spark: SparkSession, session: SparkSession, tmp_path: Path) -> None:
    """Before the schemas were kept, with them, and with a version more."""
    store, lake = FileStore(tmp_path / "archive"), tmp_path / "lake"
    made = SchemaArchive(store)

    def export(write: Callable[[ExportJob], object], *topics: str, decode: bool = True) -> None:
        options = Export(decode=decode, topics=topics)
        write(export_job(store, str(lake / write.__name__), lambda: spark, options))

    def rows(query: str, topic: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in session.sql(query.format(f"delta.`{lake}/export_delta/{topic}`")).collect()]

    (first, versions), (second, more) = NIGHTS
    made.night({"orders": [order(0, {"item": "old", "count": 9})]}, None)
    export(export_delta, "orders", decode=False)
    made.night(first, versions)
    export(export_delta, "orders", "carts")
    made.night(second, more)
    export(export_delta, "orders")
    query = (
        "SELECT key_decoded, value_decoded.item, value_decoded.count * 2, value_decoded.note FROM {} ORDER BY offset"
    )
    assert rows(query, "orders") == [
        (None, None, None, None),  # exported before
        (1, "pen", 6, None),
        (2, None, None, None),
        (3, "ink", 2, "blue"),
        (None, None, None, None),
    ]
    ((offset, why),) = rows("SELECT offset, decode_error FROM {} WHERE decode_error IS NOT NULL", "orders")
    assert offset == 4
    assert why.startswith("key: not AVRO by its schema: ")
    assert why.endswith("; value: the restore point has no schema 99, and no schema registry is named")
    assert rows("SELECT count(value) FROM {}", "orders") == [(4,)], "bytes stay"
    assert rows("SELECT value_decoded.price.cents, decode_error FROM {}", "carts") == [(250, None)]
    export(export_parquet, "orders", "plain")
    files = f"read_parquet('{lake}/export_parquet/topic=orders/*/*.parquet', union_by_name=true)"
    query = f'SELECT key_decoded, value_decoded.item, value_decoded.note FROM {files} ORDER BY "offset"'
    expected = [(0, "old", None), (1, "pen", None), (2, None, None), (3, "ink", "blue"), (None, None, None)]
    assert duckdb.connect().execute(query).fetchall() == expected
    (plain,) = (lake / "export_parquet" / "topic=plain").rglob("*.parquet")
    assert not {"key_decoded", "value_decoded", "decode_error"} & {*pq.read_schema(plain).names}


MASKS = """
import pyarrow.compute as pc

from kbackup.masking import fixed


def mask(batch, topic, schemas):
    if topic == "plain":
        return batch.slice(0, 0)
    batch = fixed(batch, "value.item", "masked", schemas)
    return batch.filter(pc.is_valid(batch.column("value")))


def failing(batch):
    raise KeyError("Jane")
"""


@pytest.mark.parametrize("one_table", [False, True])
def test_tables_have_masked_records_and_keep_their_function(
    spark: SparkSession, session: SparkSession, tmp_path: Path, one_table: bool
) -> None:
    """Also of a restore point, and of a topic, of which the function leaves no record."""
    file, store, lake = tmp_path / "mask.py", FileStore(tmp_path / "archive"), str(tmp_path / "lake")
    file.write_text(MASKS)
    made = SchemaArchive(store)

    def export(function: str = "mask") -> ExportReport:
        options = Export(transform=f"{file}:{function}", topics=("orders", "plain"), one_table=one_table, decode=True)
        return export_delta(export_job(store, lake, lambda: spark, options))

    def counts(report: ExportReport) -> dict[str, tuple[int, int]]:
        return {Path(table.url).name: (table.records, table.left_out) for table in report.tables}

    (first, versions), _ = NIGHTS
    made.night(first, versions)
    begun = export()
    assert counts(begun) == ({"lake": (1, 2)} if one_table else {"orders": (1, 1), "plain": (0, 1)})
    made.night({"plain": [Plain(b"key", b"text")]}, versions)
    assert counts(export()) == ({"lake": (0, 1)} if one_table else {"plain": (0, 1)})
    made.night({"orders": [order(3, {"item": "ink", "count": 1})]}, versions)
    assert counts(export()) == ({"lake": (1, 0)} if one_table else {"orders": (1, 0)})
    table = DeltaTable(session, lake if one_table else f"{lake}/orders", {})
    rows = table.rows().toArrow().sort_by("offset").to_pylist()
    assert [(row["topic"], row["offset"], row["restorePoint"]) for row in rows] == [("orders", 0, 1), ("orders", 2, 3)]
    assert [row["value"] for row in rows] == [
        framed(2, avro(ORDER, {"item": "masked", "count": 3})),
        framed(2, avro(ORDER, {"item": "masked", "count": 1})),
    ]
    decoded = [row["value_decoded"] for row in rows]
    items = [json.loads(each)["item"] if one_table else each["item"] for each in decoded]
    assert items == ["masked", "masked"]
    with pytest.raises(RefusedError, match=r"was begun with transform mask.py:mask"):
        export("failing")


def test_nothing_of_a_restore_point_is_in_a_table_whose_function_fails(
    spark: SparkSession, session: SparkSession, tmp_path: Path
) -> None:
    file, store = tmp_path / "mask.py", FileStore(tmp_path / "archive")
    file.write_text(MASKS)
    records, versions = NIGHTS[0]
    SchemaArchive(store).night(records, versions)
    options = Export(transform=f"{file}:failing", topics=("orders",))
    with pytest.raises(UsageError) as failed:
        export_delta(export_job(store, str(tmp_path / "lake"), lambda: spark, options))
    line = MASKS.splitlines().index('    raise KeyError("Jane")') + 1
    assert failed.value.message == (
        f"transform mask.py:failing failed at line {line}, for the records of orders-0 from offset 0 on: "
        "KeyError: 'Jane'"
    )
    assert not list((tmp_path / "lake").rglob("*.parquet"))
