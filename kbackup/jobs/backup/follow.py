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
from kbackup.archive.models import Manifest, PartitionState, Transactions
from kbackup.archive.query.selection import Selections
from kbackup.archive.reader import refuse_if_swept
from kbackup.archive.run import open_or_create
from kbackup.config.models import Backup, Follow
from kbackup.errors import ClusterError, KbackupError
from kbackup.jobs.backup import job
from kbackup.jobs.backup.compaction import CompactionCheck
from kbackup.jobs.backup.deletions import complete_looks
from kbackup.jobs.backup.job import BackupReport, ClusterSnapshot, PointContent
from kbackup.jobs.backup.plan import NO_PATIENCE, BatchingPolicy, Plan, held_back, hold_back, new_bytes, waiting
from kbackup.jobs.backup.schemas import BackupSchemas
from kbackup.jobs.capture import BackupSession, SourceCluster, connect
from kbackup.jobs.common import RETRIED, RoundLoop, Stop
from kbackup.kafka.client import Properties
from kbackup.metrics.registry import ROUNDS, Phases, ProgressListener, counted, failed
from kbackup.spark.tasks import Spark
from kbackup.store.base import Store
from kbackup.types import IncarnationPartition, TopicPartition
from kbackup.util.times import now

_LOG_ENDS_EVERY = 5.0  # s, between reads of the log ends, which cost a request for 2,000 partitions
_WAIT = 10.0  # s, for transactions: in the last round, which must end within the 25 s of a stop, and in frequent ones
_CAPTURE_EVERY = 5.0  # s, between captures of groups and settings; rounds between them capture the logs alone


