"""The schemas of the records that a restore brings back: planned before anything is written, and their new ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from kbackup.archive.models import DocumentRef, Member, Schemas, TopicState
from kbackup.archive.query.java import open_archive_or_folder
from kbackup.archive.reader import Archive
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.plan import RestorePlan
from kbackup.archive.restores.unmapped import UnmappedRecords
from kbackup.archive.schemas import Place, SchemaIndex, may_name, used_schemas, usual_id
from kbackup.archive.uncovered_schemas import apicurio_uses, uncovered
from kbackup.errors import MismatchError, UndecodableError, UsageError
from kbackup.formats.schema_ids import Part
from kbackup.jobs.schemas.documents import SchemaMap, begun_plan, schema_map
from kbackup.jobs.schemas.judgement import (
    Judge,
    JudgedPart,
    Sample,
    SchemaTopics,
    Unmapped,
    named_topics,
    sample_of,
    unmapped_words,
)
from kbackup.jobs.schemas.plan import Mode, SchemaPlan, ids_of_records, open_registry, prepare_schemas, versions_beside
from kbackup.jobs.schemas.rewrite import ArchivedCodecs, CheckedRewrite, NewIds, SchemaRewrite
from kbackup.jobs.schemas.write import lost_since
from kbackup.schemas.base import RegistryOptions, SchemaVersion
from kbackup.schemas.decoder import codec_of
from kbackup.store.base import Store
from kbackup.util.system import in_threads
from kbackup.util.text import join_names

if TYPE_CHECKING:
    from kbackup.kafka.schema_registry import SchemaRegistry


class SchemasReport(Member, frozen=True, kw_only=True):
    """The schemas of a restore: how many versions of how many subjects. `not_set` are settings that the registry
    refused. `judged` says how keys and values were told from data that only look like a serializer's, and `unmapped`
    counts records that stayed as they are though they seem to be a serializer's. `uncovered` says what names schemas in
    the records and is not mapped."""

    registry: str
    mode: Mode
    versions: int
    subjects: int
    not_set: tuple[str, ...] = ()
    uncovered: tuple[str, ...] = ()
    judged: tuple[JudgedPart, ...] = ()
    unmapped: tuple[UnmappedRecords, ...] = ()


def schemas_report(of: SchemaPlan | SchemaMap, unmapped: tuple[UnmappedRecords, ...] = ()) -> SchemasReport:
    """Return the report of planned schemas, or of schemas that were registered."""
    if isinstance(of, SchemaPlan):
        subjects = [step.schema.subject for step in of.steps]
        not_set: tuple[str, ...] = ()
    else:
        subjects = [schema.subject for schema in of.schemas]
        not_set = of.not_set
    return SchemasReport(
        registry=of.registry,
        mode=of.mode,
        versions=len(subjects),
        subjects=len(set(subjects)),
        not_set=not_set,
        uncovered=of.uncovered,
        judged=of.judged,
        unmapped=unmapped,
    )


@dataclass(frozen=True)
class RecordOptions:
    """What whoever restores says about the schemas of records. `asked` None: `same`, if there is a registry. `by_id`
    and `untouched` are names or /regexes/ of topics, as for `named_topics`. `unmapped` None: `keep`, or as a restore
    was begun."""

    asked: Mode | None = None
    prefix: str = ""
    by_id: tuple[str, ...] = ()
    untouched: tuple[str, ...] = ()
    unmapped: Unmapped | None = None


class RecordSchemas(NamedTuple):
    """The schemas that a restore writes to the target's registry before its records; `warnings` tell what is left as it
    is or not known."""

    registry: SchemaRegistry
    plan: SchemaPlan
    warnings: tuple[str, ...]


def plan_record_schemas(
    given: RecordOptions, options: RegistryOptions, archive: Archive | None, plan: RestorePlan, journal: RestoreJournal
) -> RecordSchemas | None:
    """Plan the schemas of the records of a restore into the registry of `options`; None if there is nothing to bring
    back. Raises `RefusedError` where a record's id would have no meaning, and such records are to end the restore."""
    asked = given.asked
    # A run that was killed may have registered schemas already. Its plan counts, whatever the registry has by now.
    begun = begun_plan(journal)
    if begun is not None:
        _check_mode(asked, begun.mode, plan.restore_id)
        asked = begun.mode
    if not options.url:
        _check_needs_no_registry(asked, given)
        return None
    # A folder of the Java tool has no manifests, so nothing is known of its schemas.
    topics: Sequence[TopicState] = []
    point = schemas = None
    if archive is not None:
        topics = planned_topics(archive, plan)
        point = archive.manifest(plan.restore_point)
        schemas = archive.schemas(point)
    topic_names = {topic.name for topic in topics}
    overruled = named_topics(given.by_id, given.untouched, topic_names)
    if archive is None or point is None or schemas is None:
        if asked is None and not _seem_to_name_schemas(topics):
            return None
        raise UsageError(
            f"restore point {plan.restore_point} has no schemas: the ids in its records may name others on the target",
            "restore with --schemas none, or select a restore point that was taken with schema_registry.url",
        )
    registry = open_registry(options)
    if begun is not None:
        schema_plan = begun
    else:
        records = JudgedRecords(schemas, point.schemas, topics, sample_of(archive, point))
        unmapped = given.unmapped or "keep"
        schema_plan = plan_judged(
            registry, records, asked or "same", overruled, unmapped, given.prefix, _windowed_topics(plan)
        )
    schema_plan.check()
    warnings = (*schema_plan.notes, *_record_warnings(schema_plan, topics))
    return RecordSchemas(registry, schema_plan, warnings)


