"""What this process counts, for Prometheus. Counting needs no library: what shows it is in `metrics_export`.

Every metric has the labels `command` and `archive` besides its own. Values of labels come from small fixed sets,
but for `archive` (one a process), `topic` (only where that is asked for), and those of a mirror's flows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from kbackup import __version__
from kbackup.errors import EXIT_OK, KbackupError

if TYPE_CHECKING:
    from kbackup.archive.models import TopicState
    from kbackup.jobs.backup.run import BackupReport
    from kbackup.jobs.compare.report import AgainstReport
    from kbackup.jobs.drill.report import DrillReport
    from kbackup.jobs.restore.report import RestoreReport
    from kbackup.jobs.verify.job import VerifyReport


class Metric(NamedTuple):
    """`labels` are its own. One that `stays` keeps its last value where a run doesn't set it."""

    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...] = ()
    stays: bool = False


_FLOW = ("source", "target")
_PARTITION = (*_FLOW, "topic", "partition")

METRICS: dict[str, Metric] = {
    "kbackup_build_info": Metric("gauge", "1; the version is a label.", ("version",)),
    "kbackup_success": Metric("gauge", "1 if the last run ended with exit code 0, else 0."),
    "kbackup_exit_code": Metric("gauge", "Exit code of the last run."),
    "kbackup_run_start_timestamp_seconds": Metric("gauge", "Start of the last run."),
    "kbackup_run_duration_seconds": Metric("gauge", "Duration of the last run."),
    "kbackup_last_success_timestamp_seconds": Metric(
        "gauge",
        "End of the last run with exit code 0; of a follower, end of its last good round. A mirror with several take "
        "halves shows the oldest of these times.",
        stays=True,
    ),
    "kbackup_phase_seconds_total": Metric("counter", "Time spent in each step of a run.", ("phase",)),
    "kbackup_errors_total": Metric("counter", "Errors that ended a run or a round.", ("error", "exit_code")),
    "kbackup_retries_total": Metric(
        "counter", "Rounds of --follow that an error ended; each is tried again."
    ),
    "kbackup_task_retries_total": Metric(
        "counter", "Attempts of Spark tasks that failed and succeeded later."
    ),
    "kbackup_records_total": Metric("counter", "Records archived, restored, verified or compared."),
    "kbackup_bytes_total": Metric("counter", "Bytes of these records in the documented encoding."),
    "kbackup_stored_bytes_total": Metric("counter", "Stored bytes of the segments, after compression."),
    "kbackup_segments_total": Metric("counter", "Segments archived or verified."),
    "kbackup_restore_points_total": Metric("counter", "Restore points committed."),
    "kbackup_rounds_total": Metric("counter", "Rounds of --follow by result.", ("result",)),
    "kbackup_restore_point": Metric("gauge", "Number of the newest restore point.", stays=True),
    "kbackup_restore_point_timestamp_seconds": Metric(
        "gauge", "Commit time of the newest restore point.", stays=True
    ),
    "kbackup_lag_offsets": Metric(
        "gauge", "Offsets between archived end and log end, summed over partitions."
    ),
    "kbackup_lag_max_offsets": Metric("gauge", "Lag of the partition with the largest lag, in offsets."),
    "kbackup_topic_lag_offsets": Metric(
        "gauge", "Lag of each topic in offsets, if follow.topic_metrics is set.", ("topic",)
    ),
    "kbackup_held_back_partitions": Metric(
        "gauge", "Partitions whose new records wait for a larger segment."
    ),
    "kbackup_topics": Metric("gauge", "Topics in the newest restore point of the run."),
    "kbackup_partitions": Metric("gauge", "Partitions in the newest restore point of the run."),
    "kbackup_groups": Metric("gauge", "Consumer groups in the newest restore point of the run."),
    "kbackup_losses_total": Metric("counter", "Losses: records that can never be archived.", ("kind",)),
    "kbackup_lost_offsets_total": Metric("counter", "Offsets in these losses, as far as known."),
    "kbackup_findings": Metric("gauge", "Findings of a verification, a comparison or a drill."),
    "kbackup_missing": Metric(
        "gauge", "Groups, settings and damaged records that a restore could not bring back."
    ),
    "kbackup_mirror_record_count_total": Metric("counter", "Records that a flow applied.", _PARTITION),
    "kbackup_mirror_byte_count_total": Metric(
        "counter", "Bytes of these records in the documented encoding.", _PARTITION
    ),
    "kbackup_mirror_record_age_seconds_max": Metric(
        "gauge", "Age of the oldest record of the last round, at the start of the round.", _PARTITION
    ),
    "kbackup_mirror_record_age_seconds_min": Metric(
        "gauge", "Age of the newest record of the last round.", _PARTITION
    ),
    "kbackup_mirror_replication_latency_seconds_max": Metric(
        "gauge",
        "Longest time from a record's timestamp to its commit in the target, in the last round.",
        _PARTITION,
    ),
    "kbackup_mirror_replication_latency_seconds_min": Metric(
        "gauge", "Shortest such time in the last round.", _PARTITION
    ),
    "kbackup_mirror_checkpoint_latency_seconds": Metric(
        "gauge",
        "Time from the capture of a group's positions to their checkpoint in the target.",
        ("source", "target", "group"),
    ),
    "kbackup_mirror_records_behind": Metric("gauge", "Archived records that a flow has not applied.", _FLOW),
    "kbackup_mirror_seconds_behind": Metric(
        "gauge",
        "Seconds since the commit of the first restore point that is not applied; 0 if all are.",
        _FLOW,
    ),
    "kbackup_mirror_restore_point": Metric("gauge", "Newest applied restore point.", _FLOW, stays=True),
    "kbackup_mirror_last_round_timestamp_seconds": Metric(
        "gauge", "Last time when a flow ended a round well, or had nothing to apply.", _FLOW, stays=True
    ),
    "kbackup_mirror_follow_start_timestamp_seconds": Metric(
        "gauge", "Start of an apply half that runs until stopped; absent with --once.", _FLOW
    ),
    "kbackup_mirror_rounds_total": Metric("counter", "Rounds of a flow by result.", (*_FLOW, "result")),
    "kbackup_mirror_duplicates_total": Metric("counter", "Records that were applied twice; always 0.", _FLOW),
    "kbackup_mirror_incidents_total": Metric(
        "counter", "Losses and recreated topics that a flow met.", (*_FLOW, "kind")
    ),
    "kbackup_mirror_held_back_topics": Metric("gauge", "Topics whose records are held back.", _FLOW),
}
"""Every metric there is; `infra/docs/metrics.md` lists them."""

