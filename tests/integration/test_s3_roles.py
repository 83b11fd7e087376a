"""Encrypted backups with a writer's rights into a locked bucket, restored with a reader's: nothing needs a deletion."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from pyspark.sql import SparkSession

from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from kbackup.config.models import Backup, Config, Restore
from kbackup.errors import DeniedError, UnreachableError
from kbackup.jobs.backup.job import BackupReport, backup
from kbackup.jobs.check import check
from kbackup.jobs.verify import verify
from kbackup.metrics.registry import Silent
from kbackup.store import S3Options, Store, open_store
from kbackup.store.base import Buffer
from kbackup.store.crypt.kek import generate_key
from kbackup.store.s3.store import S3Store
from scripts.dev.kafka import Broker
from scripts.dev.s3 import MinioWithKms
from tests.conftest import watched
from tests.integration.backed_up import produce
from tests.support.restores import run_restore
from tests.support.secrets import know
from tests.support.truth import assert_restored, read_topic

POLICIES = Path(__file__).parents[2] / "infra" / "policies"


@pytest.fixture(scope="module")
def server() -> Iterator[MinioWithKms]:
    with watched(MinioWithKms()) as running:
        yield running


@dataclass(frozen=True)
class Vault:
    """An archive in a bucket with object lock."""

    server: MinioWithKms
    bucket: str
    topic: str
    key: str

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/vault"

    def options(self, role: str) -> S3Options:
        name = "writer-locked" if role == "writer" else role
        policy = (POLICIES / f"{name}.json").read_text().replace("BUCKET", self.bucket).replace("PREFIX", "vault")
        locked: dict[str, Any] = {"object_lock_mode": "GOVERNANCE", "object_lock_days": 2} if role == "writer" else {}
        given = self.server.credentials(policy)
        know(f"the {role}'s secret key", given["secret_access_key"])
        return S3Options(endpoint_url=self.server.endpoint_url, region=self.server.region, **given, **locked)

    def store(self, role: str) -> Store:
        return open_store(self.url, {"s3": self.options(role)}, self.key, key_class=layout.key_class)

    def versions(self) -> list[dict[str, Any]]:
        client: Any = self.server.client()
        found: list[dict[str, Any]] = client.list_object_versions(Bucket=self.bucket, Prefix="vault/")["Versions"]
        return found


@pytest.fixture(scope="module")
def vault(broker: Broker, server: MinioWithKms, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Vault:
    """A run that broke off before its commit, one that took over what it left, and one after more records."""
    name = f"locked-{secrets.token_hex(6)}"
    server.create_bucket(name, object_lock=True)
    broker.create_topic(name, partitions=2)
    secret = tmp_path_factory.mktemp("keys") / "key.secret"
    secret.write_text(know("an archive's key", generate_key()))
    made = Vault(server, name, name, f"file:{secret}")

    def run() -> BackupReport:
        options = Backup(topics=(name,), exclude_groups=("/.*/",), segment_bytes=2000)
        source = {"bootstrap.servers": broker.bootstrap}
        return backup(options, source, made.store("writer"), lambda: spark, Silent())

    def put_new(store: S3Store, key: str, data: Buffer) -> str:
        if key.endswith(layout.MANIFEST):
            raise UnreachableError("the machine went down", "")
        return create(store, key, data)

    produce(broker, name, 0, range(100))
    produce(broker, name, 1, range(40))
    create = S3Store.put_new
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(S3Store, "put_new", put_new)  # the driver's: its tasks go on
        with pytest.raises(UnreachableError, match="went down"):
            run()
    report = run()
    assert (report.restore_point, report.totals.records, report.warnings) == (1, 140, ())
    produce(broker, name, 0, range(100, 150))
    assert run().totals.records == 50
    return made


def test_a_run_takes_over_what_one_left(vault: Vault) -> None:
    """No segment was written twice, and none was hidden by a deletion."""
    segments = [v["Key"] for v in vault.versions() if "/segment_partition_" in v["Key"]]
    assert len(segments) == len(set(segments)) > 8
    client: Any = vault.server.client()
    markers = client.list_object_versions(Bucket=vault.bucket, Prefix="vault/").get("DeleteMarkers", [])
    assert {marker["Key"].split("/")[1] for marker in markers} <= {"check"}
    assert [m.number for m in open_archive(vault.store("reader")).restore_points] == [1, 2]


def test_every_object_is_locked(vault: Vault) -> None:
    client: Any = vault.server.client()
    free, locked = set(), 0
    for version in vault.versions():
        head = client.head_object(Bucket=vault.bucket, Key=version["Key"], VersionId=version["VersionId"])
        key = version["Key"].removeprefix("vault/")
        if head.get("ObjectLockMode") != "GOVERNANCE":
            free.add(key)
            continue
        assert 1 <= (head["ObjectLockRetainUntilDate"] - version["LastModified"]).days <= 2
        with pytest.raises(ClientError, match=r"WORM|lock"):
            client.delete_object(Bucket=vault.bucket, Key=version["Key"], VersionId=version["VersionId"])
        locked += 1
    assert locked > 20
    assert sum(version["Key"].startswith("vault/keys/") for version in vault.versions()) == 3
    assert all(layout.key_class(key).replaced for key in free)
    assert layout.LOCK in free


def test_a_writer_deletes_no_backup(vault: Vault) -> None:
    store = vault.store("writer")
    keys = [info.key for info in store.list() if not layout.key_class(info.key).replaced]
    failed = store.delete(keys)
    assert [failure.key for failure in failed] == keys
    assert all(isinstance(failure.error, DeniedError) for failure in failed)
    assert "locked" in failed[0].error.hint


def test_a_reader_verifies_and_restores(vault: Vault, broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
    verified = verify(vault.store("reader"), "all", False, lambda: spark, Silent())
    assert (verified.findings, verified.read_records) == ((), 190)
    before = vault.versions()
    options = Restore(map={vault.topic: f"{vault.topic}-back"}, no_groups=True)
    target = {"bootstrap.servers": broker.bootstrap}
    state = open_store(str(tmp_path / "state"))
    report = run_restore(options, target, vault.store("reader"), state, lambda: spark, Silent())
    assert report.records == 190
    assert_restored(read_topic(broker.bootstrap, vault.topic), read_topic(broker.bootstrap, f"{vault.topic}-back"))
    assert vault.versions() == before


@pytest.mark.parametrize("role", ["writer", "reader"])
def test_a_check_says_what_a_role_can(vault: Vault, broker: Broker, role: str, tmp_path: Path) -> None:
    source = {"bootstrap.servers": broker.bootstrap}
    report = check(Config(source=source), lambda: vault.store(role), lambda step: None)
    failed = [step.name for step in report.steps if step.status == "failed"]
    assert (failed == []) == (role == "writer")
    assert role == "writer" or ("archive: conditional writes" in failed and report.exit_code == 14)
