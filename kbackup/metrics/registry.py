"""The counters of this process, for Prometheus, and the events that they count.

Every metric has the labels `command` and `archive` besides its own. Values of labels come from small fixed sets, but
for `archive` (one in most processes, several in a mirror's), `topic` (only where that is asked for), and the labels of
a mirror's flows.
"""

# Why values are kept in a dictionary and not in prometheus_client's Counter and Gauge:
#
# - Every command and every Spark worker counts, and few of them write a file or serve HTTP. The import of
#   prometheus_client takes 0.08 to 0.1 s (`python -X importtime -c "import prometheus_client"`); `metrics.server` alone
#   imports it, and hands it these values.
# - A counter of the library can neither begin with the values of the last run's file, nor tell which of its values
#   belong to one archive of several, nor drop the values of topics that have gone.

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

from kbackup import __version__
from kbackup.errors import EXIT_OK, KbackupError


class Metric(NamedTuple):
    """A metric. `labels` are its own. A metric that `stays` keeps its last value where a run doesn't set it."""

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
        "gauge", "End of the last run with exit code 0; of a follower, end of its last good round.", stays=True
    ),
    "kbackup_phase_seconds_total": Metric("counter", "Time spent in each step of a run.", ("phase",)),
    "kbackup_errors_total": Metric("counter", "Errors that ended a run or a round.", ("error", "exit_code")),
    "kbackup_retries_total": Metric("counter", "Rounds of --follow that an error ended; each is tried again."),
    "kbackup_task_retries_total": Metric("counter", "Attempts of Spark tasks that failed and succeeded later."),
    "kbackup_records_total": Metric("counter", "Records archived, restored, verified, compared or searched by erase."),
    "kbackup_bytes_total": Metric("counter", "Bytes of these records in the documented encoding."),
    "kbackup_stored_bytes_total": Metric("counter", "Stored bytes of the segments, after compression."),
    "kbackup_segments_total": Metric("counter", "Segments archived or verified."),
    "kbackup_restore_points_total": Metric("counter", "Restore points committed."),
    "kbackup_rounds_total": Metric("counter", "Rounds of --follow by result.", ("result",)),
    "kbackup_restore_point": Metric("gauge", "Number of the newest restore point.", stays=True),
    "kbackup_restore_point_timestamp_seconds": Metric("gauge", "Commit time of the newest restore point.", stays=True),
    "kbackup_lag_offsets": Metric("gauge", "Offsets between archived end and log end, summed over partitions."),
    "kbackup_lag_max_offsets": Metric("gauge", "Lag of the partition with the largest lag, in offsets."),
    "kbackup_topic_lag_offsets": Metric(
        "gauge", "Lag of each topic in offsets, if follow.topic_metrics is set.", ("topic",)
    ),
    "kbackup_unseen_deletions_offsets": Metric(
        "gauge", "Offsets of compacted topics that may have been deletions which no backup saw."
    ),
    "kbackup_held_back_partitions": Metric("gauge", "Partitions whose new records wait for a larger segment."),
    "kbackup_topics": Metric("gauge", "Topics in the newest restore point of the run."),
    "kbackup_partitions": Metric("gauge", "Partitions in the newest restore point of the run."),
    "kbackup_groups": Metric("gauge", "Consumer groups in the newest restore point of the run."),
    "kbackup_losses_total": Metric("counter", "Losses: records that can never be archived.", ("kind",)),
    "kbackup_lost_offsets_total": Metric("counter", "Offsets in these losses, as far as known."),
    "kbackup_drill_differences": Metric("gauge", "Differences from the archive that the last drill found."),
    "kbackup_erased_records_total": Metric("counter", "Records that `kbackup erase --confirm` erased."),
    "kbackup_findings": Metric("gauge", "Findings of a verification, a comparison or a drill."),
    "kbackup_status_level": Metric("gauge", "Level of `kbackup status`: 0 ok, 1 warning, 2 critical."),
    "kbackup_notifications_total": Metric("counter", "Notifications by result.", ("result",)),
    "kbackup_missing": Metric("gauge", "Groups, settings and damaged records that a restore could not bring back."),
    "kbackup_serve_connections": Metric("gauge", "Open connections of Kafka's clients to `kbackup serve`."),
    "kbackup_serve_requests_total": Metric("counter", "Requests that `kbackup serve` answered.", ("request",)),
    "kbackup_serve_refused_total": Metric("counter", "Requests that `kbackup serve` refused: what writes, above all."),
    "kbackup_serve_sent_bytes_total": Metric("counter", "Bytes of records that `kbackup serve` sent."),
    "kbackup_serve_read_bytes_total": Metric("counter", "Bytes of records that `kbackup serve` read of the archive."),
    "kbackup_serve_unreadable_total": Metric("counter", "Reads of `kbackup serve` that damage or the store ended."),
    "kbackup_serve_failed_logins_total": Metric("counter", "Logins that `kbackup serve` refused."),
    "kbackup_mirror_record_count_total": Metric("counter", "Records that a flow applied.", _PARTITION),
    "kbackup_mirror_byte_count_total": Metric(
        "counter", "Bytes of these records in the documented encoding.", _PARTITION
    ),
    "kbackup_mirror_record_age_seconds_max": Metric(
        "gauge", "Age of the oldest record of the last round, at the start of the round.", _PARTITION
    ),
    "kbackup_mirror_record_age_seconds_min": Metric("gauge", "Age of the newest record of the last round.", _PARTITION),
    "kbackup_mirror_replication_latency_seconds_max": Metric(
        "gauge", "Longest time from a record's timestamp to its commit in the target, in the last round.", _PARTITION
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
        "gauge", "Seconds since the commit of the first restore point that is not applied; 0 if all are.", _FLOW
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
        "counter", "Losses, recreated topics and deleted remote topics that a flow met.", (*_FLOW, "kind")
    ),
    "kbackup_mirror_unmapped_records_total": Metric(
        "counter",
        "Keys and values that a flow applied as they were, since their schemas could not be mapped.",
        (*_FLOW, "topic", "part"),
    ),
    "kbackup_mirror_held_back_topics": Metric("gauge", "Topics whose records are held back.", _FLOW),
    "kbackup_mirror_topic_held_back": Metric(
        "gauge", "1 for a remote topic whose records are held back; absent for the others.", (*_FLOW, "topic")
    ),
}
"""Every metric there is; `infra/docs/metrics.md` lists them."""


