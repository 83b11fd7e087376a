"""`backup` with Delta tables and with `--follow`, Spark sessions, signals that stop, and the plan of `restore`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest

from kbackup.archive.models import Totals
from kbackup.archive.restores.plan import RestorePlan
from kbackup.cli.common.command_context import CommandContext, FlagValues, load_config
from kbackup.cli.common.output import Reporter, ShownProgress
from kbackup.cli.common.session import show_connecting, spark_session, stop_at_signals
from kbackup.cli.restore import ReporterScreen, RestoreInterruption
from kbackup.cli.restore import command as restore
from kbackup.config import Config, Setting, SettingOrigin, load
from kbackup.errors import UnreachableError, UsageError
from kbackup.jobs.backup import job as backup_job
from kbackup.jobs.backup.job import BackupReport
from kbackup.jobs.common import Stop
from kbackup.jobs.restore.report import TopicFill
from kbackup.spark import session as spark
from tests.support.archives import make_archive
from tests.support.printed import Kbackup, parsed_command

WHY = "Spark can't be started: no jars"


class Started:
    """A start of Spark that fails where jars are to be fetched; the session keeps what it was given."""

    ready, ended = True, False
    cancelled: list[object] = []  # noqa: RUF012 (of all sessions)

    def __init__(self, master: str | None, conf: Mapping[str, str], attempts: int) -> None:
        self.conf = conf
        self.session: Any = None
        self.sparkContext = self

    def __call__(self) -> Any:
        if "spark.jars.packages" in self.conf:
            raise UnreachableError(WHY, "hint")
        self.session = self
        return self

    def cancelAllJobs(self) -> None:  # noqa: N802 (Spark's)
        self.cancelled.append(self)

    def leave(self) -> None: ...


class Noted(Reporter):
    """Keeps what a terminal would show."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def doing(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spark, "Starting", Started)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, str]]:
    """Configurations of the sessions with which backups ran."""
    taken: list[Mapping[str, str]] = []

    def backup(options: Any, source: Any, store: Any, session: Callable[[], Any], *_: object) -> BackupReport:
        make_archive(store)
        taken.append(session().conf)
        none = Totals(topics=0, partitions=0, segments=0, records=0, bytes=0, stored_bytes=0, groups=0)
        return BackupReport(2, 1, "2026-01-31T02:31:07.114Z", store.url, none, (), (), ())

    monkeypatch.setattr(backup_job, "backup", backup)
    return taken


def test_a_restore_point_takes_no_jars(sessions: list[Mapping[str, str]], tmp_path: Path, kbackup: Kbackup) -> None:
    tables = tmp_path / "tables"
    printed = kbackup("backup", "-a", str(tmp_path / "archive"), "--delta", str(tables), "--json", code=14)
    assert printed.json["restore_point"] == 2
    assert f"restore point 2 is committed, but an export to the Delta tables at {tables} failed: {WHY}" in printed.err
    (conf,) = sessions
    assert not [name for name in conf if "jars" in name or "extensions" in name]
    assert not (tables / "_kbackup" / "reached.json").exists()


def test_without_tables_no_second_start(sessions: list[Mapping[str, str]], tmp_path: Path, kbackup: Kbackup) -> None:
    Path("kbackup.toml").write_text('[spark.conf]\n"spark.jars.packages" = "of:mine:1"\n')
    assert WHY in kbackup("backup", "-a", str(tmp_path / "archive"), code=14).err
    assert not sessions


def test_ctrl_c_cancels_the_jobs_of_all_sessions() -> None:
    Started.cancelled.clear()
    before, reporter = signal.getsignal(signal.SIGINT), Reporter()
    with spark_session(Config(), reporter=reporter) as one, spark_session(Config(), reporter=reporter) as other:
        one()
        other()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert len(set(Started.cancelled)) == 2
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("ready", "message"), [(False, ["starting Spark"]), (True, [])])
def test_a_wait_for_spark_is_said(ready: bool, message: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Started, "ready", ready)
    reporter = Noted()
    with spark_session(Config(), at_once=True, reporter=reporter) as session:
        assert reporter.lines == []
        session()
        assert reporter.lines == message


def test_the_cluster_is_named() -> None:
    setting = Setting("target.bootstrap.servers", "there:1", SettingOrigin("flag", "--bootstrap-server"))
    reporter = Noted()
    context = CommandContext(load_config(FlagValues(settings=[setting])), reporter)
    show_connecting(context, "source")
    assert reporter.lines == [], "none is named: that is an error soon"
    show_connecting(context, "target")
    assert reporter.lines == ["connecting to the target cluster at there:1"]


# Options that `backup --follow` refuses before it starts, and signals that stop it.


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
def test_unusable_options_are_refused(arguments: list[str], message: str, kbackup: Kbackup) -> None:
    assert message in kbackup("backup", "--archive=/nonexistent/archive", *arguments, code=2).err


