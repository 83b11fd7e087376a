"""`groups` on archives that are at hand, and what it prints for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbackup import cli
from kbackup.archive.query.groups import GroupOverview, GroupsOverview, Stand
from kbackup.cli import groups as tables
from kbackup.cli.common.output import Reporter
from kbackup.jobs.groups.job import (
    GroupResult,
    GroupsPlanReport,
    GroupsReport,
    GroupUndoReport,
    PlannedGroupReport,
    PlannedOffset,
    UndoResult,
)
from kbackup.jobs.groups.plan import GroupOffsetResult
from kbackup.store import open_store
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import make_archive

Said = pytest.CaptureFixture[str]
STEERS = "\x1b[2Jname\nof\u202e a group"
ESCAPED = "\\x1b[2Jname\\nof\\u202e a group"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("made") / "archive"
    make_archive(open_store(str(root)))
    return str(root)


def told(capsys: Said, *args: str, code: int = 0) -> Any:
    assert cli.main(["groups", *args, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_groups_of_each_restore_point(root: str, capsys: Said) -> None:
    newest = told(capsys, "show", "-a", root)
    assert [(g["group"], g["partitions"], g["lag"]) for g in newest["groups"]] == [
        ("billing", 2, 41 - 17),
        ("late", 1, 0),
    ]
    first = told(capsys, "show", "-a", root, "-b", "1")
    assert [(g["group"], g["partitions"], g["lag"]) for g in first["groups"]] == [
        ("billing", 3, (20 - 5) + (10 - 4) + 0)
    ]
    at = told(capsys, "show", "-a", root, "--to-time", "2026-01-01T12:00:00Z")
    assert (at["restore_point"], at["groups"]) == (1, first["groups"])


def test_one_group_for_people(root: str, capsys: Said) -> None:
    assert cli.main(["groups", "show", "billing", "-a", root]) == 0
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.splitlines()[-2:]]
    assert [row[:4] for row in rows] == [["orders", "0", "17", "24"], ["orders", "1", "12", "0"]]
    assert err == ""


def test_folder_of_the_java_tool(capsys: Said) -> None:
    shown = told(capsys, "show", "cg-100", "-a", str(JAVA / "archive"))
    assert (shown["restore_point"], shown["group"]["type"]) == (0, "")
    assert ("orders.v1", 0, 100) in [(o["topic"], o["partition"], o["offset"]) for o in shown["group"]["offsets"]]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["show", "biling"], 2, "there is no group biling in restore point 2"),
        (["show", "-b", "7"], 2, "there is no restore point 7"),
        (["show", "--to-time", "2020-01-01T00:00:00Z"], 2, "no restore point was captured at or before"),
        (["plan", "--restore-id", "r"], 2, "no target cluster is named"),
        (["undo"], 2, "no restore is named"),
        (["undo", "--restore-id", "r", "0"], 2, "0 is not in the range"),
        (["sow"], 2, "No such command 'sow'"),
    ],
)
def test_unusable_arguments_are_refused(
    root: str, capsys: Said, arguments: list[str], code: int, message: str, tmp_path: Path
) -> None:
    config = tmp_path / "empty.toml"
    config.write_text(f'archive = "{root}"')
    rest = ["--config", str(config)] if arguments[0] != "sow" else []
    assert message in told(capsys, *arguments, *rest, code=code)["error"]["message"]


def test_names_can_not_steer_a_terminal(capsys: Said) -> None:
    stand = Stand("t", 0, 5, 1, 3, STEERS)
    group = GroupOverview(STEERS, STEERS, STEERS, 1, 1, (stand,))
    found = GroupsOverview("a", 1, "then", (group,), {STEERS: STEERS})
    reporter = Reporter()
    tables.show_groups(found, reporter)
    tables.show_group(group, found, reporter)
    offset = PlannedOffset(
        topic=STEERS, partition=0, source=1, target=2, how="next record", leader_epoch=None, metadata="", now=None
    )
    planned = PlannedGroupReport(source=STEERS, group=STEERS, hindered=STEERS, offsets=(offset,), left_out=(STEERS,))
    point = {"restore_id": "r", "restore_point": 1, "captured_at": "then", "target_cluster_id": "c"}
    tables.show_plan(GroupsPlanReport(**point, groups=(planned,)), reporter)  # type: ignore[arg-type]
    result = GroupOffsetResult(topic=STEERS, partition=0, source=1, target=2, how="exact")
    applied = GroupResult(source=STEERS, group=STEERS, status="refused", why=STEERS, offsets=(result,))
    report = GroupsReport(**point, capture=4, same_offsets=False, groups=(applied,))  # type: ignore[arg-type]
    tables.show_applied(report, reporter)
    undone = UndoResult(group=STEERS, status="refused", why=STEERS, set_back=1, removed=2, kept=3)
    tables.show_undone(
        GroupUndoReport(restore_id="r", undone=4, by="apply", captured_at="then", number=5, groups=(undone,)), reporter
    )
    out, err = capsys.readouterr()
    assert all(line.isprintable() for text in (out, err) for line in text.splitlines())
    assert min(out.count(ESCAPED), err.count(ESCAPED)) >= 5
    assert "to undo: kbackup groups undo --restore-id r 4" in err


def test_an_undo_counts_what_it_put_back(capsys: pytest.CaptureFixture[str]) -> None:
    """A group that the broker refused is not among those that were put back."""
    groups = (
        UndoResult(group="a", status="refused", why="denied", set_back=1, removed=0, kept=0),
        UndoResult(group="b", status="put back", set_back=1, removed=0, kept=0),
    )
    tables.show_undone(
        GroupUndoReport(restore_id="r", undone=4, by="apply", captured_at="then", number=5, groups=groups), Reporter()
    )
    assert capsys.readouterr().out.endswith("1 of 2 groups put back to then, before 'apply' (capture 4)\n")