def _check_needs_no_registry(asked: Mode | None, given: RecordOptions) -> None:
    hint = "give --target-schema-registry, or set target_schema_registry.url"
    if asked is not None:
        raise UsageError(f"--schemas {asked} needs the schema registry of the target", hint)
    if given.by_id:
        raise UsageError("--schemas-topic maps ids to those of the target's schema registry, and none is named", hint)


def _seem_to_name_schemas(topics: Sequence[TopicState]) -> bool:
    for topic in topics:
        if any(may_name(used) for used in used_schemas(topic)):
            return True
    return bool(apicurio_uses(topics, None))


def _windowed_topics(plan: RestorePlan) -> set[str]:
    """Return the topics of which a window of the records is restored."""
    return {range_.topic for range_ in plan.ranges if range_.window is not None}


class JudgedRecords(NamedTuple):
    """The records of `topics` and the `schemas` that they are judged by, which are the document `archived`."""

    schemas: Schemas
    archived: DocumentRef | None
    topics: Sequence[TopicState]
    sample: Sample


def plan_judged(
    registry: SchemaRegistry,
    records: JudgedRecords,
    mode: Mode,
    overruled: SchemaTopics,
    unmapped: Unmapped,
    prefix: str = "",
    windowed: Iterable[str] = (),
) -> SchemaPlan:
    """Judge records, and plan the schemas that a serializer named in them. Of topics in `windowed` only some records
    are wanted, so that nobody knows before whether these have a schema that is lacking."""
    from kbackup.kafka.schema_registry import BUILT_IN

    judge = Judge(records.schemas, BUILT_IN, overruled, records.sample)
    judged = judge.topics(records.topics)
    beside = versions_beside(records.topics, records.schemas)
    carried = [*judge.needed(judged, records.topics), *beside]
    plan = prepare_schemas(registry, records.schemas, carried=carried, mode=mode, prefix=prefix)
    if plan.problems and unmapped == "keep":
        # An odd record with an id of another subject must not block the others: such records stay as they are.
        certain = [*judge.needed(judged, records.topics, only_certain=True), *beside]
        smaller = _plan_without_others(registry, records.schemas, carried, certain, plan)
        if smaller is not None:
            plan, carried = smaller, certain
            judged = tuple(_without_others(part) for part in judged)
    problems = plan.problems
    if unmapped == "fail":
        # Of the other topics every record is restored, so a lacking schema would end the restore for certain: that is
        # better said before the first record is written.
        windowed_topics = set(windowed)
        whole = [part for part in judged if part.topic not in windowed_topics]
        problems += tuple(unmapped_words(whole))
    return replace(
        plan,
        problems=problems,
        judged=judged,
        unmapped=unmapped,
        parts=_mapped_parts(judged),
        guids=_carried_guids(carried, records.topics),
        archived=records.archived,
        uncovered=tuple(uncovered(records.topics, records.schemas)),
    )


