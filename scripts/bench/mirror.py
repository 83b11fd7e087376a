"""python -m scripts.bench.mirror: how long a record takes from produce in the source to visible in the target.

Both halves of a mirror, in one process or two, between topics of one broker. `--rounds` measures rounds of one record
in each partition, `--takeover` the time until a standby has applied a record after the first process has stopped.
"""

from __future__ import annotations

import argparse
import os
import signal
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Consumer, Producer

from scripts.dev.kafka import Broker
from scripts.dev.process import Process
from scripts.dev.s3 import Minio

TOPIC = "latency"
_READY = 180.0  # s, until the first record has arrived
_WARM = 8.0  # s
_DRAIN = 60.0  # s, for the last records to arrive


class Reader(threading.Thread):
    """Reads the remote topic, and notes how old each record is when it arrives, in seconds."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(daemon=True)
        self.ages: list[float] = []
        self.ended = False
        quick = {"fetch.wait.max.ms": 10, "topic.metadata.refresh.interval.ms": 200, "log_level": 0}
        settings = {"group.id": "bench", "auto.offset.reset": "earliest", "isolation.level": "read_committed", **quick}
        self._consumer = Consumer(broker.client(**settings))

    def run(self) -> None:
        self._consumer.subscribe([f"A.{TOPIC}"])
        while not self.ended:
            for message in self._consumer.consume(500, 0.05):
                if message.error() is None:
                    self.ages.append(time.time() - struct.unpack(">d", message.value() or b"")[0])
        self._consumer.close()

    def arrived(self, count: int, seconds: float = _DRAIN) -> str:
        """Wait for `count` records, and return their ages in words."""
        end = time.monotonic() + seconds
        while len(self.ages) < count and time.monotonic() < end:
            time.sleep(0.01)
        ages, self.ages = sorted(self.ages), []
        if len(ages) != count:
            raise SystemExit(f"{len(ages)} records of {count} arrived")
        middle, most = ages[count // 2], ages[count * 99 // 100]
        return f"median {middle:.3f} s, p99 {most:.3f} s, longest {ages[-1]:.3f} s"


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(jvm=()))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kbackup-bench-")))
        archive = str(folder / "{source}")
        if options.store == "minio":
            minio = stack.enter_context(Minio())
            minio.create_bucket("bench")
            archive = "s3://bench/{source}"
            os.environ.update(minio.env)
        broker.create_topic(TOPIC, options.partitions)
        file = folder / "mm2.properties"
        file.write_text(
            f"clusters = A, B\nA.bootstrap.servers = {broker.bootstrap}\nB.bootstrap.servers = {broker.bootstrap}\n"
            f"A->B.enabled = true\ntopics = {TOPIC}\nB->A.emit.heartbeats.enabled = false\nreplication.factor = 1\n"
            + "".join(f"{t}.topic.replication.factor = 1\n" for t in ("checkpoints", "heartbeats", "offset-syncs"))
        )

        def start(name: str, *more: str) -> Process:
            argv = [sys.executable, "-m", "kbackup", "mirror", "run", str(file), "--archive", archive]
            process = Process([*argv, "--interval", options.interval, "--look", options.look, *more], folder / name)
            stack.callback(process.kill)
            return process

        halves = [start("take", "--take"), start("apply", "--apply")] if options.apart else [start("both")]
        reader, producer = Reader(broker), Producer(broker.client(**{"linger.ms": 0}))
        reader.start()

        def send(partition: int) -> None:
            producer.produce(TOPIC, struct.pack(">d", time.time()), partition=partition)
            producer.poll(0)

        send(0)
        halves[0].wait_ready(lambda: bool(reader.ages), "the mirror", _READY)
        time.sleep(_WARM)
        reader.ages.clear()
        if not options.rounds:
            began = time.monotonic()
            for number in range(count := options.rate * options.seconds):
                time.sleep(max(0.0, began + number / options.rate - time.monotonic()))
                send(number % options.partitions)
            print(f"{options.rate:,} records/s: {reader.arrived(count)}", flush=True)
        for _ in range(options.rounds):
            for partition in range(options.partitions):
                send(partition)
            print(f"a record in each of {options.partitions:,} partitions: {reader.arrived(options.partitions)}")
            time.sleep(2)
        if options.takeover:
            start("standby")
            time.sleep(_WARM * 2)
            os.kill(halves[0].pid, signal.SIGSTOP)  # to be seen from here like a node that died elsewhere
            send(0)
            print(f"takeover: {reader.arrived(1)}")
        reader.ended = True
        reader.join()
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.mirror", description=__doc__)
    add = parser.add_argument
    add("--store", choices=("minio", "file"), default="minio")
    add("--interval", default="100ms", help="between restore points")
    add("--look", default="500ms", help="between looks of an apply half")
    add("--apart", action="store_true", help="a process for each half")
    add("--partitions", type=int, default=4)
    add("--rate", type=int, default=1000, help="records a second")
    add("--seconds", type=int, default=30)
    add("--rounds", type=int, default=0, help="of one record in each partition, in place of a rate")
    add("--takeover", action="store_true", help="stop the first process at the end")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