LOSSES = ("retention", "truncated", "recreated")
ROUNDS = ("committed", "unchanged", "failed")
"""Results of a follower's rounds."""
_FROM_THE_START = (
    "kbackup_records_total",
    "kbackup_bytes_total",
    "kbackup_stored_bytes_total",
    "kbackup_segments_total",
    "kbackup_restore_points_total",
    "kbackup_retries_total",
    "kbackup_lost_offsets_total",
)

Values = Mapping[tuple[str, tuple[str, ...]], float]
"""(name, values of its own labels) -> value."""


class Snapshot(NamedTuple):
    command: str
    archive: str
    values: Values


class Counted:
    """One process's values; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin("")

    def begin(self, command: str) -> None:
        """From nothing, for a command."""
        with self._lock:
            self._command, self._archive = command, ""
            self._values: dict[tuple[str, tuple[str, ...]], float] = {}
            self._began = time.monotonic()
        self.put("kbackup_build_info", 1, __version__)
        self.put("kbackup_run_start_timestamp_seconds", time.time())

    def archive(self, url: str) -> None:
        with self._lock:
            self._archive = url

    def add(self, name: str, value: float = 1, *labels: str) -> None:
        with self._lock:
            self._values[name, labels] = self._values.get((name, labels), 0) + value

    def put(self, name: str, value: float, *labels: str) -> None:
        with self._lock:
            self._values[name, labels] = value

    def replace(self, name: str, by: Mapping[str, float]) -> None:
        """All values of a metric with one label."""
        with self._lock:
            self._values = {key: v for key, v in self._values.items() if key[0] != name}
            self._values |= {(name, (label,)): v for label, v in by.items()}

    def snapshot(self) -> Snapshot:
        with self._lock:
            return Snapshot(self._command, self._archive, dict(self._values))

    def end(self, code: int) -> None:
        self.put("kbackup_run_duration_seconds", time.monotonic() - self._began)
        self.put("kbackup_exit_code", code)
        self.put("kbackup_success", code == EXIT_OK)
        if code == EXIT_OK:
            self.put("kbackup_last_success_timestamp_seconds", time.time())


counted = Counted()


def failed(error: KbackupError) -> None:
    counted.add("kbackup_errors_total", 1, type(error).__name__, str(error.exit_code))


def well(at: float | None = None) -> None:
    """A round ended well, at a time in seconds since the epoch (default: now)."""
    counted.put("kbackup_last_success_timestamp_seconds", time.time() if at is None else at)


def backup_begins() -> None:
    """Counters are there from the start, so that the first loss is seen as an increase."""
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
    """Topic -> what each of its partitions lacked when it was captured last; topics that are captured alone."""
    return {t.name: [max(0, p.log_end - p.end) for p in t.partitions] for t in topics if t.state == "present"}


def lag(by_topic: Mapping[str, Iterable[int]]) -> None:
    every = [n for partitions in by_topic.values() for n in partitions]
    counted.put("kbackup_lag_offsets", sum(every))
    counted.put("kbackup_lag_max_offsets", max(every, default=0))


def topic_lag(by_topic: Mapping[str, Iterable[int]]) -> None:
    counted.replace("kbackup_topic_lag_offsets", {name: sum(lags) for name, lags in by_topic.items()})


def restored(report: RestoreReport) -> None:
    counted.add("kbackup_records_total", report.records)
    counted.add("kbackup_bytes_total", report.bytes)
    counted.put("kbackup_topics", len(report.topics))
    counted.put("kbackup_groups", len(report.groups))
    counted.put("kbackup_missing", len(report.missing))


def verified(report: VerifyReport) -> None:
    counted.add("kbackup_records_total", report.read_records)
    counted.add("kbackup_bytes_total", report.read_bytes)
    counted.add("kbackup_segments_total", report.segments)
    counted.put("kbackup_findings", len(report.findings))


def compared(report: AgainstReport) -> None:
    counted.add("kbackup_records_total", report.records)
    counted.add("kbackup_bytes_total", report.bytes)
    counted.put("kbackup_findings", len(report.findings))


def drilled(report: DrillReport) -> None:
    counted.add("kbackup_records_total", report.restored_records)
    counted.add("kbackup_bytes_total", report.restored_bytes)
    counted.put("kbackup_findings", len(report.findings))
