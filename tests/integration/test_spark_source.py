"""`spark.read.format("kbackup")` on the session's Spark: every record, by bucket and folder, and nothing that need not
be read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import PartitionWriter, SegmentTarget
from kbackup.spark import read, register
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from kbackup.store.file import FileStore
from scripts.dev.process import HANG
from scripts.dev.s3 import Minio
from tests.golden.java_archive import PARTITIONS
from tests.golden.java_archive import ROOT as JAVA
from tests.integration.zoo import FIRST, SECOND, Zoo
from tests.support.archives import (
    CLICKS,
    FIRST_ORDERS,
    ORDERS,
    T0,
    commit_point,
    grow,
    make_archive,
    topic_state,
    write,
)
from tests.support.plain_records import Plain, block_of
from tests.support.schema_archive import make_schema_archive
from tests.support.secrets import know, watch
from tests.unit.formats.reference import Record, a_record

Rows = dict[tuple[str, int], list[Record]]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def reading(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def load(spark: SparkSession, where: object, **options: str) -> DataFrame:
    return spark.read.format("kbackup").options(**options).load(str(where))


def collected(frame: DataFrame) -> list[dict[str, Any]]:
    """With timestamps in ms."""
    table = frame.toArrow()
    if "timestamp" in table.column_names:
        micros = table.column("timestamp").cast(pa.int64())
        table = table.set_column(table.column_names.index("timestamp"), "timestamp", micros)
    rows = table.to_pylist()
    return [row | ({"timestamp": row["timestamp"] // 1000} if row.get("timestamp") is not None else {}) for row in rows]


def by_partition(frame: DataFrame) -> Rows:
    rows: Rows = {}
    for row in collected(frame):
        headers = [(h["key"], h["value"]) for h in row["headers"] or []]
        assert row["segment"].startswith((f"topics/{row['topic']}", f"{row['topic']}/"))
        record = a_record(
            row["offset"],
            kind=row["timestampType"],
            timestamp=row["timestamp"],
            key=row["key"],
            value=row["value"],
            headers=headers,
        )
        rows.setdefault((row["topic"], row["partition"]), []).append(record)
    return {tp: sorted(records, key=lambda r: r.offset) for tp, records in rows.items()}


def seen(record: Record) -> Record:
    """Spark's Kafka source knows no type -2."""
    return record._replace(kind=0) if record.kind == -2 else record


def expected(held: dict[str, dict[int, list[Record]]]) -> Rows:
    return {
        (topic, p): list(map(seen, records))
        for topic, partitions in held.items()
        for p, records in partitions.items()
        if records
    }


def offsets(frame: DataFrame) -> list[tuple[str, int, int]]:
    rows = frame.select("topic", "partition", "offset").toArrow().to_pylist()
    return sorted((row["topic"], row["partition"], row["offset"]) for row in rows)


def s3_of(server: Minio) -> dict[str, str]:
    return {f"s3.{name}": value for name, value in server.options.items()}


def test_every_record_of_a_bucket(reading: SparkSession, zoo: Zoo, minio_server: Minio) -> None:
    frame = load(reading, zoo.archive.url, **s3_of(minio_server))
    held = {zoo.topic(name): zoo.held(name, 2) for name in SECOND}
    gone = {zoo.topic("gone"): zoo.held("gone", 1)}
    assert by_partition(frame) == expected(held | gone)
    described = reading._jvm.PythonSQLUtils.explainString  # type: ignore[union-attr]
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        watch.look_at(f"a plan ({mode})", described(frame._jdf.queryExecution(), mode))


def test_an_earlier_restore_point(reading: SparkSession, zoo: Zoo, minio_server: Minio) -> None:
    options = {"backup": "1", "topicPattern": f"{zoo.prefix}-(long|reborn|overtaken|odd)"}
    frame = load(reading, zoo.archive.url, **options, **s3_of(minio_server))
    names = [name for name in FIRST if name in ("long", "reborn", "overtaken", "odd")]
    assert by_partition(frame) == expected({zoo.topic(name): zoo.held(name, 1) for name in names})


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    make_archive(FileStore(tmp_path / "archive"))
    return tmp_path / "archive"


TWENTIES = [("orders", 0, o) for o in (20, 21, 22)]


def test_options_select_records_and_columns(reading: SparkSession, archive: Path) -> None:
    """Options select records and columns."""
    frame = load(reading, archive, topics="orders", fromTime=str(T0 + 5000), toTime=str(T0 + 20_000))
    assert offsets(frame) == [place for place in ORDERS if 5 <= place.offset <= 20]
    frame = load(reading, archive, ranges="orders:0:8-18,clicks:0:-2", columns="offset,topic,partition")
    assert frame.columns == ["offset", "topic", "partition"]
    assert offsets(frame) == [
        ("clicks", 0, 0),
        ("clicks", 0, 1),
        *(place for place in FIRST_ORDERS if 8 <= place.offset < 18),
    ]
    without = "key value topic partition offset timestamp timestampType segment"
    assert load(reading, archive, includeHeaders="false").columns == without.split()
    narrow = reading.read.format("kbackup").schema("topic string, key binary").load(str(archive))
    assert narrow.where("topic = 'clicks'").count() == 20


