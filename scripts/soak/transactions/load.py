"""Programs that write in transactions, each a process: producers over many partitions, and applications that copy a
topic exactly once. `python -m scripts.soak.transactions.load NAME ARGUMENT...` runs one of them until SIGTERM."""

from __future__ import annotations

import random
import signal
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from scripts.dev import classes
from scripts.dev.jars import kafka_jars
from scripts.dev.kafka import QUIET, SMALL, Broker
from scripts.dev.process import Process
from tests.support.truth import log_ends, positions, read_topic

APPS = ("librdkafka", "client", "streams")
INPUT = 4
"""Partitions of the applications' topics."""
VALUE = struct.Struct(">4i")
"""A record of the ledger: producer, transaction, how many records that has, which of them it is. A record of the input
and of its copies: partition and number."""
ENTRY = struct.Struct("<2qd")
"""Of a producer's journal: a transaction, 1 if committed or 0 if aborted, and when that was known (seconds since 1970).
Some transactions are not in it: the producer doesn't know."""
_LIMIT = 90.0  # s
_stopped: list[int] = []


def _client(servers: str, **own: Any) -> dict[str, Any]:
    return {"bootstrap.servers": servers, "log_level": 0, **{key.replace("_", "."): own[key] for key in own}}


def _run(servers: str, name: str, begin: Callable[[], None], transact: Callable[[Producer], None]) -> None:
    """Run transactions of that name; after an error, `begin` anew."""
    while not _stopped:
        producer = Producer(_client(servers, transactional_id=name, transaction_timeout_ms=10_000, linger_ms=0))
        try:
            producer.init_transactions(_LIMIT)
            begin()
            while not _stopped:
                transact(producer)
        except KafkaException as error:
            print(f"begins anew after {error}", flush=True)


def _produce(servers: str, topic: str, partitions: str, name: str, seed: str, journal: str) -> None:
    """Write transactions to two to eight partitions, as fast as they go; a tenth is aborted."""
    draw, number = random.Random(f"{seed} {name}"), 0
    entries = Path(journal).open("wb", buffering=0)  # noqa: SIM115 (until the end)

    def transact(producer: Producer) -> None:
        nonlocal number
        number += 1
        chosen = draw.sample(range(int(partitions)), draw.randint(2, 8))
        places = [partition for partition in chosen for _ in range(draw.randint(1, 3))]
        producer.begin_transaction()
        for index, partition in enumerate(places):
            producer.produce(topic, VALUE.pack(int(name), number, len(places), index), partition=partition)
        if committed := draw.random() > 0.1:
            producer.commit_transaction(_LIMIT)
        else:
            producer.flush(_LIMIT)  # so that brokers have what is aborted
            producer.abort_transaction(_LIMIT)
        entries.write(ENTRY.pack(number, committed, time.time()))

    _run(servers, f"{topic}-{name}", lambda: None, transact)


def _feed(servers: str, topic: str, rate: str) -> None:
    """Number the records of each of the input's partitions, `rate` a second in all."""
    producer = Producer(_client(servers, enable_idempotence=True, message_timeout_ms=0))
    began, number = time.monotonic(), 0
    while not _stopped:
        if len(producer) < 10_000 and number * INPUT < (time.monotonic() - began) * int(rate):
            for partition in range(INPUT):
                producer.produce(topic, VALUE.pack(partition, number, 0, 0), partition=partition)
            number += 1
        producer.poll(0.005)
    producer.flush(_LIMIT)


