"""The cluster and the store that are measured against, and the records that are in it: JSON of an exact size behind a
registry's frame, no two alike, that compress as JSON does. Real servers on this machine, gone at the end."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from kbackup.store import S3Options, open_store
from scripts.bench.processes import cpu_of
from scripts.dev.kafka import Broker
from scripts.dev.link import Link
from scripts.dev.s3 import Minio

PARTITIONS = 4
SCHEMA = 4660
"""Id that all values name, as a registry's serializer frames them."""
_FIRST = 1_700_000_000_000  # ms since the epoch
_STATUS = ("paid", "pending", "shipped", "returned", "cancelled")
_WORDS = """
parcel express standard pickup locker refund voucher gift wrapped door left right floor bell before after noon
Berlin Lisbon Oslo Graz Turin Porto Lyon Ghent shoes lamp chair kettle novel bicycle tent guitar
"""
_TEXT = " ".join(random.Random(1).choices(_WORDS.split(), k=20_000))


class ShopRecord(NamedTuple):
    """`timestamp` in ms since the epoch."""

    key: bytes
    value: bytes
    timestamp: int


def shop_records(size: int, first: int, count: int) -> Iterator[ShopRecord]:
    """`count` records from number `first` on, with values of `size` bytes (at least 128); the same every time."""
    frame = b"\0" + SCHEMA.to_bytes(4, "big")
    draw = random.Random(f"{size}:{first}").random
    for number in range(first, first + count):
        head = (
            f'{{"id":{number},"customer":{int(draw() * 1e9)},"amount":{draw() * 1000:.2f},'
            f'"status":"{_STATUS[int(draw() * len(_STATUS))]}","token":"{draw().hex()[4:17]}","note":"'
        )
        at, length = int(draw() * (len(_TEXT) - size)), size - len(frame) - len(head) - 2
        value = frame + f'{head}{_TEXT[at : at + length]}"}}'.encode()
        yield ShopRecord(f"order-{number % 50_021:06d}".encode(), value, _FIRST + 7 * number)


def encoded_bytes(size: int) -> int:
    """Bytes of one of these records in a segment: seven fields of fixed width, key and value."""
    return 36 + len(b"order-000000") + size


_BUCKET = "bench"
_LARGE = 1_000_000  # bytes; more than a topic takes by default
_POOL_BYTES = 64 << 20  # values made once and sent in turns
_BATCH_RECORDS = 10_000
_QUEUE_BYTES = 256 << 20
_FILLING = {
    "linger.ms": 20,
    "batch.size": 1 << 20,
    "batch.num.messages": 100_000,
    "compression.type": "lz4",
    "queue.buffering.max.messages": 5_000_000,
    "queue.buffering.max.kbytes": 1 << 20,
}


class Servers:
    """A Kafka broker with its defaults, and MinIO or (`store` 'file') a directory. A context manager. `far` are links
    that kbackup reaches them by: 'kafka', 'minio'."""

    def __init__(self, store: str = "minio", far: Mapping[str, Link] = MappingProxyType({})) -> None:
        self.far = far
        self.broker = Broker(via=far["kafka"].open if "kafka" in far else None, jvm=())
        self._minio = Minio() if store == "minio" else None
        self._folder = ""
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for link in self.far.values():
                stack.enter_context(link)
            stack.enter_context(self.broker)
            if self._minio is None:
                self._folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kbackup-bench-"))
            else:
                stack.enter_context(self._minio).create_bucket(_BUCKET)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @cached_property
    def s3(self) -> dict[str, Any]:
        """What `S3Options` takes to reach MinIO as kbackup does."""
        if self._minio is None:
            return {}
        url = self._minio.endpoint_url
        if "minio" in self.far:
            url = f"http://127.0.0.1:{self.far['minio'].open(int(url.rpartition(':')[2]))}"
        return {**self._minio.options, "endpoint_url": url}

    def cpu(self) -> dict[str, float]:
        """Seconds that the servers have used so far."""
        used = {"broker": cpu_of(self.broker.pid())}
        return used if self._minio is None else {**used, "minio": cpu_of(self._minio.pid())}

    def new_archive(self) -> dict[str, Any]:
        """Return the address of a new archive, as a job's spec names it."""
        name = f"archive-{next(self._numbers)}"
        if self._minio is None:
            return {"store": f"file://{self._folder}/{name}", "s3": {}}
        return {"store": f"s3://{_BUCKET}/{name}", "s3": self.s3}

    def delete_archive(self, where: dict[str, Any]) -> None:
        """Gives back what an archive or a bare upload took: a disk holds only so many."""
        store = open_store(where["store"], {"s3": S3Options(**where["s3"])})
        for failed in store.delete([entry.key for entry in store.list()]):
            raise failed.error

    def new_topic(self, partitions: int = PARTITIONS, size: int = 0) -> str:
        """The name of a topic that nobody has written to; it takes values of `size` bytes."""
        name = self.unused_name()
        large = {"max.message.bytes": str(size + (1 << 20))} if size >= _LARGE else {}
        self.broker.create_topic(name, partitions, config=large)
        return name

    def unused_name(self) -> str:
        return f"topic-{next(self._numbers)}"

    def delete_topic(self, name: str) -> None:
        admin = AdminClient(self.broker.client(log_level=3))
        admin.delete_topics([name])[name].result(30)

    def fill(self, size: int, count: int, partitions: int = PARTITIONS) -> str:
        """A new topic with `count` records in each of its partitions; a few thousand different ones, in turns."""
        topic = self.new_topic(partitions, size)
        pool = [
            {"key": key, "value": value}  # a batch takes no timestamps: the records get that of their sending
            for key, value, _ in shop_records(size, 0, min(count, max(4, _POOL_BYTES // size)))
        ]

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                raise KafkaException(error)

        own = {"bootstrap.servers": self.broker.bootstrap_of("INTERNAL"), "message.max.bytes": max(1_000_000, 2 * size)}
        producer = Producer(self.broker.client(**_FILLING, **own))
        for partition in range(partitions):
            remaining = count
            while remaining:
                batch = pool[: min(remaining, len(pool), _BATCH_RECORDS)]
                while len(producer) and (len(producer) + len(batch)) * size > _QUEUE_BYTES:
                    producer.poll(0.01)
                if producer.produce_batch(topic, batch, partition, on_delivery=delivered) != len(batch):
                    raise SystemExit(f"librdkafka did not take the records of {topic}")
                remaining -= len(batch)
                pool = pool[len(batch) :] + pool[: len(batch)]
        if producer.flush(120):
            raise SystemExit(f"the broker did not take the records of {topic}")
        return topic


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table for people, with right-aligned columns."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)]
