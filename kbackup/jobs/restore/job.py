"""Prepare a restore: connect, plan it or resume its plan, and check both ends. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from kbackup.archive import layout
from kbackup.archive.models import dump, load
from kbackup.archive.query.content import Content
from kbackup.archive.query.java import readable
from kbackup.archive.restores.offset_map import write_map
from kbackup.archive.restores.plan import RestorePlan, check_same_archive, check_same_target
from kbackup.config.models import Restore
from kbackup.errors import AlreadyExistsError, CorruptError, KbackupError, NotFoundError, RefusedError
from kbackup.jobs.groups.job import restore_groups
from kbackup.jobs.restore.plan import plan_restore, select_content, with_timestamps
from kbackup.jobs.restore.preflight import (
    Findings,
    check_same_options,
    check_segments,
    check_still_there,
    check_target,
    given_options,
    warn_of_members,
)
from kbackup.jobs.restore.report import (
    Restored,
    RestoreReport,
    hidden_records,
    make_report,
    moved_timestamps,
    planned,
    restored,
    with_settings,
    with_warning,
    without_timestamp,
)
from kbackup.jobs.restore.task import RestoreWork, UnitResult, units
from kbackup.jobs.settings.before import SettingsCaptures
from kbackup.jobs.settings.plan import SettingsReport
from kbackup.jobs.settings.write import apply_settings, compare_settings
from kbackup.kafka import kernel
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client import Properties
from kbackup.kafka.kernel import message_outlet
from kbackup.kafka.produce import BlockProducer
from kbackup.metrics.registry import Listener, Phases
from kbackup.spark.tasks import Spark, run_counted
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.system import attempts


@dataclass(frozen=True)
class RestoreJob:
    """The options of a restore and its ends. `state` keeps plan, offset map and report: as a rule the store itself.

    `show_plan` gets the plan with the warnings of the preflight, and `show_settings` the changes of settings, before
    anything is written."""

    options: Restore
    target: Properties
    store: Store
    state: Store
    spark: Spark
    listener: Listener
    show_plan: Callable[[RestorePlan, list[str]], None] = lambda _plan, _warnings: None
    show_settings: Callable[[SettingsReport], None] = lambda _settings: None


@dataclass(frozen=True)
class Prepared:
    """A restore that may begin. `records` is the store to read segments from; `resumes` an unfinished restore."""

    cluster: Cluster
    cluster_id: str
    plan: RestorePlan
    resumes: bool
    records: Store
    findings: Findings
    settings: SettingsReport | None


def prepare(job: RestoreJob, phases: Phases, dry_run: bool) -> Prepared | RestoreReport:
    """Show and return a restore that may begin, or return the report of one that was finished before under this id."""
    with phases.step("connect"):
        cluster = Cluster(job.target, "target")
        cluster_id, brokers = cluster.connect()
        earlier = begun_plan(job.state, job.options.restore_id)
        if earlier is not None:
            check_same_target(earlier, cluster_id)
            if (report := finished_report(job.state, earlier)) is not None:
                check_same_options(earlier, job.options)
                check_still_there(cluster, job.state, earlier)
                return report
    with phases.step("plan"):
        plan, content = _make_plan(job, cluster_id) if earlier is None else _resume_plan(job, earlier)
    with phases.step("preflight"):
        records, findings = _check_ends(job, cluster, brokers, plan, content)
        settings = compare_settings(job.store, plan, cluster)
        prepared = Prepared(cluster, cluster_id, plan, earlier is not None, records, findings, settings)
        _show(job, prepared, dry_run)
        if not dry_run:
            _try_transactions(plan, job.target)
    return prepared


def _check_ends(
    job: RestoreJob, cluster: Cluster, brokers: int, plan: RestorePlan, content: Content | None
) -> tuple[Store, Findings]:
    """Check the segments and the target; return the store to read segments from. `content` is None for a restore that
    was begun before."""
    records = readable(job.store, plan.archive_id)
    check_segments(records, [s for unit in plan.units for part in unit for s in part.segments])
    findings = Findings(create=_missing(cluster, plan))
    if content is not None:
        content = with_timestamps(content, records, job.spark, job.listener)
        findings = check_target(cluster, brokers, plan.topics, content, plan.into_existing)
        findings.warnings += content.warnings
    findings.raise_problems()
    return records, findings


def _show(job: RestoreJob, prepared: Prepared, dry_run: bool) -> None:
    warnings = prepared.findings.warnings
    if dry_run:
        warnings += warn_of_members(prepared.cluster, prepared.plan.groups)
    job.show_plan(prepared.plan, warnings)
    if prepared.settings is not None:
        job.show_settings(prepared.settings)


def _try_transactions(plan: RestorePlan, target: Properties) -> None:
    """Check that the target allows transactions, before anything is written."""
    if plan.transactions and plan.units:
        txid, group = f"kbackup-{plan.restore_id}-preflight", layout.progress_group(plan.restore_id)
        producer = BlockProducer(target, txid, group, outlet=message_outlet)
        try:
            producer.start([plan.units[0][0].tp])
        finally:
            producer.close()


def _make_plan(job: RestoreJob, cluster_id: str) -> tuple[RestorePlan, Content]:
    content = select_content(job.options, job.store)
    plan = plan_restore(job.options, content, cluster_id)
    return msgspec.structs.replace(plan, options=given_options(job.options)), content


def _resume_plan(job: RestoreJob, plan: RestorePlan) -> tuple[RestorePlan, None]:
    """Return the plan of an unfinished restore. Its content and its target were checked when it began."""
    check_same_archive(plan, job.store)
    return plan, None


def begun_plan(state: Store, restore_id: str | None) -> RestorePlan | None:
    """Return the plan of the restore of this id, if it was begun."""
    if restore_id is None:
        return None
    key = layout.restore_key(restore_id, layout.PLAN)
    try:
        plan = load(RestorePlan, state.get(key), key)
    except NotFoundError:
        return None
    if not plan.transactions and finished_report(state, plan) is None:
        raise RefusedError(
            f"restore {restore_id} was begun without transactions: nobody knows how far it came",
            "delete its target topics and begin another one",
        )
    return plan


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


def _missing(cluster: Cluster, plan: RestorePlan) -> list[str]:
    """Return the topics of a plan that the target lacks."""
    existing = set(cluster.topic_names())
    return [t.target for t in plan.topics if t.target not in existing]


# Wait until consumers see the restored records.
#
# A broker says that a transaction is committed before it has written the markers. Until they are there, a log
# ends for consumers before the transaction: whoever compares, or asks for a log's end, would find too little.


_MARKERS = 60.0  # s, for a broker to write them
_PAUSE = 0.1  # s


def wait_visible(cluster: Cluster, runs: pa.Table) -> list[TopicPartition]:
    """Until the records of the offset map `runs` can be read; returns the partitions where they still can't."""
    waiting = _after_last(runs)
    for _ in attempts(_MARKERS, _PAUSE):
        ends = cluster.log_ends(waiting, "read_committed")
        waiting = {tp: after for tp, after in waiting.items() if ends[tp] < after}
        if not waiting:
            break
    return sorted(waiting)


