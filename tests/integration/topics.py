"""Topics with everything that Kafka lets into a log, and the ways a log changes between two backups."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewPartitions

from scripts.dev.kafka import Broker
from scripts.dev.process import HANG
from tests.support.kafka_raw import NO_TIMESTAMP, Record, raw_produce
from tests.support.truth import log_ends, read_topic

FAR_FUTURE = 253_402_300_799_000  # the last second of the year 9999
ANY_FUTURE = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}
MIB = 1 << 20
BINARY = bytes(range(256))

ODD_RECORDS: list[Record] = [
    (b"", b"", 1_600_000_000_001, []),
    (None, b"v", 1_599_999_999_000, []),  # earlier than the one before
    (b"k", None, 0, []),
    (None, None, NO_TIMESTAMP, []),
    (b"k", b"v", FAR_FUTURE, [(b"h", None)]),
    (b"k", b"v", 1, [(b"h", b"")]),
    (b"k", b"v", 1_600_000_000_002, [(b"", b"x"), (b"", None)]),
    (b"k", b"v", 1_600_000_000_002, [(b"h", b"1"), (b"h", b"2"), (b"g", BINARY), (b"h", b"1")]),
    ("schlüssel".encode(), "Größe 你好 🎉".encode(), 1_600_000_000_003, [("schlüssel-键-🎉".encode(), b"\0\xff")]),
    (BINARY, BINARY * 9, 1_600_000_000_004, [(f"h{n}".encode(), bytes(n)) for n in range(60)]),
]


_QUEUED = 50_000  # records: librdkafka's queue takes 100,000


def produce(broker: Broker, topic: str, partition: int, values: Iterable[bytes | None], **more: int | bytes) -> None:
    """Records with `values`; `timestamp` and `key` as confluent-kafka's produce() has them."""
    producer = Producer(broker.client(**{"message.max.bytes": 20 * MIB, "linger.ms": 5}))
    options: dict[str, int | bytes] = {"timestamp": 1_700_000_000_000, **more}
    failed: list[str] = []
    for value in values:
        producer.produce(
            topic,
            value,
            partition=partition,
            on_delivery=lambda error, _: failed.append(error.str()) if error else None,
            **options,  # type: ignore[arg-type]
        )
        while len(producer) > _QUEUED:
            producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failed


def numbered(count: int, name: str = "value") -> list[bytes]:
    return [f"{name}-{n}".encode() for n in range(count)]


def begin(broker: Broker, topic: str, partition: int, values: Iterable[bytes]) -> Producer:
    """A transaction whose records are in the log and which is still open."""
    # longer than what the tests do meanwhile takes on a busy machine: the coordinator would end it
    timeout = {"transaction.timeout.ms": 600_000}
    producer = Producer(broker.client(**{"transactional.id": f"{topic}-{time.monotonic_ns()}", **timeout}))
    producer.init_transactions(60)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, b"k", partition, timestamp=1_700_000_000_000)
    assert producer.flush(60) == 0
    return producer


def committed(broker: Broker, topic: str, partition: int, values: Iterable[bytes]) -> None:
    begin(broker, topic, partition, values).commit_transaction(60)


def aborted(broker: Broker, topic: str, partition: int, values: Iterable[bytes]) -> None:
    begin(broker, topic, partition, values).abort_transaction(60)


def delete_records(broker: Broker, topic: str, before: Mapping[int, int]) -> None:
    """Move the log starts, as retention would."""
    admin = AdminClient(broker.client())
    for future in admin.delete_records([TopicPartition(topic, p, at) for p, at in before.items()]).values():
        future.result(30)


def delete_topic(broker: Broker, topic: str) -> None:
    admin = AdminClient(broker.client())
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=30).topics)


def add_partitions(broker: Broker, topic: str, total: int) -> None:
    admin = AdminClient(broker.client())
    admin.create_partitions([NewPartitions(topic, total)])[topic].result(30)
    wait_until(lambda: len(admin.list_topics(topic, timeout=30).topics[topic].partitions) == total)
    wait_until(lambda: _leads(broker, topic, total))


