"""Back up continuously: commit restore point after restore point under one lease, until a stop is requested.

Each round captures the cluster as a backup does, and commits where the capture has anything new. A failed round is
retried from the start: connect, open the archive, salvage the segments of the failed round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Transactions
from kbackup.archive.query.selection import Selections
from kbackup.archive.run import open_or_create
from kbackup.config.models import Backup, Follow
from kbackup.errors import ClusterError, KbackupError
from kbackup.jobs.backup import job
from kbackup.jobs.backup.compaction import CompactionCheck
from kbackup.jobs.backup.deletions import complete_looks
from kbackup.jobs.backup.job import BackupReport, ClusterSnapshot
from kbackup.jobs.backup.plan import NO_PATIENCE, BatchingPolicy, held_back, hold_back, new_bytes, waiting
from kbackup.jobs.backup.schemas import BackupSchemas
from kbackup.jobs.capture import BackupSession, SourceCluster, connect
from kbackup.jobs.common import Stop, run_rounds
from kbackup.kafka.client import Properties
from kbackup.metrics.registry import ROUNDS, Phases, ProgressListener, counted, failed
from kbackup.spark.tasks import Spark
from kbackup.store.base import Store
from kbackup.types import IncarnationPartition, TopicPartition
from kbackup.util.times import now

_LOG_ENDS_EVERY = 5.0  # s, between reads of the log ends, which cost a request for 2,000 partitions
_WAIT = 10.0  # s, for transactions: in the last round, which must end within the 25 s of a stop, and in frequent ones
_CAPTURE_EVERY = 5.0  # s, between captures of groups and settings; rounds between them capture the logs alone


class Watcher(Protocol):
    """Receives an event of each round."""

    def committed(self, report: BackupReport) -> None: ...

    def record_success(self) -> None:
        """Note a successful round: the newest restore point has all but the records that are held back."""

    def failed(self, error: KbackupError, pause: float) -> None:
        """Note a failed round; the next one begins after `pause` seconds."""


@dataclass
class FollowReport:
    """Report of a follower from start to end. `restore_point` is the archive's newest; `losses` counts by kind;
    `transactions` is what the follower's last restore point says of them, null if it made none."""

    archive: str
    restore_point: int | None = None
    restore_points: int = 0
    rounds: int = 0
    retries: int = 0
    records: int = 0
    bytes: int = 0
    stored_bytes: int = 0
    losses: dict[str, int] = field(default_factory=dict)
    transactions: Transactions | None = None
    seconds: float = 0.0

    def add(self, report: BackupReport) -> None:
        self.restore_point = report.restore_point
        self.restore_points += 1
        self.records += report.totals.records
        self.bytes += report.totals.bytes
        self.stored_bytes += report.totals.stored_bytes
        self.transactions = report.transactions
        for loss in report.losses:
            self.losses[loss.kind] = self.losses.get(loss.kind, 0) + 1