def _after_last(runs: pa.Table) -> Mapping[TopicPartition, int]:
    """The offset after each partition's last restored record."""
    after = runs.append_column("after", pc.add(runs.column("target"), runs.column("count")))
    rows = after.group_by(["topic", "partition"]).aggregate([("after", "max")]).to_pylist()
    return {TopicPartition(row["topic"], row["partition"]): row["after_max"] for row in rows}


# The restore job: a page of named steps. Nothing is written before the preflight has passed.


__all__ = ["RestoreJob", "restore"]


def restore(job: RestoreJob, dry_run: bool = False) -> RestoreReport:
    """Restore a restore point into the target; with `dry_run`, report the plan alone."""
    phases = Phases(job.listener)
    prepared = prepare(job, phases, dry_run)
    if isinstance(prepared, RestoreReport):
        return prepared
    return _planned(job, prepared, phases) if dry_run else _restore(job, prepared, phases)


def _planned(job: RestoreJob, prepared: Prepared, phases: Phases) -> RestoreReport:
    plan, warnings = prepared.plan, prepared.findings.warnings
    report = make_report(plan, job.store.url, planned(plan), (), warnings, phases.seconds, "planned")
    return with_settings(report, prepared.settings)


def _restore(job: RestoreJob, prepared: Prepared, phases: Phases) -> RestoreReport:
    plan, cluster, state = prepared.plan, prepared.cluster, job.state
    with phases.step("create topics"):
        if not prepared.resumes:
            _write_plan(state, plan)
        settings = _apply_settings(prepared, state)  # before there is what an ACL is to guard
        _create_topics(prepared)
    with phases.step("run"):
        results = _produce(job, prepared)
    with phases.step("offset map"):
        offset_map = write_map(state, plan.restore_id, [r.runs for r in results])
        done = restored(plan, offset_map, [r.cut for r in results])
        _check_complete(plan, done)
        hidden = wait_visible(cluster, offset_map)
    with phases.step("groups"):
        groups = restore_groups(cluster, state, plan, offset_map)
    with phases.step("report"):
        warnings = [
            *prepared.findings.warnings,
            *moved_timestamps(sum(r.moved for r in results)),
            *hidden_records(hidden),
            *without_timestamp(done),
        ]
        report = make_report(plan, job.store.url, done, groups, warnings, phases.seconds, "restored")
        report = with_settings(report, settings)
        state.put(layout.restore_key(plan.restore_id, layout.REPORT), dump(report))
        return _clean_up(cluster, plan, report)


