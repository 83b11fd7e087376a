"""python -m scripts.bench.serve: what `kbackup serve` sends, from a directory and from MinIO.

`kbackup serve` is a process of its own, and so is each consumer (librdkafka). Records a second are of the server's
processor time: so many it sends where it has a core for itself, whatever else runs here. Beside them stands what the
consumers saw on this machine.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kbackup.archive.models import PartitionState, TopicState
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import PartitionWriter, SegmentTarget
from kbackup.formats.record import encode
from kbackup.store import open_store
from kbackup.store.base import Store
from kbackup.types import RECORDS
from scripts.bench.processes import cpu_of, peak_of
from scripts.dev.s3 import Minio
from tests.support.archives import commit_point

TOPIC = "events"
_BLOCK = 20_000
_VALUE = 500
_START = 1_700_000_000_000

CONSUMER = """
import json, sys, time
from confluent_kafka import Consumer, TopicPartition
address, topic, partitions, expected = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
began = time.monotonic()
consumer = Consumer({"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False,
    "auto.offset.reset": "earliest", "queued.max.messages.kbytes": 262144, "log_level": 0})
consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
first, count = None, 0
while count < expected:
    found = consumer.consume(10000, 5)
    if found and first is None:
        first = time.monotonic() - began
    count += len(found)
print(json.dumps({"first": first, "seconds": time.monotonic() - began}))
consumer.close()
"""


@dataclass(frozen=True)
class Measured:
    """A server with some consumers: its processor seconds and peak of memory, and the consumers' own seconds."""

    cpu: float
    peak: int
    first: float
    seconds: float
    records: int

    def __str__(self) -> str:
        by_cpu = self.records / self.cpu
        here = self.records / self.seconds
        return (
            f"{by_cpu:,.0f} records a second of the server's CPU; {here:,.0f} a second on this machine; "
            f"first record after {self.first:.2f} s; peak {self.peak >> 20} MiB"
        )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="of each partition")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--consumers", type=int, default=50)
    parser.add_argument("--stores", default="directory,minio")
    parser.add_argument("--compressions", default="zstd,none")
    options = parser.parse_args(argv)
    with ExitStack() as stack:
        for name in options.stores.split(","):
            for compression in options.compressions.split(","):
                url, arguments, store = stack.enter_context(_opened(name, compression))
                make_archive(store, options.records, options.partitions, compression)
                label = f"{name}, {compression}"
                total = options.records * options.partitions
                with serving(url, arguments) as (address, pid):
                    print(f"{label}, one consumer: {_measure(address, pid, 1, options.partitions, total)}", flush=True)
                with serving(url, arguments) as (address, pid):
                    found = _measure(address, pid, options.consumers, options.partitions, total // 10)
                    print(f"{label}, {options.consumers} consumers: {found}", flush=True)


@contextmanager
def _opened(name: str, compression: str) -> Iterator[tuple[str, list[str], Store]]:
    if name == "directory":
        with tempfile.TemporaryDirectory(prefix="kbackup-bench-") as folder:
            yield folder, [], open_store(folder, {})
        return
    with Minio() as server:
        bucket = f"bench-{compression}"
        server.create_bucket(bucket)
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(server.toml)
            file.flush()
            from tests.conftest import options_of

            url = f"s3://{bucket}/archive"
            yield url, ["--config", file.name], open_store(url, {"s3": options_of(server)})


def make_archive(store: Store, records: int, partitions: int, compression: str) -> None:
    """Write an archive of one topic with records of 540 bytes in the documented encoding."""
    archive = open_or_create(store)
    chance = np.random.default_rng(49)
    words = [f'"field{n}": "{chance.integers(1 << 40):x}", ' for n in range(2000)]
    values: list[bytes] = []
    for _ in range(_BLOCK):
        text = "{" + "".join(words[n] for n in chance.integers(0, len(words), 30))
        values.append(text.encode()[:_VALUE].ljust(_VALUE))
    states: list[PartitionState] = []
    added: list[Segment] = []
    for partition in range(partitions):
        target = SegmentTarget(TOPIC, 1, partition, 128 << 20, compression)
        own: list[Segment] = []
        with PartitionWriter(store, target) as writer:
            for first in range(0, records, _BLOCK):
                count = min(_BLOCK, records - first)
                rows = {
                    "offset": pa.array(range(first, first + count), pa.int64()),
                    "timestamp_type": pa.array([0] * count, pa.int8()),
                    "timestamp": pa.array(range(_START + first, _START + first + count), pa.int64()),
                    "key": pa.array([b"key %07d" % n for n in range(count)], pa.large_binary()),
                    "value": pa.array(values[:count], pa.large_binary()),
                    "headers": pa.array([[]] * count, RECORDS.field("headers").type),
                }
                own += writer.append(encode(pa.RecordBatch.from_pydict(rows, schema=RECORDS)))
            own += writer.finish()
        added += own
        size = sum(segment.bytes for segment in own)
        state = PartitionState(
            partition=partition, start=0, end=records, log_start=0, log_end=records, records=records, bytes=size
        )
        states.append(state)
    topic = TopicState(name=TOPIC, id="", incarnation=1, captured=1, state="present", partitions=tuple(states))
    commit_point(archive, 1, topics=[topic], segments=added)


@contextmanager
def serving(url: str, arguments: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Run `kbackup serve`; give its address and its process."""
    argv = [sys.executable, "-m", "kbackup", "serve", url, "--listen", "127.0.0.1:0", "--json=line", *arguments]
    began = time.monotonic()
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        shown = json.loads(process.stdout.readline())
        print(f"serving after {time.monotonic() - began:.2f} s", flush=True)
        print(f"memory before the first reader: {peak_of(process.pid) >> 20} MiB", flush=True)
        yield shown["bootstrap_servers"], process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def _measure(address: str, pid: int, consumers: int, partitions: int, each: int) -> Measured:
    before = cpu_of(pid)
    argv = [sys.executable, "-c", CONSUMER, address, TOPIC, str(partitions), str(each)]
    running = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(consumers)]
    found = [json.loads(process.communicate()[0]) for process in running]
    cpu = cpu_of(pid) - before
    return Measured(
        cpu,
        peak_of(pid),
        max(each["first"] for each in found),
        max(each["seconds"] for each in found),
        each * consumers,
    )


if __name__ == "__main__":
    main()
