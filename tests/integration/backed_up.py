"""A topic with a group, backed up twice from a real broker into a bucket."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from kbackup.config.models import Backup
from kbackup.jobs.backup.job import backup
from kbackup.kafka.control.cluster import Cluster
from kbackup.metrics.registry import Silent
from kbackup.store import Store, open_store
from kbackup.types import CommittedOffset, TopicPartition
from scripts.dev.kafka import Broker
from scripts.dev.s3 import S3Server
from tests.conftest import options_of
from tests.integration.conftest import run_command, servers_config

Run = Callable[..., tuple[int, Any]]
"""A command by its arguments: its exit code and JSON document."""

T0 = 1_700_000_000_000


@dataclass(frozen=True)
class BackedUp:
    """`config` is a file for the command line that names archive and clusters."""

    topic: str
    group: str
    store: Store
    config: Path


def write_config(path: Path, broker: Broker, server: S3Server, bucket: str) -> Path:
    path.write_text(f'archive = "s3://{bucket}/some/prefix"\n{servers_config(broker, server)}')
    return path


def produce(broker: Broker, topic: str, partition: int, numbers: range) -> None:
    """Record `n` has its number as key and a time of `n` seconds after `T0`."""
    producer = Producer(broker.client(log_level=0))
    for n in numbers:
        producer.produce(topic, b"value" * 20, str(n), partition, timestamp=T0 + n * 1000)
    assert producer.flush(30) == 0


def commit(broker: Broker, group: str, topic: str, offsets: dict[int, int]) -> None:
    committed = [CommittedOffset(TopicPartition(topic, p), offset, None, "") for p, offset in offsets.items()]
    assert Cluster({"bootstrap.servers": broker.bootstrap}, "source").groups.commit(group, committed) == ""


def back_up(broker: Broker, server: S3Server, spark: SparkSession, folder: Path) -> BackedUp:
    """Two partitions and an empty one: 100 and 30 records in restore point 1, 50 more in restore point 2."""
    name = secrets.token_hex(6)
    topic, group, bucket = f"looked-at-{name}", f"reader-{name}", f"looked-at-{name}"
    server.create_bucket(bucket)
    broker.create_topic(topic, partitions=3)
    made = BackedUp(
        topic,
        group,
        open_store(f"s3://{bucket}/some/prefix", {"s3": options_of(server)}),
        write_config(folder / "kbackup.toml", broker, server, bucket),
    )
    options = Backup(topics=(topic,), groups=(group,), segment_bytes=4000)
    source = {"bootstrap.servers": broker.bootstrap}
    produce(broker, topic, 0, range(100))
    produce(broker, topic, 1, range(30))
    commit(broker, group, topic, {0: 40, 1: 30})
    assert backup(options, source, made.store, lambda: spark, Silent()).restore_point == 1
    produce(broker, topic, 0, range(100, 150))
    assert backup(options, source, made.store, lambda: spark, Silent()).restore_point == 2
    return made


def runner(spark: SparkSession, config: Path) -> Run:
    """Return a function that runs a command on the session that is there."""

    def run(*arguments: str) -> tuple[int, Any]:
        outcome = run_command(spark, config, arguments)
        return outcome.code, outcome.document

    return run
