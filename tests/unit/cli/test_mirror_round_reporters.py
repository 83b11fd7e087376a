"""Output of `kbackup mirror` while its halves run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kbackup.cli.common.frame import FlagValues, Frame, load_config
from kbackup.cli.common.output import Reporter
from kbackup.cli.mirror.run import ApplyRoundReporter, Building, TakeRoundReporter
from kbackup.config.load import Setting, SettingOrigin
from kbackup.errors import UnreachableError
from kbackup.jobs.backup.job import BackupReport
from kbackup.jobs.common import Stop
from kbackup.jobs.mirror.apply.pending import Applied
from kbackup.jobs.mirror.halves.apply import RoundReport
from kbackup.jobs.mirror.properties import load_flows
from kbackup.metrics.registry import counted
from kbackup.metrics.server import JointHealth, samples
from tests.support.mirrors import CLUSTERS, flow_of


@pytest.fixture
def frame() -> Frame:
    return Frame(load_config(FlagValues()), Reporter())


def test_refusals_are_told_once(frame: Frame, capsys: pytest.CaptureFixture[str]) -> None:
    """Rounds between two that set the ACLs know nothing of them."""
    told = ApplyRoundReporter(frame, None)

    def warnings(refused: Mapping[str, tuple[str, ...]]) -> int:
        told.applied(flow_of(), RoundReport("A->B", 1, (), (), Applied(1), refused=refused))
        return capsys.readouterr().err.count("flow A->B: acls: ")

    no = {"acls": ("no authorizer",)}
    assert [warnings(no), warnings({}), warnings(no), warnings({"acls": ()}), warnings(no)] == [1, 0, 0, 0, 1]


def last_success() -> float | None:
    return counted.snapshot().values.get(("kbackup_last_success_timestamp_seconds", ()))


def test_apply_half_hides_no_stale_take_half(frame: Frame) -> None:
    counted.begin("mirror")
    joint = JointHealth(60, lambda: now)
    now = 0.0
    take = TakeRoundReporter(frame, joint.add_component("take A"), "take A")
    apply = ApplyRoundReporter(frame, joint.add_component("apply A->B"))
    now = 61.0
    apply.well()
    assert joint.answer()[0] == 503
    assert last_success() is None
    take.well()
    assert joint.answer()[0] == 200
    assert last_success() is not None


def test_take_half_hides_no_other_one(frame: Frame, monkeypatch: pytest.MonkeyPatch) -> None:
    counted.begin("mirror")
    halves = {name: TakeRoundReporter(frame, None, f"take {name}") for name in ("A", "B")}
    for second, name in enumerate("AABAA", start=100):
        monkeypatch.setattr(time, "time", lambda second=second: float(second))
        with counted.of_archive(name):
            halves[name].well()
    ended = {
        dict(labels)["archive"]: value
        for (name, labels), value in samples(counted.snapshot()).items()
        if name == "kbackup_last_success_timestamp_seconds"
    }
    assert ended == {"A": 104, "B": 102}


def test_flow_that_waits_for_its_archive_is_not_well(frame: Frame) -> None:
    now = 0.0
    joint = JointHealth(60, lambda: now)
    apply = ApplyRoundReporter(frame, joint.add_component("apply A->B"))
    apply.waiting(flow_of(), "there is no archive at /x")
    assert joint.answer() == (200, "apply A->B: ok: 0 s; last error: there is no archive at /x\n")
    now = 61.0
    assert joint.answer()[0] == 503


def test_each_half_has_its_own_health(tmp_path: Path) -> None:
    """Two-way: two take halves and two apply halves in a process."""
    text = CLUSTERS + "B->A.enabled = true\n"
    properties = load_flows(text, archive=f"{tmp_path}/{{source}}")
    settings = [Setting("follow.listen", "127.0.0.1:0", SettingOrigin("flag", "--listen"))]
    frame = Frame(load_config(FlagValues(settings=settings)), Reporter(quiet=True))
    with closing(Stop()) as stop, ExitStack() as stack:
        building = Building(frame, properties, lambda: pytest.fail("Spark"), stop, stop, stack)
        halves = building.halves(properties.flows, take=True, apply=True)
        assert building.health is not None
        status, text = building.health.answer()
        assert status == 200
        assert [line.partition(": ok")[0] for line in text.splitlines()] == [*halves]
        assert len(halves) == 4


def test_take_halves_say_which_source_a_restore_point_is_of(frame: Frame, capsys: pytest.CaptureFixture[str]) -> None:
    """Both ways, each source has restore points of its own."""
    told = TakeRoundReporter(frame, None, "take B into file:///archives/B")
    told.committed(cast(BackupReport, BackedUp()))
    told.failed(UnreachableError("source cluster at b:9092 did not answer"), 2.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "take B: restore point 7: 3 new records, 10 B in 1 segment"
    assert "take B: source cluster at b:9092 did not answer; retrying in 2s" in lines[1]


@dataclass
class BackedUp:
    restore_point: int = 7
    warnings: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    held_back: int = 0
    totals: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(records=3, bytes=10, segments=1))
