"""A log that was cut and has grown again past the archived end: a broker's disk that was rolled back."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from kbackup.archive.reader import open_archive
from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.support.kafka_raw import raw_produce
from tests.support.truth import archive_records, log_ends, read_topic

PLAIN = ["marker-at-last", "aborted-at-last"]
COMPACTED = ["compacted-marker-at-last", "compacted-aborted-at-last"]
KEPT = ["cut", "same-end", "marked", "only-aborted", *PLAIN, *COMPACTED]


@pytest.fixture(scope="module")
def alone() -> Iterator[Broker]:
    """A broker that is ours to stop."""
    with Broker() as broker:
        yield broker


def grow(broker: Broker, name: str, count: int, text: str) -> None:
    topics.produce(broker, name, 0, topics.numbered(count, text))


def update_key(broker: Broker, name: str, minutes: Iterable[int], value: bytes) -> None:
    """A record a minute: each comes into a log segment of its own."""
    for minute in minutes:
        topics.produce_key(broker, name, "key-1", value, 1_700_000_000_000 + minute * 60_000)


def wait_compacted_away(broker: Broker, name: str, offset: int) -> None:
    topics.wait_until(lambda: offset not in {r.offset for r in read_topic(broker.bootstrap, name)[0]})


def test_a_disk_that_was_rolled_back(alone: Broker, kbackup: Kbackup, archive: Archive, tmp_path: Path) -> None:
    for name in ("cut", "same-end", "quiet"):
        alone.create_topic(name)
        grow(alone, name, 100, "before")
    alone.create_topic("marked")
    topics.committed(alone, "marked", 0, topics.numbered(20, "before"))
    alone.create_topic("only-aborted")
    for name in (*PLAIN, *COMPACTED):
        alone.create_topic(name, config={"cleanup.policy": "compact"} if name in COMPACTED else {})
        topics.committed(alone, name, 0, topics.numbered(20, "before"))
    data, copy = alone.folder / "node-0" / "data", tmp_path / "copy"
    alone.stop()
    shutil.copytree(data, copy)
    alone.start()
    grow(alone, "cut", 50, "first")
    topics.aborted(alone, "only-aborted", 0, topics.numbered(3, "first"))
    for name in (*PLAIN, *COMPACTED):
        topics.produce(alone, name, 0, topics.numbered(4, "first"), key=b"k")
    grow(alone, "same-end", 50, "first")
    topics.committed(alone, "marked", 0, topics.numbered(4, "first"))
    source = ["--bootstrap-server", alone.bootstrap]
    kbackup.backup(archive, *source)
    first = {name: read_topic(alone.bootstrap, name) for name in KEPT}
    ends = {name: log_ends(alone.bootstrap, name)[0] for name in KEPT}
    assert kbackup.backup(archive, *source)["losses"] == [], "nothing has changed"

    alone.stop()
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    alone.start()
    grow(alone, "cut", 80, "second")
    grow(alone, "same-end", 50, "second")
    # a transaction's marker at the offset of the last archived record, and records behind it
    topics.committed(alone, "marked", 0, topics.numbered(3, "second"))
    topics.committed(alone, "marked", 0, topics.numbered(4, "third"))
    topics.committed(alone, "only-aborted", 0, topics.numbered(16, "second"))
    for name in (*PLAIN, *COMPACTED):
        if "marker" in name:
            topics.committed(alone, name, 0, topics.numbered(3, "second"))
        else:
            topics.produce(alone, name, 0, topics.numbered(3, "second"), key=b"k")
            topics.aborted(alone, name, 0, topics.numbered(1, "second"))
        topics.produce(alone, name, 0, topics.numbered(29, "third"), key=b"k")
    report = kbackup.backup(archive, *source, code=3)
    assert {loss["topic"]: loss["end"] for loss in report["losses"]} == ends
    assert {loss["kind"] for loss in report["losses"]} == {"truncated"}
    assert {t["name"]: t["incarnation"] for t in report["topics"]} == {"quiet": 1} | dict.fromkeys(KEPT, 2)
    opened = open_archive(archive.store)
    for name in KEPT:
        assert archive_records(archive.store, name, opened.restore_point(2)) == first[name]
        assert archive_records(archive.store, name, opened.restore_point(3)) == read_topic(alone.bootstrap, name)
    assert kbackup.backup(archive, *source)["losses"] == [], "once told, it is the new history"


def roll_back(broker: Broker, copy: Path) -> None:
    """Give the broker the disk of before, with the leader epochs of before."""
    data = broker.folder / "node-0" / "data"
    broker.stop()
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    broker.start()


def save_disk(broker: Broker, copy: Path) -> None:
    broker.stop()
    shutil.copytree(broker.folder / "node-0" / "data", copy)
    broker.start()


def test_a_log_that_grew_again_to_the_same_last_record(
    alone: Broker, kbackup: Kbackup, archive: Archive, topic_name: str, tmp_path: Path
) -> None:
    """The last records have the same offset, time, key, value and leader epoch in both logs; those before do not."""
    names = {each: f"{topic_name}-{each}" for each in ("same-end", "longer", "slow", "large", "compacted", "quiet")}
    large = b"x" * 50_000
    for each, name in names.items():
        alone.create_topic(name, config={"cleanup.policy": "compact"} if each == "compacted" else {})
        topics.produce(alone, name, 0, topics.numbered(100, "before"), key=b"k")
    save_disk(alone, tmp_path / "copy")
    source = ["-t", f"/{topic_name}-.*/", "--bootstrap-server", alone.bootstrap]
    tail = topics.numbered(5, "of both")
    changed = [each for each in names if each != "quiet"]
    for each in changed:
        first = [large if each == "large" else b"first", *topics.numbered(28, "first")]
        topics.produce(alone, names[each], 0, [*first, *([large] * 5 if each == "large" else tail)], key=b"k")
        if each == "slow":  # a restore point for each of the last records: none has read the ones that differ
            kbackup.backup(archive, *source)
            topics.produce(alone, names[each], 0, topics.numbered(2, "also of both"), key=b"k")
            kbackup.backup(archive, *source)
    assert kbackup.backup(archive, *source)["losses"] == []
    assert kbackup.backup(archive, *source)["losses"] == [], "nothing has changed"
    newest = open_archive(archive.store).restore_points[-1].number
    before = {
        each: archive_records(archive.store, name, open_archive(archive.store).restore_point(newest))
        for each, name in names.items()
    }

    roll_back(alone, tmp_path / "copy")
    for each in changed:
        second = [large if each == "large" else b"second", *topics.numbered(28, "second")]
        topics.produce(alone, names[each], 0, [*second, *([large] * 5 if each == "large" else tail)], key=b"k")
        if each == "slow":
            topics.produce(alone, names[each], 0, topics.numbered(2, "also of both"), key=b"k")
        if each == "longer":
            topics.produce(alone, names[each], 0, topics.numbered(10, "later"), key=b"k")
    report = kbackup.backup(archive, *source, code=3)
    assert {loss["topic"] for loss in report["losses"]} == {names[each] for each in changed}
    assert {loss["kind"] for loss in report["losses"]} == {"truncated"}
    opened = open_archive(archive.store)
    for each, name in names.items():
        assert archive_records(archive.store, name, opened.restore_point(newest)) == before[each]
        now = archive_records(archive.store, name, opened.restore_point(newest + 1))
        assert now == read_topic(alone.bootstrap, name)
    assert kbackup.backup(archive, *source)["losses"] == [], "once told, it is the new history"


def test_earlier_records_that_retention_deleted_are_no_cut(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    broker.create_topic(topic_name)
    grow(broker, topic_name, 100, "before")
    kbackup.backup(archive, "-t", topic_name)
    topics.delete_records(broker, topic_name, {0: 90})
    grow(broker, topic_name, 3, "after")
    assert kbackup.backup(archive, "-t", topic_name)["losses"] == []


def test_a_cut_where_compaction_took_the_last_archived_record(
    alone: Broker, kbackup: Kbackup, archive: Archive, topic_name: str, tmp_path: Path
) -> None:
    """Only the leader epoch tells: the log has grown past the archived end, and holds no record there."""
    topics.make_compacted(alone, topic_name)
    data, copy = alone.folder / "node-0" / "data", tmp_path / "copy"
    alone.stop()
    shutil.copytree(data, copy)
    alone.start()
    update_key(alone, topic_name, range(4, 7), b"first")
    source = ["-t", topic_name, "--bootstrap-server", alone.bootstrap]
    kbackup.backup(archive, *source)
    (before,) = open_archive(archive.store).restore_point(1).topics
    last = before.partitions[0].last
    assert last is not None
    first = archive_records(archive.store, topic_name, open_archive(archive.store).restore_point(1))

    alone.stop()
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    alone.start()
    alone.restart()  # the copy's next epoch was that of the last archived record
    update_key(alone, topic_name, range(7, 14), b"second")
    wait_compacted_away(alone, topic_name, last.offset)
    assert log_ends(alone.bootstrap, topic_name)[0] > before.partitions[0].end
    report = kbackup.backup(archive, *source, code=3)
    assert [(loss["kind"], loss["end"]) for loss in report["losses"]] == [("truncated", last.offset + 1)]
    opened = open_archive(archive.store)
    assert archive_records(archive.store, topic_name, opened.restore_point(1)) == first
    now = archive_records(archive.store, topic_name, opened.restore_point(2))
    assert now == read_topic(alone.bootstrap, topic_name)


def test_a_topic_of_another_cluster_is_not_backed_up(
    alone: Broker, broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    for each, name in ((alone, "of another cluster"), (broker, "of its own")):
        each.create_topic(topic_name)
        grow(each, topic_name, 10, name)
    only = ["-t", topic_name]
    kbackup.backup(archive, *only)
    refused = kbackup("backup", "--archive", archive.url, "--bootstrap-server", alone.bootstrap, *only)
    assert (refused.code, "--adopt-cluster" in refused.err) == (10, True)
    assert [p.number for p in open_archive(archive.store).restore_points] == [1]
    adopted = kbackup.backup(archive, "--bootstrap-server", alone.bootstrap, *only, "--adopt-cluster", code=3)
    assert [loss["kind"] for loss in adopted["losses"]] == ["recreated"]
    assert kbackup.backup(archive, "--bootstrap-server", alone.bootstrap, *only)["losses"] == []


def test_compaction_of_the_last_archived_record_is_no_cut(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    topics.make_compacted(broker, topic_name)
    topics.produce_key(broker, topic_name, "key-1", b"once", 1_700_000_300_000)
    kbackup.backup(archive, "-t", topic_name)
    (before,) = open_archive(archive.store).restore_point(1).topics
    last = before.partitions[0].last
    assert last is not None
    update_key(broker, topic_name, range(6, 9), b"again")
    wait_compacted_away(broker, topic_name, last.offset)
    report = kbackup.backup(archive, "-t", topic_name)
    assert (report["losses"], report["totals"]["records"] > 0) == ([], True)


@pytest.mark.parametrize("key", [b"a\0b", b"\xff"], ids=["nul", "not-utf8"])
def test_a_log_whose_last_record_only_the_native_kernel_reads_is_not_taken_for_a_cut_one(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str, key: bytes
) -> None:
    """confluent-kafka cuts a header key at a NUL byte, and converts no header key that is not UTF-8."""
    broker.create_topic(topic_name)
    raw_produce(broker.bootstrap, topic_name, 0, [(b"k", b"v", 5, [(key, b"x")])])
    kbackup.backup(archive, "-t", topic_name)
    report = kbackup.backup(archive, "-t", topic_name)
    assert report["losses"] == []
    assert [topic["incarnation"] for topic in report["topics"]] == [1]
