"""The job of `verify --against`: whether a cluster holds what an archive says, record by record.

By the plan and the offset map of a restore, by a restore point as it would be restored, or by a restore point and the
cluster that it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbackup.archive.java.content import readable
from kbackup.jobs.compare.groups import check_groups
from kbackup.jobs.compare.plan import Asked, Truth, look, truth_of
from kbackup.jobs.compare.report import (
    AgainstReport,
    GroupOffsetCheck,
    fewer_named,
    findings_of,
    is_wrong,
    sum_counts,
    topics_of,
)
from kbackup.jobs.compare.result import Comparison
from kbackup.jobs.compare.task import CompareWork
from kbackup.jobs.restore.plan import UNIT_BYTES, UNIT_PARTITIONS
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client.client import Properties
from kbackup.metrics.events import Listener, Phases
from kbackup.spark.tasks import Spark, pack, run_counted
from kbackup.store.base import Store

_TIMEOUT = 60.0  # s without anything from the cluster


def verify_against(
    asked: Asked,
    properties: Properties,
    store: Store,
    state: Store,
    spark: Spark,
    listener: Listener,
) -> AgainstReport:
    """`properties` are those of the cluster; `state` is where restores keep plan and offset map."""
    phases = Phases(listener)
    with phases.step("connect"):
        cluster = Cluster(properties, asked.against)
        cluster_id, _ = cluster.connect()
    with phases.step("plan"):
        truth = truth_of(asked, store, state, cluster_id)
        look(truth, cluster, asked.against)
    with phases.step("compare"):
        records = readable(store, truth.plan.archive_id)
        results = _compare(truth, asked, properties, records, spark, listener)
    checks: tuple[GroupOffsetCheck, ...] = ()
    if asked.groups:
        with phases.step("groups"):
            checks, unread = check_groups(cluster, truth.plan, truth.places or {}, truth.ends)
            truth.findings += unread
    return _report(asked, store, cluster_id, truth, results, checks, phases.seconds)


def _compare(
    truth: Truth,
    asked: Asked,
    properties: Properties,
    store: Store,
    spark: Spark,
    listener: Listener,
) -> list[Comparison]:
    sizes = {id(p): sum(s.bytes for s in p.part.segments) for p in truth.parts}
    wanted = [p for p in truth.parts if p.part.segments or p.start < p.end]
    wanted.sort(key=lambda p: -sizes[id(p)])
    # big partitions alone, small ones together, as a restore has them; the biggest first
    tasks = pack(wanted, lambda p: sizes[id(p)], UNIT_BYTES, UNIT_PARTITIONS)
    work = CompareWork(
        cluster=properties,
        role=asked.against,
        isolation=truth.isolation,
        restored=asked.against == "target",
        store=store,
        show=asked.show,
        timeout=_TIMEOUT,
    )
    expected = sum(s.count for p in wanted for s in p.part.segments)
    results = run_counted(spark, tasks, work, listener, expected)
    return sorted(results, key=lambda r: (r.target, r.partition))


def _report(
    asked: Asked,
    store: Store,
    cluster_id: str,
    truth: Truth,
    results: Sequence[Comparison],
    checks: tuple[GroupOffsetCheck, ...],
    seconds: Mapping[str, float],
) -> AgainstReport:
    plan = truth.plan
    wrong = [c for c in checks if not c.ok]
    findings = [*truth.findings, *findings_of(results, asked.exact), *map(_wrong_group, wrong)]
    notes = [
        *truth.notes,
        *(
            f"topic {name} has the broker's own timestamps (LogAppendTime): they were left out"
            for name in sorted(truth.unstamped)
        ),
        *(
            f"{r.target}-{r.partition}: {r.after:,} records from offset {r.after_from} on came after the last one of "
            "the archive: not compared"
            for r in results
            if r.after and not asked.exact
        ),
    ]
    return AgainstReport(
        against=asked.against,
        cluster_id=cluster_id,
        archive=store.url,
        archive_id=plan.archive_id,
        restore_point=plan.restore_point,
        restore_id=asked.options.restore_id if asked.against == "target" else None,
        topics=topics_of(plan.topics, results, truth.unstamped, truth.absent, asked.exact),
        partitions=fewer_named([r for r in results if is_wrong(r, True)], asked.show),
        groups=checks,
        partitions_compared=len(truth.parts),
        records=sum(r.records for r in results),
        bytes=sum(r.bytes for r in results),
        same=sum(r.same for r in results),
        counts=sum_counts(results),
        after=sum(r.after for r in results),
        findings=tuple(findings),
        notes=tuple(notes),
        seconds=dict(seconds),
    )


def _wrong_group(check: GroupOffsetCheck) -> str:
    has = "nothing" if check.found is None else f"offset {check.found}"
    return (
        f"group {check.group} has {has} in {check.topic}-{check.partition}, due is {check.due} ({check.how})"
    )
