"""The archive that verification is tested with; tasks run in this process."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kbackup.spark.tasks import ProgressSender
from kbackup.store import open_store
from tests.support.archives import make_archive


@pytest.fixture(autouse=True)
def _tasks_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_here(spark: None, tasks: Sequence[Any], work: Any, show: Any) -> list[Any]:
        return [result for task in tasks for result in work(task, ProgressSender(None, 0))]

    monkeypatch.setattr("kbackup.spark.tasks.run_tasks", run_here)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made") / "archive"
    make_archive(open_store(str(root)))
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "archive"))
