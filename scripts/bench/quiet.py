"""python -m scripts.bench --quiet: 10,000 partitions of a real broker in which nothing is new. What a backup does with
each of them all the same: ask for its ends, and compare its last record with the archive's."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kbackup.archive.models import LastRecord
from kbackup.errors import ClusterError
from kbackup.jobs.backup.log_check import BATCH, TUNING, Expected, compare, positions, read_seen
from kbackup.jobs.capture import live_topics
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.consume import RangeReader, validate_epochs
from kbackup.kafka.kernel import selected_kernel
from kbackup.types import OffsetRange, TopicPartition
from scripts.bench import data
from scripts.bench.text import grid
from scripts.dev.kafka import Broker

_PARTITIONS = 10_000
_TOPIC_PARTITIONS = 1000
_SIZE = 1024
_LED = 300.0  # s
_TARGET = 30.0  # s, to compare all of them


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    # a node with this many partitions on a busy machine is late with its heartbeats
    with Broker({"broker.session.timeout.ms": "60000"}) as broker:
        partitions = _fill(broker, options)
        seconds = _measure(broker, partitions, options.records)
    said = "met" if seconds["compare"] * _PARTITIONS / len(partitions) < _TARGET else "NOT MET"
    rows = [(name, f"{took:.2f}") for name, took in seconds.items()]
    print("\n".join(grid(("step", "s"), rows)))
    print(
        f"{len(partitions):,} partitions, the {selected_kernel().name} kernel; target {_TARGET:.0f} s: {said}"
    )
    if options.json is not None:
        options.json.write_text(json.dumps({"partitions": len(partitions), "seconds": seconds}) + "\n")
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench --quiet", description=__doc__)
    add = parser.add_argument
    add("--partitions", type=int, default=_PARTITIONS)
    add("--records", type=int, default=10, help="archived records of a partition (10)")
    add("--new", type=int, default=0, help="records of a partition that are not archived yet (0)")
    add("--json", type=Path, metavar="FILE")
    return parser.parse_args(arguments)


def _fill(broker: Broker, options: argparse.Namespace) -> list[TopicPartition]:
    admin = AdminClient(broker.client())
    pool = list(data.records(_SIZE, 0, options.records + options.new))
    partitions: list[TopicPartition] = []
    while (remaining := options.partitions - len(partitions)) > 0:
        topic, here = f"quiet-{len(partitions):06d}", min(remaining, _TOPIC_PARTITIONS)
        admin.create_topics([NewTopic(topic, here, 1)])[topic].result(120)
        partitions += [TopicPartition(topic, p) for p in range(here)]
        print(f"{len(partitions):,} partitions", end="\r", file=sys.stderr, flush=True)
    _wait_led(broker, partitions)
    producer = Producer(broker.client(**{"linger.ms": 50, "queue.buffering.max.messages": 1_000_000}))
    for at, (key, value, timestamp) in enumerate(pool):
        for topic, partition in partitions:
            producer.produce(topic, value, key, partition, timestamp=timestamp)
        if at % 10 == 9 and producer.flush(300):
            raise SystemExit("the broker did not take the records")
    if producer.flush(300):
        raise SystemExit("the broker did not take the records")
    return partitions


def _measure(broker: Broker, partitions: Sequence[TopicPartition], records: int) -> dict[str, float]:
    """Seconds by step. The first reading gives what an archive would know; the comparison follows on a new client."""
    seconds: dict[str, float] = {}

    def step(name: str, work: Callable[[], object]) -> None:
        began = time.perf_counter()
        work()
        seconds[name] = round(time.perf_counter() - began, 2)

    cluster = Cluster(broker.client(), "source")
    cluster.connect()
    topics = cluster.topics(sorted({tp.topic for tp in partitions}))
    step("ask for ends", lambda: live_topics(cluster, topics, "read_committed"))
    ranges = [OffsetRange(*tp, records - 1, records) for tp in partitions]
    expected: list[Expected] = []
    reader = _reader(broker)
    for at in range(0, len(ranges), BATCH):
        seen = read_seen(reader, ranges[at : at + BATCH])
        expected += [
            Expected(r, (LastRecord(offset=r.start, leader_epoch=s.leader_epoch, digest=s.digests[r.start]),))
            for r in ranges[at : at + BATCH]
            for s in [seen[r.tp]]
        ]
    reader.close()

    def compare_all() -> None:
        reader = _reader(broker)
        if compare(reader, expected, exact=True).diverged:
            raise SystemExit("a log differs from itself")
        reader.close()

    def validate_all() -> None:
        if any(
            validate_epochs(
                broker.client(), {e.range.tp: positions(e, 0)[0] for e in expected}, "bench", 120.0
            )
        ):
            raise SystemExit("a log was truncated, or gave no answer")

    step("compare", compare_all)
    step("validate epochs, were no record there", validate_all)
    return seconds


def _wait_led(broker: Broker, partitions: Sequence[TopicPartition]) -> None:
    """Until every partition answers a new client: a node takes a while to lead so many, and a client remembers that a
    topic was not known."""
    until = time.monotonic() + _LED
    while True:
        try:
            Cluster(broker.client(), "source").log_ends(partitions, "read_committed")
        except ClusterError:
            if time.monotonic() > until:
                raise
            time.sleep(2)
        else:
            return


def _reader(broker: Broker) -> RangeReader:
    return RangeReader(broker.client(), "read_committed", "bench", 60.0, BATCH, tuning=TUNING)
