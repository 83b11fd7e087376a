"""The same jobs on a real standalone cluster, by --master and by spark-submit."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyspark
import pytest
from confluent_kafka import Producer

from kbackup.archive.reader import open_archive
from kbackup.store.file import FileStore
from scripts.dev.kafka import Broker
from scripts.dev.process import HANG
from scripts.dev.s3 import Minio
from scripts.dev.spark import LIGHT_JVMS, SparkCluster
from tests.integration import topics
from tests.integration.conftest import Archive
from tests.support.packed import pack_environment
from tests.support.truth import Records, assert_restored, log_starts, read_topic

ROOT = Path(__file__).parents[2]
RECORDS = 5_000
DELETED = 10  # records of each partition, before the others
PARTITIONS = 4
SECRET = secrets.token_hex(16)
COMMAND = [sys.executable, "-m", "kbackup"]

_COMMANDS = """
import io, json, sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from unittest import mock
from kbackup.cli import main
from kbackup.cli.common.command_context import FlagValues, load_config
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.session import spark_session

with spark_session(load_config(FlagValues()).config, reporter=Reporter()) as session:
    @contextmanager
    def given(*_, **__):
        yield session

    for command in json.loads(sys.argv[1]):
        printed = io.StringIO()
        with mock.patch(f"kbackup.cli.{command[0]}.spark_session", given):
            with redirect_stdout(printed), redirect_stderr(printed):
                code = main(command)
        print(json.dumps([code, printed.getvalue()]))
"""
"""Several commands on one session of a cluster: each start of one takes half a minute."""


class Ended(NamedTuple):
    code: int
    output: str


@dataclass(frozen=True)
class Jobs:
    """What the commands on the shared cluster printed; `archive` is in a bucket, of `topic` with these records."""

    topic: str
    records: Records
    archive: str
    apart: Path
    ended: list[Ended]


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    name = f"cluster-{secrets.token_hex(4)}"
    broker.create_topic(name, PARTITIONS, config={"retention.ms": "-1"})
    for partition in range(PARTITIONS):
        topics.produce(broker, name, partition, topics.numbered(DELETED))
    topics.delete_records(broker, name, dict.fromkeys(range(PARTITIONS), DELETED))
    producer = Producer(broker.client())
    for number in range(RECORDS):
        producer.produce(name, f"value-{number}", f"key-{number}", number % PARTITIONS, timestamp=1_000 + number)
    assert producer.flush(30) == 0
    return name


@pytest.fixture(scope="module")
def unshared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory where the second worker has a disk of its own."""
    return tmp_path_factory.mktemp("unshared")


@pytest.fixture(scope="module")
def cluster(unshared: Path) -> Iterator[SparkCluster]:
    with SparkCluster(workers=2, secret=SECRET, unshared={1: [unshared]}) as running:
        yield running


@pytest.fixture(scope="module")
def jobs(
    broker: Broker,
    minio_server: Minio,
    new_archive: Callable[[], Archive],
    cluster: SparkCluster,
    unshared: Path,
    topic: str,
) -> Jobs:
    archive, apart, shared = new_archive().url, unshared / topic, str(unshared.with_name(f"shared-{topic}"))
    backup = ["backup", "-t", topic, "--archive"]
    commands = [
        [*backup, archive],
        [*backup, str(apart)],
        ["check", "--spark", "-t", topic, "--archive", str(apart)],
        [*backup, shared],
        ["verify", shared],
        ["restore", archive, "--same-offsets", "--map-regex", r"^(.*)$=same.\1", "--restore-id", "same-offsets"],
    ]
    env = environment(broker, minio_server) | {"KBACKUP_SPARK_MASTER": cluster.url}
    return Jobs(topic, read_topic(broker.bootstrap, topic), archive, apart, run_on_one_session(commands, env))


def environment(broker: Broker, server: Minio | None) -> dict[str, str]:
    """Return the variables that a user would export: no secret is on a command line. Without `server`, a job has no
    secret for its tasks."""
    given = server.options if server is not None else {}
    keys = {f"KBACKUP_S3_{name.upper()}": value for name, value in given.items()}
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        **keys,
        "PYTHONPATH": str(ROOT),
        "KBACKUP_SOURCE_BOOTSTRAP_SERVERS": broker.bootstrap,
        "KBACKUP_TARGET_BOOTSTRAP_SERVERS": broker.bootstrap,
        "KBACKUP_BACKUP_PACK_RECORDS": "1000",
        "KBACKUP_SPARK_CONF": "spark.driver.host=127.0.0.1,spark.executor.memory=512m"
        f",spark.authenticate.secret={SECRET}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        **LIGHT_JVMS,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def run(argv: list[str], env: dict[str, str], code: int = 0) -> str:
    """Return what a command prints that ends with `code`; where it fails, its errors as well."""
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == code, f"{done.returncode}: {done.stderr}"
    assert not code or "Traceback" not in done.stderr
    return done.stdout + done.stderr if code else done.stdout


