"""Reports of drills, made up."""

from __future__ import annotations

from typing import Any

import msgspec

from kbackup.cli.drill import drill_page
from kbackup.jobs.compare.report import AgainstReport, ComparedTopic, Comparison, Difference, GroupOffsetCheck
from kbackup.jobs.drill.report import DrillReport, store_report
from kbackup.store.base import Store

EVIL = "<script>alert(1)</script>'\"&{{7*7}}\u202egpj\x1b[31m</td>"


def comparison(name: str = "orders", ok: bool = True) -> AgainstReport:
    topic = ComparedTopic(
        source=name,
        target=f"drill.{name}",
        partitions=2,
        records=1200,
        bytes=5 << 20,
        same=1200 if ok else 1199,
        counts={} if ok else {"value": 1},
        after=0,
        timestamps=True,
        ok=ok,
    )
    wrong = Comparison(
        topic=name,
        partition=0,
        target=f"drill.{name}",
        records=600,
        bytes=1 << 20,
        same=599,
        counts={"value": 1},
        differences=(Difference(what=("value",), source=12, target=14),),
    )
    group = GroupOffsetCheck(
        group=f"drill.{name}",
        source_group=name,
        topic=f"drill.{name}",
        partition=0,
        committed=7,
        due=7,
        found=7 if ok else None,
        how="exact",
        ok=ok,
    )
    return AgainstReport(
        against="target",
        cluster_id="cluster",
        archive="s3://bucket/archive",
        archive_id="0" * 32,
        restore_point=7,
        restore_id="drill-x",
        topics=(topic,),
        partitions=() if ok else (wrong,),
        groups=(group,),
        partitions_compared=2,
        records=1200,
        bytes=5 << 20,
        same=topic.same,
        counts=topic.counts,
        after=0,
        findings=() if ok else (f"drill.{name}-0: of 600 records compared, 1 with another value",),
        notes=(),
        seconds={"compare": 3.5},
    )


def report(**changes: Any) -> DrillReport:
    made = DrillReport(
        drill_id="drill-2026-01-31-2813394e",
        result="passed",
        started_at="2026-01-31T05:30:00.000Z",
        ended_at="2026-01-31T05:36:40.000Z",
        archive="s3://bucket/archive",
        archive_id="0" * 32,
        restore_point=7,
        restore_point_at="2026-01-31T02:34:00.000Z",
        choice=None,
        data_age=10560.0,
        target="broker-1:9093",
        target_cluster_id="cluster",
        prefix="drill-2026-01-31-2813394e.",
        restored_records=1200,
        restored_bytes=5 << 20,
        comparison=comparison(),
        findings=(),
        warnings=(),
        left=(),
        kept=(),
        error=None,
        versions={"kbackup": "0.1.0"},
        seconds={"connect": 0.2, "restore: run": 250.0, "restore: groups": 2.0, "verify": 60.0, "clean up": 3.0},
    )
    return msgspec.structs.replace(made, **changes)


def store_drill(state: Store, drill_id: str, **changes: Any) -> None:
    """Store the report and the page of a drill as a drill does."""
    made = report(drill_id=drill_id, **changes)
    store_report(state, made, drill_page(made))
