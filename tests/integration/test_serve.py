"""`kbackup serve` with real clients: every record of a cluster through an archive, and the tools of Kafka."""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import kafka
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import open_archive
from kbackup.errors import KbackupError
from kbackup.serve.logs import Choosing
from kbackup.serve.service import ArchiveServer, Listening, Serving, serving_in_thread
from kbackup.store.base import Store
from scripts.dev.jars import kafka_jars, old_jars, zookeeper_jars
from scripts.dev.kafka import Broker, MirrorMaker
from scripts.dev.process import HANG
from tests.integration.conftest import Archive, Kbackup
from tests.integration.zoo import FIRST, SECOND, Zoo
from tests.support.archives import make_archive
from tests.support.java import KafkaTools, compiled
from tests.support.memory_store import MemoryStore
from tests.support.truth import Records, archive_records, in_archive, log_ends, log_starts, positions, read_topic
from tests.unit.formats.reference import Record

CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TOPICS = "org.apache.kafka.tools.TopicCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
PATIENT = ("--timeout-ms", str(int(HANG * 1000)))
"""How long the console consumer waits for its next record: on a busy machine as long as it takes."""


def serve(
    store: Store, *topics: str, point: str = "latest", to_time: int | None = None, follow: bool = False
) -> contextlib.AbstractContextManager[Serving]:
    """Serve an archive, or topics of it, on a free port."""
    choosing = Choosing(Selection.of(topics, ()), point, to_time, follow)
    return serving_in_thread(ArchiveServer(store, choosing, Listening(port=0)))


@pytest.fixture(scope="module")
def served(zoo: Zoo) -> Iterator[Serving]:
    """The newest restore point of the zoo."""
    with serve(zoo.archive.store) as serving:
        yield serving


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("name", SECOND)
def test_every_record_reads_as_it_was_in_the_cluster(zoo: Zoo, served: Serving, name: str, isolation: str) -> None:
    assert read_topic(served.bootstrap, zoo.topic(name), isolation) == zoo.held(name, 3)


def test_an_earlier_restore_point_has_the_records_of_its_day(zoo: Zoo) -> None:
    with serve(zoo.archive.store, point="1") as serving:
        for name in FIRST:
            assert read_topic(serving.bootstrap, zoo.topic(name)) == zoo.held(name, 1), name


@pytest.mark.parametrize("name", SECOND)
def test_logs_begin_and_end_where_those_of_the_restore_point_do(zoo: Zoo, served: Serving, name: str) -> None:
    topic = zoo.topic(name)
    point = open_archive(zoo.archive.store).restore_point("latest")
    (state,) = [state for state in point.topics if state.name == topic]
    for isolation in ("read_committed", "read_uncommitted"):
        assert log_ends(served.bootstrap, topic, isolation) == {p.partition: p.end for p in state.partitions}
    assert log_starts(served.bootstrap, topic) == {p.partition: p.start for p in state.partitions}