def _leads(broker: Broker, topic: str, partitions: int) -> bool:
    """Return whether each partition has a leader that knows the partition."""
    try:
        return len(log_ends(broker.bootstrap, topic)) == partitions
    except KafkaException:
        return False


def set_config(broker: Broker, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient(broker.client())
    admin.incremental_alter_configs([resource])[resource].result(30)


def wait_until(true: Callable[[], bool], patience: float = HANG) -> None:
    until = time.monotonic() + patience
    while not true():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.1)


def make_odd(broker: Broker, topic: str) -> None:
    """All kinds of records in partition 0, nothing in 1, plain ones in 2."""
    broker.create_topic(topic, 3, config=ANY_FUTURE)
    raw_produce(broker.bootstrap, topic, 0, ODD_RECORDS)
    for record in ODD_RECORDS:
        raw_produce(broker.bootstrap, topic, 0, [record])
    produce(broker, topic, 2, numbered(50))


def make_stamped(broker: Broker, topic: str) -> None:
    """The broker's own time in each record."""
    broker.create_topic(topic, 1, config={"message.timestamp.type": "LogAppendTime"})
    produce(broker, topic, 0, [*numbered(20), None])


def make_big(broker: Broker, topic: str) -> None:
    broker.create_topic(topic, 1, config={"max.message.bytes": str(6 * MIB)})
    produce(broker, topic, 0, [os.urandom(5 * MIB), b"small", os.urandom(5 * MIB)])


def make_compacted(broker: Broker, topic: str) -> None:
    """Keys that come again, and tombstones; `wait_compacted` until the cleaner has been there."""
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "1000",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "86400000",
    }
    broker.create_topic(topic, 1, config=config)
    for round_ in range(4):  # each in a log segment of its own: their times are a minute apart
        stamp = 1_700_000_000_000 + round_ * 60_000
        for key in range(12):
            value = None if (round_, key) == (2, 5) else f"{round_}-{key}".encode() * 5
            if key % 4 >= round_ or key == 5:
                produce_key(broker, topic, f"key-{key}", value, stamp)


def produce_key(broker: Broker, topic: str, key: str, value: bytes | None, stamp: int) -> None:
    raw_produce(broker.bootstrap, topic, 0, [(key.encode(), value, stamp, [])])


def wait_compacted(broker: Broker, topic: str) -> None:
    """Until of each key that the closed log segments hold only the last record is there."""
    end = log_ends(broker.bootstrap, topic)[0]

    def holes() -> int:
        return end - len(read_topic(broker.bootstrap, topic)[0])

    wait_until(lambda: holes() > 0)
    before = -1
    while before != (found := holes()):
        before = found
        time.sleep(1.5)  # three rounds of the cleaner


def make_ledger(broker: Broker, topic: str) -> None:
    """Transactions: an aborted one last in 0, a committed one last in 1, none but aborted ones in 2."""
    broker.create_topic(topic, 3)
    committed(broker, topic, 0, numbered(10, "a"))
    aborted(broker, topic, 0, numbered(5, "b"))
    produce(broker, topic, 0, numbered(3, "c"))
    committed(broker, topic, 0, numbered(10, "d"))
    aborted(broker, topic, 0, numbered(20, "e"))
    aborted(broker, topic, 1, numbered(4, "f"))
    committed(broker, topic, 1, numbered(7, "g"))
    aborted(broker, topic, 2, numbered(9, "h"))


def make_trimmed(broker: Broker, topic: str) -> None:
    """Logs that start past 0; nothing is left in partition 1."""
    broker.create_topic(topic, 2)
    produce(broker, topic, 0, numbered(60))
    produce(broker, topic, 1, numbered(10))
    delete_records(broker, topic, {0: 25, 1: 10})


def make_long(broker: Broker, topic: str) -> None:
    broker.create_topic(topic, 1)
    produce(broker, topic, 0, numbered(3_700, "a value that is not so short"), key=b"key")


def make_plain(broker: Broker, topic: str) -> None:
    broker.create_topic(topic, 2)
    produce(broker, topic, 0, numbered(40))
    produce(broker, topic, 1, numbered(40, "other"))
