"""Streams of an archive that grows, expires and is replaced. Spark itself: `tests/integration`."""

from __future__ import annotations

import json
import pickle
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from shutil import copytree

import pytest

from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.merging import MergeSizes
from kbackup.archive.catalog.retention import lose_segments
from kbackup.archive.reader import open_archive
from kbackup.archive.run import open_or_create
from kbackup.cli import main
from kbackup.errors import NoArchiveError, RefusedError, UsageError
from kbackup.jobs.rewrite import Rewriting, rewrite
from kbackup.metrics.registry import Silent
from kbackup.spark.source.batch import BatchReader, Offset, StreamReader
from kbackup.spark.source.options import request_of
from kbackup.store.file import FileStore
from tests.golden.java_archive import PARTITIONS
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import CLICKS, FIRST_ORDERS, ORDERS, T0, History, expired, grow, grow_each, make_archive
from tests.support.java_sink import torn_folder
from tests.support.schema_archive import make_schema_archive

Rows = list[tuple[str, int, int]]
COLUMNS = ["topic", "partition", "offset"]


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    made = FileStore(tmp_path / "archive")
    make_archive(made)
    return made


def reader(store: FileStore, **options: str) -> StreamReader:
    return StreamReader(request_of({"archive": store.url, **options}), COLUMNS)


def batch(stream: StreamReader, start: Offset, end: Offset) -> Rows:
    """As Spark does it: offsets by JSON, pieces of work by pickle."""
    found: Rows = []
    for task in stream.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end))):
        for part in pickle.loads(pickle.dumps(stream)).read(pickle.loads(pickle.dumps(task))):
            found += [tuple(row.values()) for row in part.to_pylist()]
    return sorted(found)


def test_a_batch_of_a_folder_that_a_killed_sink_left(tmp_path: Path) -> None:
    """Tasks know the folder alone: they find out by themselves what is whole."""
    folder = BatchReader(request_of({"archive": str(torn_folder(tmp_path / "java"))}), COLUMNS)
    found: Rows = []
    for task in folder.partitions():
        for part in pickle.loads(pickle.dumps(folder)).read(pickle.loads(pickle.dumps(task))):
            found += [tuple(row.values()) for row in part.to_pylist()]
    assert sorted(found) == sorted((p.topic, p.number, r.offset) for p in PARTITIONS for r in p.truth())


def test_keys_and_values_by_the_schemas_of_the_restore_point(tmp_path: Path) -> None:
    """In batches and streams: tasks know the store alone."""
    made = FileStore(tmp_path / "archive")
    make_schema_archive(made)
    columns = ["topic", "key_json", "value_json", "decode_error"]
    expected = [
        {"key_json": None, "value_json": '{"item":"ink","price":{"currency":"EUR","cents":250}}'},
        {"key_json": None, "value_json": '{"kind":"seen","size":7}'},
        {"key_json": "1", "value_json": '{"item":"pen","count":3}'},
        {"key_json": "2", "value_json": None},
        {"key_json": "3", "value_json": '{"item":"ink","count":1,"note":"blue"}'},
        {"key_json": None, "value_json": None},
        {"key_json": None, "value_json": None},
    ]
    request = request_of({"archive": made.url, "decode": "true", "columns": ",".join(columns)})
    stream = StreamReader(request, columns)
    tasks = {"batch": BatchReader(request, columns).partitions()}
    tasks["stream"] = stream.partitions(stream.initialOffset(), stream.latestOffset())
    for name, parts in tasks.items():
        found = [
            row for task in parts for part in stream.read(pickle.loads(pickle.dumps(task))) for row in part.to_pylist()
        ]
        found.sort(key=lambda row: row["topic"])
        assert [{n: row[n] for n in ("key_json", "value_json")} for row in found] == expected, name
        (error,) = [row["decode_error"] for row in found if row["decode_error"]]
        assert error.startswith("key: not AVRO by its schema: "), name
        assert error.endswith("; value: the restore point has no schema 99, and no schema registry is named"), name
    bare = FileStore(tmp_path / "bare")
    make_archive(bare)
    reading = BatchReader(request_of({"archive": bare.url}), columns)
    with pytest.raises(UsageError, match="the restore point has no schemas"):
        list(reading.read(reading.partitions()[0]))


def of_orders(first: int, stop: int) -> Rows:
    return [("orders", 1, o) for o in range(first, stop)]


def at(stream: StreamReader, number: int) -> Offset:
    return stream.latestOffset() | {"backup": number, "manifest": ""}


