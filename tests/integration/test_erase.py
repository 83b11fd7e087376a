"""A person's records leave an archive on a real S3 server, by a real cluster and every reader that kbackup has."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

from kbackup.archive import layout
from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import open_archive
from kbackup.jobs.verify import verify
from kbackup.library.reading import ArchiveReader
from kbackup.metrics.registry import Silent
from kbackup.serve.logs import Choosing
from kbackup.serve.service import ArchiveServer, Listening, serving_in_thread
from scripts.dev.kafka import Broker
from tests.integration.conftest import Archive, Kbackup
from tests.support.confluent_registry import ConfluentRegistry
from tests.support.truth import Position, Records, archive_records, commit, plain_records, positions, read_topic

PERSON = b"person-7"


def fill(broker: Broker, topic: str, numbers: range) -> None:
    """A record of each number; every tenth is of the person, the others are of others."""
    producer = Producer(broker.client(log_level=0))
    for number in numbers:
        key = PERSON if number % 10 == 7 else b"other-%d" % (number % 5)
        producer.produce(topic, b"%d " % number * 20, key, number % 2)
    assert producer.flush(30) == 0


def of_others(records: Records) -> Records:
    return {partition: [record for record in own if record.key != PERSON] for partition, own in records.items()}


def check_whole(archive: Archive, spark: SparkSession) -> None:
    report = verify(archive.store, "all", False, lambda: spark, Silent())
    assert report.findings == ()


def objects_with(archive: Archive, text: bytes) -> list[str]:
    """The objects that have a text, decompressed where they are segments."""
    found: list[str] = []
    for entry in archive.store.list():
        is_records = entry.key.startswith(layout.TOPICS) and "_records" in entry.key
        data = plain_records(archive.store, entry.key) if is_records else archive.store.get(entry.key)
        if text in data:
            found.append(entry.key)
    return found


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_no_reader_finds_an_erased_record_and_backups_go_on(
    broker: Broker,
    kbackup: Kbackup,
    new_archive: Callable[[], Archive],
    spark: SparkSession,
    tmp_path: Path,
    compression: str,
) -> None:
    archive, copy = new_archive(), new_archive()
    name = secrets.token_hex(6)
    topic, group = f"customers-{name}", f"readers-{name}"
    broker.create_topic(topic, partitions=2)
    options = ["--topic", topic, "--group", group, "--segment-bytes", "2KB", "--compression", compression]
    for start in (0, 100, 200):
        fill(broker, topic, range(start, start + 100))
        # offset 7 // 2 of partition 1 is the person's first record
        commit(broker.bootstrap, group, {(topic, 1): Position(3, "")})
        kbackup.backup(archive, *options)
    assert kbackup("copy", copy.url, "--archive", archive.url).code == 0
    points = open_archive(archive.store)
    before = {number: archive_records(archive.store, topic, points.restore_point(number)) for number in (1, 2, 3)}
    plan = f"begun-{name}"
    kbackup.restore(archive, "--map", f"{topic}={plan}", "--restore-id", plan)

    keys = tmp_path / "request.txt"
    keys.write_bytes(PERSON + b"\n")
    asked = ("erase", archive.url, "--topic", topic, "--key-file", str(keys))
    assert kbackup(*asked).document["records"] == 30
    erased = kbackup(*asked, "--reason", "request 113", "--confirm")
    assert (erased.code, erased.document["records"]) == (0, 30)
    assert kbackup(*asked).document["records"] == 0

    # the archive, by all restore points, the library and a copy
    now = open_archive(archive.store)
    for number, records in before.items():
        assert archive_records(archive.store, topic, now.restore_point(number)) == of_others(records)
    check_whole(archive, spark)
    keys_read: set[bytes | None] = set()
    for batch in ArchiveReader(archive.store).records(topic, columns=["key"]):
        keys_read.update(batch.column("key").to_pylist())
    assert len(keys_read) == 5
    assert PERSON not in keys_read
    choosing = Choosing(Selection.of((topic,), ()), "latest", None, False)
    with serving_in_thread(ArchiveServer(archive.store, choosing, Listening(port=0))) as serving:
        assert read_topic(serving.bootstrap, topic) == of_others(before[3])
    assert kbackup("copy", copy.url, "--archive", archive.url).code == 0
    assert archive_records(copy.store, topic, open_archive(copy.store).restore_point(2)) == of_others(before[2])
    check_whole(copy, spark)

    # a restore of an older restore point, and its group; what was restored before is no longer compared
    target = f"back-{name}"
    report = kbackup.restore(
        archive, "--restore-point", "2", "--map", f"{topic}={target}", "--map-group", f"{group}={target}"
    )
    assert report["missing"] == []
    restored = read_topic(broker.bootstrap, target)
    expected = of_others(before[2])
    for partition, own in restored.items():
        assert [record.value for record in own] == [record.value for record in expected[partition]]
    # the group had committed the offset of an erased record: it goes on at the next one
    following = min(record.offset for record in expected[1] if record.offset >= 3)
    place = [record.offset for record in expected[1]].index(following)
    assert positions(broker.bootstrap, target)[target, 1].offset == restored[1][place].offset
    refused = kbackup("verify", archive.url, "--against", "target", "--restore-id", plan)
    assert "was planned before records of" in refused.document["error"]["message"]

    # the cluster that still has the records is no difference, and the next backup goes on
    against = kbackup("verify", archive.url, "--against", "source", "--topic", topic)
    assert (against.code, against.document["findings"]) == (0, [])
    fill(broker, topic, range(300, 350))
    assert kbackup.backup(archive, *options)["losses"] == []
    assert kbackup(*asked).document["records"] == 5

    # after the grace time nothing of it is in the bucket
    kbackup(*asked, "--confirm")
    assert kbackup("expire", archive.url, "--confirm", "--grace", "0s").code == 0
    assert objects_with(archive, PERSON) == []
    check_whole(archive, spark)


def test_keys_of_a_registrys_serializer_are_erased_by_their_json(
    broker: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive]
) -> None:
    archive = new_archive()
    topic = f"customers-{secrets.token_hex(6)}"
    broker.create_topic(topic)
    schema = """{"type": "record", "name": "Customer", "fields": [
      {"name": "id", "type": "long"}, {"name": "shop", "type": ["null", "string"]}]}"""
    producer = Producer(broker.client(log_level=0))
    with ConfluentRegistry() as registry:
        serialize = AvroSerializer(SchemaRegistryClient({"url": registry.url}), schema)
        context = SerializationContext(topic, MessageField.KEY)
        for number in range(6):
            producer.produce(topic, b"%d" % number, serialize({"id": number % 3, "shop": None}, context))
        assert producer.flush(30) == 0
        kbackup.backup(archive, "--topic", topic, "--schema-registry", registry.url)
    # The registry is gone: the archive has its schemas.
    asked = ("erase", archive.url, "--topic", topic, "--key-json", '{"shop": null, "id": 1.0}')
    assert kbackup(*asked, "--confirm").document["records"] == 2
    assert kbackup(*asked).document["records"] == 0
    records = archive_records(archive.store, topic, open_archive(archive.store).restore_point(1))
    assert [record.value for record in records[0]] == [b"0", b"2", b"3", b"5"]

    # One key that nobody can decode: nothing is erased.
    producer.produce(topic, b"6", b"\0\0\0\0\x63?")
    assert producer.flush(30) == 0
    kbackup.backup(archive, "--topic", topic)
    refused = kbackup("erase", archive.url, "--topic", topic, "--key-json", '{"id": 2, "shop": null}', "--confirm")
    assert refused.code == 2
    assert "the keys of 1 record can't be compared with JSON" in refused.document["error"]["message"]
