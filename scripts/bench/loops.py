"""The measured processes of `scripts.bench`: kbackup's jobs, and the bare loops that they are measured beside.

A child gets a spec, prepares, says that it is ready, waits for an answer, works, and says what it did. `consume` and
`produce` are what a script over confluent-kafka does: their settings are kbackup's, written out here so that the
yardstick stays as it is when kbackup's own change. `kernel` is kbackup's own reader whose blocks are thrown away;
`upload` its store, fed with the same number of bytes from memory.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from kbackup.archive import layout
from kbackup.config.models import Backup, Restore
from kbackup.errors import KbackupError
from kbackup.formats.schema_ids import SchemaCounter, make_map, rewrite
from kbackup.jobs.backup.job import backup
from kbackup.jobs.restore.job import RestoreResources, restore
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.kafka.consume import RangeReader
from kbackup.kafka.produce import BlockProducer
from kbackup.spark.session import build_session
from kbackup.store import S3Options, open_store
from kbackup.types import OffsetRange
from scripts.bench.processes import peak_of
from scripts.bench.servers import SCHEMA, shop_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Spec = dict[str, Any]
Words = dict[str, Any]

_ROOT = Path(__file__).parents[2]


class ChildError(KbackupError):
    """A measured process ended before its work was done."""


class Child:
    """A process that does one work of this module; a context manager that kills what is left of it."""

    def __init__(self, work: str, spec: Spec) -> None:
        context = get_context("spawn")  # a process without threads, clients and memory of this one
        self._work = work
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_WORKS[work], args=(spec, theirs))
        self._process.start()
        theirs.close()
        self.pid = self._process.pid or 0

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.join()

    def go(self) -> None:
        self._connection.send("go")

    def hear(self) -> Words:
        """Return the next message of the process."""
        try:
            words: Words = self._connection.recv()
        except EOFError:
            self._process.join()
            ended = f"{self._work} ended with exit code {self._process.exitcode}"
            raise ChildError(ended, "see what it said above") from None
        return words


@contextmanager
def children(specs: Sequence[Spec], work: str) -> Iterator[list[Child]]:
    """Start a child per spec; all of them are prepared and wait to be told to go."""
    with ExitStack() as stack:
        running = [stack.enter_context(Child(work, spec)) for spec in specs]
        for child in running:
            child.hear()
        yield running


def serve(parent: Connection, work: Callable[[], int]) -> None:
    """In a child: do `work`, which returns its records, when told, and say when (one clock for all processes), at
    what CPU and with how much memory."""
    parent.send({})
    parent.recv()
    began, cpu = time.monotonic(), time.process_time()
    records = work()
    ended, used = time.monotonic(), time.process_time() - cpu
    parent.send({"records": records, "began": began, "ended": ended, "cpu": used, "peak": peak_of()})


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


def consume(spec: Spec, parent: Connection) -> None:
    """Reads `partitions` of `topic` to their ends, and does no more than count."""
    consumer = Consumer({**_CONSUMER, "bootstrap.servers": spec["bootstrap"]})
    here = [TopicPartition(spec["topic"], p, 0) for p in spec["partitions"]]
    total = sum(consumer.get_watermark_offsets(each, timeout=_TIMEOUT)[1] for each in here)

    def work() -> int:
        remaining = total
        consumer.assign(here)
        while remaining > 0:
            messages = consumer.consume(10_000, _TIMEOUT)
            if not messages or messages[0].error() is not None:
                raise SystemExit("the bare consume loop got no records")
            remaining -= len(messages)
        return total

    serve(parent, work)
    consumer.close()


def kernel(spec: Spec, parent: Connection) -> None:
    """Reads and encodes `count` records of each of `partitions`, and drops them."""
    here = [OffsetRange(spec["topic"], p, 0, spec["count"]) for p in spec["partitions"]]
    source = {"bootstrap.servers": spec["bootstrap"]}
    reader = RangeReader(source, "read_committed", "bench", _TIMEOUT, len(here))
    for _ in reader.read([here[0]._replace(end=min(_WARM, spec["count"]))]):
        pass
    serve(parent, lambda: sum(len(block) for _, block in reader.read(here)))
    reader.close()


def upload(spec: Spec, parent: Connection) -> None:
    """Uploads `segments` objects of `segment_bytes`, each with an index of `index_bytes`; says `records`."""
    store = open_store(spec["store"], {"s3": S3Options(**spec["s3"])})
    noise = np.random.default_rng(1).integers(0, 256, _BLOCK, np.uint8)
    store.put(f"{spec['prefix']}/warm", b"")

    def work() -> int:
        for number in range(spec["segments"]):
            for name, size in (("records", spec["segment_bytes"]), ("index", spec["index_bytes"])):
                with store.upload(f"{spec['prefix']}/{number}_{name}") as sending:
                    sending.write(b"\1")
                    for at in range(0, size, _BLOCK):
                        sending.write(noise[: min(_BLOCK, size - at)])
                    sending.commit()
        return int(spec["records"])

    serve(parent, work)


def produce(spec: Spec, parent: Connection) -> None:
    """Sends `count` records to each of `partitions` of `topic`, with a delivery callback that checks for errors."""
    producer = Producer({**_PRODUCER, "bootstrap.servers": spec["bootstrap"]})
    producer.list_topics(spec["topic"], timeout=_TIMEOUT)
    pool = list(shop_records(spec["size"], 0, min(_POOL, spec["count"])))
    delivered = 0

    def delivery(error: KafkaError | None, _: Message) -> None:
        nonlocal delivered
        if error is not None:
            raise KafkaException(error)
        delivered += 1

    def work() -> int:
        send, poll, topic = producer.produce, producer.poll, spec["topic"]
        for partition in spec["partitions"]:
            for key, value, timestamp in itertools.islice(itertools.cycle(pool), spec["count"]):
                while True:
                    try:
                        send(topic, value, key, partition, on_delivery=delivery, timestamp=timestamp)
                        break
                    except BufferError:
                        poll(0.1)
            poll(0)
        producer.flush(_TIMEOUT)
        if delivered != spec["count"] * len(spec["partitions"]):
            raise SystemExit("the bare produce loop lost records")
        return delivered

    serve(parent, work)


def run_job(work: str, spec: Spec, parent: Connection) -> None:
    """Run kbackup's job `work`, on a session whose Python workers have begun."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    session = build_session(f"local[{spec['tasks']}]", {}, 1)
    _warm(session, spec["tasks"], spec["change"])
    parent.send({})
    parent.recv()
    store = open_store(spec["store"], {"s3": S3Options(**spec["s3"])}, key_class=layout.key_class)
    cluster, topic = {"bootstrap.servers": spec["bootstrap"]}, spec["topic"]
    reporter: Any = SimpleNamespace(phase=lambda name: parent.send({"phase": name}), progress=lambda *_: None)
    if work == "backup":
        options = Backup(topics=(topic,), **spec["options"])
        report = backup(options, cluster, store, lambda: session, reporter)
        totals = report.totals
        sizes = {"records": totals.records, "bytes": totals.bytes, "stored": totals.stored_bytes}
        parent.send({"phase": "", "seconds": report.seconds, "sizes": sizes})
    else:
        wanted = Restore(topics=(topic,), map={topic: spec["target"]}, **spec["options"])
        resources = RestoreResources(cluster, store, store, lambda: session, reporter)
        restored = restore(RestoreRequest.of(wanted), resources)
        parent.send({"phase": "", "seconds": restored.seconds, "sizes": {"records": restored.records}})
    session.stop()


