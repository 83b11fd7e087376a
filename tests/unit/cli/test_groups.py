"""`groups` on archives that are at hand, and what it prints for people."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.archive.query.groups import GroupOverview, GroupsOverview, Stand
from kbackup.cli import groups as tables
from kbackup.cli.common.output import Reporter
from kbackup.jobs.groups import report as groups_report
from kbackup.jobs.groups.plan import GroupOffsetResult
from kbackup.jobs.groups.undo import GroupUndoReport, UndoResult
from tests.golden.java_archive import ROOT as JAVA
from tests.support.printed import Kbackup

STEERS = "\x1b[2Jname\nof\u202e a group"
ESCAPED = "\\x1b[2Jname\\nof\\u202e a group"


def undone(*groups: UndoResult) -> GroupUndoReport:
    return GroupUndoReport(restore_id="r", undone=4, by="apply", captured_at="then", number=5, groups=groups)


def test_groups_of_each_restore_point(root: str, kbackup: Kbackup) -> None:
    newest = kbackup("groups", "show", "-a", root, "--json").json
    assert [(g["group"], g["partitions"], g["lag"]) for g in newest["groups"]] == [
        ("billing", 2, 41 - 17),
        ("late", 1, 0),
    ]
    first = kbackup("groups", "show", "-a", root, "-b", "1", "--json").json
    assert [(g["group"], g["partitions"], g["lag"]) for g in first["groups"]] == [
        ("billing", 3, (20 - 5) + (10 - 4) + 0)
    ]
    at = kbackup("groups", "show", "-a", root, "--to-time", "2026-01-01T12:00:00Z", "--json").json
    assert (at["restore_point"], at["groups"]) == (1, first["groups"])


def test_one_group_for_people(root: str, kbackup: Kbackup) -> None:
    printed = kbackup("groups", "show", "billing", "-a", root)
    assert printed.table("TOPIC") == [
        {"TOPIC": "orders", "PARTITION": "0", "OFFSET": "17", "LAG": "24", "LEADER EPOCH": "-"},
        {"TOPIC": "orders", "PARTITION": "1", "OFFSET": "12", "LAG": "0", "LEADER EPOCH": "-"},
    ]
    assert printed.err == ""


def test_folder_of_the_java_tool(kbackup: Kbackup) -> None:
    shown = kbackup("groups", "show", "cg-100", "-a", str(JAVA / "archive"), "--json").json
    assert (shown["restore_point"], shown["group"]["type"]) == (0, "")
    assert ("orders.v1", 0, 100) in [(o["topic"], o["partition"], o["offset"]) for o in shown["group"]["offsets"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "biling"], "there is no group biling in restore point 2"),
        (["show", "-b", "7"], "there is no restore point 7"),
        (["show", "--to-time", "2020-01-01T00:00:00Z"], "no restore point was captured at or before"),
        (["plan", "--restore-id", "r"], "no target cluster is named"),
        (["undo"], "no restore is named"),
        (["undo", "--restore-id", "r", "0"], "0 is less than 1"),
        (["sow"], "no such command 'sow'"),
    ],
)
def test_unusable_arguments_are_refused(
    root: str, kbackup: Kbackup, arguments: list[str], message: str, tmp_path: Path
) -> None:
    config = tmp_path / "empty.toml"
    config.write_text(f'archive = "{root}"')
    rest = ["--config", str(config)] if arguments[0] != "sow" else []
    assert message in kbackup("groups", *arguments, *rest, "--json", code=2).json["error"]["message"]


def test_names_can_not_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter()
    group = GroupOverview(STEERS, STEERS, STEERS, 1, 1, (Stand("t", 0, 5, 1, 3, STEERS),))
    found = GroupsOverview("a", 1, "then", (group,), {STEERS: STEERS})
    tables.show_groups(found, reporter)
    tables.show_group(group, found, reporter)
    offset = groups_report.PlannedOffset(
        topic=STEERS, partition=0, source=1, target=2, how="next record", leader_epoch=None, metadata="", now=None
    )
    planned = groups_report.PlannedGroupReport(
        source=STEERS, group=STEERS, hindered=STEERS, offsets=(offset,), left_out=(STEERS,)
    )
    point = {"restore_id": "r", "restore_point": 1, "captured_at": "then", "target_cluster_id": "c"}
    tables.show_plan(groups_report.GroupsPlanReport(**point, groups=(planned,)), reporter)  # type: ignore[arg-type]
    result = GroupOffsetResult(topic=STEERS, partition=0, source=1, target=2, how="exact")
    applied = groups_report.GroupResult(source=STEERS, group=STEERS, status="refused", why=STEERS, offsets=(result,))
    tables.show_applied(
        groups_report.GroupsReport(**point, capture=4, same_offsets=False, groups=(applied,)),  # type: ignore[arg-type]
        "kbackup groups undo --restore-id r 4 --confirm",
        reporter,
    )
    refused = UndoResult(group=STEERS, status="refused", why=STEERS, set_back=1, removed=2, kept=3)
    tables.show_undone(undone(refused), reporter)
    out, err = capsys.readouterr()
    assert all(line.isprintable() for text in (out, err) for line in text.splitlines())
    assert min(out.count(ESCAPED), err.count(ESCAPED)) >= 5
    assert "to undo: kbackup groups undo --restore-id r 4 --confirm\n" in err


def test_an_undo_counts_what_it_put_back(capsys: pytest.CaptureFixture[str]) -> None:
    """A group that the broker refused is not among those that were put back."""
    refused = UndoResult(group="a", status="refused", why="denied", set_back=1, removed=0, kept=0)
    put_back = UndoResult(group="b", status="put back", set_back=1, removed=0, kept=0)
    tables.show_undone(undone(refused, put_back), Reporter())
    assert capsys.readouterr().out.endswith("1 of 2 groups put back to then, before 'apply' (capture 4)\n")


def test_groups_of_a_moment_show_it_with_its_zone_or_say_when_the_archive_begins(root: str, kbackup: Kbackup) -> None:
    printed = kbackup("groups", "show", "-a", root, "--to-time", "2026-01-01 13:00", "--tz", "Europe/Berlin")
    assert "as of 2026-01-01T12:00:00.000Z (2026-01-01 13:00:00 +01:00 in Europe/Berlin)" in printed.err
    refused = kbackup("groups", "show", "-a", root, "--to-time", "2025-01-01 00:00Z", code=2)
    assert "the oldest, restore point 1, was begun at 2026-01-01T00:00:00.000Z" in refused.err
