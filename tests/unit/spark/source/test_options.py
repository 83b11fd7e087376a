"""Options of a read: what they ask for, what is refused, and that secrets don't show."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as ds
from pyspark.sql import types

from kbackup.archive import layout
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import Window, joined
from kbackup.config import load
from kbackup.errors import KbackupError, UsageError
from kbackup.spark.source import KbackupDataSource, columns_of
from kbackup.spark.source.batch import remembered
from kbackup.spark.source.options import OPTIONS, TYPES, Pushed, both, common, push, request_of, window_of
from kbackup.store.crypt.kek import generate_key
from kbackup.store.file import FileStore
from kbackup.types import TopicPartition
from tests.support.archives import make_archive
from tests.support.faulty_store import encrypting
from tests.support.made_segments import a_segment
from tests.support.plain_records import Plain, block_of

DOCS = Path(__file__).parents[4] / "infra" / "docs" / "spark-reading.md"


def test_nothing_but_the_archive() -> None:
    request = request_of({"path": "s3://b/p"})
    assert (request.archive, request.restore_point, request.starting) == ("s3://b/p", "latest", "earliest")
    assert request.columns == tuple(TYPES)
    assert request.topics.matches("any.thing")
    assert request.times == Window()
    assert request.ranges is None
    assert request.fail_on_data_loss


def test_every_option_of_the_source_is_taken() -> None:
    request = request_of(
        {
            "Archive": "s3://b/p",
            "path": "s3://b/p",
            "RESTOREPOINT": "7",
            "ranges": "orders:0:5-9,orders:0:7-12, orders:1:-3,clicks:0:4-",
            "fromTime": "2026-01-31T12:00:00Z",
            "totime": "1769860900000",
            "columns": "Offset, key,offset,headers",
            "includeHeaders": "false",
            "partitionBytes": "8MiB",
            "startingRestorePoint": "3",
            "failOnDataLoss": "False",
        }
    )
    assert request.ranges == {
        TopicPartition("orders", 0): ((5, 12),),
        TopicPartition("orders", 1): ((0, 3),),
        TopicPartition("clicks", 0): ((4, 2**63 - 1),),
    }
    assert request.times == Window(from_time=1769860800000, to_time=1769860900000)
    assert request.columns == ("offset", "key")
    assert (request.partition_bytes, request.starting, request.restore_point) == (8 << 20, "3", "7")
    assert not request.fail_on_data_loss


@pytest.mark.parametrize("names", [("restorePoint", "startingRestorePoint"), ("backup", "startingBackup")])
def test_former_names_of_options_work(names: tuple[str, str]) -> None:
    request = request_of({"path": "s3://b/p", names[0]: "7", names[1]: "3"})
    assert (request.restore_point, request.starting) == ("7", "3")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "a"}, "there is no option topic; did you mean topics?"),
        ({"source.sasl.password": "geheim"}, "there is no option source.sasl.password"),
        ({"archive": "a", "path": "b"}, "named twice"),
        ({"topics": "a", "topicPattern": "b"}, "leave one out"),
        ({"topics": "a", "ranges": "a:0:1-2"}, "leave topics out"),
        ({"topicPattern": "("}, "not a regular expression"),
        ({"ranges": "a:0"}, "option ranges: a:0 can't be used"),
        ({"ranges": "a:0:5-5"}, "option ranges: a:0:5-5 can't be used"),
        ({"fromTime": "yesterday"}, "option fromTime: yesterday is not a time: it has no time of day"),
        ({"fromTime": "1769860800001", "toTime": "1769860800000"}, "is later than toTime"),
        ({"columns": "offset,valeu"}, "there is no column valeu"),
        ({"includeHeaders": "maybe"}, "give true or false"),
        ({"partitionBytes": "much"}, "give a size such as"),
    ],
)
def test_refused_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=r".*") as caught:
        request_of(options)
    assert message in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_topics_are_named_or_matched_by_a_pattern() -> None:
    some = request_of({"topics": "orders, /clicks-[0-9]+/"}).topics
    assert [some.matches(name) for name in ("orders", "clicks-12", "clicks", "orders-2")] == [1, 1, 0, 0]
    pattern = request_of({"topicPattern": "a,b|c.*"}).topics
    assert [pattern.matches(name) for name in ("a,b", "cd", "a")] == [1, 1, 0]


def test_the_configuration_that_reaches_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options, else the environment, else the file."""
    archive = tmp_path / "archive"
    key = tmp_path / "key"
    key.write_text(generate_key())
    make_archive(encrypting(FileStore(archive), tmp_path))
    store = request_of({"archive": str(archive), "encryption.key": f"file:{key}"}).store()
    assert b"kbackup" in store.get(layout.LATEST)
    file = tmp_path / "kbackup.toml"
    file.write_text(f'archive = "{archive}"\n[encryption]\nkey = "file:/nowhere"\n')
    monkeypatch.setenv("KBACKUP_ENCRYPTION_KEY", f"file:{key}")
    monkeypatch.setenv("KBACKUP_TRUST_OPTIONS", "1")
    store = request_of({"config": str(file)}).store()
    assert b"kbackup" in store.get(layout.LATEST)


