"""Client properties, secrets among them, are in no text that a task's work is shown as."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from kbackup.archive.lease import HeldLease
from kbackup.archive.run import open_or_create
from kbackup.config.models import Backup
from kbackup.jobs.backup.job import begin
from kbackup.jobs.backup.task import BackupWork
from kbackup.jobs.compare.job import CompareWork
from kbackup.jobs.restore.task import RestoreWork
from kbackup.store import open_store


@pytest.mark.parametrize(
    ("work", "cluster"), [(BackupWork, "source"), (RestoreWork, "target"), (CompareWork, "cluster")]
)
def test_properties_are_not_shown(work: Any, cluster: str) -> None:
    values: dict[str, Any] = dict.fromkeys((field.name for field in fields(work)), 7)
    shown = repr(work(**values | {cluster: {"sasl.password": "hunter2"}}))
    assert work.__name__ in shown
    assert "hunter2" not in shown


def test_tasks_get_no_property_of_zookeeper(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "archive"))
    source = {"bootstrap.servers": "b:1", "zookeeper.connect": "zk:1", "metadata.log.dir": "/kraft"}
    cluster: Any = None
    open_or_create(store)
    with HeldLease(store, "kbackup test", 60) as lease:
        run = begin(Backup(), source, store, cluster, "c", 1, lease)
    assert run.source == {"bootstrap.servers": "b:1"}
    assert run.sources.metadata_log == "/kraft"
