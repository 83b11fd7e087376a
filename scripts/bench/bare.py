"""The bare loops that kbackup is measured beside: one part of the work alone, at the very least that it takes.

A process a loop. `consume` and `produce` are what a script over confluent-kafka does: their settings are kbackup's,
written out here so that the yardstick stays as it is when kbackup's own change. `kernel` is kbackup's own reader
whose blocks are thrown away; `upload` its store, fed with the same number of bytes from memory.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from kbackup.kafka.consume import RangeReader
from kbackup.store import S3Options, Store, open_store
from kbackup.types import OffsetRange
from scripts.bench import data
from scripts.bench.children import Spec, receive, serve

_POOL = 50_000  # records that are made before the clock starts, and sent in turns
_TIMEOUT = 60.0  # s
_WARM = 1000  # records that the reader takes before the clock starts
_BLOCK = (16 << 20) - 1  # bytes that a task hands to an upload at once
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
    remaining = sum(consumer.get_watermark_offsets(each, timeout=_TIMEOUT)[1] for each in here)
    serve(lambda: _consume(consumer, here, remaining))
    consumer.close()


def _consume(consumer: Consumer, here: Sequence[TopicPartition], remaining: int) -> int:
    total = remaining
    consumer.assign(list(here))
    while remaining > 0:
        messages = consumer.consume(10_000, _TIMEOUT)
        if not messages or messages[0].error() is not None:
            raise SystemExit("the bare consume loop got no records")
        remaining -= len(messages)
    return total


def kernel(spec: Spec) -> None:
    """Reads and encodes `count` records of each of `partitions`, and drops them."""
    here = [OffsetRange(spec["topic"], p, 0, spec["count"]) for p in spec["partitions"]]
    source = {"bootstrap.servers": spec["bootstrap"], **spec.get("cluster", {})}
    reader = RangeReader(source, "read_committed", "bench", _TIMEOUT, len(here))
    _drain(reader, [here[0]._replace(end=min(_WARM, spec["count"]))])
    serve(lambda: _drain(reader, here))
    reader.close()


def _drain(reader: RangeReader, ranges: Sequence[OffsetRange]) -> int:
    total = 0
    for _, block in reader.read(ranges):
        total += len(block)
    return total


def upload(spec: Spec) -> None:
    """Uploads `segments` objects of `segment_bytes`, each with an index of `index_bytes`; says `records`."""
    options = S3Options(**{**spec["s3"], **spec.get("s3_options", {})})
    store = open_store(spec["store"], options)
    noise = np.random.default_rng(1).integers(0, 256, _BLOCK, np.uint8)
    store.put(f"{spec['prefix']}/warm", b"")
    serve(lambda: _upload(store, spec, noise))


def _upload(store: Store, spec: Spec, noise: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> int:
    for number in range(spec["segments"]):
        for name, size in (("records", spec["segment_bytes"]), ("index", spec["index_bytes"])):
            with store.upload(f"{spec['prefix']}/{number}_{name}") as sending:
                sending.write(b"\1")
                for at in range(0, size, _BLOCK):
                    sending.write(noise[: min(_BLOCK, size - at)])
                sending.commit()
    return int(spec["records"])


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
    loops = {"consume": consume, "kernel": kernel, "upload": upload, "produce": produce}
    loops[sys.argv[1]](receive())
