"""The cluster and the store that are measured against: real servers on this machine, gone at the end."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from scripts.bench import data
from scripts.bench.processes import cpu_of
from scripts.dev.kafka import Broker
from scripts.dev.minio import Minio

_BUCKET = "bench"


class Servers:
    """A Kafka broker with its defaults, and MinIO or (`store` 'file') a directory. A context manager."""

    def __init__(self, store: str) -> None:
        self.broker = Broker()
        self._minio = Minio() if store == "minio" else None
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
        """Where an archive can be made, as a job's spec has it."""
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

    def new_topic(self) -> str:
        """The name of a topic of `data.PARTITIONS` partitions that nobody has written to."""
        name = self.unused_name()
        self.broker.create_topic(name, data.PARTITIONS)
        return name

    def unused_name(self) -> str:
        return f"topic-{next(self._numbers)}"

    def delete_topic(self, name: str) -> None:
        admin = AdminClient(self.broker.client(log_level=3))
        admin.delete_topics([name])[name].result(30)

    def fill(self, size: int, count: int) -> str:
        """A new topic with `count` records in each partition."""
        topic = self.new_topic()
        settings = {"linger.ms": 20, "batch.size": 1 << 20, "compression.type": "lz4"}
        producer = Producer(self.broker.client(**settings))
        for partition in range(data.PARTITIONS):
            for key, value, timestamp in data.records(size, partition * count, count):
                while True:
                    try:
                        producer.produce(
                            topic, value, key, partition, on_delivery=_delivered, timestamp=timestamp
                        )
                        break
                    except BufferError:
                        producer.poll(0.1)
        if producer.flush(120):
            raise SystemExit(f"the broker did not take the records of {topic}")
        return topic


def _delivered(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        raise KafkaException(error)
