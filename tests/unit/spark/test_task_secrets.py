"""Client properties, secrets among them, are in no text that a task's work is shown as."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from kbackup.jobs import capture
from kbackup.jobs.backup.task import BackupWork
from kbackup.jobs.compare.job import CompareWork
from kbackup.jobs.restore.task import RestoreWork


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
    connected = capture.connect(source, "read_committed", 1.0)
    assert connected.properties == {"bootstrap.servers": "b:1"}
    assert connected.sources.metadata_log == "/kraft"
