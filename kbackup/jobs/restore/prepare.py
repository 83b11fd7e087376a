"""Prepare a restore: connect, plan it or resume its plan, and check both ends. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from kbackup.archive import layout
from kbackup.archive.java.content import readable
from kbackup.archive.models import load
from kbackup.archive.query.content import Content
from kbackup.archive.restores.plan import RestorePlan, check_same_archive, check_same_target
from kbackup.config.jobs import Restore
from kbackup.errors import CorruptError, NotFoundError, RefusedError
from kbackup.jobs.restore.content import plan_restore, select_content
from kbackup.jobs.restore.finished import check_same_options, check_still_there, given_options
from kbackup.jobs.restore.preflight import Findings, check_segments, check_target, warn_of_members
from kbackup.jobs.restore.report import RestoreReport, with_warning
from kbackup.jobs.restore.timestamps import with_timestamps
from kbackup.jobs.settings.plan import SettingsReport
from kbackup.jobs.settings.restore import compare_settings
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client.client import Properties
from kbackup.kafka.kernel import message_outlet
from kbackup.kafka.produce.produce import BlockProducer
from kbackup.metrics.events import Listener, Phases
from kbackup.spark.tasks import Spark
from kbackup.store.base import Store


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
