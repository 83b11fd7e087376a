"""The restore job: `restore` is the list of its phases. Nothing is written before the preflight has passed."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Literal, NamedTuple

import msgspec

from kbackup.archive import layout
from kbackup.archive.models import dump, load
from kbackup.archive.query.java import open_archive_or_folder, readable
from kbackup.archive.restores.offset_map import MappedUnit, Runs, collect_map, in_order
from kbackup.archive.restores.plan import (
    PlannedTopic,
    RestorePlan,
    begun_restore,
    check_same_archive,
    check_same_target,
    with_segments,
    without_topics,
    write_plan,
)
from kbackup.archive.segments.table import sum_of
from kbackup.config.models import Restore
from kbackup.errors import (
    AlreadyExistsError,
    ClusterError,
    CorruptError,
    KbackupError,
    NotFoundError,
    RefusedError,
    UnreachableError,
)
from kbackup.jobs.groups.job import committed_offsets, restore_groups
from kbackup.jobs.newer import NewerRecords, newer_in_source, newer_sentences, refused_with
from kbackup.jobs.restore.contents import warn_of_existing
from kbackup.jobs.restore.demands import find_unfit
from kbackup.jobs.restore.plan import (
    check_same_names,
    check_same_options,
    count_by_tasks,
    excluded_targets,
    plan_restore,
    resumed_plan,
    select_content,
    timed_ranges,
    with_counts,
)
from kbackup.jobs.restore.preflight import (
    PreflightFindings,
    TargetCheck,
    check_segments,
    check_still_there,
    check_target,
    hold_back_unfit,
    missing_rights_problem,
    rights_to_write,
    topic_to_create,
    warn_of_members,
)
from kbackup.jobs.restore.report import (
    NotRestoredTopic,
    Restored,
    RestoreReport,
    late_warnings,
    make_report,
    planned,
    restored,
    with_warning,
)
from kbackup.jobs.restore.task import FailedTopic, RestoreWork, numbered_units, side_by_side
from kbackup.jobs.schemas.plan import SchemaPlan
from kbackup.jobs.schemas.records import RecordOptions, plan_record_schemas, resumed_schemas, rewrite_of, schemas_report
from kbackup.jobs.schemas.write import apply_schemas
from kbackup.jobs.settings.plan import SettingsReport
from kbackup.jobs.settings.write import SettingsCaptures, apply_settings, compare_settings
from kbackup.kafka import kernel
from kbackup.kafka.client import Properties, fetch_size_factor
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.kernel import message_sink
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
    of the registry, before anything is written.

    A topic that the target refuses stops no other one: the report names it in `failed`, and the restore can go on under
    the same id. `RefusedError` or `ClusterError` if no topic can be restored."""
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
        else:  # the archive may have later restore points by now: the plan says what is restored
            check_same_archive(begun.plan, store)
            content, plan = None, begun.plan
        records = readable(store, plan.archive_id)
    with phases.step("preflight"):
        check_segments(records, [part.segments for unit in plan.units for part in unit])
        excluded = excluded_targets(plan, options) if begun.plan is not None else {}
        check = TargetCheck(cluster, brokers, target, plan, options.topic_config, resumed=begun.plan is not None)
        try:
            findings = check_plan(check, excluded, records, spark, listener)
        except RefusedError as refusal:
            raise refused_with(refusal, newer_sentences(newer, plan.restore_point)) from None
        findings.warnings += newer_sentences(newer, plan.restore_point)
        if content is not None:
            findings.warnings += content.warnings
            if plan.into_existing:
                findings.warnings += warn_of_existing(check.reading, records, plan)
        not_restored = [*held_back_topics(plan, findings)]
        settings = compare_settings(store, plan, cluster)
        schemas, registered = None, None
        if begun.plan is not None or options.schemas == "none":
            registered = resumed_schemas(options.schemas, state, plan.restore_id)
        else:
            schemas = plan_record_schemas(record_options(options), registry or RegistryOptions(), archive, plan, state)
            findings.warnings += schemas.warnings if schemas is not None else ()
        shown = without_topics(plan, {*excluded.values(), *(topic.source for topic in not_restored)})
        if dry_run:
            # a restore names them in its report, as what is missing
            findings.warnings += schemas.plan.uncovered if schemas is not None else ()
            findings.warnings += warn_of_members(cluster, shown.groups)
        # the report names these topics again, perhaps hours later
        show_plan(shown, [*(topic.sentence for topic in not_restored), *findings.warnings])
        if settings is not None:
            show_settings(settings)
        if schemas is not None:
            show_schemas(schemas.plan)
        if not dry_run:
            try_transactions(plan, target)
    if dry_run:
        of_schemas = schemas_report(schemas.plan) if schemas is not None else None
        expected = shown, store.url, planned(shown), (), findings.warnings, phases.seconds
        return make_report(*expected, "planned", settings, (), of_schemas, newer, not_restored)
    if schemas is not None:
        with phases.step("schemas"):  # before the plan: who resumes it knows the ids
            registered = apply_schemas(schemas.registry, state, plan.restore_id, schemas.plan)
    if begun.plan is None:
        plan = as_created(plan, findings)
        begin(state, plan)
    with phases.step("create topics"):
        # before there is what an ACL is to guard
        settings = apply_settings(cluster, SettingsCaptures(state, plan.restore_id), cluster_id, settings)
        due = [topic for topic in plan.topics if topic.target not in {*excluded, *findings.held_back}]
        failed = create_topics(cluster, as_created(plan, findings), due, findings)
        not_restored += not_restored_topics(plan, failed)
    with phases.step("run"):
        left_out = frozenset({*excluded, *(topic.target for topic in not_restored)})
        work = RestoreWork(
            target=target,
            store=records,
            state=state,
            restore_id=plan.restore_id,
            groups=plan.progress_group_names,
            transactions=plan.transactions,
            transaction_bytes=plan.transaction_bytes,
            schemas=rewrite_of(registered, store, options.unmapped),
            left_out=left_out,
            limits=findings.limits,
        )
        units = numbered_units(plan, left_out)
        far = fetch_size_factor(cluster.round_trip(plan.topics[0].target)) if units else 1
        tasks = side_by_side(units, far, spark().sparkContext.defaultParallelism if far > 1 else 1)
        results = run_counted(spark, tasks, work, listener, shown.records)
        kernel.say(r.kernel for r in results)
        refused = {failure.target: failure for result in results for failure in result.failed}
        not_restored += not_restored_topics(plan, refused.values())
        check_any_restored(plan, excluded, not_restored)
    with phases.step("offset map"):
        mapped = [MappedUnit(r.number, [part.tp for part in plan.units[r.number]], r.parts) for r in results]
        left_out = frozenset({*excluded, *(topic.target for topic in not_restored)})
        parts = in_order(state, plan.restore_id, mapped)
        collected = collect_map(plan.restore_id, parts, committed_offsets(plan), left_out)
        if not not_restored:  # a map that lacks topics would be taken for a finished restore's
            state.put(layout.restore_key(plan.restore_id, layout.OFFSETS), collected.data)
        offset_map = collected.known
        done = restored(plan, offset_map, [r.cut for r in results], left_out)
        check_complete(plan, done, left_out)
        hidden = wait_visible(cluster, offset_map.runs)
    with phases.step("groups"):
        wanted = without_topics(plan, excluded.values())
        groups = restore_groups(cluster, state, wanted, offset_map.runs, {topic.target for topic in not_restored})
    with phases.step("report"):
        warnings = [*findings.warnings, *late_warnings(done, sum(r.moved for r in results))]
        of_schemas = schemas_report(registered, done.cut.unmapped) if registered is not None else None
        status: Literal["incomplete", "restored"] = "incomplete" if not_restored else "restored"
        result = plan, store.url, done, groups, warnings, phases.seconds
        ends = newer, not_restored, sorted(excluded.values())
        report = make_report(*result, status, settings, hidden, of_schemas, *ends)
        if not_restored:
            return report  # the same restore goes on with them
        with suppress(AlreadyExistsError):  # another attempt of this restore has just ended
            state.put_new(layout.restore_key(plan.restore_id, layout.REPORT), dump(report))
        return delete_progress(cluster, plan, report)


