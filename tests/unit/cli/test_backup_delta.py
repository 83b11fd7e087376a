"""`kbackup backup --delta`: the restore point comes whatever becomes of the tables."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kbackup.archive.models import Totals
from kbackup.cli import main
from kbackup.cli.common.session import spark_session
from kbackup.config import Config
from kbackup.errors import UnreachableError
from kbackup.jobs.backup import job as backup_job
from kbackup.jobs.backup.job import BackupReport
from kbackup.spark import session as spark
from tests.support.archives import make_archive

WHY = "Spark can't be started: no jars"


class NoDelta:
    """A start of Spark that fails where jars are to be fetched; of others the session is what they were given."""

    ready = True

    def __init__(self, master: str | None, conf: Mapping[str, str], attempts: int) -> None:
        self._conf = conf
        self.session: Any = None

    def __call__(self) -> Mapping[str, str]:
        if "spark.jars.packages" in self._conf:
            raise UnreachableError(WHY, "hint")
        return self._conf

    ended = False

    def leave(self) -> None: ...


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, str]]:
    """Configurations of the sessions with which backups ran."""
    taken: list[Mapping[str, str]] = []

    def backup(options: Any, source: Any, store: Any, session: Callable[[], Any], *_: object) -> BackupReport:
        make_archive(store)
        taken.append(session())
        none = Totals(topics=0, partitions=0, segments=0, records=0, bytes=0, stored_bytes=0, groups=0)
        return BackupReport(2, 1, "2026-01-31T02:31:07.114Z", store.url, none, (), (), ())

    monkeypatch.setattr(spark, "Starting", NoDelta)
    monkeypatch.setattr(backup_job, "backup", backup)
    return taken


def test_a_restore_point_takes_no_jars(
    sessions: list[Mapping[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = tmp_path / "tables"
    arguments = ["backup", "--archive", str(tmp_path / "archive"), "--delta", str(tables), "--json"]
    assert main(arguments) == UnreachableError.exit_code
    said = capsys.readouterr()
    assert json.loads(said.out)["restore_point"] == 2
    assert f"restore point 2 is committed, but an export to the Delta tables at {tables} failed: {WHY}" in said.err
    (conf,) = sessions
    assert not [name for name in conf if "jars" in name or "extensions" in name]
    assert not (tables / "_kbackup" / "reached.json").exists()


def test_without_tables_no_second_start(
    sessions: list[Mapping[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "kbackup.toml"
    config.write_text('[spark.conf]\n"spark.jars.packages" = "of:mine:1"\n')
    arguments = ["backup", "--archive", str(tmp_path / "archive"), "--config", str(config)]
    assert main(arguments) == UnreachableError.exit_code
    assert WHY in capsys.readouterr().err
    assert not sessions


def test_ctrl_c_cancels_the_jobs_of_all_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[object] = []

    class Started(NoDelta):
        def __call__(self) -> Mapping[str, str]:
            self.session = self
            return {}

        @property
        def sparkContext(self) -> Any:  # noqa: N802 (Spark's)
            return self

        def cancelAllJobs(self) -> None:  # noqa: N802 (Spark's)
            cancelled.append(self)

    monkeypatch.setattr(spark, "Starting", Started)
    before = signal.getsignal(signal.SIGINT)
    with spark_session(Config()) as one, spark_session(Config()) as other:
        one()
        other()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert len(set(cancelled)) == 2
    assert signal.getsignal(signal.SIGINT) is before