def _plan_without_others(
    registry: SchemaRegistry,
    schemas: Schemas,
    carried: Sequence[SchemaVersion],
    certain: Sequence[SchemaVersion],
    plan: SchemaPlan,
) -> SchemaPlan | None:
    """Plan the `certain` schemas alone, with notes of the problems that this avoids; None if it avoids none."""
    if len(certain) == len(carried):
        return None
    smaller = prepare_schemas(registry, schemas, carried=certain, mode=plan.mode, prefix=plan.prefix)
    left_out = [f"left out: {problem}" for problem in plan.problems if problem not in smaller.problems]
    if not left_out:
        return None
    return replace(smaller, notes=(*smaller.notes, *left_out))


def _mapped_parts(judged: Iterable[JudgedPart]) -> dict[str, tuple[Part, ...]]:
    """Return by topic which of keys and values are mapped."""
    parts: dict[str, tuple[Part, ...]] = {}
    for judgement in judged:
        if judgement.maps:
            earlier = parts.get(judgement.topic, ())
            parts[judgement.topic] = (*earlier, judgement.part)
    return parts


def _carried_guids(carried: Iterable[SchemaVersion], topics: Iterable[TopicState]) -> tuple[str, ...]:
    """Return the GUIDs of the `carried` schemas that records name by their GUIDs, not by ids."""
    named: set[int | str] = set()
    for topic in topics:
        for used in topic.schemas:
            named.update(usual_id(text) for text in used.ids)
    guids: set[str] = set()
    for version in carried:
        # A registry of an older version gives none.
        if version.guid and version.guid in named:
            guids.add(version.guid)
    return tuple(sorted(guids))


def _without_others(part: JudgedPart) -> JudgedPart:
    """Return a judgement by subject where ids of other subjects get no place on the target."""
    if part.how != "subject":
        return part
    return replace(part, unknown=part.unknown + part.others, others=0)


def _record_warnings(plan: SchemaPlan, topics: Iterable[TopicState]) -> list[str]:
    warnings: list[str] = []
    for words in unmapped_words(plan.judged):
        if plan.unmapped == "keep":
            warnings.append(f"{words}: they stay as they are, and the restore ends with exit code 3")
        else:
            warnings.append(f"{words}: if one of them is restored, it ends the restore")
    uncounted = [topic.name for topic in topics if not topic.all_counted]
    if uncounted:
        names = join_names(uncounted, 3)
        warnings.append(f"what schemas older records of {names} name is not known before they are read")
    return warnings


def resumed_schemas(asked: str | None, journal: RestoreJournal) -> SchemaMap | None:
    """Return the schemas that a restore registered before it wrote its first record. `MismatchError` if it was begun
    otherwise: some of its records would get other ids."""
    done = schema_map(journal)
    # Without a map the records of the first run kept their ids.
    was = "none" if done is None else done.mode
    _check_mode(asked, was, journal.restore_id)
    return done


def _check_mode(asked: str | None, was: str, restore_id: str) -> None:
    if asked not in (None, was):
        raise MismatchError(
            f"restore {restore_id} was begun with --schemas {was}, now it is {asked}",
            "give the same as then, or another --restore-id",
        )


def unreadable_records(archive: Archive, plan: RestorePlan) -> list[str]:
    """Return in words which schemas of the planned records the restore point lacks, and which can't be read."""
    schemas = archive.schemas(plan.restore_point)
    if schemas is None:
        return []
    try:
        from kbackup.kafka.schema_registry import BUILT_IN

        index = SchemaIndex(schemas, BUILT_IN)
        topics = planned_topics(archive, plan)
        ids, problems = ids_of_records(topics, index)
        problems += uncovered(topics, schemas)
        for schema_id in sorted(ids, key=str):
            try:
                codec_of(index.schema(schema_id))
            except UndecodableError as error:
                problems.append(f"records name schema {schema_id}: {error.message}")
    except (ImportError, UsageError) as error:
        # The libraries of schemas are an extra, and this is a check beside the restore: it goes on without them.
        return [f"the schemas of records were not looked at: {error}"]
    return problems


def missing_schemas(
    options: RegistryOptions, source: bool, archive: Archive | None, plan: RestorePlan, state: Store
) -> list[str]:
    """Return in words what a registry lacks: the `source` registry, of the schemas of the restore point; the target's,
    of the schemas that the restore of the plan registered. Nothing without a registry."""
    if not options.url:
        return []
    if not source:
        done = schema_map(RestoreJournal(state, plan.restore_id))
        if done is None:
            return []
        return lost_since(open_registry(options), done.places)
    schemas = None if archive is None else archive.schemas(plan.restore_point)
    places: list[tuple[str, int, int]] = []
    if schemas is not None:
        for version in schemas.versions:
            # What was gone at the capture is not expected to be back.
            if version.state != "gone":
                places.append((version.subject, version.version, version.id))
    return lost_since(open_registry(options, "schema_registry"), places)


