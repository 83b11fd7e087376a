"""The schemas of the records that a restore brings back: planned before anything is written, and their new ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kbackup.archive.models import Member, TopicState
from kbackup.archive.reader import Archive
from kbackup.archive.restores.plan import RestorePlan
from kbackup.archive.schemas import SchemaIndex, may_name, used_schemas
from kbackup.archive.uncovered_schemas import apicurio_uses, uncovered
from kbackup.errors import MismatchError, UndecodableError, UsageError
from kbackup.jobs.replay import SchemaRewrite
from kbackup.jobs.schemas.plan import Mode, SchemaPlan, ids_of_records, open_registry, prepare_schemas
from kbackup.jobs.schemas.write import SchemaMap, begun_plan, lost_since, schema_map
from kbackup.schemas.base import RegistryOptions
from kbackup.schemas.decoder import codec_of
from kbackup.store.base import Store
from kbackup.util.text import join_names

if TYPE_CHECKING:
    from kbackup.kafka.schema_registry import SchemaRegistry


class SchemasReport(Member, frozen=True, kw_only=True):
    """The schemas of a restore: how many versions of how many subjects. `not_set` are settings that the registry
    refused; `uncovered` says what names schemas in the records and is not mapped."""

    registry: str
    mode: Mode
    versions: int
    subjects: int
    not_set: tuple[str, ...] = ()
    uncovered: tuple[str, ...] = ()


def schemas_report(of: SchemaPlan | SchemaMap) -> SchemasReport:
    subjects = [s.schema.subject for s in of.steps] if isinstance(of, SchemaPlan) else [s.subject for s in of.schemas]
    return SchemasReport(
        registry=of.registry,
        mode=of.mode,
        versions=len(subjects),
        subjects=len({*subjects}),
        not_set=() if isinstance(of, SchemaPlan) else of.not_set,
        uncovered=of.uncovered,
    )


class RecordSchemas(NamedTuple):
    """What a restore writes to the target's registry before its records; and what is left as it is or not known."""

    registry: SchemaRegistry
    plan: SchemaPlan
    warnings: tuple[str, ...]


def plan_record_schemas(
    asked: Mode | None, prefix: str, options: RegistryOptions, archive: Archive | None, plan: RestorePlan, state: Store
) -> RecordSchemas | None:
    """Plan the schemas of the records of a restore into the registry of `options`; None if there is nothing to bring
    back. `asked` None: `same`, if there is a registry. Raises `RefusedError` where a record's id would have no
    meaning."""
    begun = begun_plan(state, plan.restore_id)
    if begun is not None:
        _check_mode(asked, begun.mode, plan.restore_id)
        asked = begun.mode
    if not options.url:
        if asked is not None:
            raise UsageError(
                f"--schemas {asked} needs the schema registry of the target",
                "give --target-schema-registry, or set target_schema_registry.url",
            )
        return None
    topics = planned_topics(archive, plan) if archive is not None else []
    schemas = archive.schemas(plan.restore_point) if archive is not None else None
    if schemas is None:
        framed = any(may_name(used) for topic in topics for used in used_schemas(topic))
        if asked is None and not framed and not apicurio_uses(topics, None):
            return None
        raise UsageError(
            f"restore point {plan.restore_point} has no schemas, so that ids in its records may mean others",
            "restore with --schemas none, or select a restore point that was taken with schema_registry.url",
        )
    registry = open_registry(options)
    found = begun or prepare_schemas(registry, schemas, topics, asked or "same", prefix)
    found.check()
    uncounted = [t.name for t in topics if not t.all_counted]
    unknown = f"what schemas older records of {join_names(uncounted, 3)} name is not known before they are read"
    return RecordSchemas(registry, found, (*found.notes, *([unknown] if uncounted else [])))


def resumed_schemas(asked: str | None, state: Store, restore_id: str) -> SchemaMap | None:
    """Return the schemas that a restore registered before it wrote its first record. `MismatchError` if it was begun
    otherwise: some of its records would get other ids."""
    done = schema_map(state, restore_id)
    _check_mode(asked, done.mode if done is not None else "none", restore_id)
    return done


def _check_mode(asked: str | None, was: str, restore_id: str) -> None:
    if asked not in (None, was):
        raise MismatchError(
            f"restore {restore_id} was begun with --schemas {was}, now it is {asked}",
            "give the same as then, or another --restore-id",
        )


def unreadable_records(archive: Archive, plan: RestorePlan) -> list[str]:
    """Return in words which schemas of the planned records the restore point lacks, and which are none."""
    schemas = archive.schemas(plan.restore_point)
    if schemas is None:
        return []
    try:
        from kbackup.kafka.schema_registry import BUILT_IN

        index = SchemaIndex(schemas, BUILT_IN)
        topics = planned_topics(archive, plan)
        ids, problems = ids_of_records(topics, index)
        problems += uncovered(topics, schemas)
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