LOSSES = ("retention", "truncated", "recreated")
ROUNDS = ("committed", "unchanged", "failed")
"""Results of a follower's rounds."""


Values = Mapping[tuple[str, tuple[str, ...]], float]
"""(name, values of its own labels) -> value."""


class MetricsSnapshot(NamedTuple):
    """`by_archive` has the values of the archives that a process with several works on, beside its own `values`."""

    command: str
    archive: str
    values: Values
    by_archive: Mapping[str, Values] = MappingProxyType({})


_archive: ContextVar[str] = ContextVar("archive", default="")
"""The archive that this thread counts for; '' for the process's own."""


class Counted:
    """One process's values; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin("")

    def begin(self, command: str) -> None:
        """Reset every counter, for a command."""
        with self._lock:
            self._command, self._archive = command, ""
            self._by_archive: dict[str, dict[tuple[str, tuple[str, ...]], float]] = {"": {}}
            self._began = time.monotonic()
        # A gauge of 1: Prometheus keeps numbers, so the version is a label.
        self.put("kbackup_build_info", 1, __version__)
        self.put("kbackup_run_start_timestamp_seconds", time.time())

    def archive(self, url: str) -> None:
        with self._lock:
            self._archive = url

    @contextmanager
    def of_archive(self, url: str) -> Iterator[None]:
        """Count for one archive of several, in this thread."""
        token = _archive.set(url)
        try:
            yield
        finally:
            _archive.reset(token)

    @property
    def _values(self) -> dict[tuple[str, tuple[str, ...]], float]:
        return self._by_archive.setdefault(_archive.get(), {})

    def add(self, name: str, value: float = 1, *labels: str) -> None:
        with self._lock:
            self._values[name, labels] = self._values.get((name, labels), 0) + value

    def put(self, name: str, value: float, *labels: str) -> None:
        with self._lock:
            self._values[name, labels] = value

    def retain(self, names: Iterable[str], labels: tuple[str, ...], others: Collection[tuple[str, ...]]) -> None:
        """Drop the values of metrics whose labels begin with `labels` and go on with none of `others`."""
        metrics = set(names)
        count = len(labels)
        dropped = []
        with self._lock:
            values = self._values
            for key in values:
                name, own = key
                if name in metrics and own[:count] == labels and own[count:] not in others:
                    dropped.append(key)
            for key in dropped:
                del values[key]

    def replace(self, name: str, values: Mapping[str, float]) -> None:
        """Replace all values of a metric with one label by `values`, by that label."""
        self.retain([name], (), {(label,) for label in values})
        for label, value in values.items():
            self.put(name, value, label)

    def snapshot(self) -> MetricsSnapshot:
        with self._lock:
            by_archive = {archive: dict(values) for archive, values in self._by_archive.items()}
            return MetricsSnapshot(self._command, self._archive, by_archive.pop(""), by_archive)

    def end(self, code: int) -> None:
        self.put("kbackup_run_duration_seconds", time.monotonic() - self._began)
        self.put("kbackup_exit_code", code)
        self.put("kbackup_success", code == EXIT_OK)
        if code == EXIT_OK:
            self.put("kbackup_last_success_timestamp_seconds", time.time())


counted = Counted()


def failed(error: KbackupError) -> None:
    counted.add("kbackup_errors_total", 1, type(error).__name__, str(error.exit_code))


def record_success(at: float | None = None) -> None:
    """Count a round that ended well, at a time in seconds since the epoch (default: now)."""
    counted.put("kbackup_last_success_timestamp_seconds", time.time() if at is None else at)


# The phases and progress that a job reports while it works; the command line shows them, tests count them.


class ProgressListener(Protocol):
    """What a job tells while it works. `progress` gets the records and bytes so far in this phase; `expected` is an
    upper bound of records."""

    def phase(self, name: str) -> None: ...

    def progress(self, records: int, size: int, expected: int) -> None: ...


class Silent:
    def phase(self, name: str) -> None: ...

    def progress(self, records: int, size: int, expected: int) -> None: ...


class Phases:
    """Announces each named step to the listener, and keeps how long each step took, in seconds."""

    def __init__(self, listener: ProgressListener) -> None:
        self.listener = listener
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self.listener.phase(name)
        began = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - began
            self.seconds[name] = round(self.seconds.get(name, 0.0) + took, 3)
            counted.add("kbackup_phase_seconds_total", took, name)
