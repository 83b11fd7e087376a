"""Client properties, secrets among them, are in no text that a task's work is shown as."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from kbackup.jobs.against_task import CompareWork
from kbackup.jobs.backup_task import BackupWork
from kbackup.jobs.restore_task import RestoreWork


@pytest.mark.parametrize(
    ("work", "cluster"), [(BackupWork, "source"), (RestoreWork, "target"), (CompareWork, "cluster")]
)
def test_properties_are_not_shown(work: Any, cluster: str) -> None:
    values: dict[str, Any] = dict.fromkeys((field.name for field in fields(work)), 7)
    shown = repr(work(**values | {cluster: {"sasl.password": "hunter2"}}))
    assert work.__name__ in shown
    assert "hunter2" not in shown