def test_the_source_decodes_values_into_columns(reading: SparkSession, tmp_path: Path) -> None:
    make_schema_archive(FileStore(tmp_path / "decodable"))
    frame = load(reading, tmp_path / "decodable", decode="true", topics="orders")
    assert frame.columns[-3:] == ["key_json", "value_json", "decode_error"]
    items = frame.selectExpr("get_json_object(value_json, '$.item') item", "decode_error IS NULL fine").toArrow()
    assert items.to_pydict() == {"item": ["pen", None, "ink", None], "fine": [True, True, True, False]}


def test_filters_leave_segments_unread(reading: SparkSession, archive: Path) -> None:
    """Whatever can't be wanted is not there any more: whoever reads it fails."""
    opened = open_archive(FileStore(archive))
    segments = opened.segments(opened.restore_point("latest"))
    frame = read(reading, str(archive))
    condition = "topic = 'orders' and partition = 0 and offset >= 20 and offset < 23"
    needed = [s for s in segments if (s.topic, s.partition) == ("orders", 0) and s.first < 23 and s.last >= 20]
    for s in segments:
        if s not in needed:
            (archive / s.key).unlink()
    assert offsets(frame.where(condition)) == TWENTIES
    first, last = (f"timestamp_millis({T0 + seconds * 1000}L)" for seconds in (20, 22))
    assert offsets(frame.where(f"topic = 'orders' and timestamp between {first} and {last}")) == TWENTIES
    assert offsets(frame.where(f"segment = '{needed[0].key}' and offset = 22")) == TWENTIES[2:]
    assert frame.where("topic like 'x%'").count() == 0
    # filters that can't be pushed are Spark's alone
    left = frame.where(f"{condition} and (offset = 21 or key = cast('key 1' as binary))")
    assert offsets(left) == TWENTIES[1:]
    with pytest.raises(Exception, match="is missing"):
        frame.where("topic = 'clicks'").count()


@pytest.mark.parametrize("pushing", [False, True])
def test_queries_of_one_table_don_t_change_one_another(reading: SparkSession, archive: Path, pushing: bool) -> None:
    """Spark keeps what one of them had pushed for all of them."""
    frame = read(reading, str(archive)) if pushing else load(reading, archive)
    everything = CLICKS + ORDERS
    three = frame.where("offset = 3")
    assert offsets(three) == [place for place in everything if place.offset == 3]
    assert frame.count() == len(everything)
    both = three.union(frame).union(frame.where("offset = 4 and topic = 'orders'"))
    assert both.count() == 3 + len(everything) + 2
    later = frame.where("offset >= 30").select("topic", "partition").distinct()
    assert frame.join(later, ["topic", "partition"]).count() == len([place for place in ORDERS if place.partition == 0])
    frame.createOrReplaceTempView("archived")
    counted = reading.sql("select count_if(offset = 5), count(*) from archived where topic = 'clicks'")
    assert counted.collect() == [(1, 20)]
    assert reading.sql("select count(*) from archived").collect() == [(len(everything),)]


def test_only_columns_without_a_place(reading: SparkSession, archive: Path) -> None:
    frame = read(reading, str(archive), columns="key,timestamp", topics="clicks")
    assert frame.where(f"timestamp < timestamp_millis({T0 + 3000}L)").count() == 3
    assert frame.count() == 20


def test_one_record_is_a_small_read(reading: SparkSession, tmp_path: Path) -> None:
    """Of a segment with a changed byte, records far from it come; all of it does not."""
    store = FileStore(tmp_path)
    archive = open_or_create(store)
    segments = write(store, SegmentTarget("orders", 1, 0, 1 << 20, "none"), range(2000))
    commit_point(archive, 1, topics=[topic_state("orders", [(0, 2000, segments)])], segments=segments)
    (segment,) = segments
    path = tmp_path / segment.key
    data = bytearray(path.read_bytes())
    data[data.index(b"value 0 ")] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    (row,) = collected(read(reading, str(tmp_path)).where("offset = 1234"))
    assert row["value"] == b"value 1234 of 0 " * 6
    (row,) = collected(load(reading, tmp_path, ranges="orders:0:1234-1235"))
    assert row["offset"] == 1234
    with pytest.raises(Exception, match=r"CorruptError: file .* is not what its manifest says \(checksum\)"):
        load(reading, tmp_path).count()


