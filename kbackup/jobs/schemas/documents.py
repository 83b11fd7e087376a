"""The documents of a restore about the schemas that it registers: restores/<id>/schemas-before.json and schemas.json.

schemas-before.json is created before the first write and has the plan; schemas.json is created at the end. Neither is
ever replaced: whoever resumes a killed restore has its plan, and a restore has one map.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from kbackup.archive import layout
from kbackup.archive.models import Document, DocumentRef, Member
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.formats.schema_ids import Part
from kbackup.jobs.schemas.judgement import JudgedPart, Unmapped
from kbackup.jobs.schemas.plan import Mode, SchemaPlan


class SchemasBefore(Document, frozen=True, kw_only=True):
    """restores/<id>/schemas-before.json"""

    format: Literal["kbackup-schemas-before"] = "kbackup-schemas-before"
    restore_id: str
    created_at: str
    plan: SchemaPlan


class RestoredSchema(Member, frozen=True, kw_only=True):
    """`version` of `source` in the restore point is `target_version` of `subject` now."""

    source: str
    version: int
    subject: str
    target_version: int
    id: int


class SchemaMap(Document, frozen=True, kw_only=True):
    """restores/<id>/schemas.json: `ids` and `guids` that records carry, and what they are on the target; `contexts` has
    ids of the source's contexts, apart from the default one. `judged` says how records are judged, by the schemas of
    the document `archived`, and `unmapped` what is done about records that can't be mapped. Older versions judged none:
    they mapped the `parts` of topics, by their names in the source, by ids alone. `not_set` are settings and deletions
    that the registry refused, `uncovered` says what names schemas in records and is not mapped."""

    format: Literal["kbackup-restored-schemas"] = "kbackup-restored-schemas"
    restore_id: str
    registry: str
    mode: Mode
    prefix: str
    restored_at: str
    ids: dict[int, int]
    guids: dict[str, str]
    schemas: tuple[RestoredSchema, ...]
    parts: dict[str, tuple[Part, ...]] = msgspec.field(default_factory=dict)
    not_set: tuple[str, ...] = ()
    uncovered: tuple[str, ...] = ()
    contexts: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    judged: tuple[JudgedPart, ...] = ()
    unmapped: Unmapped = "fail"
    archived: DocumentRef | None = None

    @property
    def places(self) -> list[tuple[str, int, int]]:
        """Return the subjects, versions and ids that the registry has since."""
        return [(each.subject, each.target_version, each.id) for each in self.schemas]


def begun_plan(journal: RestoreJournal) -> SchemaPlan | None:
    """Return the plan of a restore that has begun to write schemas."""
    before = journal.read(SchemasBefore, layout.SCHEMAS_BEFORE)
    return None if before is None else before.plan


def schema_map(journal: RestoreJournal) -> SchemaMap | None:
    """Return the map of a restore whose schemas are all there."""
    return journal.read(SchemaMap, layout.SCHEMAS)
