"""Data that the steps of a backup share: connections under the lease, the capture, and the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Groups, LastRecord, Loss, Manifest, Metadata, TopicState, Totals
from kbackup.archive.reader import Archive
from kbackup.archive.run import WritingRun
from kbackup.archive.segments.table import Segment
from kbackup.config.models import Backup
from kbackup.errors import ClusterError, MismatchError, RefusedError
from kbackup.jobs.backup.plan import Plan, clamp, same_groups, same_settings, says_more
from kbackup.jobs.capture import LiveTopic
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client import Properties
from kbackup.kafka.consume import Vanished
from kbackup.metadata.sources import Sources
from kbackup.metrics.registry import LOSSES, ROUNDS, counted
from kbackup.types import TopicPartition
from kbackup.util.text import join_names

if TYPE_CHECKING:
    from kbackup.archive.models import TopicState


@dataclass(frozen=True)
class BackupReport:
    """Report of a backup. `seconds` are by step; `held_back` counts the partitions whose new records wait.

    `damage` names the corrupt sources of metadata: the restore point lacks what only they have.
    """

    restore_point: int
    parent: int | None
    committed_at: str
    archive: str
    totals: Totals
    topics: tuple[TopicState, ...]
    losses: tuple[Loss, ...]
    warnings: tuple[str, ...]
    held_back: int = 0
    damage: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class Run:
    """Cluster and archive, connected, under the lease; and the newest restore point, `head`.

    `groups` and `settings` are those of `head`. `interrupted`: an earlier run may have left segments. `sources` tell
    metadata.
    """

    options: Backup
    source: Properties
    writing: WritingRun
    cluster: Cluster
    cluster_id: str
    brokers: int
    head: Manifest | None
    interrupted: bool
    groups: Groups | None = None
    settings: Metadata | None = None
    label: str = ""
    sources: Sources = field(default_factory=lambda: Sources(kafka={}))

    @property
    def archive(self) -> Archive:
        return self.writing.archive

    @property
    def lease(self) -> HeldLease:
        return self.writing.lease

    @property
    def parent(self) -> int | None:
        return self.head.number if self.head is not None else None


@dataclass(frozen=True)
class Read:
    """Archived data of a run: segments, records that retention deleted meanwhile, and last records by partition."""

    segments: Sequence[Segment]
    vanished: Sequence[Vanished] = ()
    lasts: Mapping[TopicPartition, tuple[LastRecord, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Captured:
    """Capture of the cluster: the plan to archive its records, its groups and its settings. `damage` names the corrupt
    sources of metadata."""

    started_at: str
    plan: Plan
    groups: Groups
    settings: Metadata
    damage: tuple[str, ...] = ()

    def says_more_than(self, run: Run) -> bool:
        """Return whether a restore point of this capture would differ from the newest one."""
        if says_more(self.plan, run.head) or run.groups is None or run.settings is None:
            return True
        # a group that moves on in what is held back is none the better for a restore point
        groups = clamp(self.groups, self.plan), clamp(run.groups, self.plan)
        return not (same_groups(*groups) and same_settings(self.settings, run.settings))


# Count backups for Prometheus: what was added, the losses, and the lag behind the cluster.


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


# Check that an archive belongs to the cluster and the topics that a backup would go on with. Pure.


_SHOWN = 5


def check_cluster(head: Manifest | None, cluster_id: str, archive: str, adopt: bool) -> None:
    """Raise `MismatchError` where the newest restore point is of another cluster than `cluster_id`.

    An unknown id ('') fits every cluster: an adopted folder and some sources have none.
    """
    if head is None or adopt or not head.cluster_id or not cluster_id or head.cluster_id == cluster_id:
        return
    raise MismatchError(
        f"archive {archive} is of cluster {head.cluster_id}, the source is cluster {cluster_id}",
        "check bootstrap.servers, or back up this cluster to an address of its own; "
        "where it is the same cluster, rebuilt, run one backup with --adopt-cluster",
    )


def check_identity(head: Manifest | None, selected: Sequence[LiveTopic], adopt: bool) -> None:
    """Raise `RefusedError` where the archive has a topic without an id (after an adoption, or a repair without it) and
    the cluster has the topic with an id: records of another topic of that name would follow."""
    if head is None or adopt:
        return
    unknown = {t.name for t in head.topics if not t.id}
    unidentified = [t.name for t in selected if t.id and t.name in unknown]
    if not unidentified:
        return
    raise RefusedError(
        f"nothing in the archive tells whether topic {join_names(unidentified, _SHOWN)} of the source is "
        "the one that it has records of",
        "compare them with 'kbackup verify --against source'; where they are the same, run one backup with "
        "--adopt-topics",
    )


def check_same_topics(cluster: Cluster, plan: Plan) -> None:
    """Raise `ClusterError` where a topic was created anew during the read: its records may be of either topic."""
    now_there = cluster.topics(t.name for t in plan.topics)
    for topic in plan.topics:
        present = now_there.get(topic.name)
        if present is not None and present.id != topic.id:
            raise ClusterError(
                f"topic {topic.name} was deleted and created again while it was backed up",
                "run the backup once more: it archives the topic as a new incarnation; nothing is committed",
            )
