"""The restore job: `restore` is the list of its phases. Nothing is written before the preflight has passed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import closing, suppress
from typing import NamedTuple

from kbackup.archive import layout
from kbackup.archive.models import dump, load
from kbackup.archive.query.java import open_archive_or_folder, readable
from kbackup.archive.restores.offset_map import MappedUnit, Runs, in_order, write_map
from kbackup.archive.restores.plan import RestorePlan, check_same_archive, check_same_target, with_segments, write_plan
from kbackup.archive.segments.table import sum_of
from kbackup.config.models import Restore
from kbackup.errors import AlreadyExistsError, CorruptError, KbackupError, NotFoundError, RefusedError
from kbackup.jobs.groups.job import committed_offsets, restore_groups
from kbackup.jobs.newer import NewerRecords, newer_in_source, newer_sentences, refused_with
from kbackup.jobs.restore.plan import (
    check_same_options,
    count_by_tasks,
    plan_restore,
    select_content,
    with_counts,
    with_timestamps,
)
from kbackup.jobs.restore.preflight import (
    PreflightFindings,
    check_segments,
    check_still_there,
    check_target,
    topic_to_create,
    warn_of_existing,
    warn_of_members,
)
from kbackup.jobs.restore.report import (
    Restored,
    RestoreReport,
    late_warnings,
    make_report,
    planned,
    restored,
    with_warning,
)
from kbackup.jobs.restore.task import RestoreWork, side_by_side
from kbackup.jobs.schemas.plan import SchemaPlan
from kbackup.jobs.schemas.records import plan_record_schemas, resumed_schemas, rewrite_of, schemas_report
from kbackup.jobs.schemas.write import apply_schemas
from kbackup.jobs.settings.plan import SettingsReport
from kbackup.jobs.settings.write import SettingsCaptures, apply_settings, compare_settings
from kbackup.kafka import kernel
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client import Properties, on_the_way
from kbackup.kafka.kernel import message_outlet
from kbackup.kafka.produce import BlockProducer
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.schemas.base import RegistryOptions
from kbackup.spark.tasks import Spark, run_counted
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.system import attempts
from kbackup.util.text import join_names, plural


def restore(
    options: Restore,
    target: Properties,
    store: Store,
    state: Store,
    spark: Spark,
    listener: ProgressListener,
    *,
    registry: RegistryOptions | None = None,
    dry_run: bool = False,
    count: bool = False,
    show_plan: Callable[[RestorePlan, list[str]], None] = lambda _plan, _warnings: None,
    show_settings: Callable[[SettingsReport], None] = lambda _settings: None,
    show_schemas: Callable[[SchemaPlan], None] = lambda _schemas: None,
) -> RestoreReport:
    """Restore a restore point into the target; with `dry_run`, report the plan alone. With `count`, records in windows
    are counted before; those that an expression selects always are, as it may fail for one. `state` keeps plan, offset
    map and report: as a rule the store itself. `registry` is the target's, for the schemas of the records. `show_plan`
    gets the plan with the warnings of the preflight, `show_settings` the changes of settings, and `show_schemas` those
    of the registry, before anything is written."""
    phases = Phases(listener)
    with phases.step("connect"):
        cluster = Cluster(target, "target")
        cluster_id, brokers = cluster.connect()
        begun = find_begun(options, state, cluster, cluster_id)
        if begun.report is not None:
            return begun.report
    with phases.step("plan"):
        newer: tuple[NewerRecords, ...] = ()
        if begun.plan is None:
            archive = open_archive_or_folder(store)
            content = select_content(options, store, archive)
            if count or options.where:
                source = readable(store, content.archive_id)
                content = with_counts(content, lambda ranges: count_by_tasks(ranges, source, spark, listener))
            plan = plan_restore(options, content, cluster_id)
            sources = {topic.source for topic in plan.topics}
            newer = newer_in_source(cluster, cluster_id, archive, plan.restore_point, sources)
        else:  # its target was checked when it began
            check_same_archive(begun.plan, store)
            content, plan = None, begun.plan
        records = readable(store, plan.archive_id)
    with phases.step("preflight"):
        check_segments(records, [part.segments for unit in plan.units for part in unit])
        if content is None:
            existing = set(cluster.topic_names())
            findings = PreflightFindings(create=[t.target for t in plan.topics if t.target not in existing])
        else:
            try:
                findings = check_target(cluster, brokers, plan, with_timestamps(content, records, spark, listener))
            except RefusedError as refused:
                raise refused_with(refused, newer_sentences(newer, plan.restore_point)) from None
            if plan.into_existing:
                findings.warnings += warn_of_existing(target, cluster, records, plan)
        findings.warnings += newer_sentences(newer, plan.restore_point)
        settings = compare_settings(store, plan, cluster)
        schemas, registered = None, None
        if begun.plan is not None or options.schemas == "none":
            registered = resumed_schemas(options.schemas, state, plan.restore_id)
        else:
            asked, target_registry = options.schemas, registry or RegistryOptions()
            archive = open_archive_or_folder(store)
            schemas = plan_record_schemas(asked, options.subject_prefix, target_registry, archive, plan, state)
            findings.warnings += schemas.warnings if schemas is not None else ()
        if dry_run:
            findings.warnings += warn_of_members(cluster, plan.groups)
        show_plan(plan, findings.warnings)
        if settings is not None:
            show_settings(settings)
        if schemas is not None:
            show_schemas(schemas.plan)
        if not dry_run:
            try_transactions(plan, target)
    if dry_run:
        of_schemas = schemas_report(schemas.plan) if schemas is not None else None
        expected = plan, store.url, planned(plan), (), findings.warnings, phases.seconds
        return make_report(*expected, "planned", settings, (), of_schemas, newer)
    if schemas is not None:
        with phases.step("schemas"):  # before the plan: who resumes it knows the ids
            registered = apply_schemas(schemas.registry, state, plan.restore_id, schemas.plan)
    if begun.plan is None:
        begin(state, plan)
    with phases.step("create topics"):
        # before there is what an ACL is to guard
        settings = apply_settings(cluster, SettingsCaptures(state, plan.restore_id), cluster_id, settings)
        create_topics(cluster, plan, findings.create)
    with phases.step("run"):
        work = RestoreWork(
            target=target,
            store=records,
            state=state,
            restore_id=plan.restore_id,
            groups=plan.progress_group_names,
            transactions=plan.transactions,
            transaction_bytes=plan.transaction_bytes,
            schemas=rewrite_of(registered),
        )
        far = on_the_way(cluster.round_trip(plan.topics[0].target)) if plan.units else 1
        tasks = side_by_side(plan.units, far, spark().sparkContext.defaultParallelism if far > 1 else 1)
        results = run_counted(spark, tasks, work, listener, plan.records)
        kernel.say(r.kernel for r in results)
    with phases.step("offset map"):
        units = [MappedUnit(r.number, [part.tp for part in plan.units[r.number]], r.parts) for r in results]
        offset_map = write_map(state, plan.restore_id, in_order(state, plan.restore_id, units), committed_offsets(plan))
        done = restored(plan, offset_map, [r.cut for r in results])
        check_complete(plan, done)
        hidden = wait_visible(cluster, offset_map.runs)
    with phases.step("groups"):
        groups = restore_groups(cluster, state, plan, offset_map.runs)
    with phases.step("report"):
        warnings = [*findings.warnings, *late_warnings(done, sum(r.moved for r in results))]
        of_schemas = schemas_report(registered) if registered is not None else None
        result = plan, store.url, done, groups, warnings, phases.seconds
        report = make_report(*result, "restored", settings, hidden, of_schemas, newer)
        with suppress(AlreadyExistsError):  # another attempt of this restore has just ended
            state.put_new(layout.restore_key(plan.restore_id, layout.REPORT), dump(report))
        return delete_progress(cluster, plan, report)


class Begun(NamedTuple):
    """What is known of the restore of this id: its plan if it was begun, its report if it was finished."""

    plan: RestorePlan | None = None
    report: RestoreReport | None = None


def find_begun(options: Restore, state: Store, cluster: Cluster, cluster_id: str) -> Begun:
    """Return the restore that was begun under this id, after checks that it is the same one and still there."""
    if options.restore_id is None:
        return Begun()
    key = layout.restore_key(options.restore_id, layout.PLAN)
    try:
        plan = load(RestorePlan, state.get(key), key)
    except NotFoundError:
        return Begun()
    check_same_target(plan, cluster_id)
    report = finished_report(state, plan)
    if report is not None:
        check_same_options(plan, options)
        check_still_there(cluster, state, plan)
    elif not plan.transactions:
        raise RefusedError(
            f"restore {plan.restore_id} was begun without transactions: nobody knows how far it came",
            "delete its target topics and begin another one",
        )
    return Begun(plan if report is not None else with_segments(state, plan), report)


def finished_report(state: Store, plan: RestorePlan) -> RestoreReport | None:
    """Return the report of a finished restore, with a warning that nothing is done now."""
    key = layout.restore_key(plan.restore_id, layout.REPORT)
    try:
        report = load(RestoreReport, state.get(key), key)
    except NotFoundError:
        return None
    if report.archive_id not in ("", plan.archive_id):
        other = layout.restore_key(plan.restore_id, layout.PLAN)
        raise CorruptError(
            f"file {key} is of archive {report.archive_id}, {other} of {plan.archive_id}",
            "find the file that was copied from another archive, and remove it",
        )
    return with_warning(report, f"restore {plan.restore_id} was finished before: nothing was done now")


def try_transactions(plan: RestorePlan, target: Properties) -> None:
    """Check that the target allows transactions, before anything is written."""
    if plan.transactions and plan.units:
        txid, group = f"kbackup-{plan.restore_id}-preflight", plan.progress_group_names[-1]
        with closing(BlockProducer(target, txid, group, outlet=message_outlet)) as producer:
            producer.start([plan.units[0][0].tp])


def create_topics(cluster: Cluster, plan: RestorePlan, names: Collection[str]) -> None:
    """Create topics of the plan, and wait until they can be written to. Raises the error of the first one that the
    target refuses, when the others are there."""
    due = [topic_to_create(topic) for topic in plan.topics if topic.target in names]
    refused = cluster.topic_admin.create(due)
    refused |= cluster.topic_admin.wait_visible({t.name: t.partitions for t in due if t.name not in refused})
    for error in refused.values():
        more = f"; {plural(len(refused) - 1, 'more topic')} failed likewise" if len(refused) > 1 else ""
        raise type(error)(f"{error.message}{more}", error.hint)


def begin(state: Store, plan: RestorePlan) -> None:
    """Write the plan: the restore has begun, under its id."""
    try:
        write_plan(state, plan)
    except AlreadyExistsError as error:
        raise RefusedError(
            f"restore {plan.restore_id} was begun by another at this moment", "resume it when that one has ended"
        ) from error


def check_complete(plan: RestorePlan, done: Restored) -> None:
    """Every record of the plan, by the archive's own word, and every one that a window selected, by the tasks' count,
    has its place in the map, by the broker's."""
    whole = [p for unit in plan.units for p in unit if p.window is None]
    expected = sum(sum_of(p.segments, "count") for p in whole) + done.cut.records
    if done.records != expected:
        raise KbackupError(
            f"restore {plan.restore_id} has {done.records} records in its offset map, {expected} were to be restored",
            "keep the target's topics and report this defect: the topics hold the records of the offset map",
        )


