"""python -m scripts.bench --latency: from produce at A to visible at B, by both halves of a mirror that follow and by a
MirrorMaker 2 beside them, in the same run from one source into one target."""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, Producer

from scripts.bench.text import grid
from scripts.dev.kafka import Broker
from scripts.dev.mirrormaker import MirrorMaker
from scripts.dev.process import Process

TOPIC, PARTITIONS = "latency", 4
OURS, THEIRS = "K", "A"
"""The source's alias in our flow and in MirrorMaker 2's: their remote topics stand side by side."""
_NAMES = {OURS: "kbackup mirror", THEIRS: "MirrorMaker 2"}
_READY = 180.0  # s, until both have copied the first record
_DRAIN = 60.0  # s, for the last records to arrive


@dataclass
class Reader:
    """Reads a remote topic as its consumers do, and notes how old each record is when it arrives, in seconds."""

    broker: Broker
    topic: str
    ages: list[float] = field(default_factory=list)
    stopped: bool = False

    def run(self) -> None:
        consumer = Consumer(
            self.broker.client(
                **{
                    "group.id": f"latency of {self.topic}",
                    "auto.offset.reset": "earliest",
                    "isolation.level": "read_committed",
                    "fetch.wait.max.ms": 10,
                    "topic.metadata.refresh.interval.ms": 200,
                    "log_level": 0,
                }
            )
        )
        consumer.subscribe([self.topic])
        while not self.stopped:
            for message in consumer.consume(500, 0.05):
                if message.error() is None:
                    sent, _ = struct.unpack(">qq", message.value() or b"")
                    self.ages.append((time.time_ns() - sent) / 1e9)
        consumer.close()


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    with ExitStack() as stack:
        source, target = stack.enter_context(Broker()), stack.enter_context(Broker())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kbackup-latency-")))
        source.create_topic(TOPIC, PARTITIONS)
        stack.enter_context(MirrorMaker(_flow(THEIRS, source, target)))
        halves = _start_halves(folder, _flow(OURS, source, target), options.interval)
        stack.callback(halves.kill)
        readers = {alias: Reader(target, f"{alias}.{TOPIC}") for alias in _NAMES}
        threads = [threading.Thread(target=reader.run, daemon=True) for reader in readers.values()]
        for thread in threads:
            thread.start()
        _measure(source, readers, options.rate, options.seconds, halves)
        for reader in readers.values():
            reader.stopped = True
        for thread in threads:
            thread.join()
    rows = [_row(alias, reader, options.rate * options.seconds) for alias, reader in readers.items()]
    columns = ("what", "records", "median s", "p99 s", "most s")
    print("\n".join(grid(columns, [[str(row[name]) for name in columns] for row in rows])))
    if options.json is not None:
        settings = {"rate": options.rate, "seconds": options.seconds, "interval": options.interval}
        options.json.write_text(json.dumps({**settings, "rows": rows}, indent=1) + "\n")
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench --latency", description=__doc__)
    parser.add_argument("--rate", type=int, default=1000, help="records a second")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--interval", default="1s", help="between restore points of the take half")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def _flow(alias: str, source: Broker, target: Broker) -> dict[str, str]:
    return {
        "clusters": f"{alias}, B",
        f"{alias}.bootstrap.servers": source.bootstrap,
        "B.bootstrap.servers": target.bootstrap,
        f"{alias}->B.enabled": "true",
        f"{alias}->B.topics": TOPIC,
        f"B->{alias}.enabled": "false",
        f"B->{alias}.emit.heartbeats.enabled": "false",
        "replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
        "heartbeats.topic.replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
    }


def _start_halves(folder: Path, properties: dict[str, str], interval: str) -> Process:
    """Both halves, in one process."""
    file = folder / "mm2.properties"
    file.write_text("".join(f"{name} = {value}\n" for name, value in properties.items()))
    argv = [
        *(sys.executable, "-m", "kbackup", "mirror", "run", str(file)),
        *("--archive", str(folder / "{source}"), "--interval", interval),
    ]
    return Process(argv, folder / "log")


def _measure(source: Broker, readers: dict[str, Reader], rate: int, seconds: int, halves: Process) -> None:
    """Produce one record until both have copied it, then `rate` records a second."""
    producer = Producer(source.client(**{"linger.ms": 0}))
    _send(producer, 0)
    producer.flush(30)
    halves.wait_ready(lambda: all(reader.ages for reader in readers.values()), "both mirrors", _READY)
    for reader in readers.values():
        reader.ages.clear()
    began = time.monotonic()
    for number in range(1, rate * seconds + 1):
        ahead = began + number / rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        _send(producer, number)
        producer.poll(0)
    assert producer.flush(30) == 0
    last = rate * seconds
    halves.wait_ready(
        lambda: all(len(reader.ages) >= last for reader in readers.values()), "the last records", _DRAIN
    )


def _send(producer: Producer, number: int) -> None:
    producer.produce(TOPIC, struct.pack(">qq", time.time_ns(), number), partition=number % PARTITIONS)


def _row(alias: str, reader: Reader, count: int) -> dict[str, object]:
    ages = sorted(reader.ages)
    assert len(ages) == count, f"{_NAMES[alias]}: {len(ages)} records of {count}"
    return {
        "what": _NAMES[alias],
        "records": count,
        "median s": round(ages[len(ages) // 2], 3),
        "p99 s": round(ages[len(ages) * 99 // 100], 3),
        "most s": round(ages[-1], 3),
    }
