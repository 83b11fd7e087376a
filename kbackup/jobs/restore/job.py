"""The restore job: `restore` is the list of its phases. Nothing is written before the preflight has passed."""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Literal, Protocol

import msgspec

from kbackup.archive.query.content import Content
from kbackup.archive.query.java import JAVA, open_archive_or_folder, readable
from kbackup.archive.reader import Archive, refuse_if_swept
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.map_parts import MappedUnit, collect_map
from kbackup.archive.restores.offset_map import Runs
from kbackup.archive.restores.plan import (
    BEGIN_ANOTHER,
    PlannedTopic,
    RestorePlan,
    UnitRange,
    check_not_erased,
    check_same_archive,
    check_segments_there,
    without_topics,
)
from kbackup.archive.restores.target_topics import TargetTopic, TopicCaptures, topics_to_note
from kbackup.archive.segments.table import sum_of
from kbackup.errors import ClusterError, KbackupError, RefusedError, UnreachableError
from kbackup.jobs.groups.job import committed_offsets, restore_groups
from kbackup.jobs.groups.report import GroupResult
from kbackup.jobs.newer import LiveCluster, NewerRecords, backup_first, newer_in_source, newer_sentences, refused_with
from kbackup.jobs.restore.contents import warn_of_existing
from kbackup.jobs.restore.demands import find_unfit
from kbackup.jobs.restore.plan import (
    CountedRecords,
    count_by_tasks,
    plan_restore,
    select_content,
    timed_ranges,
    with_counts,
)
from kbackup.jobs.restore.preflight import (
    PreflightFindings,
    TargetCheck,
    check_segments,
    check_target,
    hold_back_unfit,
    missing_rights_problem,
    rights_to_write,
    topic_to_create,
    warn_of_members,
    warn_of_share_groups,
)
from kbackup.jobs.restore.report import (
    NotRestoredTopic,
    Restored,
    RestoreReport,
    TopicFill,
    late_warnings,
    make_report,
    planned,
    restored,
    with_warning,
)
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.jobs.restore.resume import excluded_targets, find_begun
from kbackup.jobs.restore.same_offsets.pieces import LogShape
from kbackup.jobs.restore.same_offsets.plan import (
    has_gaps,
    markers_per_second,
    measure_logs,
    plan_fills,
    problems_of,
    same_offsets_of,
    with_logs,
)
from kbackup.jobs.restore.same_offsets.task import SameOffsetsWork
from kbackup.jobs.restore.task import FailedTopic, RestoreWork, Unit, UnitResult, numbered_units, side_by_side
from kbackup.jobs.schemas.documents import SchemaMap
from kbackup.jobs.schemas.judgement import Unmapped
from kbackup.jobs.schemas.plan import SchemaPlan
from kbackup.jobs.schemas.records import RecordSchemas, plan_record_schemas, resumed_schemas, rewrite_of, schemas_report
from kbackup.jobs.schemas.write import apply_schemas
from kbackup.jobs.settings.documents import SettingsCaptures
from kbackup.jobs.settings.plan import SettingsReport
from kbackup.jobs.settings.while_filled import as_filled, settle_configs_after
from kbackup.jobs.settings.write import apply_settings, compare_settings
from kbackup.jobs.transform import Transform, with_schemas
from kbackup.kafka.client import Properties, fetch_size_factor
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.topics import TopicToCreate
from kbackup.kafka.produce import BlockProducer
from kbackup.kafka.record_clients import open_message_sink
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.native.kernel import log_kernels
from kbackup.schemas.base import RegistryOptions
from kbackup.spark.tasks import Spark, run_counted
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.system import attempts
from kbackup.util.text import join_names, plural


@dataclass(frozen=True)
class RestoreResources:
    """The resources of a restore: the archive in `store`, the documents of restores in `state` (as a rule the archive's
    store), the cluster of `target` and the schema registry beside it, and Spark."""

    target: Properties = field(repr=False)
    store: Store
    state: Store
    spark: Spark
    listener: ProgressListener
    registry: RegistryOptions = field(default_factory=RegistryOptions, repr=False)


