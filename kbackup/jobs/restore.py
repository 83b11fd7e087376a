"""The restore job: a page of named steps. Nothing is written before the preflight has passed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from kbackup.archive import layout
from kbackup.archive.content import Content, content_of
from kbackup.archive.java import is_java_archive, java_content, java_topics
from kbackup.archive.models import Document, Manifest, Part, TopicState, dump, load, now
from kbackup.archive.offset_map import write_map
from kbackup.archive.reader import open_archive
from kbackup.config.models import Restore
from kbackup.errors import (
    AlreadyExistsError,
    KbackupError,
    NoArchiveError,
    NotFoundError,
    RefusedError,
    UsageError,
)
from kbackup.jobs.apply_groups import GroupResult, apply_groups, not_applied, offset_maps
from kbackup.jobs.listen import Listener, Phases
from kbackup.jobs.preflight import Findings, check_segments, check_target
from kbackup.jobs.restore_plan import (
    PlannedTopic,
    RestorePlan,
    check_names,
    make_units,
    plan_groups,
    plan_topic,
    target_name,
)
from kbackup.jobs.restore_task import RestoreWork, UnitResult, units
from kbackup.jobs.select import Selection
from kbackup.jobs.tasks import run_tasks
from kbackup.jobs.visible import wait_visible
from kbackup.kafka.admin import Cluster
from kbackup.kafka.client import Properties
from kbackup.kafka.produce import BlockProducer
from kbackup.store.base import Store
from kbackup.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Spark = Callable[[], "SparkSession"]


class RestoredTopic(Part, frozen=True, kw_only=True):
    source: str
    target: str
    partitions: int
    records: int


class RestoreReport(Document, frozen=True, kw_only=True):
    """restores/<id>/report.json: what a finished restore did. `status` 'planned' is never written (a dry
    run's)."""

    format: Literal["kbackup-restore-report"] = "kbackup-restore-report"
    status: Literal["planned", "restored"]
    restore_id: str
    archive: str
    restore_point: int
    target_cluster_id: str
    topics: tuple[RestoredTopic, ...]
    records: int
    bytes: int
    groups: tuple[GroupResult, ...]
    warnings: tuple[str, ...]
    missing: tuple[str, ...]
    """What was asked for and could not be done."""
    seconds: dict[str, float]


def restore(
    options: Restore,
    target: Properties,
    store: Store,
    state: Store,
    spark: Spark,
    listener: Listener,
    dry_run: bool = False,
    show_plan: Callable[[RestorePlan, list[str]], None] | None = None,
) -> RestoreReport:
    """Brings a restore point back into the target; `state` is where plan, offset map and report go (as a rule
    `store`)."""
    phases = Phases(listener)
    with phases.step("connect"):
        cluster = Cluster(target, "target")
        cluster_id, brokers = cluster.connect()
        earlier = _earlier(state, options.restore_id)
        if earlier is not None:
            _check_same_target(earlier, cluster_id)
            if (report := _finished(state, earlier)) is not None:
                return report
    with phases.step("plan"):
        content = _content(options, store, earlier)
        plan = earlier or _plan(options, content, cluster_id)
        _check_same_archive(plan, content)
    with phases.step("preflight"):
        check_segments(store, [s for unit in plan.units for part in unit for s in part.segments])
        findings = Findings(create=_missing(cluster, plan))
        if earlier is None:
            findings = check_target(cluster, brokers, plan.topics, content, plan.into_existing)
        if dry_run and show_plan is not None:
            show_plan(plan, findings.warnings)  # also where the answer is no: that is what a dry run is for
        findings.raise_problems()
        if dry_run:
            return _report(plan, store, (), findings.warnings, phases, "planned")
        if show_plan is not None:
            show_plan(plan, findings.warnings)
        _try_transactions(plan, target)
    with phases.step("create topics"):
        if earlier is None:
            _write_plan(state, plan)
        for topic in plan.topics:
            if topic.target in findings.create:
                cluster.create_topic(topic.target, topic.partitions, topic.replication_factor, topic.configs)
    with phases.step("run"):
        results = _produce(plan, target, store, state, spark, listener)
    with phases.step("offset map"):
        whole = write_map(state, plan.restore_id, [r.runs for r in results])
        _check_complete(plan, int(whole.column("count").to_numpy().sum()))
        hidden = wait_visible(cluster, whole)
    with phases.step("groups"):
        groups = apply_groups(cluster, plan, offset_maps(plan, whole, cluster))
    with phases.step("report"):
        warnings = [*findings.warnings, *_moved(sum(r.moved for r in results)), *_hidden(hidden)]
        report = _report(plan, store, groups, warnings, phases, "restored")
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
    return _with_warning(report, f"restore {plan.restore_id} was finished before: nothing was done now")


def _with_warning(report: RestoreReport, warning: str) -> RestoreReport:
    fields = {name: getattr(report, name) for name in report.__struct_fields__}
    return RestoreReport(**fields | {"warnings": (*report.warnings, warning)})


def _content(options: Restore, store: Store, earlier: RestorePlan | None) -> Content:
    selection = Selection.of(options.topics, options.exclude_topics)
    try:
        archive = open_archive(store)
    except NoArchiveError:
        if not is_java_archive(store):
            raise
        names = selection.topics(java_topics(store))
        return java_content(store, [t.source for t in earlier.topics] if earlier else names)
    point = archive.restore_point(earlier.restore_point if earlier else options.backup)
    if earlier is not None:
        wanted = {t.source for t in earlier.topics}
        return content_of(archive, point, [t for t in point.topics if t.name in wanted])
    return content_of(archive, point, _chosen(point, selection))


def _chosen(point: Manifest, selection: Selection) -> list[TopicState]:
    """Topics of a restore point; one that was deleted at the source by then only where it is asked for by
    name."""
    known = {t.name for t in point.topics}
    for name in sorted(selection.names - known):
        raise UsageError(f"there is no topic {name} in restore point {point.seq}", "see 'kbackup info'")
    there = [t.name for t in point.topics if t.state != "deleted" or t.name in selection.names]
    names = set(selection.topics(there))
    return [t for t in point.topics if t.name in names]


def _plan(options: Restore, content: Content, cluster_id: str) -> RestorePlan:
    names = {t.name: target_name(t.name, options.map, options.map_regex) for t in content.topics}
    if not names:
        raise UsageError("no topic of the archive matches", "see 'kbackup info' for what it holds")
    for unknown in sorted(set(options.map) - set(names)):
        raise UsageError(
            f"--map names topic {unknown}, which is not restored", "see 'kbackup info' for what there is"
        )
    check_names(names)
    selection = None if options.no_groups else Selection.of(options.groups, options.exclude_groups)
    return RestorePlan(
        restore_id=options.restore_id or f"{now()[:10]}-{uuid.uuid4().hex[:8]}",
        archive_id=content.archive_id,
        restore_point=content.restore_point,
        target_cluster_id=cluster_id,
        created_at=now(),
        transactions=options.transactions,
        transaction_bytes=options.transaction_bytes,
        into_existing=options.into_existing,
        topics=tuple(
            plan_topic(t, names[t.name], options.topic_config, options.replication_factor)
            for t in content.topics
        ),
        units=make_units(content, names),
        groups=plan_groups(content, names, selection, options.map_group),
    )


def _check_same_archive(plan: RestorePlan, content: Content) -> None:
    """A restore goes on from where it began."""
    if plan.archive_id != content.archive_id:
        raise RefusedError(
            f"restore {plan.restore_id} was begun from another archive", "use another --restore-id"
        )


def _check_same_target(plan: RestorePlan, cluster_id: str) -> None:
    """It goes on, and is finished, only where it was begun into."""
    if plan.target_cluster_id != cluster_id:
        raise RefusedError(
            f"restore {plan.restore_id} was begun into cluster {plan.target_cluster_id}, this is {cluster_id}",
            "use another --restore-id",
        )


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
    if not plan.units:
        return []
    work = RestoreWork(
        target=target,
        store=store,
        state=state,
        restore_id=plan.restore_id,
        group=layout.progress_group(plan.restore_id),
        transactions=plan.transactions,
        transaction_bytes=plan.transaction_bytes,
    )
    return run_tasks(
        spark(), units(plan.units), work, lambda records, size: listener.progress(records, size, plan.records)
    )


def _moved(records: int) -> list[str]:
    if not records:
        return []
    return [
        f"{records} record(s) with timestamp 0 were restored with timestamp 1: librdkafka takes 0 for 'now'"
    ]


def _hidden(partitions: list[TopicPartition]) -> list[str]:
    return [f"consumers can't see all of {tp} yet: is another transaction open there?" for tp in partitions]


def _check_complete(plan: RestorePlan, mapped: int) -> None:
    """Every record of the plan has its place in the map, by the broker's word."""
    if mapped != plan.records:
        raise KbackupError(
            f"restore {plan.restore_id} has {mapped} records in its offset map, the plan {plan.records}",
            "the target holds what the map says; report this",
        )


def _report(
    plan: RestorePlan,
    store: Store,
    groups: tuple[GroupResult, ...],
    warnings: list[str],
    phases: Phases,
    status: Literal["planned", "restored"],
) -> RestoreReport:
    return RestoreReport(
        status=status,
        restore_id=plan.restore_id,
        archive=store.url,
        restore_point=plan.restore_point,
        target_cluster_id=plan.target_cluster_id,
        topics=tuple(_restored(t) for t in plan.topics),
        records=plan.records,
        bytes=plan.bytes,
        groups=groups,
        warnings=tuple(warnings),
        missing=tuple(not_applied(groups)),
        seconds=dict(phases.seconds),
    )


def _restored(topic: PlannedTopic) -> RestoredTopic:
    return RestoredTopic(
        source=topic.source, target=topic.target, partitions=topic.partitions, records=topic.records
    )


def _clean_up(cluster: Cluster, plan: RestorePlan, report: RestoreReport) -> RestoreReport:
    """The progress group has served; where it can't be deleted the restore is no less done."""
    if not plan.transactions or not plan.units:
        return report
    try:
        cluster.delete_groups([layout.progress_group(plan.restore_id)])
    except KbackupError as error:
        group = layout.progress_group(plan.restore_id)
        return _with_warning(report, f"progress group {group} is left on the target: {error.message}")
    return report
