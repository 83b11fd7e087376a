"""python -m scripts.bench.native: what a record costs in the compiled and in the plain code, in processor time.

Nanoseconds of the thread that calls, the least of `--rounds`: of reading, of sending with its delivery reports, of
counting and mapping the ids of schemas, and of making batches. librdkafka's own threads, which cost the same for both,
are left out. Brokers are librdkafka's, in memory. Counting, mapping and batches take the code that `KBACKUP_KERNEL`
names.
"""

from __future__ import annotations

import argparse
import random
import struct
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
from confluent_kafka import Producer

from kbackup.formats.schema_ids import SchemaCounter, make_map, rewrite
from kbackup.kafka.batches import log_batches
from kbackup.kafka.client import Connection
from kbackup.kafka.messages import MessageSource
from kbackup.kafka.record_clients import open_kernel_sink, open_message_sink
from kbackup.native.batch_kernel import write_records
from kbackup.native.contract import RecordSink, Source
from kbackup.native.source import KernelSource
from kbackup.types import Int64Array, OffsetRange, RecordBlock, TopicPartition
from tests.support.mock_cluster import mock_cluster

RECORDS = 30_000  # of 100 bytes: a mock broker keeps no more than 5 MB of a partition
IDS = 7
TOPICS: dict[str, list[tuple[str, str | bytes | None]]] = {
    "no-headers": [],
    "two-headers": [("a", b"xx"), ("bb", None)],
}
"""Topics, and the headers of their records."""
READING = {"group.id": "bench", "enable.partition.eof": True, "auto.offset.reset": "error"}
SENDING = {"queue.buffering.max.messages": 200_000, "enable.idempotence": True, "linger.ms": 5}

SOURCES: dict[str, Callable[..., Source]] = {"compiled": KernelSource, "plain": MessageSource}
SINKS: dict[str, Callable[..., RecordSink]] = {"compiled": open_kernel_sink, "plain": open_message_sink}


def nanoseconds(work: Callable[[], object]) -> float:
    """Return the processor time that a record takes this thread."""
    began = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - began) / RECORDS


def fill_topic(servers: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": servers, **SENDING})
    noise = random.Random(1)
    for number in range(RECORDS):
        value = struct.pack(">BI", 0, 1 + number % IDS) + noise.randbytes(95)
        producer.produce(topic, value, b"key%d" % number, 0, timestamp=number + 1, headers=TOPICS[topic])
    producer.flush()


def read(source: Source, topic: str) -> list[RecordBlock]:
    """Read all records of a topic."""
    blocks: list[RecordBlock] = []
    while sum(map(len, blocks)) < RECORDS:
        blocks += [result.block for result in source.take() if result.block is not None]
    return blocks


def measure_reading(source: Source, topic: str, rounds: int) -> tuple[float, list[RecordBlock]]:
    spent: list[float] = []
    blocks: list[RecordBlock] = []

    def read_again() -> None:
        blocks[:] = read(source, topic)

    for _ in range(rounds):
        source.start({TopicPartition(topic, 0): OffsetRange(topic, 0, 0, RECORDS)})
        time.sleep(0.2)  # so that the records are there
        spent.append(nanoseconds(read_again))
        source.stop(TopicPartition(topic, 0))
    return min(spent), blocks


def measure_sending(sink: RecordSink, topic: str, blocks: list[RecordBlock], rounds: int) -> float:
    """Measure the calls that send, and those that take the delivery reports."""
    spent: list[float] = []
    tp = TopicPartition(f"{topic}-again", 0)

    def send() -> None:
        for block in blocks:
            sink.send(tp, block)
        while sink.flush(10):
            pass
        sink.taken()

    for _ in range(rounds):
        spent.append(nanoseconds(send))
    return min(spent)


def count(counter: SchemaCounter, tp: TopicPartition, blocks: list[RecordBlock]) -> None:
    for block in blocks:
        counter.add(tp, block)


def map_ids(blocks: list[RecordBlock], schemas: Int64Array) -> None:
    for block in blocks:
        rewrite(block, schemas, ["value"])


def measure_ids(topic: str, blocks: list[RecordBlock], rounds: int) -> tuple[float, float]:
    tp = TopicPartition(topic, 0)
    schemas = make_map({"value": {number: number + IDS for number in range(1, IDS + 1)}})
    counting: list[float] = []
    mapping: list[float] = []
    for _ in range(rounds):
        own = [replace(block, data=block.data.copy()) for block in blocks]
        counting.append(nanoseconds(partial(count, SchemaCounter(), tp, own)))
        mapping.append(nanoseconds(partial(map_ids, own, schemas)))
    return min(counting), min(mapping)


def measure_batches(blocks: list[RecordBlock], rounds: int) -> tuple[float, float]:
    """Measure the kernel that writes records of batches, and whole batches of a log."""
    kernel: list[float] = []
    whole: list[float] = []
    out = np.empty(2 * sum(block.nbytes for block in blocks), np.uint8)
    times = np.zeros(2, np.int64)

    def write() -> None:
        for block in blocks:
            write_records(block.data, block.positions, block.lengths, 0, len(block), out, times)

    def write_log() -> None:
        for block in blocks:
            log_batches(block, [], 128 << 10)

    for _ in range(rounds):
        kernel.append(nanoseconds(write))
        whole.append(nanoseconds(write_log))
    return min(kernel), min(whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    with mock_cluster() as cluster:
        connection = Connection({"bootstrap.servers": cluster.bootstrap}, "source")
        for topic in TOPICS:
            fill_topic(cluster.bootstrap, topic)
            for client in SOURCES:
                with closing(SOURCES[client](connection, READING)) as source:
                    reading, blocks = measure_reading(source, topic, rounds)
                with closing(SINKS[client](connection, SENDING, "bench")) as sink:
                    sending = measure_sending(sink, topic, blocks, rounds)
                print(f"{topic}, {client}: reading {reading:.0f} ns a record, sending {sending:.0f}", flush=True)
            counting, mapping = measure_ids(topic, blocks, rounds)
            print(f"{topic}: counting schema ids {counting:.1f}, mapping them {mapping:.1f}", flush=True)
            kernel, whole = measure_batches(blocks, rounds)
            print(f"{topic}: records of batches {kernel:.1f}, whole batches of a log {whole:.1f}", flush=True)


if __name__ == "__main__":
    main()