def test_options_run_no_command_and_read_no_file_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the driver's environment allows them: then this runs `tee`, and sends a file to the endpoint."""
    monkeypatch.chdir(tmp_path)  # `tee` also writes the file that its argument names
    ran, secret, file = tmp_path / "ran", tmp_path / "secret", tmp_path / "kbackup.toml"
    secret.write_text("hunter2")
    file.write_text(f'[encryption]\nkey = "command:tee {ran}"\n')
    make_archive(encrypting(FileStore(tmp_path / "archive"), tmp_path))
    address = {"archive": str(tmp_path / "archive")}

    def outcome(options: dict[str, str]) -> str:
        try:
            request_of(options).store().get(layout.LATEST)
        except KbackupError as error:
            return error.message
        return "was read"

    command = address | {"Encryption.Key": f"command:tee {ran}"}
    configured = address | {"config": str(file)}
    reading = {"archive": "s3://bucket", "s3.endpoint_url": f"http://127.0.0.1:1/${{file:{secret}}}"}
    variable = {"archive": "s3://bucket", "s3.endpoint_url": "http://127.0.0.1:1/${env:HOME}"}
    for options in (command, configured, reading, variable):
        assert "is refused in options" in outcome(options)
    assert not ran.exists()
    assert request_of({"archive": "s3://bucket", "s3.profile": "$${file:/x}"}).settings[0].path == "s3.profile"

    monkeypatch.setenv("KBACKUP_TRUST_OPTIONS", "1")
    for options in (command, configured):
        assert "the key command tee" in outcome(options)
        assert ran.exists()
        ran.unlink()
    assert str(load(request_of(reading).settings).config.stores["s3"].endpoint_url).endswith("hunter2")


def test_secrets_don_t_show() -> None:
    request = request_of(
        {
            "archive": "s3://b",
            "s3.access_key_id": "id",
            "S3.Secret_Access_Key": "geheim",
            "encryption.key": "env:GEHEIM",
        }
    )
    assert "geheim" not in repr(request).lower()
    assert "geheim" not in repr(request.store()).lower()


def test_keys_that_can_t_be_used_name_their_option() -> None:
    with pytest.raises(UsageError, match=r"option s3\.part_size"):
        request_of({"archive": "s3://b", "s3.part_size": "much"}).store()
    with pytest.raises(UsageError, match=r"s3\.regoin"):
        request_of({"archive": "s3://b", "s3.regoin": "x"}).store()


def test_a_schema_of_the_user_s_own() -> None:
    source = KbackupDataSource({"archive": "/somewhere"})
    assert source.schema() == ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
    header = types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
    some = {"offset": types.LongType(), "headers": types.ArrayType(header), "timestamp": types.TimestampType()}
    assert columns_of(types.StructType([types.StructField(*field) for field in some.items()])) == list(some)
    wrong = {
        "offset": types.IntegerType(),
        "value": types.StringType(),
        "nothing": types.StringType(),
        "headers": header,
    }
    for field in wrong.items():
        with pytest.raises(UsageError, match=f"an archive has no column {field[0]} of type"):
            columns_of(types.StructType([types.StructField(*field)]))


def test_every_option_is_in_the_docs() -> None:
    text = DOCS.read_text()
    undocumented = [name for name in OPTIONS if f"`{name}`" not in text]
    assert not undocumented, f"options that the document lacks: {undocumented}"