def check_plan(
    check: TargetCheck, excluded: Container[str], records: Store, spark: Spark, listener: ProgressListener
) -> PreflightFindings:
    """Check the target, and the archived records that the table of segments can't vouch for. Raise `RefusedError` with
    every problem where the restore can't begin, or none of its topics can be restored."""
    due = [part for unit in check.plan.units for part in unit if part.target not in excluded]
    ranges = timed_ranges(due, records, spark, listener)
    findings = check_target(check, ranges, excluded)
    hold_back_unfit(findings, check, find_unfit(ranges, findings.demands, records, spark, listener))
    findings.raise_problems()
    findings.raise_unless_any(t.target for t in check.plan.topics if t.target not in excluded)
    return findings


def held_back_topics(plan: RestorePlan, findings: PreflightFindings) -> Iterator[NotRestoredTopic]:
    """Yield each problem of the topics that the preflight holds back."""
    for topic in plan.topics:
        for reason, hint in findings.held_back.get(topic.target, ()):
            yield NotRestoredTopic(source=topic.source, target=topic.target, reason=reason, hint=hint)


def not_restored_topics(plan: RestorePlan, failed: Iterable[FailedTopic]) -> list[NotRestoredTopic]:
    """Return failed topics with their names in the source, in order of these."""
    sources = {topic.target: topic.source for topic in plan.topics}
    topics = [
        NotRestoredTopic(source=sources[each.target], target=each.target, reason=each.reason, hint=each.hint)
        for each in failed
    ]
    return sorted(topics, key=lambda topic: topic.source)


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


