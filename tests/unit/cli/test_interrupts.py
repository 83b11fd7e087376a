"""What an interrupted command says is left, for each phase that it had reached. tests/faults interrupts real runs."""

from __future__ import annotations

import pytest

from kbackup.archive.restores.plan import RestorePlan
from kbackup.cli.backup import BackupInterruption
from kbackup.cli.common.output import Reporter, ShownProgress
from kbackup.cli.drill import DrillInterruption
from kbackup.cli.key import interrupted_rotation
from kbackup.cli.repair import interrupted_adoption, interrupted_repair
from kbackup.cli.restore import RestoreInterruption
from kbackup.errors import InterruptedByUserError
from tests.support import drill_reports


def reached(phase: str, records: int = 0, expected: int = 0) -> ShownProgress:
    """A progress whose last phase is `phase`, with so many of the expected records."""
    shown = ShownProgress(Reporter(quiet=True))
    shown.phase(phase)
    if expected:
        shown.progress(records, 0, expected)
    return shown


def plan(*, transactions: bool = True) -> RestorePlan:
    return RestorePlan(
        restore_id="r",
        archive_id="a",
        restore_point=1,
        target_cluster_id="t",
        created_at="2026-01-01T00:00:00.000Z",
        transaction_bytes=1,
        transactions=transactions,
        into_existing=False,
        topics=(),
        units=(),
        groups=(),
    )


def said(error: InterruptedByUserError) -> tuple[str, str]:
    assert error.exit_code == 130
    return error.message, error.hint


@pytest.mark.parametrize(
    ("phase", "state", "hint"),
    [
        ("", "nothing was written to the target", "to begin anew: kbackup restore"),
        ("preflight", "nothing was written to the target", "to begin anew: kbackup restore"),
        ("create topics", "restore r is not finished", "kbackup restore --restore-id=r"),
        ("run", "restore r is not finished: about 5 of ", "kbackup restore --restore-id=r"),
        ("groups", "restore r has written all records, but not set all groups", "kbackup restore --restore-id=r"),
    ],
)
def test_a_restore_is_resumed_by_its_id_once_it_has_written(phase: str, state: str, hint: str) -> None:
    shown = reached(phase, 5, 20)
    message, printed = said(RestoreInterruption(shown, "kbackup restore", plan(), "kbackup restore --restore-id=r")())
    assert message.startswith(f"interrupted: {state}")
    assert printed.endswith(hint)


def test_a_restore_without_transactions_can_not_be_resumed() -> None:
    begun = plan(transactions=False)
    message, hint = said(RestoreInterruption(reached("run"), "kbackup restore", begun, "resume")())
    assert "nobody knows how far it came" in message
    assert hint == "delete its target topics, then begin anew: kbackup restore"


def test_a_restore_that_is_done_has_nothing_left() -> None:
    described = RestoreInterruption(reached("report"), "kbackup restore", plan(), "resume", is_done=True)
    assert said(described()) == ("interrupted: everything was done before", "nothing is left to do")


@pytest.mark.parametrize(
    ("phase", "state", "hint"),
    [
        ("", "the archive lists the same restore points as before", "to go on: kbackup repair --confirm"),
        ("read segments", "the archive lists the same restore points", "to go on: kbackup repair --confirm"),
        ("commit", "the repair may be committed in part", "to do the rest: kbackup repair --confirm"),
    ],
)
def test_a_repair_is_finished_by_the_same_command(phase: str, state: str, hint: str) -> None:
    message, printed = said(interrupted_repair(reached(phase), "kbackup repair --confirm")())
    assert message.startswith(f"interrupted: {state}")
    assert printed == hint


@pytest.mark.parametrize(
    ("phase", "state", "hint"),
    [
        ("read segments", "the folder is as it was, and there is no restore point yet", "copying them again: kbackup"),
        ("commit", "whether the restore point is committed shows 'kbackup list'", "if it is not: kbackup adopt"),
    ],
)
def test_an_adoption_goes_on_where_it_stopped(phase: str, state: str, hint: str) -> None:
    message, printed = said(interrupted_adoption(reached(phase), "kbackup adopt --confirm")())
    assert message.startswith(f"interrupted: {state}")
    assert hint in printed


def test_a_rotation_needs_both_keys_until_it_is_finished() -> None:
    message, hint = said(interrupted_rotation("kbackup key rotate --to file:new")())
    assert message.endswith("none is lost: keep both keys")
    assert hint == "to finish, with the old key still in encryption.key: kbackup key rotate --to file:new"


@pytest.mark.parametrize(
    ("phase", "state", "hint"),
    [
        ("compare logs", "no restore point was made, and no record was read", "to begin anew: kbackup backup"),
        ("run", "no restore point was made; 5 of up to 20 records were read, and whole", "kbackup backup"),
        ("capture schemas", "no restore point was made; all records were read", "kbackup backup"),
        ("commit", "whether the restore point is committed shows 'kbackup list'", "if it is not: kbackup backup"),
        ("refresh derived files", "the restore point is committed, but not all derived", "the next backup writes them"),
    ],
)
def test_a_backup_says_what_its_next_run_takes_over(phase: str, state: str, hint: str) -> None:
    message, printed = said(BackupInterruption(reached(phase, 5, 20), "kbackup backup", "")())
    assert message.startswith(f"interrupted: {state}")
    assert printed.endswith(hint)


def test_a_backup_that_was_writing_tables_names_the_export() -> None:
    described = BackupInterruption(reached("run"), "kbackup backup", "kbackup export", restore_point=7)
    message, hint = said(described())
    assert message == "interrupted: restore point 7 is committed, but its tables may not all be written"
    assert hint == "to write them: kbackup export"


def test_an_interrupted_drill_names_the_commands_that_delete_what_is_left() -> None:
    left = drill_reports.report(
        result="interrupted", comparison=None, prefix="drill-1.", left=("topic drill-1.a: busy",)
    )
    message, hint = said(DrillInterruption("kbackup drill", left)())
    assert message == "interrupted: scratch topics or groups are left on the target"
    assert hint == r"to delete them: kafka-topics.sh --bootstrap-server broker-1:9093 --delete --topic 'drill-1\..*'"


def test_a_drill_that_was_interrupted_before_its_end_leaves_nothing() -> None:
    assert said(DrillInterruption("kbackup drill")()) == (
        "interrupted: the drill created nothing on the target",
        "to drill again: kbackup drill",
    )
    cleaned = drill_reports.report(result="interrupted", comparison=None)
    message, _ = said(DrillInterruption("kbackup drill", cleaned)())
    assert message == "interrupted: the drill says nothing about the archive; nothing of it is left on the target"
