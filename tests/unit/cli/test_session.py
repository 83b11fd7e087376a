"""Notes of commands that wait for Spark or a cluster."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kbackup.cli.common.frame import FlagValues, Frame, load_config
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.session import show_connecting, spark_session
from kbackup.config import Config, Setting, SettingOrigin
from kbackup.spark import session as spark


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
