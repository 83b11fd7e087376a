"""python -m scripts.soak.serve [--minutes N]: memory of `kbackup serve` while consumers read an archive repeatedly.

The archive is larger than what the server keeps of it. Each consumer (librdkafka, in a process of its own) reads all of
it, commits, closes its connections, and begins again. One line for each half minute. It fails if a consumer does not
get every record, or if memory grows by more than `_MOST_GROWTH` for each GiB that was sent.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import linear_regression
from typing import NamedTuple

from kbackup.store import open_store
from scripts.bench.processes import cpu_of, resident_of
from scripts.bench.serve import TOPIC, make_archive, serving

_PARTITIONS = 2
_MOST_GROWTH = 1.0
"""MiB for each GiB that was sent, after the first third of the time: by then the server holds what it may."""

CONSUMER = """
import sys
from confluent_kafka import Consumer, TopicPartition
address, topic, partitions, records, group = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
while True:
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "enable.auto.commit": False, "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    count, size = 0, 0
    while count < partitions * records:
        found = consumer.consume(10000, 5)
        count += len(found)
        size += sum(len(message) for message in found)
        if size > 1 << 25:
            # A line at once: others write into the same file.
            sys.stdout.write(f"{size}\\n")
            sys.stdout.flush()
            size = 0
    assert count == partitions * records, count
    consumer.commit(offsets=[TopicPartition(topic, p, records) for p in range(partitions)], asynchronous=False)
    consumer.close()
"""


class Sample(NamedTuple):
    """The server's memory at a moment, and what consumers had read by then, in MiB."""

    second: float
    resident: float
    read: float


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak.serve", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--consumers", type=int, default=6)
    parser.add_argument("--records", type=int, default=300_000, help="of each of two partitions")
    parser.add_argument("--memory", default="128MiB", help="of the server, for records")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="kbackup-soak-") as folder:
        archive = f"{folder}/archive"
        make_archive(open_store(archive, {}), options.records, _PARTITIONS, "zstd")
        with serving(archive, ["--memory", options.memory]) as (address, pid):
            samples = _watched(address, pid, Path(folder, "read"), options)
    settled = [sample for sample in samples if sample.second > 20 * options.minutes]
    growth = 1024 * linear_regression([s.read for s in settled], [s.resident for s in settled]).slope
    print(f"{growth:+.2f} MiB of memory for each GiB that was sent, after the first third", flush=True)
    if growth > _MOST_GROWTH:
        sys.exit("memory grows")


def _watched(address: str, pid: int, log: Path, options: argparse.Namespace) -> list[Sample]:
    """Let consumers read for the time of the run, and return samples of the server's memory. The log gets the bytes
    that they read."""
    own = [str(_PARTITIONS), str(options.records)]
    argv = [sys.executable, "-c", CONSUMER, address, TOPIC, *own]
    samples: list[Sample] = []
    with log.open("ab") as out:
        running = [subprocess.Popen([*argv, f"soak-{n}"], stdout=out) for n in range(options.consumers)]
    try:
        began = time.monotonic()
        while time.monotonic() < began + 60 * options.minutes:
            time.sleep(5)
            assert all(process.poll() is None for process in running), "a consumer has ended"
            read = sum(int(line) for line in log.read_text().split())
            now = Sample(time.monotonic() - began, resident_of(pid) / (1 << 20), read / (1 << 20))
            samples.append(now)
            if len(samples) % 6 == 0:
                print(
                    f"{now.second:.0f} s: {now.resident:.0f} MiB, {now.read / 1024:.1f} GiB read, "
                    f"{cpu_of(pid):.0f} s of CPU",
                    flush=True,
                )
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()
    return samples


if __name__ == "__main__":
    main()