def _copy(servers: str, source: str, target: str, group: str) -> None:
    """Copy each record exactly once."""
    reading = {"isolation_level": "read_committed", "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    consumer = Consumer(_client(servers, group_id=group, **reading))

    def begin() -> None:
        consumer.unsubscribe()
        consumer.subscribe([source])

    def transact(producer: Producer) -> None:
        if records := [each for each in consumer.consume(200, 0.05) if each.error() is None]:
            producer.begin_transaction()
            for each in records:
                producer.produce(target, each.value(), partition=each.partition() or 0)
            reached = {each.partition() or 0: (each.offset() or 0) + 1 for each in records}
            ends = [TopicPartition(source, partition, offset) for partition, offset in reached.items()]
            producer.send_offsets_to_transaction(ends, consumer.consumer_group_metadata(), _LIMIT)
            producer.commit_transaction(_LIMIT)

    _run(servers, group, begin, transact)
    consumer.close()


@dataclass
class Load:
    """What runs at `broker`, over topics and groups that begin with `name`, files in `folder`. A context manager."""

    broker: Broker
    name: str
    folder: Path
    journals: list[Path] = field(default_factory=list)
    _running: dict[str, Process] = field(default_factory=dict)

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._running.values():
            process.kill()

    def produce(self, producers: int, partitions: int, seed: int, replication: int = 1) -> None:
        """Start producers to a topic of so many partitions."""
        self.broker.create_topic(topic := f"{self.name}-ledger", partitions, replication)
        self.journals = [self.folder / f"journal-{number}" for number in range(producers)]
        for number, journal in enumerate(self.journals):
            self._start(f"produce-{number}", "produce", topic, partitions, number, seed, journal)

    def feed(self, rate: int, replication: int = 1) -> None:
        """Start the applications, and their input of `rate` records a second."""
        for topic in ("input", *APPS):
            self.broker.create_topic(f"{self.name}-{topic}", INPUT, replication)
        self._start("feed", "feed", f"{self.name}-input", rate)
        self.copy(self.name)

    def copy(self, prefix: str) -> None:
        """Start the applications for the topics and groups that begin with `prefix`."""
        source, (first, *others) = f"{prefix}-input", [f"{prefix}-{app}" for app in APPS]
        self._start(first, "copy", source, first, first)
        options = ("-Xmx256m", *SMALL, QUIET, f"-Djava.io.tmpdir={self.folder}")
        java = [*classes.java(kafka_jars()), *options, str(Path(__file__).with_name("Copy.java"))]
        for app, name in zip(APPS[1:], others, strict=True):
            argv = [*java, app, self.broker.bootstrap, source, name, name]
            self._running[name] = Process(argv, self.folder / f"{name}.log")

    def end(self) -> None:
        """Stop the producers and the input, let the applications copy all of it, and stop them."""
        for key in [key for key in self._running if key.startswith(("produce", "feed"))]:
            self._running.pop(key).stop(_LIMIT)
        self.finish(self.name)
        topics = [f"{self.name}-{topic}" for topic in ("ledger", *APPS)]
        _wait(lambda: all(self._closed(topic) for topic in topics), "a transaction stays open")

    def finish(self, prefix: str) -> None:
        """Stop applications when they have copied all."""
        servers, source, groups = self.broker.bootstrap, f"{prefix}-input", [f"{prefix}-{app}" for app in APPS]
        ends = {(source, p): records[-1].offset for p, records in read_topic(servers, source).items() if records}

        def copied(group: str) -> bool:
            stand = positions(servers, group)
            return all(place in stand and stand[place].offset > end for place, end in ends.items())

        _wait(lambda: all(map(copied, groups)), f"the applications of {prefix} don't come to an end")
        for name in groups:
            self._running.pop(name).stop()

    def _closed(self, topic: str) -> bool:
        return log_ends(self.broker.bootstrap, topic) == log_ends(self.broker.bootstrap, topic, "read_uncommitted")

    def _start(self, key: str, program: str, *arguments: object) -> None:
        servers = self.broker.bootstrap_of("INTERNAL")
        argv = [sys.executable, "-m", __spec__.name, program, servers, *map(str, arguments)]
        self._running[key] = Process(argv, self.folder / f"{key}.log")


def _wait(done: Callable[[], bool], otherwise: str) -> None:
    until = time.monotonic() + 4 * _LIMIT
    while not done():
        assert time.monotonic() < until, otherwise
        time.sleep(0.2)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: _stopped.append(number))
    programs: dict[str, Callable[..., None]] = {"produce": _produce, "feed": _feed, "copy": _copy}
    programs[sys.argv[1]](*sys.argv[2:])
