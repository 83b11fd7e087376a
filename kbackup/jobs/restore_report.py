"""What a restore tells when it ends: restores/<id>/report.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from kbackup.archive.models import Document, Part
from kbackup.jobs.apply_groups import GroupResult, not_applied
from kbackup.jobs.restore_plan import PlannedTopic, RestorePlan
from kbackup.types import TopicPartition


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


def make_report(
    plan: RestorePlan,
    archive: str,
    groups: tuple[GroupResult, ...],
    warnings: Sequence[str],
    seconds: dict[str, float],
    status: Literal["planned", "restored"],
) -> RestoreReport:
    return RestoreReport(
        status=status,
        restore_id=plan.restore_id,
        archive=archive,
        restore_point=plan.restore_point,
        target_cluster_id=plan.target_cluster_id,
        topics=tuple(_restored(t) for t in plan.topics),
        records=plan.records,
        bytes=plan.bytes,
        groups=groups,
        warnings=tuple(warnings),
        missing=tuple(not_applied(groups)),
        seconds=dict(seconds),
    )


def _restored(topic: PlannedTopic) -> RestoredTopic:
    return RestoredTopic(
        source=topic.source, target=topic.target, partitions=topic.partitions, records=topic.records
    )


def with_warning(report: RestoreReport, warning: str) -> RestoreReport:
    fields = {name: getattr(report, name) for name in report.__struct_fields__}
    return RestoreReport(**fields | {"warnings": (*report.warnings, warning)})


def moved_timestamps(records: int) -> list[str]:
    if not records:
        return []
    return [
        f"{records} record(s) with timestamp 0 were restored with timestamp 1: librdkafka takes 0 for 'now'"
    ]


def hidden_records(partitions: list[TopicPartition]) -> list[str]:
    return [f"consumers can't see all of {tp} yet: is another transaction open there?" for tp in partitions]
