"""infra/docs/json/*.schema.json: what commands print with `--json`, from the models of their reports.

Documents that are composed of several values have their models here.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from kbackup.archive.query.groups import GroupOverview, GroupsOverview
from kbackup.archive.query.overview import ArchiveOverview, PointOverview, TopicOverview
from kbackup.archive.segments.window import Choice
from kbackup.cli.init import InitReport
from kbackup.jobs.backup.follow import FollowReport
from kbackup.jobs.backup.job import BackupReport
from kbackup.jobs.check import CheckReport
from kbackup.jobs.compare.report import AgainstReport
from kbackup.jobs.copy import CopyReport, PromoteReport
from kbackup.jobs.diff import Diff
from kbackup.jobs.drill.report import DrillReport
from kbackup.jobs.export.job import ExportReport
from kbackup.jobs.groups.job import GroupsPlanReport, GroupsReport
from kbackup.jobs.groups.job import GroupUndoReport as GroupsUndoReport
from kbackup.jobs.keys import HeldKeys
from kbackup.jobs.migrate.archive import ArchiveReport, BootstrapReport
from kbackup.jobs.migrate.preflight import PreflightReport
from kbackup.jobs.migrate.rollback import DeletionGuard, RollbackStep
from kbackup.jobs.migrate.states import State, Witness
from kbackup.jobs.migrate.verify import MigrationVerifyReport as MigrationReport
from kbackup.jobs.migrate.znodes import Sign, ZnodeContent
from kbackup.jobs.mirror.dry_run import DryRun
from kbackup.jobs.mirror.positions import Translation
from kbackup.jobs.mirror.status import FlowOverview
from kbackup.jobs.points import LabelReport, PinReport
from kbackup.jobs.repair import RepairReport
from kbackup.jobs.restore.report import RestoreReport
from kbackup.jobs.retention import ExpireReport, ExpiryUndoReport
from kbackup.jobs.settings.write import SettingsUndone
from kbackup.jobs.status import ArchiveStatus
from kbackup.jobs.verify import VerifyReport


class LeaseFields(TypedDict):
    command: str
    host: str
    pid: int
    acquired_at: str
    expires_at: str


class ListOutput(TypedDict):
    archive: str
    archive_id: str
    restore_points: list[PointOverview]
    let_go: int
    held_by: LeaseFields | None


class InfoTopicOutput(TypedDict):
    archive: str
    restore_point: int | None
    topic: TopicOverview
    choice: NotRequired[Choice]


class _Listing(TypedDict):
    archive: str
    restore_point: int | None
    committed_at: str | None
    choice: NotRequired[Choice]


class _Sums(TypedDict):
    records: int
    bytes: int
    stored_bytes: int
    min_timestamp: int | None
    max_timestamp: int | None


class TopicRow(_Sums):
    topic: str
    incarnation: int
    state: str
    as_of: int | None
    partitions: int
    segments: int


class PartitionRow(_Sums):
    partition: int
    start: int
    end: int
    segments: int


class SegmentRow(_Sums):
    first: int
    last: int
    largest: int
    crc: str | None
    file: str


class TopicsOutput(_Listing):
    topics: list[TopicRow]


class PartitionsOutput(_Listing):
    partitions: list[PartitionRow]


class SegmentsOutput(_Listing):
    segments: list[SegmentRow]


class Header(TypedDict):
    key: Any
    value: Any


class RecordOutput(TypedDict):
    """A line of `cat` and `find`. Bytes that are not UTF-8 are {"base64": "…"}; a decoded part is its JSON."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    timestamp_type: Literal["CreateTime", "NoTimestampType", "LogAppendTime"]
    key: Any
    value: Any
    headers: list[Header]
    key_schema: NotRequired[Any]
    value_schema: NotRequired[Any]
    key_error: NotRequired[str]
    value_error: NotRequired[str]


class UiOutput(TypedDict):
    url: str
    archive: str


class GroupOutput(TypedDict):
    archive: str
    restore_point: int | None
    captured_at: str | None
    group: GroupOverview


class HalfFields(TypedDict):
    """The report of a half: `FollowReport` of one that takes, `ApplyReport` of one that applies."""

    archive: NotRequired[str]
    flow: NotRequired[str]
    restore_point: int | None
    restore_points: NotRequired[int]
    rounds: int
    retries: int
    records: int
    bytes: int
    stored_bytes: NotRequired[int]
    losses: NotRequired[dict[str, int]]
    is_loss: NotRequired[bool]
    seconds: NotRequired[float]


class HalvesOutput(TypedDict):
    halves: dict[str, HalfFields]


class DryRunsOutput(TypedDict):
    flows: list[DryRun]


class FlowsOutput(TypedDict):
    archive: str
    flows: list[FlowOverview]


class TranslationsOutput(TypedDict):
    group: str
    flows: list[Translation]


class ClaimFields(TypedDict):
    witness: Witness
    says: str
    allows: list[State]


class UnreadFields(TypedDict):
    why: str
    hint: str


class StateOutput(TypedDict):
    state: State
    certain: bool
    possible: list[State]
    way_back: bool
    zookeeper_brokers: int | None
    records_behind: int | None
    waits_for: list[str]
    witnesses: list[ClaimFields]
    disagreements: list[str]
    not_looked_at: list[UnreadFields]
    next_step: str
    at: NotRequired[str]