class RestoreScreen(Protocol):
    """Where a restore is shown before it writes anything. An error that a method raises ends the restore."""

    def show_plan(self, plan: RestorePlan, warnings: list[str]) -> None:
        """Show the plan, without the topics that it can't restore, and the warnings of the preflight."""

    def show_fills(self, fills: Sequence[TopicFill]) -> None:
        """Show how logs get the offsets of the source; nothing where offsets may differ."""

    def show_settings(self, settings: SettingsReport) -> None:
        """Show the changes of the target's settings."""

    def show_schemas(self, schemas: SchemaPlan) -> None:
        """Show the changes of the target's schema registry."""


class NoScreen:
    """A `RestoreScreen` that shows nothing."""

    def show_plan(self, plan: RestorePlan, warnings: list[str]) -> None: ...

    def show_fills(self, fills: Sequence[TopicFill]) -> None: ...

    def show_settings(self, settings: SettingsReport) -> None: ...

    def show_schemas(self, schemas: SchemaPlan) -> None: ...


@dataclass(frozen=True)
class RestoreTarget:
    """The cluster that a restore writes to: its id, and how many brokers it has."""

    cluster: Cluster
    id: str
    brokers: int


@dataclass(frozen=True)
class RestoreSource:
    """The source of a restore: an archive, or a folder of the Java tool (`archive` is None). `records` is the store of
    the records of either."""

    archive: Archive | None
    records: Store

    def unswept(self, hint: str = "run the command again") -> AbstractContextManager[None]:
        """Return the context in which the archive is read: it refuses where an expiration has overtaken the restore."""
        return nullcontext() if self.archive is None else refuse_if_swept(self.archive, hint)


@dataclass(frozen=True)
class RestoreSession:
    """A running restore: its resources, its journal, its source and its target."""

    resources: RestoreResources
    journal: RestoreJournal
    source: RestoreSource
    target: RestoreTarget
    phases: Phases

    def is_into_source(self, point: int) -> bool:
        """Return whether the target is the cluster that restore point `point` was taken of."""
        archive = self.source.archive
        return archive is not None and archive.restore_point(point).cluster_id == self.target.id


@dataclass(frozen=True)
class PlannedRestore:
    """The plan of a restore, and the `content` that it was made of: None if an earlier run has made the plan. The
    archive may have later restore points by then, and the plan alone says what is restored. `newer` are records of the
    source that the restore point lacks. `shapes` tell where the logs have gaps, if offsets are to stay the same.
    `transform` is the function of the request, with the schemas of the restore point if it takes them."""

    plan: RestorePlan
    content: Content | None = None
    newer: tuple[NewerRecords, ...] = ()
    shapes: Mapping[TopicPartition, LogShape] = field(default_factory=dict)
    transform: Transform | None = None

    @property
    def resumed(self) -> bool:
        return self.content is None


@dataclass(frozen=True)
class CheckedRestore:
    """A restore that has passed the preflight.

    `refusal` is the error that ends the restore as soon as its plan was shown: the target can't take some of the
    selected settings at all, and the user decides whether to go on without them.
    `excluded` are topics that a resumed restore is to leave out: their names in the source, by those on the target.
    `held_back` are the topics that the target would refuse. `settings` and `schemas` are to be written; `registered`
    are the schemas that an earlier run has written, and `unmapped` says what is done about records that get no new id.
    `fills` says how logs get the same offsets.
    """

    work: PlannedRestore
    findings: PreflightFindings
    excluded: Mapping[str, str]
    held_back: Sequence[NotRestoredTopic]
    settings: SettingsReport | None
    refusal: RefusedError | None
    schemas: RecordSchemas | None
    registered: SchemaMap | None
    unmapped: Unmapped | None
    fills: tuple[TopicFill, ...] = ()

    @cached_property
    def restorable(self) -> RestorePlan:
        """The plan without the topics that are excluded or held back."""
        left_out = set(self.excluded.values())
        left_out.update(topic.source for topic in self.held_back)
        return without_topics(self.work.plan, left_out)


@dataclass(frozen=True)
class PreparedRestore:
    """A restore whose target is ready for records: `plan` is in the journal, `settings` and schemas are written
    (`registered`), and its topics are there apart from those that are `not_restored`."""

    checked: CheckedRestore
    plan: RestorePlan
    settings: SettingsReport | None
    registered: SchemaMap | None
    not_restored: Sequence[NotRestoredTopic]


@dataclass(frozen=True)
class ReplayedRestore:
    """A restore whose records are in the target, apart from the topics that are `not_restored`."""

    prepared: PreparedRestore
    results: Sequence[UnitResult]
    not_restored: Sequence[NotRestoredTopic]

    @property
    def left_out(self) -> frozenset[str]:
        """The topics, by their names on the target, of which not all records are there."""
        return _left_out(self.prepared.checked, self.not_restored)


