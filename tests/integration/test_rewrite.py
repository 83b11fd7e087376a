"""Many small restore points of a real cluster, on a real S3 server: most expire, their segments become one."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import timedelta

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from kbackup.archive.catalog.merging import MergeSizes
from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import open_archive
from kbackup.jobs import spread
from kbackup.jobs.erase import Erasure, erase
from kbackup.jobs.key_matching import KeyMatch
from kbackup.jobs.rewrite import Rewriting, rewrite
from kbackup.jobs.verify import verify
from kbackup.metrics.registry import Silent
from kbackup.serve.logs import Choosing
from kbackup.serve.service import ArchiveServer, Listening, serving_in_thread
from scripts.dev.kafka import Broker
from tests.integration.conftest import Archive, Kbackup
from tests.support.archives import History, expired
from tests.support.truth import Records, archive_records, read_topic

POINTS = 8
KEPT = (3, 8)


def fill(broker: Broker, topic: str, numbers: range) -> None:
    producer = Producer(broker.client(log_level=0))
    for number in numbers:
        producer.produce(topic, b"%d " % number * 20, b"key %d" % (number % 5), number % 2)
    assert producer.flush(30) == 0


def check_whole(archive: Archive, spark: SparkSession) -> None:
    report = verify(archive.store, "all", False, lambda: spark, Silent())
    assert report.findings == ()


def test_merged_segments_are_restored_served_and_copied_as_the_small_ones(
    broker: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive], spark: SparkSession
) -> None:
    archive, copy = new_archive(), new_archive()
    name = secrets.token_hex(6)
    topic = f"many-{name}"
    broker.create_topic(topic, partitions=2)
    options = ["--topic", topic, "--small-without-spark"]
    for number in range(POINTS):
        fill(broker, topic, range(number * 20, number * 20 + 20))
        kbackup.backup(archive, *options)
    assert kbackup("copy", copy.url, "--archive", archive.url).code == 0
    points = open_archive(archive.store)
    before = {number: archive_records(archive.store, topic, points.restore_point(number)) for number in KEPT}
    kbackup("keep", "3", "-a", archive.url)
    assert kbackup("expire", archive.url, "--keep-last", "1", "--confirm", "--grace", "0s").code == 0

    choosing = Choosing(Selection.of((topic,), ()), "latest", None, True)
    with serving_in_thread(ArchiveServer(archive.store, choosing, Listening(port=0))) as serving:
        sizes = ("--merge-below", "8MiB", "--set", "backup.segment_bytes=128MiB")
        merged = kbackup("rewrite", archive.url, *sizes, "--confirm")
        assert (merged.code, merged.document["segments"], merged.document["merged"]) == (0, 2 * POINTS, 4)
        assert read_topic(serving.bootstrap, topic) == before[8]
    now = open_archive(archive.store)
    for number, records in before.items():
        assert archive_records(archive.store, topic, now.restore_point(number)) == records
    check_whole(archive, spark)

    # a backup goes on, the old objects go, and the copy that keeps its restore points as well
    fill(broker, topic, range(1000, 1020))
    assert kbackup.backup(archive, *options)["losses"] == []
    assert kbackup("expire", archive.url, "--confirm", "--grace", "0s").code == 0
    check_whole(archive, spark)
    assert kbackup("copy", copy.url, "--archive", archive.url, "--keep").code == 0
    check_whole(copy, spark)
    assert len(open_archive(copy.store).restore_points) == POINTS + 1

    for number, records in before.items():
        target = f"back-{number}-{name}"
        kbackup.restore(archive, "--restore-point", str(number), "--map", f"{topic}={target}")
        restored = read_topic(broker.bootstrap, target)
        for partition, own in restored.items():
            assert [record.value for record in own] == [record.value for record in records[partition]]


def last_values(records: Records) -> dict[tuple[int, bytes], bytes | None]:
    """The value of the last record of each key of each partition."""
    values: dict[tuple[int, bytes], bytes | None] = {}
    for partition, own in records.items():
        for record in own:
            assert record.key is not None
            values[partition, record.key] = record.value
    return values


def test_a_compacted_topic_keeps_the_last_value_of_each_key_at_each_restore_point(
    broker: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive], spark: SparkSession
) -> None:
    archive = new_archive()
    name = secrets.token_hex(6)
    topic = f"states-{name}"
    # The source compacts nothing during the test, and has each record at the end.
    broker.create_topic(topic, partitions=2, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"})
    options = ["--topic", topic, "--small-without-spark"]
    for number in range(POINTS):
        fill(broker, topic, range(number * 20, number * 20 + 20))
        kbackup.backup(archive, *options)
    points = open_archive(archive.store)
    before = {number: archive_records(archive.store, topic, points.restore_point(number)) for number in KEPT}
    kbackup("keep", "3", "-a", archive.url)
    assert kbackup("expire", archive.url, "--keep-last", "1", "--confirm", "--grace", "0s").code == 0

    compacted = kbackup("rewrite", archive.url, "--compact", "--merge-below", "8MiB", "--confirm")
    # Of thirty records of a partition up to restore point 3, five are the last of their keys, and the first stays.
    assert (compacted.code, compacted.document["superseded"]) == (0, 2 * 24)
    now = open_archive(archive.store)
    left = {number: archive_records(archive.store, topic, now.restore_point(number)) for number in KEPT}
    assert {number: last_values(records) for number, records in left.items()} == {
        number: last_values(records) for number, records in before.items()
    }
    assert sum(map(len, left[3].values())) == 2 * 6
    check_whole(archive, spark)

    # The source still has what is gone: neither a comparison nor a recheck of the log takes that for a fault.
    source = ("--bootstrap-server", broker.bootstrap)
    compared = kbackup("verify", "--archive", archive.url, "--against", "source", "--topic", topic, *source)
    assert (compared.code, compared.document["findings"]) == (0, []), compared
    fill(broker, topic, range(1000, 1020))
    rechecked = kbackup.backup(archive, *options, "--recheck-compacted")
    assert rechecked["warnings"] == []
    assert kbackup("expire", archive.url, "--confirm", "--grace", "0s").code == 0
    check_whole(archive, spark)

    for number, records in before.items():
        target = f"back-{number}-{name}"
        kbackup.restore(archive, "--restore-point", str(number), "--map", f"{topic}={target}")
        assert last_values(read_topic(broker.bootstrap, target)) == last_values(records)


def test_spark_rewrites_what_threads_rewrite(
    new_archive: Callable[[], Archive], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spread, "_SPARK_FROM", 0)
    states: list[list[tuple[object, ...]]] = []
    # By threads first, then by Spark.
    for session in (None, lambda: spark):
        store = new_archive().store
        history = History(store, configs={"a": {"cleanup.policy": "compact"}}, key=lambda offset: b"%d" % (offset % 7))
        for number in range(1, 5):
            history.run(number, {"a": 9, "b": 9})
        expired(store, last=2)
        rewriting = Rewriting(MergeSizes(10_000, 100_000), compact=True, spark=session)
        report = rewrite(store, rewriting, 60, timedelta(days=1), Silent(), confirm=True)
        assert report.superseded > 0
        erasure = Erasure(Selection.of(("/.*/",), ()), KeyMatch([b"3"]))
        erased = erase(store, erasure, 60, Silent(), confirm=True, spark=session)
        assert erased.records > 0
        assert verify(store, "all", False, lambda: spark, Silent()).findings == ()
        rows = open_archive(store).state.segments.rows("topic", "partition", "first", "last", "count", "crc", "point")
        states.append(sorted(rows))
    assert states[0] == states[1]