def test_the_source_reads_an_encrypted_archive(reading: SparkSession, tmp_path: Path) -> None:
    key = tmp_path / "key.secret"
    key.write_text(know("an archive's key", generate_key()))
    inner = FileStore(tmp_path / "archive")
    make_archive(CryptStore(inner, Keyring(inner, f"file:{key}"), layout.key_class))
    frame = read(reading, str(tmp_path / "archive"), **{"encryption.key": f"file:{key}"})
    assert offsets(frame) == CLICKS + ORDERS
    assert offsets(frame.where("offset = 17")) == [("clicks", 0, 17), ("orders", 0, 17)]
    with pytest.raises(Exception, match=r"is encrypted .*and no key is given"):
        load(reading, tmp_path / "archive").count()


ESCAPED = r"x\'; drop table \u001b[31m$(id) ördérs"
HOSTILE = "x'; drop table \x1b[31m$(id) ördérs"


def test_a_folder_of_the_java_tool(reading: SparkSession, tmp_path: Path) -> None:
    """Folders of the Java tool can have any name."""
    shutil.copytree(JAVA / "archive", tmp_path / "java")
    names = sorted(path.name for path in (tmp_path / "java").iterdir() if path.is_dir())
    (tmp_path / "java" / names[0]).rename(tmp_path / "java" / HOSTILE)
    archived = {
        (HOSTILE if p.topic == names[0] else p.topic, p.number): list(map(seen, p.truth()))
        for p in PARTITIONS
        if p.truth()
    }
    frame = load(reading, tmp_path / "java")
    assert by_partition(frame) == archived
    few = read(reading, str(tmp_path / "java")).where(f"topic = '{ESCAPED}'").where("offset < 2")
    assert {tp[0] for tp in by_partition(few)} == {HOSTILE}
    with pytest.raises(Exception, match=r"there is no topic \S+ in "):
        load(reading, tmp_path / "java", topics="nothing").count()


def test_records_of_every_kind(reading: SparkSession, tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    records = [
        Plain(None, None),
        Plain(b"", b"", 1, 0),
        Plain(b"\0", b"\xff" * 300, -1),
        Plain(b"k", b"v", -2),
        Plain(b"k", b"v", 0, 2**63 - 1),
        Plain(b"k", b"v", headers=((b"\xffn", None), (b"", b""), ("ö".encode(), b"\0"), (b"\xffn", b"2"))),
        Plain(b"k", b"v" * 3_000_000, headers=((b"h", b"x"),) * 300),
    ]
    archive = open_or_create(store)
    with PartitionWriter(store, SegmentTarget("odd", 1, 0, 1 << 20, "zstd")) as writer:
        segments: list[Segment] = [*writer.append(block_of(records)), *writer.finish()]
    commit_point(archive, 1, topics=[topic_state("odd", [(0, 7, segments)])], segments=segments)
    rows = collected(load(reading, tmp_path))
    assert [row["offset"] for row in rows] == list(range(7))
    for row, record in zip(rows, records, strict=True):
        assert (row["key"], row["value"]) == (record.key, record.value)
        headers = [{"key": k.decode(errors="replace"), "value": v} for k, v in record.headers]
        assert row["headers"] == (headers or None)
        assert row["timestampType"] == (0 if record.kind == -2 else record.kind)
        due = min(record.timestamp, (2**63 - 1) // 1000) if record.kind >= 0 else None
        assert row["timestamp"] == due


def test_without_the_setting_spark_says_what_to_set(reading: SparkSession, archive: Path) -> None:
    before = reading.conf.get(PUSHDOWN) or "false"
    reading.conf.set(PUSHDOWN, "false")
    try:
        assert load(reading, archive).where("offset = 3").count() == 3
        with pytest.raises(Exception, match=f"'{PUSHDOWN}' is false. Set it to true"):
            load(reading, archive, pushFilters="true").count()
    finally:
        reading.conf.set(PUSHDOWN, before)


def test_a_stream_follows_new_restore_points(reading: SparkSession, archive: Path, tmp_path: Path) -> None:
    def follow(fails: bool = False) -> list[list[tuple[str, int, int]]]:
        """Read what is there, and return what each micro-batch had."""
        batches: list[list[tuple[str, int, int]]] = []

        def take(frame: DataFrame, number: int) -> None:
            batches.append(offsets(frame))
            if fails:
                raise RuntimeError("the power went out")

        stream = reading.readStream.format("kbackup").load(str(archive)).writeStream.foreachBatch(take)
        checkpoint = str(tmp_path / "checkpoint")
        query = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(int(HANG)), "it hangs"
        return batches

    assert follow() == [sorted(CLICKS + ORDERS)]
    assert follow() == [], "nothing is new"
    grow(FileStore(archive), 3, 12, 20)
    grow(FileStore(archive), 4, 20, 33)
    assert follow() == [[("orders", 1, o) for o in range(12, 33)]], "both at once"
    grow(FileStore(archive), 5, 33, 35)
    with pytest.raises(Exception, match="the power went out"):
        follow(fails=True)
    grow(FileStore(archive), 6, 35, 36)
    after = [[("orders", 1, o) for o in some] for some in (range(33, 35), range(35, 36))]
    assert [follow(), follow()] == [[some] for some in after], "what failed, as it was, and what came since"
    assert not reading.streams.active
