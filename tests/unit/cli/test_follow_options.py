"""Options that `backup --follow` refuses before it starts, and signals that stop it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kbackup.cli import main
from kbackup.cli.common.session import stop_at_signals
from kbackup.jobs.common import Stop


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