@dataclass(frozen=True)
class MappedRestore:
    """A restore whose records each have their place in the offset map. `hidden` are partitions with records that
    consumers can't see yet."""

    replayed: ReplayedRestore
    done: Restored
    runs: Mapping[TopicPartition, Runs]
    hidden: Sequence[TopicPartition]


def restore(
    request: RestoreRequest,
    resources: RestoreResources,
    screen: RestoreScreen | None = None,
    *,
    dry_run: bool = False,
    count: bool = False,
) -> RestoreReport:
    """Restore a restore point into the target; with `dry_run`, report the plan alone. With `count`, records in windows
    are counted before; those that an expression selects always are, as it may fail for one. The `screen` gets the plan
    and the changes of settings and schemas before anything is written.

    A topic that the target refuses stops no other one: the report names it in `failed`, and the restore can go on under
    the same id. `RefusedError` or `ClusterError` if no topic can be restored."""
    phases = Phases(resources.listener)
    with phases.step("connect"):
        target = connect(resources.target)
        journal = RestoreJournal(resources.state, request.restore_id)
        begun = find_begun(request, journal, target.cluster, target.id)
    if begun.report is not None:
        return begun.report
    with phases.step("plan"):
        session = RestoreSession(resources, journal, open_source(resources.store), target, phases)
        with session.source.unswept():
            if begun.plan is not None:
                work = resume(request, session, begun.plan)
            else:
                content = choose_content(request, session, count)
                work = make_plan(request, session, content)
    with phases.step("preflight"), session.source.unswept():
        checked = preflight(request, session, work)
        if dry_run:
            checked.findings.warnings += warnings_of_dry_run(session, checked)
        show(screen or NoScreen(), checked)
        if checked.refusal is not None:
            raise checked.refusal
        if not dry_run:  # brokers keep the id of a transaction, also of one without records
            try_transactions(work.plan, resources.target)
    if dry_run:
        return planned_report(session, checked)
    prepared = prepare_target(request, session, checked)
    with phases.step("run"), session.source.unswept(BEGIN_ANOTHER):
        replayed = replay(request, session, prepared)
    with phases.step("offset map"):
        mapped = map_offsets(session, replayed)
    with phases.step("groups"):
        groups = set_restored_groups(session, mapped)
    with phases.step("report"):
        return finish(session, mapped, groups)


# Connect, choose and plan.


def connect(properties: Properties) -> RestoreTarget:
    """Connect to the target."""
    cluster = Cluster(properties, "target")
    cluster_id, brokers = cluster.connect()
    return RestoreTarget(cluster, cluster_id, brokers)


def open_source(store: Store) -> RestoreSource:
    """Open the archive in a store, or the folder of the Java tool."""
    archive = open_archive_or_folder(store)
    archive_id = JAVA if archive is None else archive.info.id
    return RestoreSource(archive, readable(store, archive_id))


def choose_content(request: RestoreRequest, session: RestoreSession, count: bool) -> Content:
    """Return the selected content of the source. With `count`, and for an expression, the records in windows are
    counted."""
    source, resources = session.source, session.resources
    content = select_content(request, resources.store, source.archive)
    if not (count or request.window.where):
        return content

    def count_ranges(ranges: list[UnitRange]) -> list[CountedRecords]:
        return count_by_tasks(ranges, source.records, resources.spark, resources.listener)

    return with_counts(content, count_ranges)


def make_plan(request: RestoreRequest, session: RestoreSession, content: Content) -> PlannedRestore:
    """Plan the restore of some content, and count the records of the source that it lacks."""
    target = session.target
    plan = plan_restore(request, content, target.id)
    transform = with_schemas(request.transform, session.source.archive, plan.restore_point)
    shapes: dict[TopicPartition, LogShape] = {}
    if plan.keeps_offsets:
        resources = session.resources
        records = session.source.records
        shapes = measure_logs(plan.ranges, records, resources.spark, resources.listener, transform)
        plan = with_logs(plan, request, shapes)
    topics = {topic.source for topic in plan.topics}
    live = LiveCluster(target.cluster, target.id, session.resources.target)
    newer = newer_in_source(live, session.source.archive, plan.restore_point, topics, session.resources.state)
    return PlannedRestore(plan, content, newer, shapes, transform)