def _read_by_kafka_python(bootstrap: str, topic: str, isolation: str) -> dict[int, list[tuple[int, bytes | None]]]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level=isolation, max_partition_fetch_bytes=1 << 20
    )
    try:
        partitions = [kafka.TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        read: dict[int, list[tuple[int, bytes | None]]] = {tp.partition: [] for tp in partitions}
        until = time.monotonic() + HANG
        while any(consumer.position(tp, HANG * 1000) < ends[tp] for tp in partitions):
            assert time.monotonic() < until, f"no end of {topic} after {sum(map(len, read.values()))} records"
            for tp, records in consumer.poll(500).items():
                read[tp.partition] += [(record.offset, record.value) for record in records]
        return read
    finally:
        consumer.close()


@pytest.mark.parametrize("name", ["odd", "big", "compacted", "ledger", "trimmed"])
def test_kafka_python_reads_to_the_ends(zoo: Zoo, served: Serving, name: str) -> None:
    expected = {p: [(r.offset, r.value) for r in records] for p, records in zoo.held(name, 3).items()}
    for isolation in ("read_committed", "read_uncommitted"):
        assert _read_by_kafka_python(served.bootstrap, zoo.topic(name), isolation) == expected


def _shown(record: Record, partition: int) -> str:
    """The line of a record as Kafka's console consumer prints it."""
    key = "null" if record.key is None else record.key.decode()
    value = "null" if record.value is None else record.value.decode()
    kind = {0: "CreateTime", 1: "LogAppendTime"}[record.kind]
    return f"{kind}:{record.timestamp}\tPartition:{partition}\tOffset:{record.offset}\t{key}\t{value}"


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_javas_console_consumer_prints_every_record_of_some_topics(
    zoo: Zoo, served: Serving, broker: Broker, isolation: str
) -> None:
    expected: list[list[str]] = []
    topics = ("long", "stamped", "ledger", "compacted")
    for name in topics:
        for partition, records in zoo.held(name, 3).items():
            expected.append([_shown(record, partition) for record in records])
    count = sum(len(lines) for lines in expected)
    printed = broker.tool(
        CONSOLE,
        *("--bootstrap-server", served.bootstrap, "--include", "|".join(zoo.topic(name) for name in topics)),
        *("--from-beginning", "--isolation-level", isolation, "--max-messages", str(count), *PATIENT, *_ALL_FIELDS),
    )
    found = printed.splitlines()
    assert len(found) == count
    for lines in expected:
        of_partition = set(lines)
        assert [line for line in found if line in of_partition] == lines


def test_javas_console_consumer_reads_a_partition_from_an_offset(zoo: Zoo, served: Serving, broker: Broker) -> None:
    records = zoo.held("long", 3)[0]
    expected = [_shown(record, 0) for record in records[len(records) // 2 :]]
    printed = broker.tool(
        CONSOLE,
        *("--bootstrap-server", served.bootstrap, "--topic", zoo.topic("long"), "--partition", "0"),
        *("--offset", str(records[len(records) // 2].offset), "--max-messages", str(len(expected))),
        *(*PATIENT, *_ALL_FIELDS),
    )
    assert printed.splitlines() == expected


_ALL_FIELDS = (
    *("--formatter-property", "print.timestamp=true", "--formatter-property", "print.partition=true"),
    *("--formatter-property", "print.offset=true", "--formatter-property", "print.key=true"),
)


@pytest.fixture(scope="module")
def tools() -> Iterator[KafkaTools]:
    """Kafka's own tools of the newest release, and an application of Kafka Streams."""
    with compiled("Tools.java", "ReadingStream.java", jars=[kafka_jars]) as java, KafkaTools(java) as running:
        yield running


STREAMED = ("odd", "stamped", "ledger", "compacted", "trimmed", "long")


def test_a_streams_application_reads_every_record_and_commits(
    zoo: Zoo, served: Serving, tools: KafkaTools, tmp_path: Path
) -> None:
    expected: dict[tuple[str, int], list[str]] = {}
    ends: dict[tuple[str, int], int] = {}
    for name in STREAMED:
        topic = zoo.topic(name)
        for partition, records in zoo.held(name, 3).items():
            if records:
                expected[topic, partition] = [_streamed(topic, partition, record) for record in records]
                ends[topic, partition] = records[-1].offset + 1
    count = sum(len(lines) for lines in expected.values())
    refused = served.server.counts.refused
    application = ("ReadingStream", served.bootstrap, "reading", str(tmp_path), "print", str(count))
    printed = tools.run(*application, *(zoo.topic(name) for name in STREAMED))

    found: dict[tuple[str, int], list[str]] = {}
    for line in printed.splitlines():
        topic, number, _ = line.split("\t", 2)
        found.setdefault((topic, int(number)), []).append(line)
    assert found == expected
    committed = positions(served.bootstrap, "reading")
    # Behind the last record, or behind the marker of the transaction that follows it.
    assert {place for place, end in ends.items() if committed[place].offset >= end} == set(ends)
    assert served.server.counts.refused == refused, "its producer sends nothing"


def _streamed(topic: str, partition: int, record: Record) -> str:
    """The line of a record as the application prints it."""
    fields = [record.key, record.value]
    for name, value in record.headers:
        fields += [name.encode(), value]
    words = ["-" if each is None else base64.b64encode(each).decode() for each in fields]
    return "\t".join([topic, str(partition), str(record.offset), str(record.timestamp or 0), *words])


def test_a_streams_application_with_state_is_told_that_it_gets_no_topics(
    zoo: Zoo, served: Serving, tools: KafkaTools, tmp_path: Path
) -> None:
    with pytest.raises(KbackupError) as error:
        tools.run("ReadingStream", served.bootstrap, "counting", str(tmp_path), "count", "1", zoo.topic("long"))
    assert "Could not create topic counting-counts-changelog" in error.value.message
    assert "PolicyViolationException: read-only: an archive" in error.value.message


def test_kafkas_tools_show_topics_offsets_and_settings(zoo: Zoo, served: Serving, tools: KafkaTools) -> None:
    at = ("--bootstrap-server", served.bootstrap)
    listed = tools.run(TOPICS, *at, "--list").split()
    assert sorted(listed) == sorted(zoo.topic(name) for name in SECOND)

    described = tools.run(TOPICS, *at, "--describe", "--topic", zoo.topic("growing"))
    assert "PartitionCount: 4" in described
    assert "max.message.bytes=2000000" in described

    point = open_archive(zoo.archive.store).restore_point("latest")
    kept = [topic for topic in point.topics if topic.name != zoo.topic("gone")]
    for moment, bound in (("latest", "end"), ("earliest", "start")):
        expected = {f"{topic.name}:{p.partition}:{getattr(p, bound)}" for topic in kept for p in topic.partitions}
        assert set(tools.run(OFFSETS, *at, "--time", moment).split()) == expected


WRITES: dict[str, tuple[str, ...]] = {
    "create": (TOPICS, "--create", "--topic", "new"),
    "delete": (TOPICS, "--delete", "--topic", "{topic}"),
    "alter": (
        *("org.apache.kafka.tools.ConfigCommand", "--alter", "--entity-type", "topics", "--entity-name", "{topic}"),
        *("--add-config", "retention.ms=1"),
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_writes_is_refused_in_words(zoo: Zoo, served: Serving, tools: KafkaTools, name: str) -> None:
    tool, *words = (word.format(topic=zoo.topic("long")) for word in WRITES[name])
    with pytest.raises(KbackupError, match="read-only: an archive"):
        tools.run(tool, "--bootstrap-server", served.bootstrap, *words)


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_producer_is_refused(zoo: Zoo, served: Serving, idempotent: bool) -> None:
    errors: list[str] = []
    producer = Producer({"bootstrap.servers": served.bootstrap, "enable.idempotence": idempotent, "log_level": 0})
    producer.produce(zoo.topic("long"), b"v", on_delivery=lambda error, _: errors.append(error.name() if error else ""))
    assert producer.flush(HANG) == 0
    assert errors == ["POLICY_VIOLATION"]


def test_kbackups_own_backup_of_a_served_archive_is_equal(
    zoo: Zoo, served: Serving, kbackup: Kbackup, archive: Archive
) -> None:
    report = kbackup.backup(
        archive, "--bootstrap-server", served.bootstrap, "-t", f"/{zoo.prefix}-.*/", "--exclude-group", "/.*/"
    )
    assert report["losses"] == []
    expected = in_archive(zoo.archive.store)
    copied = in_archive(archive.store)
    assert copied == {tp: records for tp, records in expected.items() if tp.topic != zoo.topic("gone")}


def test_mirrormaker_2_copies_a_served_archive(broker: Broker) -> None:
    store = MemoryStore()
    point = make_archive(store).restore_point(1)
    with serve(store, point="1") as serving:
        properties = {
            "clusters": "served,target",
            "served.bootstrap.servers": serving.bootstrap,
            "target.bootstrap.servers": broker.bootstrap,
            "served->target.enabled": "true",
            "served->target.topics": ".*",
            "served->target.offset-syncs.topic.location": "target",
            "target->served.enabled": "false",
            "target->served.emit.heartbeats.enabled": "false",
        }
        with MirrorMaker(properties) as maker:
            for topic in ("orders", "clicks"):
                expected = _contents(archive_records(store, topic, point))
                maker.wait(0, partial(_has_records, broker, f"served.{topic}", expected), f"a copy of {topic}")
        assert serving.server.counts.failed == 0


def _contents(records: Records) -> dict[int, list[tuple[Any, ...]]]:
    return {partition: [tuple(record[1:]) for record in own] for partition, own in records.items()}


def _has_records(broker: Broker, topic: str, expected: dict[int, list[tuple[Any, ...]]]) -> bool:
    names = AdminClient(broker.client(log_level=0)).list_topics(timeout=30).topics
    return topic in names and _contents(read_topic(broker.bootstrap, topic)) == expected


RELEASES: dict[str, tuple[Callable[[], Path], str, str]] = {
    "2.8": (old_jars, "kafka.tools.ConsoleConsumer", "kafka.tools.GetOffsetShell"),
    "3.9": (zookeeper_jars, CONSOLE, OFFSETS),
    "4": (kafka_jars, CONSOLE, OFFSETS),
}


@pytest.mark.parametrize("release", RELEASES)
def test_tools_of_several_releases_read_a_topic(release: str) -> None:
    jars, console, offsets = RELEASES[release]
    store = MemoryStore()
    make_archive(store)
    address = "--broker-list" if release == "2.8" else "--bootstrap-server"
    expected = sorted(
        f"{record.offset}\t{(record.value or b'').decode()}"
        for records in archive_records(store, "orders").values()
        for record in records
    )
    tools_of_release = Broker(jars=jars)  # it is not started
    with serve(store) as serving:
        for isolation in ("read_committed", "read_uncommitted"):
            printed = tools_of_release.tool(
                console,
                *("--bootstrap-server", serving.bootstrap, "--topic", "orders", "--from-beginning"),
                *("--isolation-level", isolation, "--max-messages", str(len(expected)), *PATIENT),
                *("--property", "print.offset=true"),
            )
            lines = [line.removeprefix("Offset:") for line in printed.splitlines() if "value" in line]
            assert sorted(lines) == expected
        listed = tools_of_release.tool(offsets, address, serving.bootstrap, "--topic", "orders")
        assert listed.split() == ["orders:0:41", "orders:1:12", "orders:2:0"]
