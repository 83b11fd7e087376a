"""Applications that keep offsets of their own go on with a cluster that was restored with the same offsets, without a
record lost or read twice."""

from __future__ import annotations

import json
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from scripts.dev.jars import kafka_jars
from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.support.java import Java, compiled
from tests.support.truth import log_ends, read_topic

PARTITIONS = 2


@pytest.fixture(scope="module")
def rebuilt() -> Iterator[Broker]:
    """The cluster into which everything is restored."""
    with Broker() as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    """Records of transactions and others, in logs that do not begin at 0."""
    name = f"kept-{secrets.token_hex(4)}"
    broker.create_topic(name, PARTITIONS)
    for partition in range(PARTITIONS):
        topics.produce(broker, name, partition, topics.numbered(40, f"plain-{partition}"), key=b"a")
        topics.committed(broker, name, partition, topics.numbered(20, f"whole-{partition}"))
        topics.aborted(broker, name, partition, topics.numbered(7))
        topics.produce(broker, name, partition, topics.numbered(30, f"late-{partition}"), key=b"b")
    topics.delete_records(broker, name, {0: 15})
    return name


@pytest.fixture
def move(broker: Broker, rebuilt: Broker, kbackup: Kbackup, archive: Archive) -> Callable[..., None]:
    """Move topics and groups to the rebuilt cluster, by way of the archive."""

    def moved(*selected: str) -> None:
        kbackup.backup(archive, *selected)
        restored = kbackup.restore(archive, "--same-offsets", "--bootstrap-server", rebuilt.bootstrap)
        assert restored["missing"] == []

    return moved


def _append_more(broker: Broker, topic: str) -> None:
    for partition in range(PARTITIONS):
        topics.produce(broker, topic, partition, topics.numbered(25, f"new-{partition}"), key=b"c")


def _read(
    broker: Broker, topic: str, positions: dict[int, int], isolation: str, most: int | None = None
) -> list[Message]:
    """Read up to `most` records from the positions on, or to the ends of the logs, and move the positions."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "keeps-its-own-offsets",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    begins = [TopicPartition(topic, n, positions.get(n, OFFSET_BEGINNING)) for n in range(PARTITIONS)]
    consumer.assign(begins)
    records: list[Message] = []
    ended: set[int | None] = set()
    try:
        while len(ended) < PARTITIONS and (most is None or len(records) < most):
            message = consumer.poll(60)
            assert message is not None, "nothing came"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
                continue
            records.append(message)
            positions[message.partition() or 0] = (message.offset() or 0) + 1
    finally:
        consumer.close()
    return records


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_consumer_with_its_offsets_in_a_file_goes_on(
    isolation: str, topic: str, broker: Broker, rebuilt: Broker, move: Callable[..., None], tmp_path: Path
) -> None:
    file = tmp_path / "offsets.json"
    positions: dict[int, int] = {}
    before = _read(broker, topic, positions, "read_committed", most=73)
    file.write_text(json.dumps(positions))

    move("-t", topic)
    _append_more(rebuilt, topic)

    kept = {int(number): offset for number, offset in json.loads(file.read_text()).items()}
    after = _read(rebuilt, topic, kept, isolation)
    got = sorted((each.partition(), each.offset(), each.value()) for each in [*before, *after])
    whole = read_topic(rebuilt.bootstrap, topic, isolation)
    assert got == [(number, record.offset, record.value) for number in sorted(whole) for record in whole[number]]
    assert kept == log_ends(rebuilt.bootstrap, topic)


@dataclass
class CheckpointedJob:
    """A job that counts values by key, and stores its state and its offsets in one checkpoint, as Flink does."""

    checkpoint: Path
    counts: Counter[str] = field(default_factory=Counter)
    positions: dict[int, int] = field(default_factory=dict)

    def run(self, broker: Broker, topic: str, most: int | None = None) -> None:
        for record in _read(broker, topic, self.positions, "read_committed", most):
            self.counts[(record.key() or b"").decode()] += 1

    def save(self) -> None:
        self.checkpoint.write_text(json.dumps([self.counts, self.positions]))

    @classmethod
    def restored(cls, checkpoint: Path) -> CheckpointedJob:
        counts, positions = json.loads(checkpoint.read_text())
        return cls(checkpoint, Counter(counts), {int(number): offset for number, offset in positions.items()})


def test_a_job_that_stores_offsets_with_its_state_counts_each_record_once(
    topic: str, broker: Broker, rebuilt: Broker, move: Callable[..., None], tmp_path: Path
) -> None:
    job = CheckpointedJob(tmp_path / "checkpoint.json")
    job.run(broker, topic)
    job.save()
    # What it has read since its last checkpoint is lost with it, and is read again.
    _append_more(broker, topic)
    job.run(broker, topic, most=31)

    move("-t", topic)
    _append_more(rebuilt, topic)

    again = CheckpointedJob.restored(job.checkpoint)
    again.run(rebuilt, topic)
    expected: Counter[str] = Counter()
    for records in read_topic(rebuilt.bootstrap, topic).values():
        expected.update((record.key or b"").decode() for record in records)
    assert again.counts == expected


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    """The application, with the store that Kafka Streams keeps its state in: Spark brings it as well."""
    spark = find_spec("pyspark")
    assert spark is not None
    (store,) = Path(_folder_of(spark.origin), "jars").glob("rocksdbjni-*.jar")
    folder = tmp_path_factory.mktemp("rocksdb")
    (folder / store.name).symlink_to(store)
    with compiled("CountingStream.java", jars=(kafka_jars, lambda: folder)) as java:
        yield java


def _folder_of(origin: str | None) -> Path:
    assert origin is not None
    return Path(origin).parent


def _count(
    java: Java, broker: Broker, topic: str, application: str, state: Path, records: int
) -> tuple[int, dict[str, int]]:
    """Let the application read so many records. Return how many it read of its changelog, and its counts."""
    printed = java.run("CountingStream", broker.bootstrap, topic, application, str(state), str(records))
    lines = dict(line.split("\t") for line in printed.splitlines())
    restored = int(lines.pop("restored"))
    return restored, {key: int(count) for key, count in lines.items()}


def test_a_streams_application_goes_on_with_the_state_in_its_directory(
    java: Java, broker: Broker, rebuilt: Broker, move: Callable[..., None], tmp_path: Path
) -> None:
    name = f"streams-{secrets.token_hex(4)}"
    broker.create_topic(name, 1)
    for number in range(8):
        topics.committed(broker, name, 0, topics.numbered(5, f"words-{number}"))
    application, state, kept = f"{name}-app", tmp_path / "state", tmp_path / "kept"
    assert _count(java, broker, name, application, state, 40) == (0, {"k": 40})
    changelog = f"{application}-counts-changelog"
    assert log_ends(broker.bootstrap, changelog)[0] > 40, "markers of its transactions lie between its counts"
    # The directory is kept as of now, and the application goes on for a while.
    shutil.copytree(state, kept)
    for number in range(20):
        topics.produce(broker, name, 0, [b"once"], key=b"later-%d" % number)
    later = {f"later-{number}": 1 for number in range(20)}
    assert _count(java, broker, name, application, state, 20) == (0, {"k": 40, **later})

    move("-t", name, "-t", changelog, "-g", application)
    topics.produce(rebuilt, name, 0, topics.numbered(12, "more"), key=b"k")
    topics.produce(rebuilt, name, 0, topics.numbered(3, "other"), key=b"other")

    # It reads of its changelog what came since the directory was kept, and nothing before.
    assert _count(java, rebuilt, name, application, kept, 15) == (20, {"k": 52, "other": 3, **later})