_MARKERS = 60.0  # s, for a broker to write the markers of its transactions
_PAUSE = 0.1  # s


def wait_visible(cluster: Cluster, runs: Mapping[TopicPartition, Runs]) -> list[TopicPartition]:
    """Wait until the records of the offset map can be read, up to the last of each partition's `runs`. Return the
    partitions where they still can't. A broker acknowledges a commit before it has written the markers. Until then a
    log ends, for consumers, before the transaction: a comparison, or a request for the log's end, would find too
    little."""
    waiting = {tp: int(target[-1] + count[-1]) for tp, (_, target, count) in runs.items()}
    for _ in attempts(_MARKERS, _PAUSE):
        ends = cluster.log_ends(waiting, "read_committed")
        waiting = {tp: after for tp, after in waiting.items() if ends[tp] < after}
        if not waiting:
            break
    return sorted(waiting)


def delete_progress(cluster: Cluster, plan: RestorePlan, report: RestoreReport) -> RestoreReport:
    """Delete the progress groups, which have served. One that can't be deleted is a warning: the restore is done."""
    if not plan.transactions or not plan.units:
        return report
    try:
        cluster.groups.delete(plan.progress_group_names)
    except KbackupError as error:
        left = join_names(plan.progress_group_names, 1)
        return with_warning(report, f"progress group {left} may be left on the target: {error.message}")
    return report