def resume(request: RestoreRequest, session: RestoreSession, plan: RestorePlan) -> PlannedRestore:
    """Go on with the plan of an earlier run. `RefusedError` if that run was of another archive."""
    check_same_archive(plan, session.source.archive)
    check_not_erased(plan, session.source.archive)
    check_segments_there(plan, session.source.archive)
    transform = with_schemas(request.transform, session.source.archive, plan.restore_point)
    return PlannedRestore(plan, transform=transform)


# Check, and show what would be done.


def preflight(request: RestoreRequest, session: RestoreSession, work: PlannedRestore) -> CheckedRestore:
    """Check everything that can be known to go wrong, and plan settings and schemas. Raise `RefusedError` with every
    problem where the restore can't begin, or none of its topics can be restored."""
    plan, target = work.plan, session.target
    check_segments(session.source.records, [range_.segments for range_ in plan.ranges if range_.segments])
    excluded = excluded_targets(plan, request) if work.resumed else {}
    check = TargetCheck(
        cluster=target.cluster,
        brokers=target.brokers,
        properties=session.resources.target,
        plan=plan,
        given=request.topic_config,
        resumed=work.resumed,
        into_source=session.is_into_source(plan.restore_point),
        named_groups=request.groups.include if request.groups is not None else (),
    )
    newer = newer_sentences(work.newer, plan.restore_point) + backup_first(work.newer)
    try:
        findings = check_topics(session, check, excluded)
    except RefusedError as refusal:
        # A hint of the refusal may be to delete topics: whoever does it would lose the newer records.
        raise refused_with(refusal, newer) from None
    findings.warnings += newer
    if work.content is not None:
        findings.warnings += work.content.warnings
        if plan.into_existing:
            records = session.source.records
            findings.warnings += warn_of_existing(check.reading, records, plan, work.transform)
    fills = fills_of(request, session, work, findings)
    findings.warnings += warn_of_share_groups(target.cluster, plan.groups)
    held_back = list(held_back_topics(plan, findings))
    compared = compare_settings(session.resources.store, plan, target.cluster)
    schemas: RecordSchemas | None = None
    registered: SchemaMap | None = None
    if request.record_schemas is None:
        registered = resumed_schemas("none", session.journal)
    elif work.resumed:
        registered = resumed_schemas(request.record_schemas.asked, session.journal)
    else:
        registry = session.resources.registry
        schemas = plan_record_schemas(request.record_schemas, registry, session.source.archive, plan, session.journal)
    if schemas is not None:
        findings.warnings += schemas.warnings
    settings: SettingsReport | None = None
    settings_refusal: RefusedError | None = None
    if compared is not None:
        settings, settings_refusal = compared.report, compared.refusal
    return CheckedRestore(
        work=work,
        findings=findings,
        excluded=excluded,
        held_back=held_back,
        settings=settings,
        refusal=settings_refusal,
        schemas=schemas,
        registered=registered,
        unmapped=request.given.unmapped,
        fills=fills,
    )


def fills_of(
    request: RestoreRequest, session: RestoreSession, work: PlannedRestore, findings: PreflightFindings
) -> tuple[TopicFill, ...]:
    """Return how logs get the same offsets, and hold back the topics that can't be filled so; none if offsets may
    differ. Topics that an earlier run has created passed this check then, and are left out. Raise `RefusedError` if no
    topic is left."""
    if not work.plan.keeps_offsets:
        return ()
    plan, shapes = work.plan, work.shapes
    if work.resumed:
        known = [topic.source for topic in plan.topics if topic.target not in findings.create]
        plan = without_topics(plan, known)
        resources = session.resources
        records = session.source.records
        shapes = measure_logs(plan.ranges, records, resources.spark, resources.listener, work.transform)
    rate = math.inf
    if request.may_mark and has_gaps(plan, shapes):
        rate = markers_per_second(session.target.cluster, plan.restore_id, plan.progress_group_names[0])
    fills = plan_fills(plan, shapes, request.fill, rate)
    topics = {topic.target: topic for topic in plan.topics}
    for fill in fills:
        topic = topics[fill.target]
        configs = findings.configs.get(fill.target, topic.configs)
        exists = fill.target not in findings.create
        for problem, hint in problems_of(fill, request.fill, configs, exists=exists, may_mark=request.may_mark):
            findings.hold_back(topic, problem, hint)
    if not work.resumed:
        findings.raise_unless_any(topics)
    return fills