@pytest.mark.parametrize("tables", ["", "s3://lake/kafka"])
def test_delta_tables_are_told_of_where_some_are_configured(tables: str, kbackup: Kbackup) -> None:
    Path("kbackup.toml").write_text(f'[export]\ndelta = "{tables}"\n' if tables else "")
    err = kbackup("backup", "--archive=/nonexistent/archive", "--follow", "--listen=9464", code=2).err
    assert ("--follow writes no Delta tables" in err) == bool(tables)


def test_a_key_in_the_file_needs_no_follow(sessions: list[Mapping[str, str]], tmp_path: Path, kbackup: Kbackup) -> None:
    Path("kbackup.toml").write_text('[follow]\ninterval_seconds = "10s"\n')
    kbackup("backup", "-a", str(tmp_path / "archive"))
    assert len(sessions) == 1


def test_stop_is_asked_once_and_heard_by_whoever_waits(stop: Stop) -> None:
    assert not stop.wait(0)
    threading.Timer(0.05, stop.ask).start()
    assert stop.wait(60)
    stop.ask()
    assert stop.asked
    assert stop.wait(0), "it stays asked"


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_the_first_signal_asks_and_the_second_interrupts(stop: Stop, handler: Any) -> None:
    """Also where a shell had them ignored."""
    before, own = signal.signal(signal.SIGINT, handler), signal.getsignal(signal.SIGTERM)
    try:
        with stop_at_signals(stop):
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.wait(60)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == (own, handler)
    finally:
        signal.signal(signal.SIGINT, before)


def test_work_beyond_the_grace_time_is_interrupted(stop: Stop) -> None:
    def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(60)

    with stop_at_signals(stop, grace=0.05), pytest.raises(KeyboardInterrupt):
        work()


# `restore`: the output of a dry run, and an option that is gone.


def test_a_dry_run_says_where_nothing_was_written(capsys: pytest.CaptureFixture[str]) -> None:
    plan = RestorePlan(
        restore_id="r",
        archive_id="a",
        restore_point=1,
        target_cluster_id="t",
        created_at="2026-01-31T12:00:00.000Z",
        transactions=True,
        transaction_bytes=0,
        into_existing=False,
        topics=(),
        units=(),
        groups=(),
    )
    state = FlagValues(arguments=["restore", "-a", "s3://b/a", "--dry-run", "--count"])
    with click.Context(restore, obj=state), ShownProgress(Reporter()) as shown:
        interruption = RestoreInterruption(shown, again="")
        screen = ReporterScreen(Reporter(), dry_run=True, counted=False, names_restore=False, interruption=interruption)
        screen.show_plan(plan, [])
    out, err = capsys.readouterr()
    assert err.splitlines()[1:] == ["to restore: kbackup restore -a s3://b/a"]
    assert "nothing was written to the target; the restore would write 0 records" in out
    assert "GROUP" not in out, "a plan without groups shows no table of them"


@pytest.mark.parametrize(
    ("head", "seconds", "noted"),
    [
        (3_000_000_000, 1000.0, ["about 16m40s of one core", "up to 2.3 GiB of disk for each replica"]),
        (0, 20.0, ["about 20s of one core"]),
        (1_000_000, 0.3, []),
    ],
)
def test_a_dry_run_says_what_fillers_ask_of_the_brokers(
    head: int, seconds: float, noted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    fill = TopicFill(
        source="orders",
        target="orders",
        way="aborted",
        head=head,
        head_bytes=round(head * 0.82),
        gaps=0,
        largest=0,
        markers=0,
        fillers=0,
        seconds=seconds,
        broker_seconds=seconds,
    )
    with click.Context(restore, obj=FlagValues()), ShownProgress(Reporter()) as shown:
        interruption = RestoreInterruption(shown, again="")
        screen = ReporterScreen(Reporter(), dry_run=True, counted=False, names_restore=False, interruption=interruption)
        screen.show_fills([fill])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(noted)
    for line, words in zip(lines, noted, strict=True):
        assert words in line


def test_a_restore_from_delta_tables_is_refused_by_name(kbackup: Kbackup) -> None:
    with pytest.raises(UsageError, match=r"^flag --from-delta: restore\.from_delta no longer exists") as by_flag:
        parsed_command(["kbackup", "restore", "--from-delta", "s3://lake/kafka", "--dry-run"])
    reading, selecting, writing = (by_flag.value.hint or "").splitlines()[1:]
    assert 'spark.read.format("delta")' in reading
    assert 'select("topic", "partition", "key", "value", "headers")' in selecting
    assert 'write.format("kafka")' in writing
    with pytest.raises(UsageError, match=r"KBACKUP_RESTORE_FROM_DELTA: restore\.from_delta no longer exists"):
        load(environ={"KBACKUP_RESTORE_FROM_DELTA": "s3://lake/kafka"})
    Path("kbackup.toml").write_text('[restore]\nfrom_delta = "s3://lake/kafka"\n')
    with pytest.raises(UsageError, match=r"kbackup\.toml: restore\.from_delta no longer exists"):
        load(environ={})
    assert "delta" not in kbackup("restore", "--help").out
