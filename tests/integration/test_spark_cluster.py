"""The same jobs on a real standalone cluster, by --master and by spark-submit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from scripts.dev.kafka import Broker
from scripts.dev.spark import SparkCluster
from tests.conftest import Bucket

ROOT = Path(__file__).parents[2]
RECORDS = 5_000
PARTITIONS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster(workers=2) as running:
        yield running


def environment(broker: Broker, bucket: Bucket) -> dict[str, str]:
    """Return the variables that a user would export: no secret is on a command line."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "KBACKUP_ARCHIVE": f"{bucket.url}/archive",
        "KBACKUP_SOURCE_BOOTSTRAP_SERVERS": broker.bootstrap,
        "KBACKUP_TARGET_BOOTSTRAP_SERVERS": broker.bootstrap,
        "KBACKUP_S3_ENDPOINT_URL": bucket.server.endpoint_url,
        "KBACKUP_S3_REGION": bucket.server.region,
        "KBACKUP_S3_ACCESS_KEY_ID": bucket.server.access_key,
        "KBACKUP_S3_SECRET_ACCESS_KEY": bucket.server.secret_key,
        "KBACKUP_BACKUP_PACK_RECORDS": "1000",
        "KBACKUP_SPARK_CONF": "spark.driver.host=127.0.0.1,spark.executor.memory=512m",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def run(argv: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fill(broker: Broker, topic: str) -> None:
    broker.create_topic(topic, PARTITIONS, config={"retention.ms": "-1"})
    producer = Producer(broker.client())
    for number in range(RECORDS):
        producer.produce(
            topic, f"value-{number}", f"key-{number}", number % PARTITIONS, timestamp=1_000 + number
        )
    assert producer.flush(30) == 0


def read(broker: Broker, topic: str) -> dict[int, list[tuple[bytes | None, bytes | None, int]]]:
    consumer = Consumer(
        broker.client(**{"group.id": "reader", "enable.partition.eof": True, "enable.auto.commit": False})
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    records: dict[int, list[tuple[bytes | None, bytes | None, int]]] = {p: [] for p in range(PARTITIONS)}
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(10)
        assert message is not None
        partition = message.partition()
        if message.error() is not None:
            ended.add(partition)
        elif partition is not None:
            records[partition].append((message.key(), message.value(), message.timestamp()[1]))
    consumer.close()
    return records


def test_backup_and_restore_by_master_and_by_spark_submit(
    broker: Broker, bucket: Bucket, cluster: SparkCluster, topic_name: str
) -> None:
    fill(broker, topic_name)
    before = read(broker, topic_name)
    assert sum(map(len, before.values())) == RECORDS
    env = environment(broker, bucket)

    output = run([sys.executable, "-m", "kbackup", "backup", "-t", topic_name, "--master", cluster.url], env)
    assert f"{RECORDS:,} new records" in output
    assert "in 4 segments" in output

    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    main = run([sys.executable, "-m", "kbackup.submit"], env).strip()
    conf = ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m"]
    options = ["--map-regex", r"^(.*)$=back.\1", "--restore-id", "by-submit"]
    output = run([submit, "--master", cluster.url, *conf, main, "restore", *options], env)
    assert f"{RECORDS:,} records" in output
    assert read(broker, f"back.{topic_name}") == before