def check_topics(session: RestoreSession, check: TargetCheck, excluded: Container[str]) -> PreflightFindings:
    """Check the target, and the archived records that the table of segments can't vouch for. Raise `RefusedError` with
    every problem where the restore can't begin, or none of its topics can be restored."""
    records, spark, listener = session.source.records, session.resources.spark, session.resources.listener
    to_restore = [range_ for range_ in check.plan.ranges if range_.target not in excluded]
    ranges = timed_ranges(to_restore, records, spark, listener)
    findings = check_target(check, ranges, excluded)
    unfit = find_unfit(ranges, findings.demands, records, spark, listener)
    hold_back_unfit(findings, check, unfit)
    findings.raise_problems()
    targets = [topic.target for topic in check.plan.topics if topic.target not in excluded]
    findings.raise_unless_any(targets)
    return findings


def held_back_topics(plan: RestorePlan, findings: PreflightFindings) -> Iterator[NotRestoredTopic]:
    """Yield each problem of the topics that the preflight holds back."""
    for topic in plan.topics:
        for reason, hint in findings.held_back.get(topic.target, ()):
            yield NotRestoredTopic(source=topic.source, target=topic.target, reason=reason, hint=hint)


def warnings_of_dry_run(session: RestoreSession, checked: CheckedRestore) -> list[str]:
    """Return warnings of what the report of a restore itself would name as missing."""
    warnings: list[str] = []
    if checked.schemas is not None:
        warnings += checked.schemas.plan.uncovered
    warnings += warn_of_members(session.target.cluster, checked.restorable.groups)
    return warnings


def show(screen: RestoreScreen, checked: CheckedRestore) -> None:
    """Show what is about to be written."""
    # The report names the topics that are held back once more, but perhaps hours later.
    held_back = [topic.sentence for topic in checked.held_back]
    screen.show_plan(checked.restorable, held_back + checked.findings.warnings)
    screen.show_fills(checked.fills)
    if checked.settings is not None:
        screen.show_settings(checked.settings)
    if checked.schemas is not None:
        screen.show_schemas(checked.schemas.plan)


def try_transactions(plan: RestorePlan, target: Properties) -> None:
    """Check that the target allows transactions, before anything is written."""
    if not plan.transactions or not plan.units:
        return
    transactional_id = f"kbackup-{plan.restore_id}-preflight"
    group = plan.progress_group_names[-1]
    partition = plan.units[0][0].tp
    producer = BlockProducer(target, transactional_id, group, sink=open_message_sink)
    with closing(producer):
        producer.start([partition])


def planned_report(session: RestoreSession, checked: CheckedRestore) -> RestoreReport:
    """Return the report of a dry run."""
    plan = checked.restorable
    schemas = schemas_report(checked.schemas.plan) if checked.schemas is not None else None
    return make_report(
        plan,
        session.resources.store.url,
        planned(plan),
        groups=(),
        warnings=checked.findings.warnings,
        seconds=session.phases.seconds,
        status="planned",
        settings=checked.settings,
        schemas=schemas,
        newer=checked.work.newer,
        failed=checked.held_back,
        fills=checked.fills,
    )


# Prepare the target: schemas, settings and topics.


def prepare_target(request: RestoreRequest, session: RestoreSession, checked: CheckedRestore) -> PreparedRestore:
    """Write the schemas, the plan, the settings and the topics, in this order: whoever resumes a killed restore finds
    in its journal what was written to the target before."""
    journal, work = session.journal, checked.work
    cluster = session.target.cluster
    registered = checked.registered
    if checked.schemas is not None:
        with session.phases.step("schemas"):
            # Before the plan: whoever finds a plan takes the ids of its schemas from the journal. A run that is killed
            # in between leaves no plan, and the next one goes on with the schemas that it has noted.
            registered = apply_schemas(checked.schemas.registry, journal, checked.schemas.plan)
    plan = work.plan
    if not work.resumed:
        plan = as_created(plan, checked.findings)
        if plan.keeps_offsets:
            plan = msgspec.structs.replace(plan, same_offsets=same_offsets_of(cluster, request.fill))
        journal.begin(plan)
    with session.phases.step("create topics"):
        # ACLs come before the topics that they are to guard.
        captures = SettingsCaptures(journal)
        settings = apply_settings(cluster, captures, session.target.id, checked.settings)
        left_out = {*checked.excluded, *checked.findings.held_back}
        topics = [topic for topic in plan.topics if topic.target not in left_out]
        # A resumed plan keeps its configs: topics that an earlier run did not create get the configs of now.
        created = as_created(plan, checked.findings)
        if plan.keeps_offsets:
            created = as_filled(created)
        failed = create_topics(cluster, created, topics, checked.findings)
        refused = {topic.target for topic in failed}
        ready = [topic for topic in topics if topic.target not in refused]
        note_topics(session, plan, ready, checked.findings.create)
    not_restored = [*checked.held_back, *not_restored_topics(plan, failed)]
    return PreparedRestore(checked, plan, settings, registered, not_restored)