class RollbackOutput(TypedDict):
    state: StateOutput
    controllers: dict[str, Sign]
    deleted: list[ZnodeContent]
    steps: list[RollbackStep]
    guards: list[DeletionGuard]


class HistoryFields(TypedDict):
    catalog: int
    kind: str
    run: str
    by: str
    at: str
    summary: str


class HistoryOutput(TypedDict):
    archive: str
    history: list[HistoryFields]


class ExportOutput(TypedDict):
    exports: list[ExportReport]


class UnlockOutput(TypedDict):
    archive: str
    state: Literal["none", "released", "dead", "alive"]
    lease: LeaseFields | None
    broken: bool
    free_at: str | None


class KeyFileOutput(TypedDict):
    file: str
    key: str


class KeysOutput(TypedDict):
    archive: str
    files: list[HeldKeys]
    skipped: list[str]
    conflicts: list[str]


class RotationOutput(TypedDict):
    archive: str
    key: str
    data_keys: int
    file: str
    removed: list[str]
    left: list[str]
    skipped: list[str]


class OriginFields(TypedDict):
    kind: Literal["default", "file", "environment", "flag", "option"]
    name: str


class SettingFields(TypedDict):
    key: str
    value: Any
    origin: OriginFields


class SettingsOutput(TypedDict):
    settings: list[SettingFields]
    notes: list[str]


class KeyFields(TypedDict):
    key: str
    takes: str
    default: Any
    meaning: str


class KeyTableOutput(TypedDict):
    keys: list[KeyFields]
    variables: dict[str, str]


OUTPUTS: dict[str, tuple[Any, ...]] = {
    "init": (InitReport,),
    "backup": (BackupReport, FollowReport),
    "restore": (RestoreReport, SettingsUndone),
    "list": (ListOutput,),
    "status": (ArchiveStatus,),
    "info": (ArchiveOverview, InfoTopicOutput),
    "ls": (TopicsOutput, PartitionsOutput, SegmentsOutput),
    "cat": (RecordOutput,),
    "find": (RecordOutput,),
    "ui": (UiOutput,),
    "groups show": (GroupsOverview, GroupOutput),
    "groups plan": (GroupsPlanReport,),
    "groups apply": (GroupsReport,),
    "groups undo": (GroupsUndoReport,),
    "mirror run": (HalvesOutput, DryRunsOutput),
    "mirror status": (FlowsOutput,),
    "mirror translate": (TranslationsOutput,),
    "migrate preflight": (PreflightReport,),
    "migrate status": (StateOutput,),
    "migrate archive": (ArchiveReport,),
    "migrate rollback": (RollbackOutput,),
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
    "log": (HistoryOutput,),
    "promote": (PromoteReport,),
    "export": (ExportOutput,),
    "copy": (CopyReport,),
    "adopt": (RepairReport,),
    "repair": (RepairReport,),
    "unlock": (UnlockOutput,),
    "key generate": (KeyFileOutput,),
    "key list": (KeysOutput,),
    "key rotate": (RotationOutput,),
    "config": (SettingsOutput, KeyTableOutput),
}
"""Command: the forms of its document."""

WITHOUT_EXIT_CODE = {"cat", "find", "ui"}
"""Commands that print records, or their document before they end."""

WITHOUT_JSON = {"completion", "help"}
"""Commands that print text for shells and people alone."""


_HEAD = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
_ERROR = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "message": {"type": "string"},
        "hint": {"type": "string"},
        "exit_code": {"type": "integer"},
    },
    "required": ["type", "message", "hint", "exit_code"],
}
_END = {"exit_code": {"type": "integer"}, "error": _ERROR}
"""The fields that every command adds at its end: `error` only if one ended it."""


def output_schemas() -> dict[str, str]:
    """Return the text of each schema by its file name; `error` is that of a command that failed before its report."""
    schemas = {name.replace(" ", "-"): output_schema(name) for name in OUTPUTS}
    schemas["error"] = error_schema()
    return {
        f"{name}.schema.json": json.dumps(value, indent=1, ensure_ascii=False) + "\n" for name, value in schemas.items()
    }


def error_schema() -> dict[str, Any]:
    return {**_HEAD, "type": "object", "properties": _END, "required": ["error", "exit_code"]}


def output_schema(command: str) -> dict[str, Any]:
    """Return the schema of a command's document: that of its model, or any of several."""
    references, parts = msgspec.json.schema_components(OUTPUTS[command], ref_template="#/$defs/{name}")
    for part in parts.values():
        if "description" in part:
            part["description"] = " ".join(part["description"].split())
    for reference in references:
        if command not in WITHOUT_EXIT_CODE:
            form = parts[reference["$ref"].removeprefix("#/$defs/")]
            form["properties"] = {**_END, **form["properties"], "exit_code": _END["exit_code"]}
            form["required"] = [*dict.fromkeys([*form.get("required", ()), "exit_code"])]
    forms = references[0] if len(references) == 1 else {"anyOf": list(references)}
    return {**_HEAD, "title": f"kbackup {command} --json", **forms, "$defs": parts}