@dataclass
class Follower:
    """Runs continuous backups in one process. `selections` None: as in `options`. `clock` is in seconds."""

    options: Backup
    rhythm: Follow
    source: Properties
    store: Store
    spark: Spark
    listener: ProgressListener
    watcher: Watcher
    stop: Stop
    selections: Selections | None = None
    schemas: BackupSchemas = field(default_factory=BackupSchemas)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.report = FollowReport(self.store.url)
        self._connected: tuple[SourceCluster, BackupSession] | None = None
        self._captured: tuple[float, ClusterSnapshot] | None = None
        self._derived_due = False
        self._since: dict[IncarnationPartition, float] = {}
        self._offline: set[TopicPartition] = set()
        rhythm = self.rhythm
        share = min(1.0, rhythm.interval_seconds / max(rhythm.max_age_seconds, rhythm.interval_seconds))
        self._patience = BatchingPolicy(rhythm.small_bytes, rhythm.max_age_seconds, rhythm.small_segments, share)

    def follow(self) -> FollowReport:
        """Run rounds until a stop is requested; then a last round archives all records. Where the stop was requested
        before, the last round is the only one, and no follower is counted. Raises a `KbackupError` that no retry can
        mend, for an unreachable cluster or store at the start, and where the last round fails."""
        began = self.clock()
        self._follows = not self.stop.asked
        job.backup_begins()
        self.schemas.check()
        # alerts know a follower by its rounds, also one whose first round never ends
        for result in ROUNDS if self._follows else ():
            counted.add("kbackup_rounds_total", 0, result)
        source = self._connect()
        open_or_create(self.store)
        pause = self.stop.wait if self._follows else time.sleep
        name, seconds = "kbackup backup --follow", self.rhythm.lease_seconds
        with HeldLease(self.store, name, seconds, pause, standby=self._follows) as lease:
            session = job.begin(self.store, lease, source, self.options.adopt_cluster)
            self._connected = source, session
            self.report.restore_point = session.head.number if session.head is not None else None
            run_rounds(self.stop, lambda last: self._attempt(lease, last), self._failed)
        self.report.seconds = round(self.clock() - began, 3)
        return self.report

    def _connect(self) -> SourceCluster:
        return connect(self.source, self.options)

    def _attempt(self, lease: HeldLease, last: bool) -> None:
        lease.check()
        if self._connected is None:
            source = self._connect()
            self._connected = source, job.begin(self.store, lease, source, self.options.adopt_cluster)
        source, session = self._connected
        due = self.clock() + self.rhythm.interval_seconds
        self._round(source, session, last)
        if not last:
            self._wait(source, session, due)

    def _failed(self, error: KbackupError, pause: float) -> None:
        self._connected = self._captured = None
        self.report.retries += 1
        failed(error)
        counted.add("kbackup_retries_total")
        self._count_round("failed")
        self.watcher.failed(error, pause)

    def _round(self, source: SourceCluster, session: BackupSession, last: bool) -> None:
        phases, session.run.hints = Phases(self.listener), last
        if source.whole_within is not None:
            wait = _WAIT if last else max(_WAIT, self.rhythm.interval_seconds)
            source = replace(source, whole_within=min(source.whole_within, wait))
        snapshot, whole = self._capture(source, session, phases, last)
        # at the start nobody knows how long records wait already, and at the end nobody waits for more
        batching = NO_PATIENCE if last or not self.report.rounds else self._patience
        plan, moment = job.plan_records(source, session, snapshot, phases, self.options.adopt_topics), self.clock()
        self._since = {place: self._since.get(place, moment) for place in waiting(plan)}
        offline = {TopicPartition(t.name, p.partition) for t in plan.topics for p in t.offline}
        plan = hold_back(plan, batching, self._since, moment, snapshot.ends.written)
        if offline != self._offline or job.has_news(session, snapshot, plan):
            read = job.archive_records(source, session, plan, self.options, self.spark, phases, here=True)
            # once: a follower misses a deletion only where it was down for long
            recheck_all = self.options.recheck_compacted and not self.report.restore_points
            check = CompactionCheck(source, session, self.options, self.spark, phases, recheck_all)
            checked = job.check_deletions(check, snapshot, plan, read)
            with phases.step("capture schemas"):
                taken = self.schemas.take(checked.topics, session.schemas, again=last)
            with phases.step("commit"):
                manifest = job.commit(source, session, snapshot, plan, read, checked, taken, last=last)
            self._since = {place: self._since[place] for place in held_back(plan)}
            report = job.report_of(manifest, snapshot, plan, read, checked, taken, self.store.url, phases)
            self.report.add(report)
            job.backed_up(report)
            self._count_round("committed")
            if self.rhythm.topic_metrics:
                job.topic_lag(job.lag_of(report.topics))
            self.watcher.committed(report)
            self._derived_due = True
        else:
            session.looks.update(complete_looks(plan, snapshot.started_at))
            self._count_round("unchanged")
            if last:
                session.run.end()
        self._offline = offline
        if self._derived_due and whole:
            job.refresh(session.run, self.spark, phases)
            self._derived_due = False
        self.report.rounds += 1
        self.watcher.record_success()

    def _capture(
        self, source: SourceCluster, session: BackupSession, phases: Phases, last: bool
    ) -> tuple[ClusterSnapshot, bool]:
        """Return what the cluster shows, and whether groups and settings are captured anew."""
        selections, moment = self.selections or job.selections_of(self.options), self.clock()
        if self._captured is not None and not last and moment < self._captured[0] + _CAPTURE_EVERY:
            ends = job.capture_ends(source, session, selections, phases, self._captured[1])
            if ends is not None:
                return ends, False
        session.compared.clear()
        snapshot = job.capture_cluster(source, session, selections, phases, now(), True, self._offline)
        self._captured = moment, snapshot
        return snapshot, True

    def _count_round(self, result: str) -> None:
        """Count a round of a follower, for alerts."""
        if self._follows:
            counted.add("kbackup_rounds_total", 1, result)

    def _wait(self, source: SourceCluster, session: BackupSession, due: float) -> None:
        """Wait until the next round is `due`, a whole segment has come in, or a stop is requested."""
        every = min(self.rhythm.interval_seconds, _LOG_ENDS_EVERY)
        while (remaining := due - self.clock()) > 0:
            if self.stop.wait(min(remaining, every)) or self._has_whole_segment(source, session):
                return

    def _has_whole_segment(self, source: SourceCluster, session: BackupSession) -> bool:
        """Return whether a partition has a whole segment of new records, and update the lag in the metrics."""
        assert session.head is not None  # noqa: S101 (a round went well)
        known = {
            TopicPartition(t.name, p.partition): p
            for t in session.head.topics
            if t.state == "present"
            for p in t.partitions
            if TopicPartition(t.name, p.partition) not in self._offline
        }
        try:
            ends = source.cluster.log_ends(known, self.options.isolation_level)
        except ClusterError:
            return True  # a topic is gone, for instance: the round finds out
        new = {tp: max(0, ends[tp] - p.end) for tp, p in known.items()}
        by_topic: dict[str, list[int]] = {}
        for tp, count in new.items():
            by_topic.setdefault(tp.topic, []).append(count)
        job.lag(by_topic)
        if self.rhythm.topic_metrics:
            job.topic_lag(by_topic)
        return any(new_bytes(count, known[tp]) >= self.options.segment_bytes for tp, count in new.items())