def as_created(plan: RestorePlan, findings: PreflightFindings) -> RestorePlan:
    """Return the plan with the configs that missing topics are created with, and a note that the restore creates
    them."""
    topics: list[PlannedTopic] = []
    for topic in plan.topics:
        if topic.target in findings.create:
            configs = findings.configs[topic.target]
            topics.append(msgspec.structs.replace(topic, configs=configs, created=True))
        else:
            topics.append(topic)
    return msgspec.structs.replace(plan, topics=tuple(topics))


def create_topics(
    cluster: Cluster, plan: RestorePlan, topics: Sequence[PlannedTopic], findings: PreflightFindings
) -> list[FailedTopic]:
    """Create the missing ones of the `topics`, and wait until they can be written to; mend the configs of topics that
    an earlier run has made. Return the topics that the target refuses, and those that our user may not write to;
    `UnreachableError` if it may write to none."""
    targets = {topic.target for topic in topics}
    missing: list[TopicToCreate] = []
    for topic in plan.topics:
        if topic.target in targets and topic.target in findings.create:
            missing.append(topic_to_create(topic))
    refused = cluster.topic_admin.create(missing)
    created = {topic.name: topic.partitions for topic in missing if topic.name not in refused}
    refused |= cluster.topic_admin.wait_visible(created)
    changes = {target: configs for target, configs in findings.alter.items() if target in targets}
    if changes:
        refused |= cluster.topic_admin.alter_configs(changes)
    failed = [FailedTopic(target, error.message, error.hint) for target, error in refused.items()]
    # The preflight asked for rights on the existing topics; on these nobody could ask before they were there.
    denied = cluster.missing_rights(
        created.keys() - refused.keys(), rights_to_write(plan.transactions, plan.keeps_offsets)
    )
    closed: list[FailedTopic] = []
    for target, rights in denied.items():
        reason, hint = missing_rights_problem(target, rights)
        closed.append(FailedTopic(target, reason, hint))
    if closed and len(closed) == len(topics):
        raise UnreachableError(closed[0].reason, closed[0].hint)
    return failed + closed


def note_topics(
    session: RestoreSession, plan: RestorePlan, topics: Sequence[PlannedTopic], created: Collection[str]
) -> None:
    """Write the ids of topics into the journal before they get their first record. By them a later backup of the
    target knows a topic that was created again by this restore. `created` are the names on the target of the topics
    that this run has created."""
    described = session.target.cluster.topics(topic.target for topic in topics)
    present: list[TargetTopic] = []
    for topic in topics:
        if topic.target in described:
            topic_id = described[topic.target].id
            made = topic.target in created
            present.append(TargetTopic(source=topic.source, target=topic.target, id=topic_id, created=made))
    captures = TopicCaptures(session.journal)
    new = topics_to_note(captures.every(), present)
    if new:
        captures.write(
            "restore",
            session.target.id,
            archive_id=plan.archive_id,
            restore_point=plan.restore_point,
            selected=plan.choice is not None,
            topics=new,
        )


def not_restored_topics(plan: RestorePlan, failed: Iterable[FailedTopic]) -> list[NotRestoredTopic]:
    """Return failed topics with their names in the source, sorted by these."""
    sources = {topic.target: topic.source for topic in plan.topics}
    topics: list[NotRestoredTopic] = []
    for failure in failed:
        source = sources[failure.target]
        topics.append(NotRestoredTopic(source=source, target=failure.target, reason=failure.reason, hint=failure.hint))
    return sorted(topics, key=attrgetter("source"))


# Replay the records.


