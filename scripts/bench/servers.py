"""The cluster and the store that are measured against: real servers on this machine, gone at the end."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from kbackup.store import S3Options, open_store
from scripts.bench import data
from scripts.bench.processes import cpu_of
from scripts.dev.kafka import Broker
from scripts.dev.minio import Minio

_BUCKET = "bench"
_LOOPBACK = "127.0.0.1"
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


class _FarBroker(Broker):
    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    @property
    def bootstrap(self) -> str:
        return super().bootstrap.replace(_LOOPBACK, self._address)

    def _node_properties(self, node: int) -> dict[str, str]:
        properties = super()._node_properties(node)
        for name, address in (("listeners", "0.0.0.0"), ("advertised.listeners", self._address)):
            properties[name] = properties[name].replace(f"CLIENT://{_LOOPBACK}", f"CLIENT://{address}")
        return properties


class _FarMinio(Minio):
    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    @property
    def endpoint_url(self) -> str:
        return super().endpoint_url.replace(_LOOPBACK, self._address)

    def _command(self, port: int, folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        argv, env = super()._command(port, folder)
        return [word.replace(_LOOPBACK, self._address) for word in argv], env


class Servers:
    """A Kafka broker with its defaults, and MinIO or (`store` 'file') a directory. A context manager.

    `address` is where clients find them: another one than loopback in a network namespace of our own alone.
    """

    def __init__(self, store: str, address: str = _LOOPBACK) -> None:
        self.broker = Broker() if address == _LOOPBACK else _FarBroker(address)
        self._minio = None
        if store == "minio":
            self._minio = Minio() if address == _LOOPBACK else _FarMinio(address)
        self._folder = ""
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        self.broker.__enter__()
        try:
            self._start_store()
        except BaseException:
            self.broker.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.broker.close()
        if self._minio is not None:
            self._minio.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start_store(self) -> None:
        if self._minio is None:
            self._folder = tempfile.mkdtemp(prefix="kbackup-bench-")
            return
        self._minio.__enter__()
        self._minio.create_bucket(_BUCKET)

    def cpu(self) -> dict[str, float]:
        """Seconds that the servers have used so far."""
        used = {"broker": cpu_of(self.broker.pid())}
        return used if self._minio is None else {**used, "minio": cpu_of(self._minio.pid)}

    def new_archive(self) -> dict[str, Any]:
        """Return the address of a new archive, as a job's spec names it."""
        name = f"archive-{next(self._numbers)}"
        if self._minio is None:
            return {"store": f"file://{self._folder}/{name}", "s3": {}}
        options = {
            "endpoint_url": self._minio.endpoint_url,
            "region": self._minio.region,
            "access_key_id": self._minio.access_key,
            "secret_access_key": self._minio.secret_key,
        }
        return {"store": f"s3://{_BUCKET}/{name}", "s3": options}

    def delete_archive(self, where: dict[str, Any]) -> None:
        """Gives back what an archive or a bare upload took: a disk holds only so many."""
        store = open_store(where["store"], S3Options(**where["s3"]))
        failed = store.delete([entry.key for entry in store.list()])
        if failed:
            raise failed[0].error

    def new_topic(self, partitions: int = data.PARTITIONS, size: int = 0) -> str:
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

    def fill(
        self, size: int, count: int, partitions: int = data.PARTITIONS, made: data.Made = data.records
    ) -> str:
        """A new topic with `count` records in each of its partitions; a few thousand different ones, in turns."""
        topic = self.new_topic(partitions, size)
        pool = [
            {"key": key, "value": value}  # a batch takes no timestamps: the records get that of their sending
            for key, value, _ in made(size, 0, min(count, max(4, _POOL_BYTES // size)))
        ]
        producer = Producer(self.broker.client(**_FILLING, **{"message.max.bytes": max(1_000_000, 2 * size)}))
        for partition in range(partitions):
            remaining = count
            while remaining:
                batch = pool[: min(remaining, len(pool), _BATCH_RECORDS)]
                while len(producer) and (len(producer) + len(batch)) * size > _QUEUE_BYTES:
                    producer.poll(0.01)
                if producer.produce_batch(topic, batch, partition, on_delivery=_delivered) != len(batch):
                    raise SystemExit(f"librdkafka did not take the records of {topic}")
                remaining -= len(batch)
                pool = pool[len(batch) :] + pool[: len(batch)]
        if producer.flush(120):
            raise SystemExit(f"the broker did not take the records of {topic}")
        return topic


def _delivered(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        raise KafkaException(error)
