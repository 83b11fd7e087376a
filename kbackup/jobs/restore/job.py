"""The restore job: a page of named steps. Nothing is written before the preflight has passed."""

from __future__ import annotations

from kbackup.archive import layout
from kbackup.archive.models import dump
from kbackup.archive.restores.offset_map import write_map
from kbackup.archive.restores.plan import RestorePlan
from kbackup.errors import AlreadyExistsError, KbackupError, RefusedError
from kbackup.jobs.groups.apply import restore_groups
from kbackup.jobs.restore.prepare import Prepared, RestoreJob, prepare
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
from kbackup.jobs.restore.visibility import wait_visible
from kbackup.jobs.settings.before import SettingsCaptures
from kbackup.jobs.settings.plan import SettingsReport
from kbackup.jobs.settings.restore import apply_settings
from kbackup.kafka import kernel
from kbackup.kafka.admin.cluster import Cluster
from kbackup.metrics.events import Phases
from kbackup.spark.tasks import run_counted
from kbackup.store.base import Store

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
