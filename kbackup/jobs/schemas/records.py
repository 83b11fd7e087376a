"""The schemas of the records that a restore brings back: planned before anything is written, and their new ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbackup.archive.models import Member, TopicState
from kbackup.archive.reader import Archive
from kbackup.archive.restores.plan import RestorePlan
from kbackup.archive.schemas import SchemaIndex
from kbackup.errors import UndecodableError, UsageError
from kbackup.jobs.replay import SchemaRewrite
from kbackup.jobs.schemas.plan import Mode, SchemaPlan, ids_of_records, open_registry, prepare_schemas
from kbackup.jobs.schemas.write import SchemaMap, apply_schemas, begun_plan, lost_since, schema_map
from kbackup.schemas.base import RegistryOptions
from kbackup.schemas.decoder import codec_of
from kbackup.store.base import Store
from kbackup.util.text import join_names

if TYPE_CHECKING:
    from kbackup.kafka.schema_registry import SchemaRegistry


class SchemasReport(Member, frozen=True, kw_only=True):
    """The schemas of a restore: how many versions and subjects, and how many of the versions were `created`. `not_set`
    are settings that the registry refused."""

    registry: str
    mode: Mode
    versions: int
    subjects: int
    created: int
    not_set: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecordSchemas:
    """What a restore writes to the target's registry before its records. `uncounted` are topics with records that an
    older version archived without looking at their schemas."""

    registry: SchemaRegistry
    plan: SchemaPlan
    uncounted: tuple[str, ...] = ()

    @property
    def warnings(self) -> list[str]:
        """Return what is left as it is, and what is not known."""
        more = [f"what schemas older records of {join_names(self.uncounted, 3)} name is not known before they are read"]
        return [*self.plan.notes, *(more if self.uncounted else ())]

    def report(self, done: SchemaMap | None = None) -> SchemasReport:
        return SchemasReport(
            registry=self.plan.registry,
            mode=self.plan.mode,
            versions=len(self.plan.steps),
            subjects=len({step.schema.subject for step in self.plan.steps}),
            created=len(self.plan.created),
            not_set=done.not_set if done is not None else (),
        )

    def apply(self, state: Store, restore_id: str) -> tuple[SchemaRewrite | None, SchemasReport]:
        """Write the schemas, or go on with it; return the new ids for the records, None if they keep theirs."""
        done = apply_schemas(self.registry, state, restore_id, self.plan)
        return rewrite_of(done), self.report(done)


def plan_record_schemas(
    asked: Mode | None, prefix: str, options: RegistryOptions, archive: Archive | None, plan: RestorePlan, state: Store
) -> RecordSchemas | None:
    """Plan the schemas of the records of a restore into the registry of `options`; None if there is nothing to bring
    back. `asked` None: `same`, if there is a registry. Raises `RefusedError` where a record's id would have no
    meaning."""
    if not options.url:
        if asked is not None:
            raise UsageError(
                f"--schemas {asked} needs the schema registry of the target",
                "give --target-schema-registry, or set target_schema_registry.url",
            )
        return None
    registry = open_registry(options)
    if (begun := begun_plan(state, plan.restore_id)) is not None:
        return RecordSchemas(registry, begun)
    topics = planned_topics(archive, plan) if archive is not None else []
    schemas = archive.schemas(plan.restore_point) if archive is not None else None
    if schemas is None:
        if asked is None:
            return None
        raise UsageError(
            f"restore point {plan.restore_point} has no schemas",
            "restore with --schemas none, or select a restore point that was taken with schema_registry.url",
        )
    found = prepare_schemas(registry, schemas, topics, asked or "same", prefix)
    found.check()
    return RecordSchemas(registry, found, tuple(t.name for t in topics if not t.all_counted))


def unreadable_records(archive: Archive, plan: RestorePlan) -> list[str]:
    """Return in words which schemas of the planned records the restore point lacks, and which are none."""
    schemas = archive.schemas(plan.restore_point)
    if schemas is None:
        return []
    try:
        from kbackup.kafka.schema_registry import BUILT_IN

        index = SchemaIndex(schemas, BUILT_IN)
        ids, problems = ids_of_records(planned_topics(archive, plan), index)
        for each in sorted(ids, key=str):
            try:
                codec_of(index.schema(each))
            except UndecodableError as error:
                problems.append(f"records name schema {each}: {error.message}")
    except (ImportError, UsageError) as error:
        return [f"the schemas of records were not looked at: {error}"]
    return problems


def missing_schemas(
    options: RegistryOptions, source: bool, archive: Archive | None, plan: RestorePlan, state: Store
) -> list[str]:
    """Return in words what a registry lacks: that of the `source`, of the restore point's schemas; the target's, of
    what the restore of the plan registered. Nothing without a registry."""
    if not options.url:
        return []
    if not source:
        done = schema_map(state, plan.restore_id)
        return [] if done is None else lost_since(open_registry(options), done.places)
    schemas = archive.schemas(plan.restore_point) if archive is not None else None
    due = [] if schemas is None else [(v.subject, v.version, v.id) for v in schemas.versions if v.state != "gone"]
    return lost_since(open_registry(options, "schema_registry"), due)


def planned_topics(archive: Archive, plan: RestorePlan) -> Sequence[TopicState]:
    """Return the restored topics as the newest restore point of the plan that has them knows them."""
    found: dict[tuple[str, int], TopicState] = {}
    for number in sorted({plan.restore_point, *(t.as_of for t in plan.topics)} - {0}):
        found |= archive.manifest(number).incarnations()
    return [found[t.source, t.incarnation] for t in plan.topics if (t.source, t.incarnation) in found]


def rewrite_of(done: SchemaMap | None) -> SchemaRewrite | None:
    """Return the new ids of a restore's records; None if they keep theirs."""
    if done is None or done.mode == "same" or not done.parts:
        return None
    return SchemaRewrite(done.ids, done.guids, done.parts)