def _apply_settings(prepared: Prepared, state: Store) -> SettingsReport | None:
    captures = SettingsCaptures(state, prepared.plan.restore_id)
    return apply_settings(prepared.cluster, captures, prepared.cluster_id, prepared.settings)


def _create_topics(prepared: Prepared) -> None:
    for topic in prepared.plan.topics:
        if topic.target in prepared.findings.create:
            prepared.cluster.create_topic(
                topic.target, topic.partitions, topic.replication_factor, topic.configs
            )


def _write_plan(state: Store, plan: RestorePlan) -> None:
    try:
        state.put_new(layout.restore_key(plan.restore_id, layout.PLAN), dump(plan))
    except AlreadyExistsError as error:
        raise RefusedError(
            f"restore {plan.restore_id} was begun by another at this moment",
            "resume it when that one has ended",
        ) from error


def _produce(job: RestoreJob, prepared: Prepared) -> list[UnitResult]:
    plan = prepared.plan
    work = RestoreWork(
        target=job.target,
        store=prepared.records,
        state=job.state,
        restore_id=plan.restore_id,
        group=layout.progress_group(plan.restore_id),
        transactions=plan.transactions,
        transaction_bytes=plan.transaction_bytes,
    )
    results = run_counted(job.spark, units(plan.units), work, job.listener, plan.records)
    kernel.say(r.kernel for r in results)
    return results


def _check_complete(plan: RestorePlan, done: Restored) -> None:
    """Every record of the plan, by the archive's own word, and every one that a window selected, by the tasks' count,
    has its place in the map, by the broker's."""
    whole = [p for unit in plan.units for p in unit if p.window is None]
    expected = sum(s.count for p in whole for s in p.segments) + done.cut.records
    if done.records != expected:
        raise KbackupError(
            f"restore {plan.restore_id} has {done.records} records in its offset map, {expected} were to be restored",
            "keep the target's topics and report this defect: the topics hold the records of the offset map",
        )


def _clean_up(cluster: Cluster, plan: RestorePlan, report: RestoreReport) -> RestoreReport:
    """The progress group has served; where it can't be deleted the restore is no less done."""
    if not plan.transactions or not plan.units:
        return report
    try:
        cluster.groups.delete([layout.progress_group(plan.restore_id)])
    except KbackupError as error:
        group = layout.progress_group(plan.restore_id)
        return with_warning(report, f"progress group {group} is left on the target: {error.message}")
    return report
