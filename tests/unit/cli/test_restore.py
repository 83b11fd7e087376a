"""Output of a dry run of a restore, and an option that is gone."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from kbackup.archive.restores.plan import RestorePlan
from kbackup.cli.common.frame import FlagValues
from kbackup.cli.common.output import Reporter
from kbackup.cli.restore import _show_plan, command
from kbackup.config import load
from kbackup.errors import UsageError
from tests.support.command_lines import parsed_command


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
    state = FlagValues(arguments=["restore", "-a", "s3://b/a", "--dry-run"])
    with click.Context(command, obj=state):
        _show_plan(plan, [], True, Reporter())
    out, err = capsys.readouterr()
    assert err.splitlines()[1:] == ["to restore: kbackup restore -a s3://b/a"]
    assert "nothing was written to the target; the restore would write 0 records" in out
    assert "GROUP" not in out, "a plan without groups shows no table of them"


def test_a_restore_from_delta_tables_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"^flag --from-delta: restore\.from_delta is gone") as by_flag:
        parsed_command(["kbackup", "restore", "--from-delta", "s3://lake/kafka", "--dry-run"])
    reading, selecting, writing = (by_flag.value.hint or "").splitlines()[1:]
    assert 'spark.read.format("delta")' in reading
    assert 'select("topic", "partition", "key", "value", "headers")' in selecting
    assert 'write.format("kafka")' in writing
    with pytest.raises(UsageError, match=r"KBACKUP_RESTORE_FROM_DELTA: restore\.from_delta is gone"):
        load(environ={"KBACKUP_RESTORE_FROM_DELTA": "s3://lake/kafka"})
    Path("kbackup.toml").write_text('[restore]\nfrom_delta = "s3://lake/kafka"\n')
    with pytest.raises(UsageError, match=r"kbackup\.toml: restore\.from_delta is gone"):
        load(environ={})
    with pytest.raises(SystemExit):
        command(["--help"])
    assert "delta" not in capsys.readouterr().out