def planned_topics(archive: Archive, plan: RestorePlan) -> Sequence[TopicState]:
    """Return the restored topics as the newest restore point of the plan that has them knows them."""
    numbers = {plan.restore_point}
    numbers.update(topic.as_of for topic in plan.topics)
    numbers.discard(0)
    known: dict[tuple[str, int], TopicState] = {}
    # Rising: the counts of a topic grow from restore point to restore point, and the newest ones have all records.
    for number in sorted(numbers):
        known |= archive.manifest(number).incarnations()
    incarnations = [(topic.source, topic.incarnation) for topic in plan.topics]
    return [known[incarnation] for incarnation in incarnations if incarnation in known]


def rewrite_of(done: SchemaMap | None, store: Store, unmapped: Unmapped | None = None) -> SchemaRewrite | None:
    """Return what maps a restore's records; None if there is nothing to map or to count. `store` has the schemas that
    records are judged by. `unmapped` replaces what the restore was begun with."""
    if done is None:
        return None
    judged = judged_parts(done)
    if done.mode == "same":
        # The ids stay. Records are still looked at where some may carry an id that the restore point lacks.
        with_doubt = [part for part in judged if part.unknown or not part.counted]
        judged = [_counting(part) for part in with_doubt]
    if not any(part.maps or part.how == "unknown" for part in judged):
        return None
    codecs = None if done.archived is None else ArchivedCodecs(store, done.archived)
    return SchemaRewrite(NewIds(done.ids, done.guids, done.contexts), judged, unmapped or done.unmapped, codecs)


def _counting(part: JudgedPart) -> JudgedPart:
    """Return a judgement for records whose ids stay: known ids need no look, and unknown ones are counted."""
    return replace(part, how="asked") if part.maps else part


def judged_parts(done: SchemaMap) -> list[JudgedPart]:
    """Return how the records of a restore are judged."""
    if done.judged or not done.parts:
        return list(done.judged)
    # Older versions mapped the parts of topics by their ids alone: a restore that they have begun goes on so.
    judged: list[JudgedPart] = []
    for topic, parts in done.parts.items():
        judged += [JudgedPart(topic=topic, part=part, how="asked") for part in parts]
    return judged


def checked_schemas(
    plan: RestorePlan, store: Store, state: Store, options: RegistryOptions | None
) -> CheckedRewrite | None:
    """Return what maps the archived records of a restore as the restore should have done it, by what they decode to;
    None if the restore has mapped nothing. `options` are of the target's registry, if it is known: then records must
    decode to the same by its schemas."""
    done = schema_map(RestoreJournal(state, plan.restore_id))
    if done is None or done.mode == "same":
        return None
    judged, archived = done.judged, done.archived
    if not judged and done.parts:
        # An older version mapped by ids alone, also data that no serializer wrote: they are judged now.
        from kbackup.kafka.schema_registry import BUILT_IN

        archive = open_archive_or_folder(store)
        if archive is not None:
            point = archive.manifest(plan.restore_point)
            schemas = archive.schemas(point)
            if schemas is not None:
                judge = Judge(schemas, BUILT_IN, SchemaTopics(), sample_of(archive, point))
                judged = judge.topics(planned_topics(archive, plan))
                archived = point.schemas
    if archived is None:
        return None
    target = None
    if options is not None and options.url:
        target = _schemas_of_target(open_registry(options), done)
    new = NewIds(done.ids, done.guids, done.contexts)
    return CheckedRewrite(new, judged, "keep", ArchivedCodecs(store, archived), target=target)


def _schemas_of_target(registry: SchemaRegistry, done: SchemaMap) -> Schemas:
    """Return what the target has at the places where a restore registered schemas."""

    def read(place: Place) -> SchemaVersion | None:
        subject, number = place
        return registry.version(subject, number)

    places = sorted({(subject, number) for subject, number, _ in done.places})
    # None: somebody has deleted the version since.
    versions = [version for version in in_threads(read, places) if version is not None]
    return Schemas(captured_at="", registry=registry.url, kept="used", versions=tuple(versions))
