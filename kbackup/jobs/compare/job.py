"""Job of `verify --against`: compare a cluster with an archive, record by record.

The archive's records are those of a restore (its plan and offset map), of a restore point as it would be restored, or
of a restore point whose source cluster is compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbackup.archive.java.content import readable
from kbackup.jobs.compare.groups import check_groups
from kbackup.jobs.compare.plan import ComparePlan, CompareRequest, inspect_cluster, plan_comparison
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
    request: CompareRequest,
    properties: Properties,
    store: Store,
    state: Store,
    spark: Spark,
    listener: Listener,
) -> AgainstReport:
    """Compare the cluster of `properties` with the archive; `state` has the plans and offset maps of restores."""
    phases = Phases(listener)
    with phases.step("connect"):
        cluster = Cluster(properties, request.against)
        cluster_id, _ = cluster.connect()
    with phases.step("plan"):
        compare_plan = plan_comparison(request, store, state, cluster_id)
        inspect_cluster(compare_plan, cluster, request.against)
    with phases.step("compare"):
        records = readable(store, compare_plan.plan.archive_id)
        results = _compare(compare_plan, request, properties, records, spark, listener)
    checks: tuple[GroupOffsetCheck, ...] = ()
    if request.groups:
        with phases.step("groups"):
            checks, unread = check_groups(
                cluster, compare_plan.plan, compare_plan.target_offsets or {}, compare_plan.ends
            )
            compare_plan.findings += unread
    return _report(request, store, cluster_id, compare_plan, results, checks, phases.seconds)


def _compare(
    compare_plan: ComparePlan,
    request: CompareRequest,
    properties: Properties,
    store: Store,
    spark: Spark,
    listener: Listener,
) -> list[Comparison]:
    sizes = {id(p): sum(s.bytes for s in p.archived.segments) for p in compare_plan.partitions}
    partitions = [p for p in compare_plan.partitions if p.archived.segments or p.start < p.end]
    partitions.sort(key=lambda p: -sizes[id(p)])
    # big partitions alone, small ones together, as a restore has them; the biggest first
    tasks = pack(partitions, lambda p: sizes[id(p)], UNIT_BYTES, UNIT_PARTITIONS)
    work = CompareWork(
        cluster=properties,
        role=request.against,
        isolation=compare_plan.isolation,
        restored=request.against == "target",
        store=store,
        show=request.show,
        timeout=_TIMEOUT,
    )
    expected = sum(s.count for p in partitions for s in p.archived.segments)
    results = run_counted(spark, tasks, work, listener, expected)
    return sorted(results, key=lambda r: (r.target, r.partition))


def _report(
    request: CompareRequest,
    store: Store,
    cluster_id: str,
    compare_plan: ComparePlan,
    results: Sequence[Comparison],
    checks: tuple[GroupOffsetCheck, ...],
    seconds: Mapping[str, float],
) -> AgainstReport:
    plan = compare_plan.plan
    wrong = [c for c in checks if not c.ok]
    findings = [*compare_plan.findings, *findings_of(results, request.exact), *map(_wrong_group, wrong)]
    notes = [
        *compare_plan.notes,
        *(
            f"topic {name} has the broker's own timestamps (LogAppendTime): they were left out"
            for name in sorted(compare_plan.unstamped)
        ),
        *(
            f"{r.target}-{r.partition}: {r.after:,} records from offset {r.after_from} on came after the last one of "
            "the archive: not compared"
            for r in results
            if r.after and not request.exact
        ),
    ]
    return AgainstReport(
        against=request.against,
        cluster_id=cluster_id,
        archive=store.url,
        archive_id=plan.archive_id,
        restore_point=plan.restore_point,
        restore_id=request.options.restore_id if request.against == "target" else None,
        topics=topics_of(plan.topics, results, compare_plan.unstamped, compare_plan.absent, request.exact),
        partitions=fewer_named([r for r in results if is_wrong(r, True)], request.show),
        groups=checks,
        partitions_compared=len(compare_plan.partitions),
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