def record_options(options: Restore) -> RecordOptions:
    """Return what options say about the schemas of records, which are wanted."""
    if options.schemas == "none":
        raise AssertionError  # then nothing is asked about them
    return RecordOptions(
        asked=options.schemas,
        prefix=options.subject_prefix,
        by_id=options.schemas_topics,
        untouched=options.no_schemas_topics,
        unmapped=options.unmapped,
    )


class Begun(NamedTuple):
    """An earlier run under the same restore id. `plan` is set once that run had written its plan, `report` once it had
    finished; both are None if the id is new."""

    plan: RestorePlan | None = None
    report: RestoreReport | None = None


def find_begun(options: Restore, state: Store, cluster: Cluster, cluster_id: str) -> Begun:
    """Return the restore that was begun under this id, after checks that it is the same one and still there."""
    if options.restore_id is None:
        return Begun()
    plan = begun_restore(state, options.restore_id)
    if plan is None:
        return Begun()
    check_same_target(plan, cluster_id)
    report = finished_report(state, plan)
    check_same_options(plan, options)
    check_same_names(plan, options)
    if report is not None:
        check_still_there(cluster, state, without_topics(plan, report.excluded))
    elif not plan.transactions:
        raise RefusedError(
            f"restore {plan.restore_id} was begun without transactions: nobody knows how far it came",
            "delete its target topics and begin another one",
        )
    if report is not None:
        return Begun(plan, report)
    return Begun(resumed_plan(with_segments(state, plan), options))


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
        with closing(BlockProducer(target, txid, group, sink=message_sink)) as producer:
            producer.start([plan.units[0][0].tp])


def create_topics(
    cluster: Cluster, plan: RestorePlan, topics: Sequence[PlannedTopic], findings: PreflightFindings
) -> list[FailedTopic]:
    """Create those of the `topics` that are missing, and wait until they can be written to; mend the configs of those
    that an earlier run has made. Return the topics that the target refuses, and those that our user may not write
    to; `UnreachableError` if it may write to none."""
    wanted = {topic.target for topic in topics}
    missing = [topic_to_create(t) for t in plan.topics if t.target in wanted and t.target in findings.create]
    refused = cluster.topic_admin.create(missing)
    made = {topic.name: topic.partitions for topic in missing if topic.name not in refused}
    refused |= cluster.topic_admin.wait_visible(made)
    changes = {target: configs for target, configs in findings.alter.items() if target in wanted}
    if changes:
        refused |= cluster.topic_admin.alter_configs(changes)
    failed = [FailedTopic(target, error.message, error.hint) for target, error in refused.items()]
    denied = cluster.missing_rights(made.keys() - refused.keys(), rights_to_write(plan.transactions))
    closed = [FailedTopic(target, *missing_rights_problem(target, rights)) for target, rights in denied.items()]
    if closed and len(closed) == len(topics):
        raise UnreachableError(closed[0].reason, closed[0].hint)
    return failed + closed


def check_any_restored(plan: RestorePlan, excluded: Container[str], not_restored: Sequence[NotRestoredTopic]) -> None:
    """Raise `ClusterError` if the target refused every topic: then nothing is done."""
    due = {topic.target for topic in plan.topics if topic.target not in excluded}
    if not not_restored or due - {topic.target for topic in not_restored}:
        return
    first = not_restored[0]
    more = f"; {plural(len(due) - 1, 'more topic')} failed likewise" if len(due) > 1 else ""
    raise ClusterError(f"{first.reason}{more}", first.hint)


def begin(state: Store, plan: RestorePlan) -> None:
    """Write the plan: the restore has begun, under its id."""
    try:
        write_plan(state, plan)
    except AlreadyExistsError as error:
        raise RefusedError(
            f"restore {plan.restore_id} was begun by another at this moment", "resume it when that one has ended"
        ) from error


def check_complete(plan: RestorePlan, done: Restored, left_out: Container[str] = ()) -> None:
    """Every record of the plan, by the archive's own word, and every one that a window selected, by the tasks' count,
    has its place in the map, by the broker's. Of topics that are `left_out`, only windows are counted."""
    whole = [p for unit in plan.units for p in unit if p.window is None]
    expected = sum(sum_of(p.segments, "count") for p in whole if p.target not in left_out) + done.cut.records
    partly = {p.target for p in whole if p.target in left_out}
    mapped = done.records - sum(done.topics[target] for target in partly)
    if mapped != expected:
        raise KbackupError(
            f"restore {plan.restore_id} has {mapped} records in its offset map, {expected} were to be restored",
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
