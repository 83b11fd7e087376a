"""Jobs on YARN: with the driver here (`--master yarn`) and in the cluster, with a packed environment, an executor that
is killed, and a look for secrets in all that YARN writes."""

from __future__ import annotations

import os
import secrets
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

from kbackup.store import open_store
from kbackup.store.base import Store
from scripts.dev.kafka import Broker
from scripts.dev.process import HANG
from scripts.dev.s3 import Minio
from scripts.dev.yarn import YarnCluster
from tests.clusters.conftest import RECORDS
from tests.conftest import options_of
from tests.integration.topics import wait_until
from tests.support.packed import pack_environment
from tests.support.secrets import Watch
from tests.support.truth import assert_restored, read_topic
from tests.support.watching import proc

SPARK = Path(pyspark.__file__).parent
OWNER_ALONE = 0o500


@dataclass(frozen=True)
class Yarn:
    """The cluster, what its jobs read and write, and where Spark leaves its events."""

    cluster: YarnCluster
    broker: Broker
    minio: Minio
    environment: Path
    events: Path
    bucket: str

    @property
    def settings(self) -> dict[str, str]:
        """Spark's settings of each job. Executors have Spark's jars, as machines with a Spark do: sending them takes
        longer than the tests."""
        return {
            "spark.executor.instances": "2",
            "spark.executor.memory": "512m",
            "spark.yarn.jars": f"local:{SPARK}/jars/*",
            "spark.yarn.stagingDir": self.cluster.staging.as_uri(),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": self.events.as_uri(),
        }

    @property
    def client(self) -> dict[str, str]:
        """Variables of the machine that starts jobs, without those that name kbackup's cluster and store."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTHONPATH"))}
        return {**kept, **self.cluster.client, "SPARK_LOCAL_IP": "127.0.0.1"}

    def new_archive(self) -> tuple[str, Store]:
        url = f"s3://{self.bucket}/{secrets.token_hex(6)}"
        return url, open_store(url, {"s3": options_of(self.minio)})

    def kbackup(self, *arguments: str) -> subprocess.Popen[str]:
        """Start kbackup here, with executors in the cluster."""
        conf = {
            **self.settings,
            "spark.driver.host": "127.0.0.1",
            "spark.archives": f"{self.environment}#env",
            "spark.pyspark.python": "./env/bin/python",
        }
        options = [word for name, value in conf.items() for word in ("--set", f"spark.conf.{name}={value}")]
        keys = {f"KBACKUP_S3_{name.upper()}": value for name, value in self.minio.options.items()}
        servers = {f"KBACKUP_{role}_BOOTSTRAP_SERVERS": self.broker.bootstrap for role in ("SOURCE", "TARGET")}
        root = Path(__file__).parents[2]
        return subprocess.Popen(
            [sys.executable, "-m", "kbackup", *arguments, "--master", "yarn", *options],
            env={**self.client, **keys, **servers, "PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def submit(self, folder: Path, *arguments: str) -> str:
        """Run kbackup in the cluster, as spark.md has it, with the files `kbackup.toml` and `s3.secret` of `folder`.
        Return what spark-submit prints."""
        conf = {
            **self.settings,
            "spark.driver.memory": "600m",
            "spark.pyspark.python": "./env/bin/python",
            "spark.yarn.maxAppAttempts": "1",
            "spark.authenticate": "true",
            "spark.network.crypto.enabled": "true",
            "spark.io.encryption.enabled": "true",
        }
        argv = [str(SPARK / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", "cluster"]
        argv += ["--archives", f"{self.environment}#env", "--files", f"{folder}/kbackup.toml,{folder}/s3.secret"]
        argv += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        asked = [sys.executable, "-m", "kbackup.submit"]
        path = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=HANG)
        done = subprocess.run(
            [*argv, path.stdout.strip(), *arguments, "--config", "kbackup.toml"],
            env=self.client,
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
        )
        return done.stdout + done.stderr

    def printed(self) -> str:
        """Return what the driver of the newest application printed."""
        application = self.cluster.applications()[-1]["id"]
        files = sorted((self.cluster.logs / application).glob("*_000001/stdout"))
        return "".join(file.read_text() for file in files)

    def places_of_the_secret(self) -> list[str]:
        """Return where the secret key of the store is, but for the file that gave it to a driver in the cluster."""
        watch = Watch()
        watch.know("the secret key", self.minio.secret_key)
        watch.look_into(self.cluster.folder)
        watch.look_into(self.events)
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                watch.look_at(f"the command line of {process.name}", proc(process.name, "cmdline"))
        return watch.hits


@pytest.fixture(scope="module")
def yarn(broker: Broker, minio_server: Minio, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    folder = tmp_path_factory.mktemp("yarn")
    events = folder / "events"
    events.mkdir()
    bucket = f"yarn-{secrets.token_hex(6)}"
    minio_server.create_bucket(bucket)
    with YarnCluster() as cluster:
        yield Yarn(cluster, broker, minio_server, pack_environment(folder), events, bucket)


@pytest.fixture
def configured(yarn: Yarn, tmp_path: Path) -> Callable[[str], Path]:
    """Write the files that go with a job into the cluster, for an archive."""

    def configure(archive: str) -> Path:
        server = yarn.minio.options
        secret, config = tmp_path / "s3.secret", tmp_path / "kbackup.toml"
        secret.touch(0o600)
        secret.write_text(server["secret_access_key"])
        config.touch(0o600)
        config.write_text(
            f"""
            archive = "{archive}"
            [source]
            "bootstrap.servers" = "{yarn.broker.bootstrap}"
            [target]
            "bootstrap.servers" = "{yarn.broker.bootstrap}"
            [s3]
            endpoint_url = "{server["endpoint_url"]}"
            region = "{server["region"]}"
            access_key_id = "{server["access_key_id"]}"
            secret_access_key = "${{file:s3.secret}}"
            """
        )
        return tmp_path

    return configure


def ended(process: subprocess.Popen[str]) -> str:
    """Wait for a command that must succeed, and return what it printed."""
    out, err = process.communicate(timeout=HANG)
    assert process.returncode == 0, err
    return out


def executors(cluster: YarnCluster) -> list[int]:
    """Return the processes of executors, without the shells that started them."""
    found = []
    for process in Path("/proc").iterdir():
        words = proc(process.name, "cmdline").split(b"\0") if process.name.isdecimal() else []
        is_executor = b"org.apache.spark.executor.YarnCoarseGrainedExecutorBackend" in words
        if is_executor and any(str(cluster.folder).encode() in word for word in words):
            found.append(int(process.name))
    return found


def test_backup_and_restore_with_the_driver_here(yarn: Yarn, topic: str) -> None:
    archive, _ = yarn.new_archive()
    restored = f"back-{secrets.token_hex(4)}"

    output = ended(yarn.kbackup("backup", "--topic", topic, "--archive", archive))
    assert f"{RECORDS:,} new records" in output
    output = ended(yarn.kbackup("restore", archive, "--map", f"{topic}={restored}", "--restore-id", "on-yarn"))
    assert f"{RECORDS:,} records" in output

    assert_restored(read_topic(yarn.broker.bootstrap, topic), read_topic(yarn.broker.bootstrap, restored))
    assert list(yarn.cluster.containers.rglob("launch_container.sh")), "there is something to look into"
    assert list(yarn.events.rglob("events*")), "and here"
    assert yarn.places_of_the_secret() == []


def test_an_executor_is_killed_in_the_middle(yarn: Yarn, large_topic: str) -> None:
    archive, store = yarn.new_archive()
    limit = ("--limit-rate", "1MiB", "--set", "backup.segment_bytes=1MiB")

    process = yarn.kbackup("backup", "--topic", large_topic, "--archive", archive, *limit)
    wait_until(lambda: any("segment_" in entry.key for entry in store.list()) or process.poll() is not None)
    first, *others = executors(yarn.cluster)
    assert others, "two executors are at work"
    assert yarn.places_of_the_secret() == [], "while tasks have it"
    os.kill(first, signal.SIGKILL)
    ended(process)

    records = sum(map(len, read_topic(yarn.broker.bootstrap, large_topic).values()))
    restored = f"back-{secrets.token_hex(4)}"
    output = ended(yarn.kbackup("restore", archive, "--map", f"{large_topic}={restored}", "--restore-id", "killed"))
    assert f"{records:,} records" in output
    assert_restored(read_topic(yarn.broker.bootstrap, large_topic), read_topic(yarn.broker.bootstrap, restored))


def test_backup_and_restore_with_the_driver_in_the_cluster(
    yarn: Yarn, topic: str, configured: Callable[[str], Path]
) -> None:
    archive, _ = yarn.new_archive()
    folder = configured(archive)
    restored = f"back-{secrets.token_hex(4)}"

    submitted = yarn.submit(folder, "backup", "--topic", topic)
    assert "final status: SUCCEEDED" in submitted, submitted
    assert f"{RECORDS:,} new records" in yarn.printed()
    submitted = yarn.submit(folder, "restore", "--map", f"{topic}={restored}", "--restore-id", "within-yarn")
    assert "final status: SUCCEEDED" in submitted, submitted
    assert f"{RECORDS:,} records" in yarn.printed()

    assert_restored(read_topic(yarn.broker.bootstrap, topic), read_topic(yarn.broker.bootstrap, restored))
    assert yarn.places_of_the_secret() == []
    given = list(yarn.cluster.containers.rglob("s3.secret"))
    files = {stat.S_IMODE(file.stat().st_mode) for file in given if not file.is_symlink()}
    assert files == {OWNER_ALONE}, "YARN keeps the file for the user of the job alone"


def test_yarn_knows_the_exit_code_of_a_driver_in_the_cluster(yarn: Yarn, configured: Callable[[str], Path]) -> None:
    archive, _ = yarn.new_archive()

    yarn.submit(configured(archive), "verify")

    application = yarn.cluster.applications()[-1]
    assert application["finalStatus"] == "FAILED"
    assert "User application exited with status 10" in application["diagnostics"]