def test_batches_between_expired_restore_points_are_the_same_after_a_merge(tmp_path: Path) -> None:
    """Spark repeats a batch after a failure, with the ends that it has written down."""
    grown = FileStore(tmp_path / "grown")
    history = History(grown)
    for number in range(1, 7):
        history.run(number, {"a": 2})
    stream = reader(grown)
    ends = (0, 1, 2, 4, 5, 6)
    before = {(start, end): batch(stream, at(stream, start), at(stream, end)) for start, end in combinations(ends, 2)}
    expired(grown, last=1)
    sizes = MergeSizes(below=10_000, largest=100_000)
    report = rewrite(grown, Rewriting(sizes), 60, timedelta(days=1), Silent(), confirm=True)
    assert (report.segments, report.merged) == (12, 2)
    merged = reader(grown)
    for (start, end), rows in before.items():
        assert rows, "each batch has records"
        assert batch(merged, at(merged, start), at(merged, end)) == rows, (start, end)


def test_a_stream_begins_at_the_restore_point_that_is_named(store: FileStore) -> None:
    grow(store, 3, 12, 15)
    began = {
        starting: reader(store, startingRestorePoint=starting).initialOffset()["backup"]
        for starting in ("earliest", "Latest", "1", "3", "7")
    }
    assert began == {"earliest": 0, "Latest": 3, "1": 0, "3": 2, "7": 6}
    for wrong in ("newest", "-1", "²"):
        with pytest.raises(UsageError, match="startingRestorePoint"):
            reader(store, startingRestorePoint=wrong).initialOffset()
    with pytest.raises(UsageError, match="give startingRestorePoint"):
        reader(store, backup="2")


def test_batches_hold_the_records_added_by_restore_points(store: FileStore) -> None:
    stream = reader(store)
    start = stream.initialOffset()
    first = stream.latestOffset()
    assert batch(stream, start, first) == CLICKS + ORDERS
    assert batch(stream, first, stream.latestOffset()) == []
    grow_each(store, range(3, 6))
    assert batch(stream, first, stream.latestOffset()) == of_orders(30, 60)
    assert batch(stream, at(stream, 3), at(stream, 4)) == of_orders(40, 50), "again, whatever came since"
    assert batch(reader(store, topics="clicks"), start, stream.latestOffset()) == CLICKS
    narrow = reader(store, ranges="orders:1:5-7,orders:1:31-35", toTime=str(T0 + 32_000))
    assert batch(narrow, start, stream.latestOffset()) == [*of_orders(5, 7), *of_orders(31, 33)]


def test_no_restore_point_yet(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "archive")
    with pytest.raises(NoArchiveError):
        reader(store).initialOffset()
    open_or_create(store)
    stream = reader(store, startingRestorePoint="latest")
    assert stream.initialOffset() == stream.latestOffset()
    assert batch(stream, stream.initialOffset(), stream.latestOffset()) == []


def test_another_archive_under_the_same_address(store: FileStore, tmp_path: Path) -> None:
    stream = reader(store)
    start = stream.latestOffset()
    (tmp_path / "archive").rename(tmp_path / "before")
    make_archive(store, copied=False)
    with pytest.raises(RefusedError, match="the checkpoint is of archive"):
        stream.partitions(start, stream.latestOffset())


def test_a_folder_of_the_java_tool() -> None:
    with pytest.raises(UsageError, match="no restore points to follow"):
        reader(FileStore(JAVA / "archive")).latestOffset()


@pytest.mark.parametrize("goes", [False, True])
def test_the_restore_point_where_it_was_is_repaired(store: FileStore, goes: bool) -> None:
    """The repaired restore point has the same number and records: the stream continues without duplicates."""
    followed = reader(store)
    had = followed.latestOffset()
    store.delete([e.key for e in store.list("points/0000000002-") if e.key.endswith("/manifest.json")])
    assert main(["repair", store.url, "--confirm", "--quiet"]) in (0, 3)
    grow(store, 3, 50, 60)
    if goes:
        expired(store, last=1)
    for stream in (followed, reader(store)):
        assert batch(stream, had, stream.latestOffset()) == of_orders(50, 60)
        assert len(batch(stream, at(stream, 1), stream.latestOffset())) == 34
    fresh = reader(store, startingRestorePoint="2")
    assert fresh.initialOffset()["backup"] == 1
    assert len(batch(fresh, fresh.initialOffset(), fresh.latestOffset())) == 34


def test_a_copy_that_lags_behind(store: FileStore, tmp_path: Path) -> None:
    copytree(tmp_path / "archive", tmp_path / "copy")
    stream = reader(store)
    grow_each(store, (3, 4))
    had = stream.latestOffset()
    (tmp_path / "archive").rename(tmp_path / "ahead")
    (tmp_path / "copy").rename(tmp_path / "archive")
    assert stream.latestOffset() == had
    again = reader(store)
    with pytest.raises(RefusedError, match=r"the stream came to restore point 4, .* was at 2 only"):
        again.partitions(had, again.latestOffset())
    with pytest.raises(RefusedError, match=r"the stream came to restore point 4, .* was at 2 only"):
        again.partitions(at(again, 2), had)  # a batch that was begun
    for seq in (3, 4, 5):
        grow(store, seq, seq * 11, seq * 11 + 10)
    with pytest.raises(RefusedError, match=r"the stream has diverged from .*: restore point 4 is of another history"):
        again.partitions(had, again.latestOffset())