def run_on_one_session(commands: list[list[str]], env: dict[str, str]) -> list[Ended]:
    output = run([sys.executable, "-c", _COMMANDS, json.dumps(commands)], env)
    return [Ended(*json.loads(line)) for line in output.splitlines()]


def packed(folder: Path) -> list[str]:
    """Return the options that send this tree's kbackup along."""
    return [
        "--set",
        f"spark.conf.spark.archives={pack_environment(folder)}#env",
        "--set",
        "spark.conf.spark.pyspark.python=./env/bin/python",
    ]


def test_backup_by_master_and_restore_by_spark_submit(
    broker: Broker, cluster: SparkCluster, minio_server: Minio, jobs: Jobs
) -> None:
    assert sum(map(len, jobs.records.values())) == RECORDS
    code, output = jobs.ended[0]
    assert (code, f"{RECORDS:,} new records" in output, "in 4 segments" in output) == (0, True, True), output
    env = environment(broker, minio_server)
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    main = run([sys.executable, "-m", "kbackup.submit"], env).strip()
    conf = [
        *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m"),
        *("--properties-file", str(cluster.properties)),
    ]
    options = [jobs.archive, "--map-regex", r"^(.*)$=back.\1", "--restore-id", "by-submit"]
    output = run([submit, "--master", cluster.url, *conf, main, "restore", *options], env)
    assert f"{RECORDS:,} records" in output
    assert_restored(jobs.records, read_topic(broker.bootstrap, f"back.{jobs.topic}"))


def test_workers_restore_with_the_same_offsets(broker: Broker, jobs: Jobs) -> None:
    restored = jobs.ended[5]
    assert restored.code == 0, restored
    target = f"same.{jobs.topic}"
    assert read_topic(broker.bootstrap, target, "read_uncommitted") == jobs.records
    assert log_starts(broker.bootstrap, target) == dict.fromkeys(range(PARTITIONS), DELETED)


def test_a_directory_that_a_worker_does_not_share_is_refused_by_the_workers_name(jobs: Jobs) -> None:
    message = f"worker apart-1 has another directory than the driver at {jobs.apart}: No such file or directory"
    refused, checked, backed_up, verified = jobs.ended[1:5]
    for code, output in (refused, checked):
        assert (code, message in output, "Traceback" in output) == (1, True, False), output
    assert not open_archive(FileStore(jobs.apart)).restore_points, "a refused backup commits nothing"
    assert list(jobs.apart.rglob("*shared*")) == [], "marks go with the job"
    assert (backed_up.code, f"{RECORDS:,} new records" in backed_up.output) == (0, True), backed_up
    assert verified.code == 0, verified


@pytest.mark.soak  # `make clusters` does it on YARN
def test_workers_without_kbackup_get_it_packed(
    broker: Broker, minio_server: Minio, new_archive: Callable[[], Archive], topic: str, tmp_path: Path
) -> None:
    """Nor do secrets go over the cluster's open channel unless that is allowed."""
    venv.create(tmp_path / "bare", symlinks=True)
    env = environment(broker, minio_server) | {"PYSPARK_PYTHON": f"{tmp_path}/bare/bin/python"}
    env["KBACKUP_SPARK_CONF"] = "spark.driver.host=127.0.0.1,spark.executor.memory=512m"
    job = ["-t", topic, "--archive", new_archive().url]
    with SparkCluster(workers=1, variables={"PYTHONPATH": ""}) as cluster:
        env["KBACKUP_SPARK_MASTER"] = cluster.url
        commands = [["check", "--spark", *job], ["backup", "-t", topic, "--archive", str(tmp_path / "open")]]
        refused, failed = run_on_one_session(commands, env)
        assert "could read the secrets of this job" in refused.output, refused
        assert "spark.allow_plain_secrets = true" in refused.output
        # Only errors of Spark 4.0 and 4.1 name the worker.
        missing = "does not have the driver's kbackup and Python: No module named"
        assert (failed.code, missing in failed.output, "Traceback" in failed.output) == (1, True, False), failed
        backup = [*COMMAND, "backup", *job, "--set", "spark.allow_plain_secrets=true"]
        output = run([*backup, *packed(tmp_path)], env)
        assert f"{RECORDS:,} new records" in output, output
