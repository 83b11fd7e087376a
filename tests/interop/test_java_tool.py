"""The Java tool's archive: restored as it is, and written again byte for byte."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from kbackup.archive import layout
from kbackup.store.file import FileStore
from scripts.dev.kafka import Broker
from tests.golden.java_archive import PARTITIONS, ROOT, Partition
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.support.java_sink import FLAWS, torn_folder
from tests.support.kafka_raw import NO_TIMESTAMP, Record, raw_produce
from tests.support.truth import Position, assert_restored, commit, expected_offset, log_ends, positions, read_topic

THRESHOLD = 2500  # what the archive was written with
_KEEP = [f"--topic-config={name}={value}" for name, value in topics.ANY_FUTURE.items()]


def test_restored_as_it_is(broker: Broker, kbackup: Kbackup, archive: Archive, tmp_path: Path) -> None:
    """Its folder is only read: the restore's own files go elsewhere."""
    folder = tmp_path / "java"
    shutil.copytree(ROOT / "archive", folder)
    java = Archive(f"file://{folder}", FileStore(folder))
    before = {key: java.store.get(key) for key in java.objects()}
    report = kbackup.restore(java, "--map-regex", "^=java.", "--state", archive.url, *_KEEP)

    targets = {p: read_topic(broker.bootstrap, f"java.{p.topic}")[p.number] for p in PARTITIONS}
    assert_restored({n: p.truth() for n, p in enumerate(PARTITIONS)}, {n: targets[p] for n, p in enumerate(PARTITIONS)})
    compared = 0
    for partition, target in targets.items():
        end = log_ends(broker.bootstrap, f"java.{partition.topic}")[partition.number]
        for group, committed in json.loads(partition.group_bytes()).items():
            stand = positions(broker.bootstrap, group)[f"java.{partition.topic}", partition.number]
            assert stand.offset == expected_offset(committed, partition.truth(), target, end)
            compared += 1
    assert compared == 14
    assert report["records"] == sum(len(p.truth()) for p in PARTITIONS)
    assert {key: java.store.get(key) for key in java.objects()} == before
    report_key = layout.restore_key(report["restore_id"], layout.REPORT)
    assert report_key in archive.objects()


def test_a_folder_that_a_killed_sink_left(broker: Broker, kbackup: Kbackup, archive: Archive, tmp_path: Path) -> None:
    """The same plan, when the restore is gone on with, reads the same."""
    folder = torn_folder(tmp_path / "java")
    java = Archive(f"file://{folder}", FileStore(folder))
    options = ["--map-regex", "^=torn.", "--no-groups", "--state", archive.url, *_KEEP]
    report = kbackup.restore(java, *options)
    assert report["records"] == sum(len(p.truth()) for p in PARTITIONS)
    for partition in PARTITIONS:
        target = read_topic(broker.bootstrap, f"torn.{partition.topic}")[partition.number]
        assert_restored({0: partition.truth()}, {0: target})
    told = "\n".join(report["warnings"])
    assert all(f"file {file} {what}" in told for file, what in FLAWS.items())


def test_records_too_far_ahead_are_refused_before_anything_is_written(kbackup: Kbackup, tmp_path: Path) -> None:
    """Its indexes know no timestamps: they are read from the records."""
    java = Archive(f"file://{ROOT}/archive", FileStore(ROOT / "archive"))
    arguments = ["-t", "orders.v1", "--map-regex", "^=future.", "--state", str(tmp_path), "--no-groups"]
    error = kbackup.restore(java, *arguments, code=1)["error"]
    assert "nothing was written" in error["message"]
    assert "topic future.orders.v1 refuses timestamps more than 3600000 ms ahead" in error["message"]
    assert "message.timestamp.after.max.ms" in f"{error['message']} {error['hint']}"


def test_same_records_and_threshold_give_the_same_bytes(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    own = [p for p in PARTITIONS if p.topic == "orders.v1"]
    broker.create_topic(topic_name, len(own), config=topics.ANY_FUTURE)
    groups: set[str] = set()
    for partition in own:
        _fill(broker, topic_name, partition)
        for group, offset in json.loads(partition.group_bytes()).items():
            commit(broker.bootstrap, group, {(topic_name, partition.number): Position(offset)})
            groups.add(group)
    options = ["--compression=none", f"--segment-bytes={THRESHOLD}", *(f"--group={g}" for g in groups)]
    kbackup.backup(archive, "-t", topic_name, *options)
    written = {e.key.rpartition("/")[2]: e.key for e in archive.store.list(layout.topic_dir(topic_name))}
    compared = 0
    for path in sorted((ROOT / "archive" / "orders.v1").iterdir()):
        if "partition_001" in path.name and "consumer" not in path.name:
            continue  # empty: the Java tool names a segment without records, we name none
        ours = archive.store.get(written.pop(path.name))
        if "consumer_offsets" in path.name:
            assert json.loads(ours) == json.loads(path.read_bytes()), path.name
        else:
            assert ours == path.read_bytes(), path.name
        compared += 1
    assert compared == 2 * (7 + 1) + 2 + 3
    assert written.keys() == {"index_partition_001"}


def _fill(broker: Broker, topic: str, partition: Partition) -> None:
    records: list[Record] = [
        (
            r.key,
            r.value,
            NO_TIMESTAMP if r.timestamp is None else r.timestamp,
            [(name.encode(), value) for name, value in r.headers],
        )
        for r in partition.truth()
    ]
    if records:
        assert raw_produce(broker.bootstrap, topic, partition.number, records) == 0
