"""The bare loops that kbackup is measured beside: what a script over confluent-kafka does at the very least.

A process a loop. The settings are kbackup's, written out here so that the yardstick stays as it is when kbackup's
own change.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from scripts.bench import data
from scripts.bench.children import Spec, receive, serve

_POOL = 50_000  # records that are made before the clock starts, and sent in turns
_TIMEOUT = 60.0  # s
_CONSUMER = {
    "log_level": 3,
    "group.id": "bench",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 32 << 10,
    "fetch.queue.backoff.ms": 10,
    "check.crcs": True,
}
_PRODUCER = {
    "log_level": 3,
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "batch.size": 1 << 20,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 64 << 10,
    "compression.type": "lz4",
}


def consume(spec: Spec) -> None:
    """Reads `partitions` of `topic` to their ends, and does no more than count."""
    consumer = Consumer({**_CONSUMER, "bootstrap.servers": spec["bootstrap"]})
    here = [TopicPartition(spec["topic"], p, 0) for p in spec["partitions"]]
    left = sum(consumer.get_watermark_offsets(each, timeout=_TIMEOUT)[1] for each in here)
    serve(lambda: _consume(consumer, here, left))
    consumer.close()


def _consume(consumer: Consumer, here: Sequence[TopicPartition], left: int) -> int:
    total = left
    consumer.assign(list(here))
    while left > 0:
        messages = consumer.consume(10_000, _TIMEOUT)
        if not messages or messages[0].error() is not None:
            raise SystemExit("the bare consume loop got no records")
        left -= len(messages)
    return total


def produce(spec: Spec) -> None:
    """Sends `count` records to each of `partitions` of `topic`, with a delivery callback that checks for errors."""
    producer = Producer({**_PRODUCER, "bootstrap.servers": spec["bootstrap"]})
    producer.list_topics(spec["topic"], timeout=_TIMEOUT)
    pool = list(data.records(spec["size"], 0, min(_POOL, spec["count"])))
    serve(lambda: _produce(producer, spec["topic"], spec["partitions"], pool, spec["count"]))


def _produce(
    producer: Producer, topic: str, partitions: Sequence[int], pool: Sequence[data.Record], count: int
) -> int:
    delivered = 0

    def delivery(error: KafkaError | None, _: Message) -> None:
        nonlocal delivered
        if error is not None:
            raise KafkaException(error)
        delivered += 1

    send, poll = producer.produce, producer.poll
    for partition in partitions:
        for key, value, timestamp in itertools.islice(itertools.cycle(pool), count):
            while True:
                try:
                    send(topic, value, key, partition, on_delivery=delivery, timestamp=timestamp)
                    break
                except BufferError:
                    poll(0.1)
        poll(0)
    producer.flush(_TIMEOUT)
    if delivered != count * len(partitions):
        raise SystemExit("the bare produce loop lost records")
    return delivered


if __name__ == "__main__":
    {"consume": consume, "produce": produce}[sys.argv[1]](receive())
