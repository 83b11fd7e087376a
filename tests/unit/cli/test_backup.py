"""`backup` with Delta tables and with `--follow`: refused options, signals, Spark sessions, and notes."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kbackup.archive.models import Totals
from kbackup.cli import main
from kbackup.cli.common.frame import FlagValues, Frame, load_config
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.session import show_connecting, spark_session, stop_at_signals
from kbackup.config import Config, Setting, SettingOrigin
from kbackup.errors import UnreachableError
from kbackup.jobs.backup import job as backup_job
from kbackup.jobs.backup.job import BackupReport
from kbackup.jobs.common import Stop
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
    with spark_session(Config(), reporter=Reporter()) as one, spark_session(Config(), reporter=Reporter()) as other:
        one()
        other()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert len(set(cancelled)) == 2
    assert signal.getsignal(signal.SIGINT) is before


# Options that `backup --follow` refuses before it starts, and signals that stop it.


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stop() -> Iterator[Stop]:
    with closing(Stop()) as made:
        yield made


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--interval=10s"], "--interval needs --follow"),
        (["--listen=:9464"], "--listen needs --follow"),
        (["--follow", "--listen=9464"], "can't listen on '9464'"),
        (["--follow", "--listen=:0", "--interval=5m"], "no longer than the interval"),
        (["--follow", "--interval=0s"], "follow.interval_seconds '0s' is not"),
    ],
)
def test_unusable_options_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backup", "--archive=/nonexistent/archive", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("tables", ["", "s3://lake/kafka"])
def test_delta_tables_are_told_of_where_some_are_configured(tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("kbackup.toml").write_text(f'[export]\ndelta = "{tables}"\n' if tables else "")
    assert main(["backup", "--archive=/nonexistent/archive", "--follow", "--listen=9464"]) == 2
    told = "--follow writes no Delta tables" in capsys.readouterr().err
    assert told == bool(tables)


def test_a_key_in_the_file_needs_no_follow(capsys: pytest.CaptureFixture[str]) -> None:
    Path("kbackup.toml").write_text('[follow]\ninterval_seconds = "10s"\n')
    assert main(["config"]) == 0
    assert "follow.interval_seconds" in capsys.readouterr().out


def test_stop_is_asked_once_and_heard_by_whoever_waits(stop: Stop) -> None:
    assert not stop.wait(0)
    threading.Timer(0.05, stop.ask).start()
    assert stop.wait(60)
    stop.ask()
    assert stop.asked
    assert stop.wait(0), "it stays asked"


def test_the_first_signal_asks_and_the_second_interrupts(stop: Stop) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_at_signals(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(60)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_interrupts_also_where_a_shell_had_them_ignored(stop: Stop) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_at_signals(stop):
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.wait(60)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)


def test_work_beyond_the_grace_time_is_interrupted(stop: Stop) -> None:
    def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(60)

    with stop_at_signals(stop, grace=0.05), pytest.raises(KeyboardInterrupt):
        work()


# Notes of commands that wait for Spark or a cluster.


class Noted(Reporter):
    """Keeps what a terminal would show."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def doing(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.parametrize(("ready", "message"), [(False, ["starting Spark"]), (True, [])])
def test_a_wait_for_spark_is_said(ready: bool, message: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Starting:
        def __init__(self, *of: object) -> None:
            self.ready, self.session, self.ended = ready, None, False

        def __call__(self) -> Mapping[str, str]:
            return {}

        def leave(self) -> None: ...

    monkeypatch.setattr(spark, "Starting", Starting)
    reporter = Noted()
    with spark_session(Config(), at_once=True, reporter=reporter) as session:
        assert reporter.lines == []
        session()
        assert reporter.lines == message


def test_the_cluster_is_named() -> None:
    setting = Setting("target.bootstrap.servers", "there:1", SettingOrigin("flag", "--bootstrap-server"))
    reporter = Noted()
    frame = Frame(load_config(FlagValues(settings=[setting])), reporter)
    show_connecting(frame, "source")
    assert reporter.lines == [], "none is named: that is an error soon"
    show_connecting(frame, "target")
    assert reporter.lines == ["connecting to the target cluster at there:1"]
