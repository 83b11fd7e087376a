"""Secrets and directories of a job that goes to a cluster, and the settings of clusters."""

from __future__ import annotations

import socket
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbackup import __version__
from kbackup.archive import layout
from kbackup.config.models import Backup
from kbackup.errors import CorruptError, DeniedError, KbackupError, RefusedError, UnreachableError
from kbackup.jobs import capture
from kbackup.jobs.backup.task import BackupWork
from kbackup.jobs.compare.job import CompareWork
from kbackup.jobs.restore.task import RestoreWork
from kbackup.spark.session import ALLOW_PLAIN_SECRETS, session_settings
from kbackup.spark.workers import Answer, Expected, check_answer, check_worker, named_error, prepared_cluster
from kbackup.store import S3Options, Store, open_store
from kbackup.store.file import FileStore
from kbackup.store.wrappers import GuardedStore

PROTECTED = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
PASSWORD = {"bootstrap.servers": "broker:9092", "sasl.password": "hush"}


def cluster(conf: dict[str, str]) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(master="spark://there:7077", getConf=lambda: conf))


def work_of(store: Store, source: dict[str, str]) -> BackupWork:
    return BackupWork(source, store, "read_committed", "g", 1, "none", 1.0, {"password": 1}, since=0.0, salvage=True)


def s3_store(**options: str) -> Store:
    return open_store("s3://bucket", {"s3": S3Options(region="eu-north-1", **options)})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "store"),
    [
        (PASSWORD, s3_store()),
        ({"schema.url": "https://user:hush@there"}, s3_store()),
        ({}, s3_store(access_key_id="id", secret_access_key="hush")),
    ],
)
def test_secrets_in_a_job_ask_for_a_protected_cluster(source: dict[str, str], store: Store) -> None:
    work = work_of(store, source)
    with pytest.raises(RefusedError, match="could read the secrets"), prepared_cluster(cluster({}), work):
        pass
    half = {"spark.authenticate": "true"}
    with pytest.raises(RefusedError, match="could read the secrets"), prepared_cluster(cluster(half), work):
        pass
    for conf in (PROTECTED, {ALLOW_PLAIN_SECRETS: "true"}):
        with prepared_cluster(cluster(conf), work) as expected:
            assert expected.marks == ()


def test_a_job_without_secrets_goes_to_any_cluster() -> None:
    """A topic with the name of a secret is none."""
    with prepared_cluster(cluster({}), work_of(s3_store(), {"bootstrap.servers": "broker:9092"})):
        pass


def test_a_data_key_is_a_secret(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), key="env:KEY", key_class=layout.key_class)
    with pytest.raises(RefusedError, match="could read the secrets"), prepared_cluster(cluster({}), store):
        pass


def test_workers_and_driver_see_what_the_other_writes(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "archive")
    with prepared_cluster(cluster({}), work_of(GuardedStore(store, lambda: None), {})) as expected:
        answer = check_worker(expected)
        assert isinstance(answer, Answer)
        check_answer(answer)
        assert check_worker(expected) is None, "one answer of a process is enough"
        assert list(store.list()) == [], "marks are no objects"
        for file in answer.files:
            Path(file).unlink()
        with pytest.raises(RefusedError, match=f"the driver does not see what worker {answer.host} writes"):
            check_answer(answer)
    left = [path for path in (tmp_path / "archive").rglob("*") if path.is_file()]
    assert not left, f"files left behind: {left}"


@pytest.mark.parametrize("kind", [UnreachableError, DeniedError])
def test_an_error_that_other_workers_may_not_have_names_the_worker(kind: type[KbackupError]) -> None:
    named = named_error(kind("s3://lab: no answer", "wait"), Expected(__version__, elsewhere=True))
    expected = (kind, f"worker {socket.gethostname()}: s3://lab: no answer", "wait")
    assert (type(named), named.message, named.hint) == expected


def test_other_errors_and_those_of_a_local_session_name_no_worker() -> None:
    damage, unreachable = CorruptError("x_records: cut"), UnreachableError("s3://lab: no answer")
    assert named_error(damage, Expected(__version__, elsewhere=True)) is damage
    assert named_error(unreachable, Expected(__version__)) is unreachable


def test_a_worker_of_another_release_is_refused() -> None:
    refused = check_worker(Expected("0.0.1"))
    assert isinstance(refused, RefusedError)
    assert refused.message == f"worker {socket.gethostname()} has kbackup {__version__}, the driver has 0.0.1"
    assert "PYSPARK_PYTHON and spark.archives" in refused.hint


def test_a_cluster_is_protected_where_it_has_or_makes_a_secret() -> None:
    wanted = {*PROTECTED, "spark.io.encryption.enabled"}
    secret = {"spark.authenticate.secret": "hush"}
    for master, conf in (("yarn", {}), ("k8s://there", {}), ("spark://there:7077", secret)):
        settings = session_settings(master, 1, False, conf)
        assert {settings.get(name) for name in wanted} == {"true"}, master
    for master, conf in (("spark://there:7077", {}), ("yarn", {"spark.authenticate": "false"})):
        settings = session_settings(master, 1, False, conf)
        assert "spark.network.crypto.enabled" not in settings, f"{master}: Spark would refuse to start"


@pytest.mark.parametrize(
    ("work", "cluster"), [(BackupWork, "source"), (RestoreWork, "target"), (CompareWork, "cluster")]
)
def test_properties_are_not_shown(work: Any, cluster: str) -> None:
    values: dict[str, Any] = dict.fromkeys((field.name for field in fields(work)), 7)
    shown = repr(work(**values | {cluster: {"sasl.password": "hunter2"}}))
    assert work.__name__ in shown
    assert "hunter2" not in shown


def test_tasks_get_no_property_of_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    source = {"bootstrap.servers": "b:1", "zookeeper.connect": "zk:1", "metadata.log.dir": "/kraft"}
    monkeypatch.setattr(capture, "Cluster", lambda *_: SimpleNamespace(connect=lambda: ("c", 1)))
    connected = capture.connect(source, Backup())
    assert connected.properties == {"bootstrap.servers": "b:1"}
    assert connected.sources.metadata_log == "/kraft"
