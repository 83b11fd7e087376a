"""A sensitive config in a migration whose controllers lack the brokers' secret, and when they get it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from kbackup.cli import main
from kbackup.metadata.entities import BROKER_SECRETS
from kbackup.migrate.metadata_log.image import read_image
from kbackup.store import open_store
from kbackup.store.crypt.kek import generate_key
from scripts.dev.zookeeper import FIRST_CONTROLLER, MigratingCluster
from tests.support.secrets import make

SECRET = "password.encoder.secret"
CONFIG = "listener.name.sasl.scram-sha-256.sasl.jaas.config"
WAITING = "broker 0, which has not registered with the controllers"
VALUE = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


class Watched:
    """A cluster, and kbackup beside it with an encrypted archive."""

    def __init__(self, cluster: MigratingCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.key = f"file:{folder}/key"
        (folder / "key").write_text(generate_key())
        (folder / "key").chmod(0o600)

    def migrate(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        config = self.folder / "kbackup.toml"
        config.write_text(
            f'archive = "{self.folder}/archive"\nencryption.key = "{self.key}"\n[source]\n'
            f'"bootstrap.servers" = "{self.cluster.bootstrap}"\n'
            f'"zookeeper.connect" = "{self.cluster.zookeeper_connect}"\n'
            f'"metadata.log.dir" = "{self.cluster.metadata_log().parent}"\n'
        )
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(["migrate", *arguments, "--json", "--config", str(config)])
        return code, json.loads(out.getvalue())

    def status(self) -> tuple[int, list[str]]:
        """The exit code, and what the migration waits for."""
        timeout = ("--set", "source.zookeeper.connection.timeout.ms=2000")
        urls = [each for node in self.cluster.controllers for each in ("--metrics-url", self.cluster.metrics_url(node))]
        code, report = self.migrate("status", *urls, *timeout)
        return code, report["waits_for"]

    def encoder_line(self, secret: str | None) -> dict[str, str]:
        """The preflight's line of controllers with this secret."""
        lines = self.cluster.properties_file(FIRST_CONTROLLER).read_text().splitlines()
        kept = [line for line in lines if not line.startswith(SECRET)]
        file = self.folder / "controller.properties"
        file.write_text("\n".join([*kept, *([f"{SECRET}={secret}"] if secret else [])]))
        report = self.migrate("preflight", "--controller-config", str(file))[1]
        (found,) = (line for line in report["lines"] if line["name"] == "controllers: password.encoder.secret")
        return dict(found)

    def archived(self) -> tuple[str | None, set[str], list[str]]:
        """The config's value in a new restore point, what is not carried, and the warnings."""
        code, report = self.migrate("archive")
        assert code == 0, report
        archive = open_archive(open_store(str(self.folder / "archive"), key=self.key, key_class=layout.key_class))
        assert archive.head is not None
        metadata = archive.metadata(archive.head)
        (value,) = (each.value for each in metadata.broker_configs or () if each.name == CONFIG)
        return value, {each.what for each in metadata.not_carried}, report["warnings"]

    def set_config(self) -> None:
        resource = ConfigResource(ConfigResource.Type.BROKER, "0")
        resource.add_incremental_config(ConfigEntry(CONFIG, VALUE, incremental_operation=AlterConfigOpType.SET))
        admin = AdminClient(self.cluster.client())
        admin.incremental_alter_configs([resource])[resource].result(30)

    def in_log(self) -> str:
        return read_image(self.cluster.metadata_log()).configs.get((4, "0"), {}).get(CONFIG, "")


@contextmanager
def stopped(cluster: MigratingCluster) -> Iterator[None]:
    """ZooKeeper answers nobody, for long enough that it falls behind."""
    with cluster.zookeeper.stalled():
        time.sleep(2)
        yield


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with MigratingCluster(controllers=2, properties={SECRET: make("the brokers' secret")}) as cluster:
        yield Watched(cluster, tmp_path_factory.mktemp("watched"))


def test_a_migration_without_the_brokers_secret(watched: Watched) -> None:
    cluster = watched.cluster
    secret = cluster._properties.pop(SECRET)
    watched.set_config()
    cluster.start_controllers()
    cluster.wait_for_state("PRE_MIGRATION")
    assert watched.status() == (3, [WAITING])

    by_secret = {each: watched.encoder_line(each) for each in (None, "another", secret)}
    assert [line["status"] for line in by_secret.values()] == ["failed", "failed", "ok"]
    assert f"{CONFIG} of broker 0" in by_secret[None]["detail"]
    assert f"doesn't decrypt {CONFIG} of broker 0" in by_secret["another"]["detail"]

    cluster._properties["super.users"] = "User:kafka"  # without their own principal they elect no leader
    cluster.start_controllers()
    cluster.wait(FIRST_CONTROLLER, lambda: "a leader of" in str(watched.status()), "a controller")
    file = cluster.properties_file(FIRST_CONTROLLER)
    lines = watched.migrate("preflight", "--controller-config", str(file))[1]["lines"]
    detail = next(line["detail"] for line in lines if line["name"] == "controllers: super.users")
    assert detail == f"{file} lacks User:ANONYMOUS, the controllers' own"
    time.sleep(10)
    assert watched.status() == (3, ["a leader of the controllers' quorum", WAITING])
    del cluster._properties["super.users"]
    cluster.start_controllers()
    cluster.wait_for_state("PRE_MIGRATION")

    cluster._properties[SECRET] = secret
    cluster.restart_brokers("migration")
    cluster.wait_for_state("MIGRATION")
    assert "encryptedPassword:" in watched.in_log()
    value, not_carried, warnings = watched.archived()
    assert (value, BROKER_SECRETS in not_carried) == (None, True)
    assert any("without the brokers' password.encoder.secret" in warning for warning in warnings), warnings
    assert watched.status() == (0, [])
    with stopped(cluster):
        assert watched.status() == (3, ["ZooKeeper, which does not get the controllers' records"])

    cluster.start_controllers()  # with the secret now
    cluster.wait_for_state("MIGRATION")
    watched.set_config()
    cluster.wait(0, lambda: watched.in_log() == VALUE, "the config in the log")
    value, not_carried, warnings = watched.archived()
    assert (value, BROKER_SECRETS in not_carried, warnings) == (VALUE, False, [])
    assert watched.encoder_line(secret)["detail"] == "1 encrypted configs in ZooKeeper"
    code, report = watched.migrate("verify", "--lag", "30s")
    assert (code, report["differences"]) == (0, [])
    assert "leaders and in-sync replicas" in report["not_compared"]["zookeeper and metadata log"]
