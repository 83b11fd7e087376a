"""The same jobs on a real standalone cluster, by --master and by spark-submit."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kbackup import __version__
from kbackup.archive.reader import open_archive
from kbackup.store.file import FileStore
from scripts.dev.kafka import Broker
from scripts.dev.spark import SparkCluster
from tests.conftest import Bucket

ROOT = Path(__file__).parents[2]
RECORDS = 5_000
PARTITIONS = 4


SECRET = secrets.token_hex(16)


@pytest.fixture(scope="module")
def unshared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory where the second worker has a disk of its own."""
    return tmp_path_factory.mktemp("unshared")


@pytest.fixture(scope="module")
def cluster(unshared: Path) -> Iterator[SparkCluster]:
    with SparkCluster(workers=2, secret=SECRET, unshared={1: [unshared]}) as running:
        yield running


@pytest.fixture(scope="module")
def plain_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Yield a cluster without a secret, whose second worker has another release of kbackup."""
    other = tmp_path_factory.mktemp("other")
    shutil.copytree(ROOT / "kbackup", other / "kbackup", ignore=shutil.ignore_patterns("__pycache__"))
    version = other / "kbackup" / "__init__.py"
    version.write_text(version.read_text().replace(__version__, "0.0.1"))
    with SparkCluster(workers=2, variables={"PYTHONPATH": str(other)}) as running:
        yield running


@pytest.fixture(scope="module")
def empty_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Yield a cluster whose one worker has no kbackup."""
    other = tmp_path_factory.mktemp("none")
    (other / "kbackup.py").touch()
    with SparkCluster(workers=1, variables={"PYTHONPATH": str(other)}) as running:
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
        "KBACKUP_SPARK_CONF": "spark.driver.host=127.0.0.1,spark.executor.memory=512m"
        f",spark.authenticate.secret={SECRET}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def run(argv: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(argv: list[str], env: dict[str, str]) -> str:
    """Return what a command prints that a check refuses."""
    command = [sys.executable, "-m", "kbackup", *argv]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1, f"{done.returncode}: {done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def without_secrets(broker: Broker, archive: Path) -> dict[str, str]:
    """Return the variables of a job that sends no secret to its tasks."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "PYTHONPATH": str(ROOT),
        "KBACKUP_ARCHIVE": str(archive),
        "KBACKUP_SOURCE_BOOTSTRAP_SERVERS": broker.bootstrap,
        "KBACKUP_BACKUP_PACK_RECORDS": "1000",
        "KBACKUP_SPARK_CONF": "spark.driver.host=127.0.0.1,spark.executor.memory=512m",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }


def fill(broker: Broker, topic: str) -> None:
    broker.create_topic(topic, PARTITIONS, config={"retention.ms": "-1"})
    producer = Producer(broker.client())
    for number in range(RECORDS):
        producer.produce(topic, f"value-{number}", f"key-{number}", number % PARTITIONS, timestamp=1_000 + number)
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
    conf = [
        *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m"),
        *("--properties-file", str(cluster.properties)),
    ]
    options = ["--map-regex", r"^(.*)$=back.\1", "--restore-id", "by-submit"]
    output = run([submit, "--master", cluster.url, *conf, main, "restore", *options], env)
    assert f"{RECORDS:,} records" in output
    assert read(broker, f"back.{topic_name}") == before


def test_a_directory_that_a_worker_does_not_share_is_refused_by_the_workers_name(
    broker: Broker, cluster: SparkCluster, unshared: Path, topic_name: str
) -> None:
    fill(broker, topic_name)
    archive = unshared / topic_name
    env = without_secrets(broker, archive)
    env["KBACKUP_SPARK_CONF"] += f",spark.authenticate.secret={SECRET}"
    message = f"worker apart-1 has another directory than the driver at {archive}: No such file or directory"
    assert message in refused(["backup", "-t", topic_name, "--master", cluster.url], env)
    store = FileStore(archive)
    assert not open_archive(store).restore_points, "a refused backup commits nothing"
    assert list(archive.rglob("*shared*")) == [], "marks go with the job"
    steps = refused(["check", "-t", topic_name, "--spark", "--master", cluster.url], env)
    assert message in steps
    shared = unshared.with_name(f"shared-{topic_name}")
    env["KBACKUP_ARCHIVE"] = str(shared)
    output = run([sys.executable, "-m", "kbackup", "backup", "-t", topic_name, "--master", cluster.url], env)
    assert f"{RECORDS:,} new records" in output
    other = ["verify", "--set", f"spark.master={cluster.url}"]
    run([sys.executable, "-m", "kbackup", *other], env)


def test_secrets_are_not_sent_over_an_open_channel(
    broker: Broker, bucket: Bucket, plain_cluster: SparkCluster, topic_name: str
) -> None:
    fill(broker, topic_name)
    env = environment(broker, bucket) | {"KBACKUP_SPARK_CONF": "spark.driver.host=127.0.0.1"}
    message = refused(["check", "--spark", "-t", topic_name, "--master", plain_cluster.url], env)
    assert "could read the secrets of this job" in message, message
    assert "spark.allow_plain_secrets = true" in message
    allowed = env | {"KBACKUP_SPARK_ALLOW_PLAIN_SECRETS": "true"}
    message = refused(["backup", "-t", topic_name, "--master", plain_cluster.url], allowed)
    assert f"has kbackup 0.0.1, the driver has {__version__}" in message, "the tasks ran"


def test_a_worker_with_another_release_or_none_is_named(
    broker: Broker, plain_cluster: SparkCluster, empty_cluster: SparkCluster, topic_name: str, tmp_path: Path
) -> None:
    fill(broker, topic_name)
    env = without_secrets(broker, tmp_path / "archive")
    message = refused(["check", "--spark", "-t", topic_name, "--master", plain_cluster.url], env)
    assert f"worker {socket.gethostname()} has kbackup 0.0.1, the driver has {__version__}" in message, message
    assert "PYSPARK_PYTHON and spark.archives" in message
    message = refused(["backup", "-t", topic_name, "--master", empty_cluster.url], env)
    assert "worker 127.0.0.1 does not have the driver's kbackup and Python: No module named" in message, message
