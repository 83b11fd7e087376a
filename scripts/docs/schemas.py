"""JSON Schemas: formats/schema of the documents of an archive, infra/docs/json of what commands print with `--json`.

Printed documents that are composed of several values have their models here.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from kbackup.archive import models
from kbackup.archive.catalog import documents
from kbackup.archive.catalog.points import PointOverview
from kbackup.archive.models import Document, Transactions
from kbackup.archive.query.groups import GroupOverview, GroupsOverview
from kbackup.archive.query.overview import ArchiveOverview, TopicOverview
from kbackup.archive.restores.plan import RestorePlan
from kbackup.archive.restores.target_topics import TargetTopics
from kbackup.archive.segments.window import Choice
from kbackup.archive.verify.findings import Verification
from kbackup.cli.init import InitReport
from kbackup.jobs.backup.follow import FollowReport
from kbackup.jobs.backup.job import BackupReport
from kbackup.jobs.check import CheckReport
from kbackup.jobs.compare.report import AgainstReport
from kbackup.jobs.copy import CopyReport, PromoteReport
from kbackup.jobs.diff import Diff, SchemasDiff
from kbackup.jobs.drill.report import DrillReport
from kbackup.jobs.erase import EraseReport
from kbackup.jobs.export.destination import ExportedPoint, ExportInfo, Reached, Seen
from kbackup.jobs.export.job import ExportReport
from kbackup.jobs.groups.documents import GroupsBefore
from kbackup.jobs.groups.report import GroupsPlanReport, GroupsReport
from kbackup.jobs.groups.undo import GroupUndoReport as GroupsUndoReport
from kbackup.jobs.keys import HeldKeys
from kbackup.jobs.points import LabelReport, PinReport
from kbackup.jobs.repair import RepairReport
from kbackup.jobs.restore.report import RestoreReport
from kbackup.jobs.retention import ExpireReport, ExpiryUndoReport
from kbackup.jobs.rewrite import RewriteReport
from kbackup.jobs.schemas.documents import SchemaMap, SchemasBefore
from kbackup.jobs.schemas.plan import SchemaPlan, SubjectOverview
from kbackup.jobs.schemas.undo import SchemasUndone
from kbackup.jobs.settings.documents import SettingsBefore
from kbackup.jobs.settings.undo import SettingsUndone
from kbackup.jobs.status.report import ArchiveStatus
from kbackup.jobs.verify import VerifyReport
from kbackup.migrate.archive import ArchiveReport
from kbackup.migrate.bootstrap import BootstrapReport
from kbackup.migrate.preflight import PreflightReport
from kbackup.migrate.rollback import DeletionGuard, RollbackStep
from kbackup.migrate.states import State, Witness
from kbackup.migrate.verify import MigrationVerifyReport as MigrationReport
from kbackup.migrate.znodes import Sign, ZnodeContent
from kbackup.mirror.dry_run import DryRun
from kbackup.mirror.flow import FlowStatus
from kbackup.mirror.flow_map import FlowState
from kbackup.mirror.positions import Translation
from kbackup.mirror.status import FlowOverview
from kbackup.schemas.base import SchemaVersion, SubjectSettings

_KINDS: tuple[type[Document], ...] = (
    *(models.ArchiveInfo, models.Manifest, models.Groups, models.Metadata, models.Schemas, models.Deletions),
    *(
        documents.Catalog,
        documents.Latest,
        documents.Derived,
        RestorePlan,
        RestoreReport,
        GroupsBefore,
        SettingsBefore,
        SchemasBefore,
        SchemaMap,
        TargetTopics,
        DrillReport,
        Verification,
    ),
    *(ExportInfo, Reached, Seen, ExportedPoint, FlowState, FlowStatus),
)
_FORMATS = {field.default: kind for kind in _KINDS for field in msgspec.structs.fields(kind) if field.name == "format"}
DOCUMENTS: dict[str, type[Document]] = {
    "lock": models.Lease,
    **{name.removeprefix("kbackup-").replace("-", "_"): kind for name, kind in _FORMATS.items()},
}
"""Name of the schema: model."""


_HEAD = {"$schema": "https://json-schema.org/draft/2020-12/schema"}


def schema_documents() -> dict[str, str]:
    return _files({name: schema(kind) for name, kind in DOCUMENTS.items()}, 2)


def schema(kind: type[Document]) -> dict[str, Any]:
    """The model's JSON Schema, with what msgspec doesn't know: version, checksum, and that they are required."""
    (found,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    top = parts.pop(kind.__name__)
    assert found == {"$ref": f"#/$defs/{kind.__name__}"}, found
    properties = top["properties"]
    properties["format"] = {"const": properties["format"]["default"]}
    properties["version"] = {"const": properties["version"]["default"]}
    properties["checksum"] = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
    top["required"] = ["format", "version", "checksum", *top["required"]]
    for part in (top, *parts.values()):
        part["description"] = " ".join(part.get("description", "").split())
    return {**_HEAD, **top, **({"$defs": parts} if parts else {})}


def _files(schemas: dict[str, dict[str, Any]], indent: int) -> dict[str, str]:
    """Return the text of each schema by its file name."""
    return {
        f"{name}.schema.json": json.dumps(value, indent=indent, ensure_ascii=False) + "\n"
        for name, value in schemas.items()
    }


def model(title: str, /, *bases: Any, about: str = "", **fields: Any) -> Any:
    """Return the TypedDict of a document that is composed of several values; bases are models or fields by name."""
    every = [base if isinstance(base, dict) else base.__annotations__ for base in bases]
    own = {field: kind for base in every for field, kind in base.items()} | fields
    made: Any = TypedDict(title, own)  # type: ignore[misc]
    made.__doc__ = about or None
    return made


def several(kind: Any) -> Any:
    return list[kind]


def named(kind: Any) -> Any:
    return dict[str, kind]


LeaseFields = model("LeaseFields", command=str, host=str, pid=int, acquired_at=str, expires_at=str)
ListOutput = model(
    "ListOutput",
    {"archive": str, "archive_id": str, "restore_points": list[PointOverview], "let_go": int},
    {"held_by": LeaseFields | None},
)
InfoTopicOutput = model(
    "InfoTopicOutput", archive=str, restore_point=int | None, topic=TopicOverview, choice=NotRequired[Choice]
)
_Listing = model("_Listing", archive=str, restore_point=int | None, committed_at=str | None, choice=NotRequired[Choice])
_Sums = model("_Sums", records=int, bytes=int, stored_bytes=int, min_timestamp=int | None, max_timestamp=int | None)
TopicRow = model(
    "TopicRow", _Sums, topic=str, incarnation=int, state=str, as_of=int | None, partitions=int, segments=int
)
PartitionRow = model("PartitionRow", _Sums, partition=int, start=int, end=int, segments=int)
SegmentRow = model("SegmentRow", _Sums, first=int, last=int, largest=int, crc=str | None, file=str)
TopicsOutput = model("TopicsOutput", _Listing, topics=several(TopicRow))
PartitionsOutput = model("PartitionsOutput", _Listing, partitions=several(PartitionRow))
SegmentsOutput = model("SegmentsOutput", _Listing, segments=several(SegmentRow))
Header = model("Header", key=Any, value=Any)
RecordOutput = model(
    "RecordOutput",
    {"topic": str, "partition": int, "offset": int, "timestamp": int | None},
    {"timestamp_type": Literal["CreateTime", "NoTimestampType", "LogAppendTime"], "key": Any, "value": Any},
    {"headers": several(Header), "key_schema": NotRequired[Any], "value_schema": NotRequired[Any]},
    {"key_error": NotRequired[str], "value_error": NotRequired[str]},
    about=(
        "A line of `cat` and `find`. A key or value with a `key_schema` or `value_schema` is decoded: its JSON. With a "
        "`key_error` or `value_error` it could not be decoded, for this reason. With neither, it is what is archived, "
        'or null. Bytes that are not decoded are text where they are UTF-8, else {"base64": "…"}.'
    ),
)
UiOutput = model("UiOutput", url=str, archive=str)
ServeUserOutput = model("ServeUserOutput", file=str, user=str)
ServeOutput = model(
    "ServeOutput",
    {
        "bootstrap_servers": str,
        "archive": str,
        "restore_point": int | None,
        "to_time": str | None,
        "topics": int,
        "partitions": int,
        "groups": int,
    },
)
GroupOutput = model("GroupOutput", archive=str, restore_point=int | None, captured_at=str | None, group=GroupOverview)
_Schemas = model("_Schemas", archive=str, restore_point=int, registry=str, captured_at=str, kept=Literal["all", "used"])
SubjectsOutput = model(
    "SubjectsOutput",
    _Schemas,
    {"subjects": list[SubjectOverview], "lost": list[str], "uncovered": list[str]},
    about=(
        "The subjects of a restore point; `lost` says which ids of records it has no schema for, `uncovered` what "
        "names schemas in records and is not mapped."
    ),
)
SubjectOutput = model(
    "SubjectOutput",
    _Schemas,
    {"subject": str, "topics": list[str], "settings": SubjectSettings, "versions": list[SchemaVersion]},
)
SchemasExportOutput = model("SchemasExportOutput", _Schemas, directory=str, versions=int)
HalfFields = model(
    "HalfFields",
    {"archive": NotRequired[str], "flow": NotRequired[str], "restore_point": int | None},
    {"restore_points": NotRequired[int], "rounds": int, "retries": int, "records": int, "bytes": int},
    {"stored_bytes": NotRequired[int], "losses": NotRequired[dict[str, int]], "is_loss": NotRequired[bool]},
    {"seconds": NotRequired[float], "transactions": NotRequired[Transactions | None]},
    about="""The report of a half: `FollowReport` of one that takes, `ApplyReport` of one that applies.""",
)
HalvesOutput = model("HalvesOutput", halves=named(HalfFields))
DryRunsOutput = model("DryRunsOutput", flows=list[DryRun])
FlowsOutput = model("FlowsOutput", archive=str, flows=list[FlowOverview])
TranslationsOutput = model("TranslationsOutput", group=str, flows=list[Translation])
ClaimFields = model("ClaimFields", witness=Witness, says=str, allows=list[State])
UnreadFields = model("UnreadFields", why=str, hint=str)
StateOutput = model(
    "StateOutput",
    {"state": State, "certain": bool, "possible": list[State], "way_back": bool, "zookeeper_brokers": int | None},
    {"records_behind": int | None, "waits_for": list[str], "witnesses": several(ClaimFields)},
    {"disagreements": list[str], "not_looked_at": several(UnreadFields), "next_step": str, "at": NotRequired[str]},
)
RollbackOutput = model(
    "RollbackOutput",
    {"state": StateOutput, "controllers": dict[str, Sign], "deleted": list[ZnodeContent]},
    {"steps": list[RollbackStep], "guards": list[DeletionGuard]},
)
HistoryFields = model("HistoryFields", catalog=int, kind=str, run=str, by=str, at=str, summary=str)
HistoryOutput = model("HistoryOutput", archive=str, history=several(HistoryFields))
ExportOutput = model("ExportOutput", exports=list[ExportReport])
UnlockOutput = model(
    "UnlockOutput",
    {"archive": str, "state": Literal["none", "released", "dead", "alive"], "lease": LeaseFields | None},
    {"broken": bool, "free_at": str | None},
)
KeyFileOutput = model("KeyFileOutput", file=str, key=str)
KeysOutput = model("KeysOutput", archive=str, files=list[HeldKeys], skipped=list[str], conflicts=list[str])
_LISTS: Any = dict.fromkeys(("removed", "left", "skipped"), list[str])
RotationOutput = model("RotationOutput", archive=str, key=str, data_keys=int, file=str, **_LISTS)
OriginFields = model("OriginFields", kind=Literal["default", "file", "environment", "flag", "option"], name=str)
SettingFields = model("SettingFields", key=str, value=Any, origin=OriginFields)
SettingsOutput = model("SettingsOutput", settings=several(SettingFields), notes=list[str])
KeyFields = model("KeyFields", key=str, takes=str, default=Any, meaning=str)
KeyTableOutput = model("KeyTableOutput", keys=several(KeyFields), variables=dict[str, str])


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
    "serve": (ServeOutput,),
    "serve-user": (ServeUserOutput,),
    "groups show": (GroupsOverview, GroupOutput),
    "groups plan": (GroupsPlanReport,),
    "groups apply": (GroupsReport,),
    "groups undo": (GroupsUndoReport,),
    "schemas show": (SubjectsOutput, SubjectOutput),
    "schemas diff": (SchemasDiff,),
    "schemas export": (SchemasExportOutput,),
    "schemas restore": (SchemaPlan, SchemaMap),
    "schemas undo": (SchemasUndone,),
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
    "erase": (EraseReport,),
    "rewrite": (RewriteReport,),
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

WITHOUT_EXIT_CODE = {"cat", "find", "ui", "serve"}
"""Commands that print records, or their document before they end."""

WITHOUT_JSON = {"completion", "help"}
"""Commands that print text for shells and people alone."""


_ERROR_FIELDS = {"type": "string", "message": "string", "hint": "string", "exit_code": "integer"}
_ERROR = {
    "type": "object",
    "properties": {name: {"type": kind} for name, kind in _ERROR_FIELDS.items()},
    "required": list(_ERROR_FIELDS),
}
_END = {"exit_code": {"type": "integer"}, "error": _ERROR}
"""The fields that every command adds at its end: `error` only if one ended it."""


def output_schemas() -> dict[str, str]:
    """Return the text of each schema by its file name; `error` is that of a command that failed before its report."""
    schemas = {name.replace(" ", "-"): output_schema(name) for name in OUTPUTS}
    schemas["error"] = {**_HEAD, "type": "object", "properties": _END, "required": ["error", "exit_code"]}
    texts = _files(schemas, 1)
    return {"README.md": _list_of(sorted(texts)), **texts}


def _list_of(names: list[str]) -> str:
    head = "# Schemas of --json\nA JSON Schema for what each command prints with `--json`.\n\n"
    return head + "".join(f"- [{name}]({name})\n" for name in names)


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
