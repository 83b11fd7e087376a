"""Data that the steps of a backup share: connections under the lease, the capture, and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kbackup.archive.catalog.run import WritingRun
from kbackup.archive.lease.hold import HeldLease
from kbackup.archive.models import Groups, LastRecord, Loss, Manifest, Metadata, TopicState, Totals
from kbackup.archive.reader import Archive
from kbackup.archive.segments.table import Segment
from kbackup.config.jobs import Backup
from kbackup.jobs.backup.hold_back import clamp
from kbackup.jobs.backup.next_state import same_groups, same_settings, says_more
from kbackup.jobs.backup.plan import Plan
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client.client import Properties
from kbackup.kafka.consume.read import Vanished
from kbackup.metadata.sources import Sources
from kbackup.types import TopicPartition


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