def _count_nothing() -> None:
    SchemaCounter.add = lambda *_: None  # type: ignore[method-assign]


def _map_ids() -> None:
    """Give each value another id before it is sent."""
    schemas, send = make_map({"value": {SCHEMA: SCHEMA + 1}}), BlockProducer.send
    BlockProducer.send = lambda self, tp, block: send(  # type: ignore[method-assign]
        self, tp, rewrite(block, schemas, ["value"])[0]
    )


CHANGES: dict[str, Callable[[], None]] = {"": lambda: None, "nothing counted": _count_nothing, "ids mapped": _map_ids}
"""What the workers of a loop do otherwise than kbackup."""


def _warm(session: SparkSession, tasks: int, change: str) -> None:
    """Start the Python workers and have them import what tasks need: a cost of the start, not of the data."""

    def prepare(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from kbackup.jobs.restore import task as restore_task  # noqa: F401
        from kbackup.native import kernel
        from kbackup.store import s3  # noqa: F401

        kernel.selected_kernel()
        CHANGES[change]()
        time.sleep(0.5)  # so that each core takes one
        yield from batches

    session.range(tasks, numPartitions=tasks).mapInArrow(prepare, "id long").collect()


_WORKS: dict[str, Callable[[Spec, Connection], None]] = {
    "consume": consume,
    "kernel": kernel,
    "upload": upload,
    "produce": produce,
    "backup": partial(run_job, "backup"),
    "restore": partial(run_job, "restore"),
}