def replay(request: RestoreRequest, session: RestoreSession, prepared: PreparedRestore) -> ReplayedRestore:
    """Bring the records into the target, by tasks on Spark. `ClusterError` if the target refuses every topic."""
    plan, checked, resources = prepared.plan, prepared.checked, session.resources
    left_out = _left_out(checked, prepared.not_restored)
    schemas = rewrite_of(prepared.registered, resources.store, checked.unmapped)
    units = numbered_units(plan, left_out)
    transform = checked.work.transform
    work: RestoreWork | SameOffsetsWork
    if plan.same_offsets is msgspec.UNSET:
        work = RestoreWork(
            target=resources.target,
            store=session.source.records,
            journal=session.journal,
            groups=plan.progress_group_names,
            transactions=plan.transactions,
            transaction_bytes=plan.transaction_bytes,
            schemas=schemas,
            left_out=left_out,
            limits=checked.findings.limits,
            transform=transform,
        )
        tasks = _tasks(session, plan, units)
    else:
        work = SameOffsetsWork(
            target=resources.target,
            store=session.source.records,
            journal=session.journal,
            same=plan.same_offsets,
            schemas=schemas,
            left_out=left_out,
            limits=checked.findings.limits,
            transform=transform,
        )
        tasks = [(unit,) for unit in units]
    results = run_counted(resources.spark, tasks, work, resources.listener, checked.restorable.records)
    log_kernels(result.kernel for result in results)
    refused: dict[str, FailedTopic] = {}
    for result in results:
        for failure in result.failed:
            refused[failure.target] = failure
    not_restored = [*prepared.not_restored, *not_restored_topics(plan, refused.values())]
    check_any_restored(plan, checked.excluded, not_restored)
    if plan.keeps_offsets:
        settle_configs_after(session.target.cluster, plan, _left_out(checked, not_restored))
    return ReplayedRestore(prepared, results, not_restored)


def _tasks(session: RestoreSession, plan: RestorePlan, units: Sequence[Unit]) -> list[tuple[Unit, ...]]:
    """Return the units in tasks: as a rule one unit each."""
    if not units:
        return []
    # Over a long way a producer waits for each batch of a partition: several units then share a task.
    round_trip = session.target.cluster.round_trip(plan.topics[0].target)
    units_of_task = fetch_size_factor(round_trip)
    cores = session.resources.spark().sparkContext.defaultParallelism if units_of_task > 1 else 1
    return side_by_side(units, units_of_task, cores)


def _left_out(checked: CheckedRestore, not_restored: Iterable[NotRestoredTopic]) -> frozenset[str]:
    """Return the topics, by their names on the target, of which not all records are to be there."""
    left_out = set(checked.excluded)
    left_out.update(topic.target for topic in not_restored)
    return frozenset(left_out)


def check_any_restored(plan: RestorePlan, excluded: Container[str], not_restored: Sequence[NotRestoredTopic]) -> None:
    """Raise `ClusterError` if the target refused every topic: then nothing is done."""
    if not not_restored:
        return
    planned_topics = {topic.target for topic in plan.topics if topic.target not in excluded}
    if planned_topics - {topic.target for topic in not_restored}:
        return
    first = not_restored[0]
    reason = first.reason
    if len(planned_topics) > 1:
        reason += f"; {plural(len(planned_topics) - 1, 'more topic')} failed likewise"
    raise ClusterError(reason, first.hint)


# Map the offsets, and set groups by them.


def map_offsets(session: RestoreSession, replayed: ReplayedRestore) -> MappedRestore:
    """Put the offset map together from its parts, and check that every record has its place in it."""
    journal, plan = session.journal, replayed.prepared.plan
    units: list[MappedUnit] = []
    for result in replayed.results:
        partitions = [part.tp for part in plan.units[result.number]]
        units.append(MappedUnit(result.number, partitions, result.parts))
    parts = journal.whole_map(units)
    collected = collect_map(journal.restore_id, parts, committed_offsets(plan), replayed.left_out)
    # Once the map is written, the restore counts as finished: not while topics are missing.
    if not replayed.not_restored:
        journal.write_offset_map(collected.data)
    cuts = [result.cut for result in replayed.results]
    done = restored(plan, collected.known, cuts, replayed.left_out)
    check_complete(plan, done, replayed.left_out)
    hidden = wait_visible(session.target.cluster, collected.known.runs)
    return MappedRestore(replayed, done, collected.known.runs, hidden)


