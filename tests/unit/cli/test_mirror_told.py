"""What `kbackup mirror` says while its halves run."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kbackup.cli.frame import Frame, State, load_config
from kbackup.cli.mirror.told import ToldOfApply
from kbackup.cli.output import Reporter
from kbackup.jobs.mirror.apply import Applied
from kbackup.jobs.mirror.halves.round import RoundReport
from tests.support.mirrors import flow_of


@pytest.fixture
def frame() -> Frame:
    return Frame(load_config(State()), Reporter())


def test_refusals_are_told_once(frame: Frame, capsys: pytest.CaptureFixture[str]) -> None:
    """Rounds between two that set the ACLs know nothing of them."""
    told = ToldOfApply(frame, None)

    def warnings(refused: Mapping[str, tuple[str, ...]]) -> int:
        told.applied(flow_of(), RoundReport("A->B", 1, (), (), Applied(1), refused=refused))
        return capsys.readouterr().err.count("flow A->B: acls: ")

    no = {"acls": ("no authorizer",)}
    assert [warnings(no), warnings({}), warnings(no), warnings({"acls": ()}), warnings(no)] == [1, 0, 0, 0, 1]