# Filters against the same told record by record.


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TOPICS = ["orders", "orders-2", "clicks", "Orders", "ördérs"]


def segment(topic: str, partition: int) -> Segment:
    return a_segment(topic, 0, 29, partition=partition, min_timestamp=None, max_timestamp=None)


def moment(micros: int) -> datetime:
    return EPOCH.astimezone(timezone(timedelta(hours=5, minutes=30))) + timedelta(microseconds=micros)


COMPARED = [ds.EqualTo, ds.EqualNullSafe, ds.GreaterThan, ds.GreaterThanOrEqual, ds.LessThan, ds.LessThanOrEqual]


def about(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[ds.Filter]:
    compared = st.builds(lambda kind, value: kind((column,), value), st.sampled_from(COMPARED), values)
    within = st.lists(values, max_size=4).map(lambda some: ds.In((column,), tuple(some)))
    plain = compared | within
    return plain | plain.map(ds.Not)


text = st.sampled_from(TOPICS) | st.sampled_from(["", "o", "orders", "ö"])
strings = st.builds(
    lambda kind, value: kind(("topic",), value),
    st.sampled_from([ds.StringStartsWith, ds.StringEndsWith, ds.StringContains]),
    text,
)
filters = st.lists(
    about("topic", text)
    | strings
    | strings.map(ds.Not)
    | about("partition", st.integers(-1, 4))
    | about("offset", st.integers(-3, 40) | st.sampled_from([2**63 - 1, -(2**63)]))
    | about("timestamp", st.integers(-2000, 12_000).map(moment))
    | about("segment", st.sampled_from(["topics/clicks/segment_1", "x"]))
    | st.sampled_from([ds.IsNotNull((name,)) for name in ("offset", "timestamp", "topic", "key")]),
    max_size=5,
)

# a record at every offset from 0 to 29; each third has no timestamp, the others are 400 ms apart
RECORDS = [Plain(b"k", b"v", -2 if n % 3 == 2 else 0, n * 400) for n in range(30)]


def holds(one: ds.Filter, row: dict[str, Any]) -> bool:
    """As SQL has it: what compares with a null is not true."""
    if isinstance(one, ds.Not):
        inner: Any = one.child
        return row[inner.attribute[0]] is not None and not holds(inner, row)
    plain: Any = one
    mine = row[plain.attribute[0]]
    if isinstance(one, ds.IsNotNull):
        return mine is not None
    if mine is None:
        return False
    tests: dict[type, Callable[[], Any]] = {
        ds.EqualTo: lambda: mine == plain.value,
        ds.EqualNullSafe: lambda: mine == plain.value,
        ds.GreaterThan: lambda: mine > plain.value,
        ds.GreaterThanOrEqual: lambda: mine >= plain.value,
        ds.LessThan: lambda: mine < plain.value,
        ds.LessThanOrEqual: lambda: mine <= plain.value,
        ds.In: lambda: mine in plain.value,
        ds.StringStartsWith: lambda: mine.startswith(plain.value),
        ds.StringEndsWith: lambda: mine.endswith(plain.value),
        ds.StringContains: lambda: plain.value in mine,
    }
    return bool(tests[type(one)]())


def selected_by(filters: list[ds.Filter], of: Segment) -> list[int]:
    return [
        n
        for n, record in enumerate(RECORDS)
        if all(
            holds(
                one,
                {
                    "topic": of.topic,
                    "partition": of.partition,
                    "segment": of.key,
                    "offset": n,
                    "key": record.key,
                    "timestamp": moment(record.timestamp * 1000) if record.kind >= 0 else None,
                },
            )
            for one in filters
        )
    ]


def read_by(asked: list[Pushed], of: Segment) -> list[int]:
    window = window_of(asked, of)
    if window is None or not window.may_hold(of):
        return []
    return [int(offset) for offset in window.cut(block_of(RECORDS))[0].offsets]


@given(filters, st.sampled_from(TOPICS), st.integers(0, 3))
def test_reads_cover_the_selected_records(combined: list[ds.Filter], topic: str, partition: int) -> None:
    of = segment(topic, partition)
    read, selected = read_by([push(combined)], of), selected_by(combined, of)
    assert set(selected) <= set(read)
    if all(exact(one) for one in combined):
        assert read == selected


@given(st.lists(filters, min_size=1, max_size=3), st.sampled_from(TOPICS), st.integers(0, 3))
def test_reads_for_many_filters(many: list[list[ds.Filter]], topic: str, partition: int) -> None:
    of = segment(topic, partition)
    read = read_by([push(combined) for combined in many], of)
    assert {n for combined in many for n in selected_by(combined, of)} <= set(read)


def exact(one: ds.Filter) -> bool:
    inner: Any = one.child if isinstance(one, ds.Not) else one
    column = inner.attribute[0]
    if isinstance(inner, ds.IsNotNull):
        return column in ("offset", "topic")
    return column != "timestamp" or not isinstance(one, ds.Not | ds.In)


@pytest.mark.parametrize(
    "one",
    [
        ds.EqualTo(("key",), b"k"),
        ds.EqualTo(("headers", "key"), "offset"),
        ds.EqualTo(("offset",), None),
        ds.EqualTo(("offset",), 1.5),
        ds.EqualTo(("offset",), True),
        ds.In(("offset",), (1, None)),
        ds.Not(ds.In(("partition",), (1, None))),
        ds.IsNull(("offset",)),
        ds.IsNotNull(("timestamp",)),
        ds.EqualTo(("timestamp",), datetime(2020, 1, 1)),  # of a column without a zone
        ds.Not(ds.EqualTo(("timestamp",), EPOCH)),
        ds.GreaterThan(("timestampType",), 0),
    ],
)
def test_filters_that_exclude_nothing_are_not_pushed(one: ds.Filter) -> None:
    assert push([one]) == Pushed()


def test_filters_of_spark_narrow_what_is_read() -> None:
    filters = [
        ds.IsNotNull(("offset",)),
        ds.EqualTo(("topic",), "orders"),
        ds.In(("partition",), (1, 2)),
        ds.GreaterThanOrEqual(("offset",), 10),
        ds.Not(ds.EqualTo(("offset",), 12)),
        ds.LessThan(("timestamp",), moment(5_000_001)),
    ]
    pushed = push(filters)
    assert pushed.window == Window(to_time=5000, ranges=((10, 12), (13, 2**63 - 1)))
    assert pushed.wants(segment("orders", 2))
    assert not pushed.wants(segment("orders", 3))
    assert not pushed.wants(segment("clicks", 2))
    later = push([ds.EqualTo(("offset",), 20), ds.GreaterThan(("timestamp",), moment(0))])
    both_of_them = window_of([pushed, later], segment("orders", 2))
    assert both_of_them == Window(ranges=((10, 12), (13, 2**63 - 1)))
    assert window_of([pushed, later], segment("clicks", 2)) == later.window
    assert window_of([pushed], segment("clicks", 2)) is None


def test_windows_that_leave_nothing() -> None:
    pushed = push([ds.GreaterThan(("timestamp",), EPOCH), ds.LessThan(("timestamp",), EPOCH)])
    assert pushed.window.ranges == ()
    assert not pushed.window.may_hold(segment("orders", 0))


def test_earlier_filters_are_remembered(tmp_path: Path) -> None:
    some = [push([ds.EqualTo(("offset",), n)]) for n in range(3)]
    assert remembered(tmp_path, "a", some[0]) == (some[0],)
    assert remembered(tmp_path, "b", some[2]) == (some[2],)
    assert remembered(tmp_path, "a", some[1]) == (some[0], some[1])
    assert remembered(tmp_path, "a", some[0]) == (some[0], some[1])


pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)


@given(pairs, pairs)
def test_joined_ranges_are_disjoint_and_cover_the_same_offsets(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    def offsets(ranges: Any) -> set[int]:
        return {o for low, high in ranges for o in range(low, high)}

    some = joined(a)
    assert offsets(some) == offsets(a)
    flat = [edge for pair in some for edge in pair]
    assert flat == sorted(set(flat)), "disjoint, rising, and none empty"
    assert offsets(common(joined(a), joined(b))) == offsets(a) & offsets(b)
    window = both(Window(ranges=joined(a), from_time=5), Window(ranges=joined(b), from_time=3, to_time=9))
    assert window == Window(from_time=5, to_time=9, ranges=common(joined(a), joined(b)))
