"""Many small restore points of a real cluster, on a real S3 server: most expire, their segments become one."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import open_archive
from kbackup.jobs.verify import verify
from kbackup.metrics.registry import Silent
from kbackup.serve.logs import Choosing
from kbackup.serve.service import ArchiveServer, Listening, serving_in_thread
from scripts.dev.kafka import Broker
from tests.integration.conftest import Archive, Kbackup
from tests.support.truth import archive_records, read_topic

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