class FollowReporter(Protocol):
    """Shows what the rounds of a follower come to. `committed` comes before the end of its round."""

    def committed(self, report: BackupReport) -> None: ...

    def record_success(self) -> None:
        """Note a round that ended well: the newest restore point has all but the records that are held back."""

    def failed(self, error: KbackupError, pause: float) -> None:
        """Note a round that failed; the next one begins after `pause` seconds."""


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
        """Since when the new records of each partition wait for a larger segment."""
        self._offline: set[TopicPartition] = set()
        rhythm = self.rhythm
        share = min(1.0, rhythm.interval_seconds / max(rhythm.max_age_seconds, rhythm.interval_seconds))
        self._batching = BatchingPolicy(rhythm.small_bytes, rhythm.max_age_seconds, rhythm.small_segments, share)

    def follow_until_stopped(self, reporter: FollowReporter) -> FollowReport:
        """Run rounds until a stop is requested; then a last round archives all records. If the stop was requested
        before, the last round is the only one, and no follower is counted.

        Raises a `KbackupError` that no retry can mend, for an unreachable cluster or store at the start, and if the
        last round fails."""
        began = self.clock()
        self._follows = not self.stop.asked
        self._count_start()
        self.schemas.check()
        source = connect(self.source, self.options)
        open_or_create(self.store)
        # a follower is a standby for as long as another one renews its lease; a single round waits until that lease
        # would have run out
        pause = self.stop.wait if self._follows else time.sleep
        name, seconds = "kbackup backup --follow", self.rhythm.lease_seconds
        with HeldLease(self.store, name, seconds, pause, standby=self._follows) as lease:
            session = self._begin(lease, source)
            self.report.restore_point = session.head.number if session.head is not None else None
            self._run_rounds(lease, reporter)
        self.report.seconds = round(self.clock() - began, 3)
        return self.report

    def _count_start(self) -> None:
        job.backup_begins()
        if self._follows:
            # alerts know a follower by its rounds, also one whose first round never ends
            for result in ROUNDS:
                counted.add("kbackup_rounds_total", 0, result)

    def _begin(self, lease: HeldLease, source: SourceCluster) -> BackupSession:
        """Fence off every other run, and remember the connection for the rounds that follow."""
        session = job.begin(self.store, lease, source, self.options.adopt_cluster)
        self._connected = source, session
        return session

    def _run_rounds(self, lease: HeldLease, reporter: FollowReporter) -> None:
        """Run round after round. A round that fails by an error that may pass begins anew, on new connections."""
        rounds = RoundLoop(self.stop)
        while rounds.begin():
            try:
                source, session = self._connect(lease)
                due = self.clock() + self.rhythm.interval_seconds
                with refuse_if_swept(session.archive, "start it again"):
                    self._run_round(source, session, reporter, is_last=rounds.is_last)
                if not rounds.is_last:
                    self._wait(source, session, due)
            except RETRIED as error:
                pause = rounds.pause_after(error)
                self._forget_failed_round(error)
                reporter.failed(error, pause)
                self.stop.wait(pause)

    def _connect(self, lease: HeldLease) -> tuple[SourceCluster, BackupSession]:
        """Return the source and the session of the last round, or new ones if it failed."""
        lease.check()
        if self._connected is None:
            source = connect(self.source, self.options)
            self._begin(lease, source)
        assert self._connected is not None  # noqa: S101 (`_begin` has set it)
        return self._connected

    def _forget_failed_round(self, error: KbackupError) -> None:
        """Drop connections and captures, which may be in any state, and count the failure."""
        self._connected = self._captured = None
        self.report.retries += 1
        failed(error)
        counted.add("kbackup_retries_total")
        self._count_round("failed")

    def _run_round(
        self, source: SourceCluster, session: BackupSession, reporter: FollowReporter, *, is_last: bool
    ) -> None:
        """Capture the cluster, and commit a restore point if the capture has anything new."""
        phases = Phases(self.listener)
        session.run.hints = is_last
        source = self._limit_transaction_wait(source, is_last)
        snapshot, is_whole = self._capture(source, session, phases, is_last)
        plan = self._plan(source, session, snapshot, phases, is_last)
        offline = partitions_without_leader(plan)
        # A partition that lost its leader, or has one again, is worth a restore point: readers learn of it from there.
        if offline != self._offline or job.has_news(session, snapshot, plan):
            report = self._commit(source, session, snapshot, plan, phases, is_last)
            reporter.committed(report)
            self._derived_due = True
        else:
            self._note_nothing_new(session, snapshot, plan, is_last)
        self._offline = offline
        # rounds may be 100 ms apart: derived files are written only by those that capture everything, every 5 s
        if self._derived_due and is_whole:
            job.refresh(session.run, self.spark, phases)
            self._derived_due = False
        self.report.rounds += 1
        reporter.record_success()

    def _limit_transaction_wait(self, source: SourceCluster, is_last: bool) -> SourceCluster:
        """Return the source with a wait for open transactions that fits the rounds."""
        if source.whole_within is None:
            return source
        longest = _WAIT if is_last else max(_WAIT, self.rhythm.interval_seconds)
        return replace(source, whole_within=min(source.whole_within, longest))

    def _capture(
        self, source: SourceCluster, session: BackupSession, phases: Phases, is_last: bool
    ) -> tuple[ClusterSnapshot, bool]:
        """Return what the cluster shows, and whether groups and settings are captured anew."""
        selections = self.selections or job.selections_of(self.options)
        moment = self.clock()
        if self._captured is not None and not is_last and moment < self._captured[0] + _CAPTURE_EVERY:
            ends = job.capture_ends(source, session, selections, phases, self._captured[1])
            if ends is not None:
                return ends, False
        # Every few seconds all logs are compared again, also those that kept their leader.
        session.compared.clear()
        snapshot = job.capture_cluster(source, session, selections, phases, now(), True, self._offline)
        self._captured = moment, snapshot
        return snapshot, True

    def _plan(
        self, source: SourceCluster, session: BackupSession, snapshot: ClusterSnapshot, phases: Phases, is_last: bool
    ) -> Plan:
        """Plan what to archive. Partitions with few new records wait, so that segments don't get too small."""
        # at the start nobody knows how long records wait already, and at the end nobody waits for more
        may_wait = not is_last and self.report.rounds > 0
        batching = self._batching if may_wait else NO_PATIENCE
        plan = job.plan_records(
            source, session, snapshot, phases, self.options.adopt_topics, self.options.adopt_cluster
        )
        moment = self.clock()
        self._since = {partition: self._since.get(partition, moment) for partition in waiting(plan)}
        return hold_back(plan, batching, self._since, moment, snapshot.ends.written)

    def _commit(
        self,
        source: SourceCluster,
        session: BackupSession,
        snapshot: ClusterSnapshot,
        plan: Plan,
        phases: Phases,
        is_last: bool,
    ) -> BackupReport:
        """Archive the records of the plan, commit the restore point and count it."""
        read = job.archive_records(source, session, plan, self.options, self.spark, phases, here=True)
        # once: a follower misses a deletion only where it was down for long
        recheck_all = self.options.recheck_compacted and not self.report.restore_points
        check = CompactionCheck(source, session, self.options, self.spark, phases, recheck_all)
        checked = job.check_deletions(check, snapshot, plan, read)
        with phases.step("capture schemas"):
            taken = self.schemas.take(checked.topics, session.schemas, again=is_last)
        content = PointContent(snapshot, plan, read, checked, taken)
        with phases.step("commit"):
            manifest = job.commit(source, session, content, last=is_last)
        self._since = {partition: self._since[partition] for partition in held_back(plan)}
        report = job.report_of(manifest, content, self.store.url, phases)
        self.report.add(report)
        job.backed_up(report)
        self._count_round("committed")
        if self.rhythm.topic_metrics:
            job.topic_lag(job.lag_of(report.topics))
        return report

    def _note_nothing_new(self, session: BackupSession, snapshot: ClusterSnapshot, plan: Plan, is_last: bool) -> None:
        """End a round that commits nothing."""
        session.looks.update(complete_looks(plan, snapshot.started_at))
        self._count_round("unchanged")
        if is_last:
            session.run.end()

    def _count_round(self, result: str) -> None:
        """Count a round of a follower, for alerts."""
        if self._follows:
            counted.add("kbackup_rounds_total", 1, result)

    def _wait(self, source: SourceCluster, session: BackupSession, due: float) -> None:
        """Wait until the next round is `due`, a whole segment has come in, or a stop is requested."""
        every = min(self.rhythm.interval_seconds, _LOG_ENDS_EVERY)
        while (remaining := due - self.clock()) > 0:
            pause = min(remaining, every)
            if self.stop.wait(pause) or self._has_whole_segment(source, session):
                return

    def _has_whole_segment(self, source: SourceCluster, session: BackupSession) -> bool:
        """Return whether a partition has a whole segment of new records, and update the lag in the metrics."""
        assert session.head is not None  # noqa: S101 (a round went well)
        archived = self._followed_partitions(session.head)
        try:
            ends = source.cluster.log_ends(archived, self.options.isolation_level)
        except ClusterError:
            return True  # a topic is gone, for instance: the round finds out
        new = {tp: max(0, ends[tp] - partition.end) for tp, partition in archived.items()}
        by_topic: dict[str, list[int]] = {}
        for tp, count in new.items():
            by_topic.setdefault(tp.topic, []).append(count)
        job.lag(by_topic)
        if self.rhythm.topic_metrics:
            job.topic_lag(by_topic)
        return any(new_bytes(count, archived[tp]) >= self.options.segment_bytes for tp, count in new.items())

    def _followed_partitions(self, head: Manifest) -> dict[TopicPartition, PartitionState]:
        """Return the partitions of the newest restore point whose logs the source shows now."""
        followed: dict[TopicPartition, PartitionState] = {}
        for topic in head.topics:
            if topic.state != "present":
                continue
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition)
                if tp not in self._offline:
                    followed[tp] = partition
        return followed


def partitions_without_leader(plan: Plan) -> set[TopicPartition]:
    """Return the partitions of a plan that have no leader."""
    partitions: set[TopicPartition] = set()
    for topic in plan.topics:
        partitions.update(TopicPartition(topic.name, each.partition) for each in topic.offline)
    return partitions
