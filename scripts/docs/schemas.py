"""formats/schema/*.schema.json: the JSON documents of an archive, from their models."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from kbackup.archive import models
from kbackup.archive.catalog import documents
from kbackup.archive.models import Document
from kbackup.archive.restores.flow_map import FlowState
from kbackup.archive.restores.plan import RestorePlan
from kbackup.archive.verify.findings import Verification
from kbackup.jobs.drill.report import DrillReport
from kbackup.jobs.export.destination import ExportedPoint, ExportInfo, Reached, Seen
from kbackup.jobs.groups.job import GroupsBefore
from kbackup.jobs.mirror.flow import FlowStatus
from kbackup.jobs.restore.report import RestoreReport
from kbackup.jobs.settings.write import SettingsBefore

DOCUMENTS: dict[str, type[Document]] = {
    "archive": models.ArchiveInfo,
    "lock": models.Lease,
    "catalog": documents.Catalog,
    "latest": documents.Latest,
    "derived": documents.Derived,
    "manifest": models.Manifest,
    "groups": models.Groups,
    "metadata": models.Metadata,
    "restore_plan": RestorePlan,
    "restore_report": RestoreReport,
    "groups_before": GroupsBefore,
    "settings_before": SettingsBefore,
    "drill_report": DrillReport,
    "verification": Verification,
    "export": ExportInfo,
    "export_reached": Reached,
    "export_seen": Seen,
    "export_point": ExportedPoint,
    "flow": FlowState,
    "flow_status": FlowStatus,
}
"""Name of the schema: model."""


def schema_documents() -> dict[str, str]:
    return {f"{name}.schema.json": _text(schema(kind)) for name, kind in DOCUMENTS.items()}


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
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**head, **top, **({"$defs": parts} if parts else {})}


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
