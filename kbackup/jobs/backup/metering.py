"""Count backups for Prometheus: what was added, the losses, and the lag behind the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from kbackup.metrics.registry import LOSSES, ROUNDS, counted

if TYPE_CHECKING:
    from kbackup.archive.models import TopicState
    from kbackup.jobs.backup.run import BackupReport

_FROM_THE_START = (
    "kbackup_records_total",
    "kbackup_bytes_total",
    "kbackup_stored_bytes_total",
    "kbackup_segments_total",
    "kbackup_restore_points_total",
    "kbackup_retries_total",
    "kbackup_lost_offsets_total",
)


def backup_begins() -> None:
    """Set the counters to 0 at the start, so that the first loss is seen as an increase."""
    for name in _FROM_THE_START:
        counted.add(name, 0)
    for kind in LOSSES:
        counted.add("kbackup_losses_total", 0, kind)


def following_begins() -> None:
    """Count no round yet: alerts know a follower by its rounds, also one whose first round never ends."""
    for result in ROUNDS:
        counted.add("kbackup_rounds_total", 0, result)


def backed_up(report: BackupReport) -> None:
    totals = report.totals
    counted.add("kbackup_restore_points_total")
    counted.add("kbackup_records_total", totals.records)
    counted.add("kbackup_bytes_total", totals.bytes)
    counted.add("kbackup_stored_bytes_total", totals.stored_bytes)
    counted.add("kbackup_segments_total", totals.segments)
    counted.put("kbackup_restore_point", report.restore_point)
    committed = datetime.fromisoformat(report.committed_at).timestamp()
    counted.put("kbackup_restore_point_timestamp_seconds", committed)
    counted.put("kbackup_topics", totals.topics)
    counted.put("kbackup_partitions", totals.partitions)
    counted.put("kbackup_groups", totals.groups)
    counted.put("kbackup_held_back_partitions", report.held_back)
    for loss in report.losses:
        counted.add("kbackup_losses_total", 1, loss.kind)
        if loss.start is not None and loss.end is not None:
            counted.add("kbackup_lost_offsets_total", loss.end - loss.start)
    lag(lag_of(report.topics))


def lag_of(topics: Iterable[TopicState]) -> dict[str, list[int]]:
    """Return, by topic, the records that each of its partitions lacked at its last capture; only topics that are
    captured."""
    return {t.name: [max(0, p.log_end - p.end) for p in t.partitions] for t in topics if t.state == "present"}


def lag(by_topic: Mapping[str, Iterable[int]]) -> None:
    every = [n for partitions in by_topic.values() for n in partitions]
    counted.put("kbackup_lag_offsets", sum(every))
    counted.put("kbackup_lag_max_offsets", max(every, default=0))


def topic_lag(by_topic: Mapping[str, Iterable[int]]) -> None:
    counted.replace("kbackup_topic_lag_offsets", {name: sum(lags) for name, lags in by_topic.items()})
