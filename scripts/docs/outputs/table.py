"""The models of what each command prints with `--json`."""

from __future__ import annotations

from typing import Any

from kbackup.archive.query.groups import GroupsOverview
from kbackup.archive.query.overview import ArchiveOverview
from kbackup.cli.init import InitReport
from kbackup.jobs.backup.follow import FollowReport
from kbackup.jobs.backup.job import BackupReport
from kbackup.jobs.check import CheckReport
from kbackup.jobs.compare.report import AgainstReport
from kbackup.jobs.copy import CopyReport, PromoteReport
from kbackup.jobs.diff import Diff
from kbackup.jobs.drill.report import DrillReport
from kbackup.jobs.groups.job import GroupsPlanReport, GroupsReport
from kbackup.jobs.groups.job import GroupUndoReport as GroupsUndoReport
from kbackup.jobs.migrate.archive import ArchiveReport, BootstrapReport
from kbackup.jobs.migrate.preflight import PreflightReport
from kbackup.jobs.migrate.verify import MigrationVerifyReport as MigrationReport
from kbackup.jobs.points import LabelReport, PinReport
from kbackup.jobs.repair.rebuild import RepairReport
from kbackup.jobs.restore.report import RestoreReport
from kbackup.jobs.retention import ExpireReport, ExpiryUndoReport
from kbackup.jobs.settings.write import SettingsUndone
from kbackup.jobs.status import ArchiveStatus
from kbackup.jobs.verify.report import VerifyReport
from scripts.docs.outputs import reading, working

OUTPUTS: dict[str, tuple[Any, ...]] = {
    "init": (InitReport,),
    "backup": (BackupReport, FollowReport),
    "restore": (RestoreReport, SettingsUndone),
    "list": (reading.ListOutput,),
    "status": (ArchiveStatus,),
    "info": (ArchiveOverview, reading.InfoTopicOutput),
    "ls": (reading.TopicsOutput, reading.PartitionsOutput, reading.SegmentsOutput),
    "cat": (reading.RecordOutput,),
    "find": (reading.RecordOutput,),
    "ui": (reading.UiOutput,),
    "groups show": (GroupsOverview, reading.GroupOutput),
    "groups plan": (GroupsPlanReport,),
    "groups apply": (GroupsReport,),
    "groups undo": (GroupsUndoReport,),
    "mirror run": (working.HalvesOutput, working.DryRunsOutput),
    "mirror status": (working.FlowsOutput,),
    "mirror translate": (working.TranslationsOutput,),
    "migrate preflight": (PreflightReport,),
    "migrate status": (working.StateOutput,),
    "migrate archive": (ArchiveReport,),
    "migrate rollback": (working.RollbackOutput,),
    "migrate verify": (MigrationReport,),
    "migrate bootstrap": (BootstrapReport,),
    "diff": (Diff,),
    "verify": (VerifyReport, AgainstReport),
    "drill": (DrillReport,),
    "check": (CheckReport,),
    "expire": (ExpireReport, ExpiryUndoReport),
    "keep": (PinReport,),
    "release": (PinReport,),
    "label": (LabelReport,),
    "log": (working.HistoryOutput,),
    "promote": (PromoteReport,),
    "export": (working.ExportOutput,),
    "copy": (CopyReport,),
    "adopt": (RepairReport,),
    "repair": (RepairReport,),
    "unlock": (working.UnlockOutput,),
    "key generate": (working.KeyFileOutput,),
    "key list": (working.KeysOutput,),
    "key rotate": (working.RotationOutput,),
    "config": (working.SettingsOutput, working.KeyTableOutput),
}
"""Command: the forms of its document."""

WITHOUT_EXIT_CODE = {"cat", "find", "ui"}
"""Commands that print records, or their document before they end."""

WITHOUT_JSON = {"completion", "help"}
"""Commands that print text for shells and people alone."""
