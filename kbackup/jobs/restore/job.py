"""The restore job: a page of named steps. Nothing is written before the preflight has passed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kbackup.archive import layout
from kbackup.archive.java.content import readable
from kbackup.archive.models import dump, load
from kbackup.archive.restores.offset_map import write_map
from kbackup.archive.restores.plan import RestorePlan, check_same_archive, check_same_target
from kbackup.config.jobs import Restore
from kbackup.errors import AlreadyExistsError, CorruptError, KbackupError, NotFoundError, RefusedError
from kbackup.jobs.groups.apply import restore_groups
from kbackup.jobs.restore.content import choose_content, choose_plan
from kbackup.jobs.restore.finished import check_same_options, check_still_there, given_options
from kbackup.jobs.restore.preflight import Findings, check_segments, check_target, warn_of_members
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
from kbackup.jobs.restore.timestamps import with_timestamps
from kbackup.jobs.restore.visibility import wait_visible
from kbackup.jobs.settings.before import SettingsCaptures
from kbackup.jobs.settings.plan import SettingsReport
from kbackup.jobs.settings.restore import apply_settings, compare_settings
from kbackup.kafka import kernel
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client.client import Properties
from kbackup.kafka.produce.produce import BlockProducer
from kbackup.metrics.events import Listener, Phases
from kbackup.spark.tasks import Spark, run_counted
from kbackup.store.base import Store


def restore(
    options: Restore,
    target: Properties,
    store: Store,
    state: Store,
    spark: Spark,
    listener: Listener,
    dry_run: bool = False,
    show_plan: Callable[[RestorePlan, list[str]], None] | None = None,
    show_settings: Callable[[SettingsReport], None] | None = None,
) -> RestoreReport:
    """Brings a restore point back into the target; `state` is where plan, offset map and report go (as a rule
    `store`)."""
    phases = Phases(listener)
    with phases.step("connect"):
        cluster = Cluster(target, "target")
        cluster_id, brokers = cluster.connect()
        earlier = _earlier(state, options.restore_id)
        if earlier is not None:
            check_same_target(earlier, cluster_id)
            if (report := _finished(state, earlier)) is not None:
                check_same_options(earlier, options)
                check_still_there(cluster, state, earlier)
                return report
    with phases.step("plan"):
        if earlier is None:
            content = choose_content(options, store)
            plan = choose_plan(options, content, cluster_id)
            plan = msgspec.structs.replace(plan, options=given_options(options))
        else:
            content, plan = None, earlier
            check_same_archive(plan, store)
    with phases.step("preflight"):
        records = readable(store, plan.archive_id)
        check_segments(records, [s for unit in plan.units for part in unit for s in part.segments])
        findings = Findings(create=_missing(cluster, plan))
        if content is not None:
            content = with_timestamps(content, records, spark, listener)
            findings = check_target(cluster, brokers, plan.topics, content, plan.into_existing)
            findings.warnings += content.warnings
        findings.raise_problems()
        settings = compare_settings(store, plan, cluster)
        if dry_run:
            findings.warnings += warn_of_members(cluster, plan.groups)
        if show_plan is not None:
            show_plan(plan, findings.warnings)
        if settings is not None and show_settings is not None:
            show_settings(settings)
        if dry_run:
            report = make_report(
                plan, store.url, planned(plan), (), findings.warnings, phases.seconds, "planned"
            )
            return with_settings(report, settings)
        _try_transactions(plan, target)
    with phases.step("create topics"):
        if earlier is None:
            _write_plan(state, plan)
        captures = SettingsCaptures(state, plan.restore_id)
        settings = apply_settings(
            cluster, captures, cluster_id, settings
        )  # before there is what an ACL is to guard
        for topic in plan.topics:
            if topic.target in findings.create:
                cluster.create_topic(topic.target, topic.partitions, topic.replication_factor, topic.configs)
    with phases.step("run"):
        results = _produce(plan, target, records, state, spark, listener)
    with phases.step("offset map"):
        whole = write_map(state, plan.restore_id, [r.runs for r in results])
        done = restored(plan, whole, [r.cut for r in results])
        _check_complete(plan, done)
        hidden = wait_visible(cluster, whole)
    with phases.step("groups"):
        groups = restore_groups(cluster, state, plan, whole)
    with phases.step("report"):
        warnings = [
            *findings.warnings,
            *moved_timestamps(sum(r.moved for r in results)),
            *hidden_records(hidden),
            *without_timestamp(done),
        ]
        report = make_report(plan, store.url, done, groups, warnings, phases.seconds, "restored")
        report = with_settings(report, settings)
        state.put(layout.restore_key(plan.restore_id, layout.REPORT), dump(report))
        return _clean_up(cluster, plan, report)


def _earlier(state: Store, restore_id: str | None) -> RestorePlan | None:
    """The plan of an unfinished restore of this id."""
    if restore_id is None:
        return None
    key = layout.restore_key(restore_id, layout.PLAN)
    try:
        plan = load(RestorePlan, state.get(key), key)
    except NotFoundError:
        return None
    if not plan.transactions and _finished(state, plan) is None:
        raise RefusedError(
            f"restore {restore_id} was begun without transactions: nobody knows how far it came",
            "delete its target topics and begin another one",
        )
    return plan


def _finished(state: Store, plan: RestorePlan) -> RestoreReport | None:
    """What that restore did, with a word that it is not being done again."""
    key = layout.restore_key(plan.restore_id, layout.REPORT)
    try:
        report = load(RestoreReport, state.get(key), key)
    except NotFoundError:
        return None
    if report.archive_id not in ("", plan.archive_id):
        other = layout.restore_key(plan.restore_id, layout.PLAN)
        raise CorruptError(
            f"file {key} is of archive {report.archive_id}, {other} of {plan.archive_id}",
            "one of them was copied from elsewhere",
        )
    return with_warning(report, f"restore {plan.restore_id} was finished before: nothing was done now")


def _missing(cluster: Cluster, plan: RestorePlan) -> list[str]:
    """Topics of a plan that are still to be made."""
    existing = set(cluster.topic_names())
    return [t.target for t in plan.topics if t.target not in existing]


def _try_transactions(plan: RestorePlan, target: Properties) -> None:
    """Whether we may use transactions at all, before anything is made."""
    if plan.transactions and plan.units:
        producer = BlockProducer(
            target, f"kbackup-{plan.restore_id}-preflight", layout.progress_group(plan.restore_id)
        )
        try:
            producer.start([plan.units[0][0].tp])
        finally:
            producer.close()


def _write_plan(state: Store, plan: RestorePlan) -> None:
    try:
        state.put_new(layout.restore_key(plan.restore_id, layout.PLAN), dump(plan))
    except AlreadyExistsError as error:
        raise RefusedError(
            f"restore {plan.restore_id} was begun by another at this moment",
            "resume it when that one has ended",
        ) from error


def _produce(
    plan: RestorePlan, target: Properties, store: Store, state: Store, spark: Spark, listener: Listener
) -> list[UnitResult]:
    work = RestoreWork(
        target=target,
        store=store,
        state=state,
        restore_id=plan.restore_id,
        group=layout.progress_group(plan.restore_id),
        transactions=plan.transactions,
        transaction_bytes=plan.transaction_bytes,
    )
    results = run_counted(spark, units(plan.units), work, listener, plan.records)
    kernel.say(r.kernel for r in results)
    return results


def _check_complete(plan: RestorePlan, done: Restored) -> None:
    """Every record of the plan, by the archive's own word, and every one that a window selected, by the tasks' count,
    has its place in the map, by the broker's."""
    whole = [p for unit in plan.units for p in unit if p.window is None]
    wanted = sum(s.count for p in whole for s in p.segments) + done.cut.records
    if done.records != wanted:
        raise KbackupError(
            f"restore {plan.restore_id} has {done.records} records in its offset map, {wanted} were to be restored",
            "the target holds what the map says; report this",
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