def test_a_stream_begins_with_a_later_restore_point(store: FileStore) -> None:
    first = reader(store, startingRestorePoint="4")
    start = first.initialOffset()
    for stream in (first, reader(store, startingRestorePoint="4")):
        assert batch(stream, start, stream.latestOffset()) == []
    grow_each(store, (3, 4))
    assert batch(first, start, first.latestOffset()) == of_orders(40, 50)


def test_a_topic_that_is_not_there_takes_a_pattern(store: FileStore, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no topic order in .*; did you mean orders"):
        reader(store, topics="order").initialOffset()
    with pytest.raises(UsageError, match="topicPattern also takes topics that come later"):
        reader(store, ranges="xyz:0:5-").initialOffset()
    assert reader(store, topicPattern="later.*").initialOffset()["backup"] == 0
    empty = open_or_create(FileStore(tmp_path / "empty")).store
    assert reader(FileStore(tmp_path / "empty"), topics="later").initialOffset()["backup"] == 0, empty.url


def test_expired_restore_points_are_no_gap(store: FileStore) -> None:
    grow_each(store, range(3, 7))
    stream = reader(store)
    start, middle, end = stream.initialOffset(), at(stream, 4), stream.latestOffset()
    expired(store, last=1)
    assert [p.number for p in open_archive(store).restore_points] == [6]
    assert batch(stream, middle, end) == of_orders(50, 70), "restore point 5 went, its records did not"
    assert batch(stream, at(stream, 3), middle) == of_orders(40, 50)
    assert batch(stream, start, end) == sorted(CLICKS + ORDERS + of_orders(30, 70))


def test_records_that_expired_before_the_stream_had_them(store: FileStore) -> None:
    grow_each(store, range(3, 7))
    stream = reader(store)
    end = stream.latestOffset()
    expired(store, before=45)
    segments = open_archive(store).segments(open_archive(store).restore_point("latest"))
    oldest = min(s.first for s in segments if s.partition == 1)
    assert 30 < oldest <= 45, "some of what restore points 3 and 4 added went"
    with pytest.raises(RefusedError, match=r"have expired, and the stream may not .* restore point 2") as caught:
        stream.partitions(at(stream, 2), end)
    assert "failOnDataLoss=false" in str(caught.value)
    assert batch(stream, at(stream, 5), end) == of_orders(60, 70), "it had all of them"
    assert batch(reader(store, failOnDataLoss="false"), at(stream, 2), end) == of_orders(oldest, 70)
    assert batch(reader(store, topics="clicks"), at(stream, 2), end) == []
    assert batch(stream, stream.initialOffset(), end) == sorted(
        [row for row in CLICKS if row[2] >= 45] + [r for r in FIRST_ORDERS if r[2] >= 45] + of_orders(oldest, 70)
    )
    grow(store, 7, 70, 80)
    assert batch(stream, at(stream, 6), stream.latestOffset()) == of_orders(70, 80)
    expired(store, last=1)
    orders = reader(store, ranges="orders:1:0-")
    assert batch(orders, at(stream, 5), end) == of_orders(60, 70), "by what is left of those before it"
    with pytest.raises(RefusedError, match="records of clicks-0 below offset 20"):
        stream.partitions(at(stream, 5), end)  # it had them, but nothing tells any more


def test_records_that_were_found_damaged(store: FileStore) -> None:
    stream = reader(store)
    start, end = stream.initialOffset(), stream.latestOffset()
    archive = open_archive(store)
    lost = {s.key: "its object is missing" for s in archive.added(1, 2)}
    commit(store, archive.committed, lambda s: lose_segments(s, lost), Author("repair", "", "test"))
    with pytest.raises(RefusedError, match="is damaged: offsets 15 to 23 of orders-0: its object") as refused:
        stream.partitions(start, end)
    assert "failOnDataLoss=false" in refused.value.hint
    lenient = reader(store, failOnDataLoss="false")
    assert batch(lenient, start, end) == sorted(
        row for row in CLICKS + ORDERS if row[:2] != ("orders", 0) or row[2] < 10
    )
    assert batch(reader(store, topics="clicks"), start, end) == CLICKS
    grow(store, 3, 12, 15)
    assert batch(stream, end, stream.latestOffset()) == of_orders(12, 15)
