"""Output of a dry run of a restore."""

from __future__ import annotations

import click
import pytest

from kbackup.archive.restores.plan import RestorePlan
from kbackup.cli.common.frame import State
from kbackup.cli.common.output import Reporter
from kbackup.cli.restore import _show_plan, command


def test_a_dry_run_says_where_nothing_was_written(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of Delta tables are written, as an archive beside them: only of the target it is true in any case."""
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
    state = State(arguments=["restore", "-a", "s3://b/a", "--dry-run"])
    with click.Context(command, obj=state):
        _show_plan(plan, [], True, Reporter())
    out, err = capsys.readouterr()
    assert err.splitlines()[1:] == ["to restore: kbackup restore -a s3://b/a"]
    assert "nothing was written to the target; the restore would write 0 records" in out
    assert "GROUP" not in out, "a plan without groups shows no table of them"
