"""Real backups on a real S3 server expire: what stays is restored record by record, and backups and copies go on."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from kbackup.archive import layout
from kbackup.archive.lease import HeldLease
from kbackup.archive.reader import open_archive
from kbackup.jobs.verify import verify
from kbackup.metrics.registry import Silent
from scripts.dev.kafka import Broker
from tests.integration.conftest import Archive, Kbackup
from tests.support.truth import (
    Position,
    archive_records,
    assert_restored,
    commit,
    documented_records,
    positions,
    read_topic,
)

DAY = 86_400_000


def fill(broker: Broker, topic: str, numbers: range, days_ago: int) -> None:
    producer = Producer(broker.client(log_level=0))
    at = int(time.time() * 1000) - days_ago * DAY
    for n in numbers:
        producer.produce(topic, b"%d " % n * 20, str(n), n % 2, timestamp=at + n)
    assert producer.flush(30) == 0


def check_whole(archive: Archive, spark: SparkSession) -> None:
    report = verify(archive.store, "all", False, lambda: spark, Silent())
    assert (report.findings, [note for note in report.notes if note.bytes]) == ((), [])


def restored(kbackup: Kbackup, archive: Archive, *arguments: str) -> str:
    prefix = f"back-{secrets.token_hex(4)}"
    report = kbackup.restore(archive, *arguments, "--map-regex", rf"^(.*)$={prefix}.\1", "--restore-id", prefix)
    assert report["missing"] == []
    return prefix


def test_retained_points_are_restored_and_backups_go_on(
    broker: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive], spark: SparkSession
) -> None:
    """Four restore points: 100 days, 50 days and no time ago; the second is kept by policy with the last two."""
    archive, copy = new_archive(), new_archive()
    name = secrets.token_hex(6)
    topic, kept, group = f"aging-{name}", f"aging-compacted-{name}", f"aging-group-{name}"
    broker.create_topic(topic, partitions=3, config={"retention.ms": "-1"})
    broker.create_topic(kept, partitions=2, config={"cleanup.policy": "compact"})
    options = ["--topic", topic, "--topic", kept, "--group", group, "--segment-bytes", "2KB"]
    for round_, (days, at) in enumerate([(100, 20), (50, 60), (0, 110), (0, 150)]):
        fill(broker, topic, range(100 * round_, 100 * (round_ + 1)), days)
        fill(broker, kept, range(20 * round_, 20 * (round_ + 1)), days)
        commit(broker.bootstrap, group, {(topic, 0): Position(at, f"m{at}"), (topic, 1): Position(at, "")})
        kbackup.backup(archive, *options)
        if round_ == 1:
            assert kbackup("copy", copy.url, "--archive", archive.url).code == 0
    points = open_archive(archive.store)
    before = {number: archive_records(archive.store, topic, points.restore_point(number)) for number in (3, 4)}

    policy = [archive.url, "--keep-last", "2", "--older-than", "70d"]
    objects = archive.objects()
    told = kbackup("expire", *policy).document
    assert {key for key, etag in archive.objects().items() if objects[key] != etag} == set(), "a dry run"
    assert (told["records"], told["spared"]) == (100, [kept])
    assert [bool(p["reasons"]) for p in told["restore_points"]] == [False, False, True, True]
    with HeldLease(archive.store, "kbackup backup", 60):
        done = kbackup("expire", *policy, "--confirm")
    assert (done.code, done.document["deleted"]) == (0, 0), "its grace time has begun"
    assert [p["number"] for p in kbackup("list", archive.url).document["restore_points"]] == [3, 4]
    assert kbackup("expire", archive.url, "--undo").document["restore_points"] == [1, 2]
    check_whole(archive, spark)
    assert kbackup("expire", *policy, "--confirm").code == 0
    assert archive.objects().keys() > objects.keys()
    assert kbackup("expire", archive.url, "--grace", "0s", "--confirm").document["deleted"] > 20
    check_whole(archive, spark)

    unknown = kbackup("restore", archive.url, "--restore-point", "2", "--dry-run")
    assert unknown.code == 2
    assert "restore point 2 expired or was lost" in unknown.document["error"]["message"]
    whole = open_archive(archive.store)
    for number, records in before.items():
        left = {p: [r for r in some if r.offset >= 50] for p, some in records.items()}  # 100 days are 50 each
        assert archive_records(archive.store, topic, whole.restore_point(number)) == left
    prefix = restored(kbackup, archive, "--restore-point", "3")
    assert_restored(
        {p: [r for r in some if r.offset >= 50] for p, some in before[3].items()},
        read_topic(broker.bootstrap, f"{prefix}.{topic}"),
    )
    assert_restored(
        archive_records(archive.store, kept, whole.restore_point(3)), read_topic(broker.bootstrap, f"{prefix}.{kept}")
    )
    stand = positions(broker.bootstrap, group)
    assert stand[f"{prefix}.{topic}", 0].offset == 110 - 50
    assert stand[f"{prefix}.{topic}", 1].offset == 110 - 50

    fill(broker, topic, range(400, 450), 0)
    assert kbackup.backup(archive, *options)["restore_point"] == 5
    check_whole(archive, spark)
    found = documented_records(archive.store, layout.topic_dir(topic))
    assert [len(found[p]) for p in (0, 1, 2)] == [175, 175, 0]
    assert [r.offset for r in found[0]] == list(range(50, 225)), "as the Java tool would read it"

    copied = kbackup("copy", copy.url, "--archive", archive.url)
    assert copied.document["restore_points"] == [3, 4, 5]
    assert kbackup("expire", copy.url, "--grace", "0s", "--confirm").code == 0
    check_whole(copy, spark)
    assert archive_records(copy.store, topic) == archive_records(archive.store, topic)
    listed = kbackup("list", copy.url).document
    assert [p["number"] for p in listed["restore_points"]] == [3, 4, 5]
    kinds = [row["kind"] for row in kbackup("log", archive.url).document["history"]]
    assert [kind for kind in kinds if kind in ("expire", "undo")] == ["expire", "undo", "expire"]


def test_pins_on_a_real_server(kbackup: Kbackup, broker: Broker, archive: Archive) -> None:
    topic = f"pinned-{secrets.token_hex(6)}"
    broker.create_topic(topic)
    for n in range(3):
        fill(broker, topic, range(10 * n, 10 * n + 10, 2), 0)
        kbackup.backup(archive, "--topic", topic)
    assert kbackup("keep", "1", "--archive", archive.url).document["pinned"] == [1]
    shown = kbackup("expire", archive.url, "--keep-last", "1", "--confirm").document
    assert {p["number"]: p["reasons"] for p in shown["restore_points"]} == {1: ["pinned"], 2: [], 3: ["last"]}
    assert kbackup("keep", "2", "--archive", archive.url).code == 2
    assert kbackup("release", "1", "--archive", archive.url).document["pinned"] == []
    assert kbackup("release", "1", "--archive", archive.url).code == 2
    assert kbackup("expire", archive.url, "--keep-last", "0").code == 2
    assert kbackup("expire", archive.url, "--older-than", "soon").code == 2
