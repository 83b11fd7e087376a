"""Backups of other shapes: many partitions, large and uncommitted records, allowed losses, a directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from kbackup.store.file import FileStore
from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import PACK_RECORDS, Archive, Kbackup
from tests.integration.topics import MIB, produce
from tests.support.truth import archive_records, assert_restored, log_ends, read_topic

PARTITIONS = 300


def test_small_partitions_share_tasks(broker: Broker, kbackup: Kbackup, tmp_path: Path, topic_name: str) -> None:
    broker.create_topic(topic_name, PARTITIONS)
    for partition in range(0, PARTITIONS, 4):
        topics.produce(broker, topic_name, partition, topics.numbered(partition % 7 + 1))
    source = read_topic(broker.bootstrap, topic_name)
    records = sum(map(len, source.values()))
    archive = Archive(f"file://{tmp_path}/archive", FileStore(tmp_path / "archive"))

    del kbackup.spark.tasks[:]
    report = kbackup.backup(archive, "-t", topic_name)
    assert sum(kbackup.spark.tasks) <= 1 + records // (PACK_RECORDS // 2)
    assert (report["totals"]["partitions"], report["totals"]["segments"]) == (PARTITIONS, PARTITIONS // 4)
    assert archive_records(archive.store, topic_name) == source

    del kbackup.spark.tasks[:]
    kbackup.restore(archive, "--map", f"{topic_name}=back-{topic_name}", "--no-groups")
    assert sum(kbackup.spark.tasks) <= 2
    assert_restored(source, read_topic(broker.bootstrap, f"back-{topic_name}"))


def test_a_small_backup_without_spark_reads_in_its_own_process_and_a_larger_one_on_spark(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    broker.create_topic(topic_name, 2)
    for partition in range(2):
        topics.produce(broker, topic_name, partition, topics.numbered(50))
    del kbackup.spark.tasks[:]
    kbackup.backup(archive, "-t", topic_name, "--small-without-spark")
    assert kbackup.spark.tasks == [], "Spark has no task of a small backup"

    topics.produce(broker, topic_name, 0, topics.numbered(PACK_RECORDS + 1))
    kbackup.backup(archive, "-t", topic_name, "--small-without-spark")
    assert kbackup.spark.tasks != [], "Spark has the tasks of a larger backup"
    assert archive_records(archive.store, topic_name) == read_topic(broker.bootstrap, topic_name)


def test_a_small_backup_without_spark_needs_no_java(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    broker.create_topic(topic_name)
    topics.produce(broker, topic_name, 0, topics.numbered(10))
    command = [sys.executable, "-m", "kbackup", "--json", "backup", "--config", str(kbackup.config)]
    options = ["--archive", archive.url, "-t", topic_name, "--small-without-spark"]
    env = {**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
    done = subprocess.run([*command, *options], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["totals"]["records"] == 10


def test_read_uncommitted_takes_open_and_aborted_transactions(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    topics.make_ledger(broker, topic_name)
    unfinished = topics.begin(broker, topic_name, 1, topics.numbered(8, "open"))
    try:
        uncommitted = read_topic(broker.bootstrap, topic_name, "read_uncommitted")
        kbackup.backup(archive, "-t", topic_name, "--isolation-level", "read_uncommitted")
        assert [len(records) for records in uncommitted.values()] == [48, 19, 9]
        assert archive_records(archive.store, topic_name) == uncommitted
        stable, end = log_ends(broker.bootstrap, topic_name), log_ends(broker.bootstrap, topic_name, "read_uncommitted")
        assert stable[1] < end[1], "the transaction is not open any more"
    finally:
        unfinished.abort_transaction(60)


def test_loss_ends_in_3_unless_it_is_allowed(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    broker.create_topic(topic_name)
    topics.produce(broker, topic_name, 0, topics.numbered(10))
    kbackup.backup(archive, "-t", topic_name)
    for lost, (arguments, code) in enumerate(((["--allow-loss"], 0), ([], 3)), 1):
        topics.produce(broker, topic_name, 0, topics.numbered(10))
        topics.delete_records(broker, topic_name, {0: 10 * lost + 5})
        report = kbackup.backup(archive, "-t", topic_name, *arguments, code=code)
        (loss,) = report["losses"]
        assert (loss["kind"], loss["start"], loss["end"]) == ("retention", 10 * lost, 10 * lost + 5)
    # all of a partition lost: it is not read, but reported
    topics.produce(broker, topic_name, 0, topics.numbered(10))
    topics.delete_records(broker, topic_name, {0: 40})
    report = kbackup.backup(archive, "-t", topic_name, code=3)
    assert [(loss["start"], loss["end"]) for loss in report["losses"]] == [(30, 40)]
    topics.produce(broker, topic_name, 0, [b"after"])
    assert kbackup.backup(archive, "-t", topic_name)["totals"]["records"] == 1
    held = archive_records(archive.store, topic_name)[0]
    assert [r.offset for r in held] == [*range(10), *range(15, 20), *range(25, 30), 40]


def test_compression_may_change_between_runs(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    broker.create_topic(topic_name)
    for chosen in ("none", "zstd", "none"):
        topics.produce(broker, topic_name, 0, topics.numbered(30, chosen))
        kbackup.backup(archive, "-t", topic_name, "--compression", chosen)
    source = read_topic(broker.bootstrap, topic_name)
    assert archive_records(archive.store, topic_name) == source
    kbackup.restore(archive, "--map", f"{topic_name}=back-{topic_name}", "--no-groups")
    assert_restored(source, read_topic(broker.bootstrap, f"back-{topic_name}"))


def test_a_record_of_20_megabytes(broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str) -> None:
    value = os.urandom(20_000_000)
    broker.create_topic(topic_name, 1, config={"max.message.bytes": str(24 * MIB)})
    produce(broker, topic_name, 0, [b"before", value, b"after"])
    assert kbackup.backup(archive, "--topic", topic_name)["totals"]["records"] == 3
    kbackup.restore(archive, "--topic", topic_name, "--map", f"{topic_name}={topic_name}.back")
    found = [r.value for r in read_topic(broker.bootstrap, f"{topic_name}.back")[0]]
    assert found == [b"before", value, b"after"]