def check_complete(plan: RestorePlan, done: Restored, left_out: Container[str] = ()) -> None:
    """Check that every record of the plan has its place in the offset map.

    The archive tells how many records there are in whole partitions, and the tasks count the records in windows, and
    those that a transform left out; the map has the offsets that the broker gave. Of topics that are `left_out`, only
    windows are counted."""
    expected = done.cut.records
    mapped = done.records
    partly_restored: set[str] = set()
    for range_ in plan.ranges:
        if range_.window is not None:
            continue
        if range_.target in left_out:
            partly_restored.add(range_.target)
        else:
            expected += sum_of(range_.segments, "count")
    # Some records of a topic that was left out on the way are there, and nobody knows how many these should be.
    for target in partly_restored:
        mapped -= done.topics[target]
    for target, records in done.cut.left_out:
        if target not in partly_restored:
            expected -= records
    if mapped != expected:
        raise KbackupError(
            f"restore {plan.restore_id} has {mapped} records in its offset map, {expected} were to be restored",
            "keep the target's topics and report this defect: the topics hold the records of the offset map",
        )


_MARKER_TIMEOUT = 60.0  # s, for a broker to write the markers of its transactions
_PAUSE = 0.1  # s


def wait_visible(cluster: Cluster, runs: Mapping[TopicPartition, Runs]) -> list[TopicPartition]:
    """Wait until the records of the offset map can be read, up to the last of each partition's `runs`. Return the
    partitions where they still can't."""
    # A broker acknowledges a commit before it has written the markers. Until then a log ends, for consumers, before the
    # transaction: a comparison, or a request for the log's end, would find too little.
    waiting: dict[TopicPartition, int] = {}
    for tp, (_, target, count) in runs.items():
        waiting[tp] = int(target[-1] + count[-1])
    for _ in attempts(_MARKER_TIMEOUT, _PAUSE):
        ends = cluster.log_ends(waiting, "read_committed")
        waiting = {tp: end for tp, end in waiting.items() if ends[tp] < end}
        if not waiting:
            break
    return sorted(waiting)


def set_restored_groups(session: RestoreSession, mapped: MappedRestore) -> tuple[GroupResult, ...]:
    """Set the groups of the plan by the offset map, apart from their offsets in topics that are not restored."""
    replayed = mapped.replayed
    excluded = replayed.prepared.checked.excluded
    plan = without_topics(replayed.prepared.plan, excluded.values())
    failed = {topic.target for topic in replayed.not_restored}
    return restore_groups(session.target.cluster, session.journal, plan, mapped.runs, failed)


# Report.


def finish(session: RestoreSession, mapped: MappedRestore, groups: tuple[GroupResult, ...]) -> RestoreReport:
    """Report the restore, and write the report: the restore is finished. With topics that are not restored it is not
    finished, and the same restore goes on with them."""
    replayed, done = mapped.replayed, mapped.done
    prepared = replayed.prepared
    checked, plan = prepared.checked, prepared.plan
    moved = sum(result.moved for result in replayed.results)
    warnings = [*checked.findings.warnings, *late_warnings(done, moved)]
    schemas = None
    if prepared.registered is not None:
        schemas = schemas_report(prepared.registered, done.cut.unmapped)
    status: Literal["incomplete", "restored"] = "incomplete" if replayed.not_restored else "restored"
    report = make_report(
        plan,
        session.resources.store.url,
        done,
        groups=groups,
        warnings=warnings,
        seconds=session.phases.seconds,
        status=status,
        settings=prepared.settings,
        hidden=mapped.hidden,
        schemas=schemas,
        newer=checked.work.newer,
        failed=replayed.not_restored,
        excluded=sorted(checked.excluded.values()),
        fills=checked.fills,
    )
    if replayed.not_restored:
        return report
    # The report comes before the progress goes: a restore that is killed in between is finished.
    session.journal.finish(report)
    return delete_progress(session.target.cluster, plan, report)


def delete_progress(cluster: Cluster, plan: RestorePlan, report: RestoreReport) -> RestoreReport:
    """Delete the progress groups, which are needed no more. A group that can't be deleted is a warning: the restore is
    done."""
    if not plan.transactions or not plan.units:
        return report
    try:
        cluster.groups.delete(plan.progress_group_names)
    except KbackupError as error:
        names = join_names(plan.progress_group_names, 1)
        return with_warning(report, f"progress group {names} may be left on the target: {error.message}")
    return report
