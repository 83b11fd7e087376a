"""Written command lines set what they were written for, whatever names and values there are."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kbackup.archive.query.selection import Selection, exact_entry
from kbackup.cli.common.command_line import command_line
from kbackup.cli.restore import command
from kbackup.config.models import Restore
from kbackup.errors import UsageError
from tests.support.command_lines import parsed_command

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
"""Names of groups: any text that a document in JSON holds."""


@given(NAMES, NAMES, NAMES)
@example("--json", "-x", "$${env:HOME}")
@example("${env:HOME}", "${file:/etc/passwd}", "=ls")
@example("/a/", "/(/", "//")
@example("", " ", "a=b")
@example("'\"`$(reboot)\\", "!!", "\0\n\r\u202e")
def test_a_command_line_sets_any_names(selected: str, source: str, target: str) -> None:
    settings = {"restore.groups": [exact_entry(selected)], "restore.map_group": {source: target}}
    line = command_line(command, settings, "--dry-run")
    assert line.isprintable()
    words = shlex.split(line)
    assert words[:3] == ["kbackup", "restore", "--dry-run"]
    restore = parsed_command(words).restore
    assert restore.map_group == {source: target}
    chosen = Selection.of(restore.groups, ())
    assert chosen.matches(selected)
    assert not chosen.matches(selected + "x")
    assert chosen.matches(source) == (source == selected)


def test_a_command_line_sets_every_kind_of_value() -> None:
    settings: dict[str, object] = {
        "archive": "s3://my-backups/kafka",
        "restore.restore_point": 41,
        "restore.topics": ["orders", "/pay.*/"],
        "restore.map": {"orders": "again"},
        "restore.no_groups": True,
    }
    line = command_line(command, settings)
    assert line == (
        "kbackup restore --archive s3://my-backups/kafka --restore-point 41 --topic orders --topic '/pay.*/' "
        "--map orders=again --no-groups"
    )
    config = parsed_command(shlex.split(line))
    assert config.archive == "s3://my-backups/kafka"
    assert config.restore == Restore(
        restore_point=41, topics=("orders", "/pay.*/"), map={"orders": "again"}, no_groups=True
    )


def test_a_value_that_can_not_be_shown_is_refused() -> None:
    with pytest.raises(UsageError, match="--topic has a character that can't be shown"):
        command_line(command, {"restore.topics": ["gro\u202eup"]})
