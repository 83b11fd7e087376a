"""The job of `kbackup migrate archive`: a restore point of metadata alone.

Topics and groups stand in it as of the restore point before it, as topics do that a backup did not select. The next
backup goes on where the last one ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.catalog.labels import check_label
from kbackup.archive.catalog.operations import add_point, end_run, label_point
from kbackup.archive.catalog.state import State
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Capture, DocumentRef, Groups, Manifest, Metadata, TopicState
from kbackup.archive.run import TOOL, WritingRun, open_or_create, put_manifest, totals_of
from kbackup.archive.secrets import as_archived
from kbackup.archive.segments.table import in_table
from kbackup.config.models import Backup
from kbackup.errors import UsageError
from kbackup.jobs.backup.job import begin_point
from kbackup.jobs.capture import settings_warnings
from kbackup.jobs.metadata import Merged, read_all
from kbackup.metadata.entities import PARTS, NotCarried, source_name
from kbackup.metadata.sources import Sources
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.migrate.lag import lag_warnings
from kbackup.store.base import Store
from kbackup.util.times import now


@dataclass(frozen=True)
class PartReport:
    """A part of the metadata: how many entities there are, and where they were read."""

    part: str
    entities: int
    source: str


@dataclass(frozen=True)
class ArchiveReport:
    restore_point: int
    committed_at: str
    archive: str
    label: str
    parts: tuple[PartReport, ...]
    not_carried: tuple[NotCarried, ...]
    warnings: tuple[str, ...]
    seconds: dict[str, float] = field(default_factory=dict)


def archive_metadata(
    options: Backup, sources: Sources, store: Store, listener: ProgressListener, label: str = ""
) -> ArchiveReport:
    """Commit a restore point of the cluster's metadata, with `label`; raises a `KbackupError` when there is none in the
    end."""
    if not (sources.kafka.get("bootstrap.servers") or sources.zookeeper or sources.metadata_log):
        raise UsageError("[source] names no cluster", "set bootstrap.servers, zookeeper.connect or metadata.log.dir")
    if label:
        check_label(label)  # the commit checks it as well, after all that was read
    phases = Phases(listener)
    started_at = now()
    with phases.step("read metadata"):
        open_or_create(store)
        merged = read_all(sources)
        lagging = lag_warnings(sources)
    with HeldLease(store, "kbackup migrate archive", options.lease_seconds) as lease:
        with phases.step("connect"):
            cluster_id = merged.metadata.cluster_id
            writing = begin_point(store, lease, cluster_id, options.adopt_cluster, options.isolation_level)
        with phases.step("commit"):
            metadata = as_archived(merged.metadata, writing.archive.info)
            captured = Merged(metadata, (*merged.warnings, *lagging))
            manifest = _commit(writing, options, captured, started_at, label)
            writing.refresh_derived()
    return ArchiveReport(
        restore_point=manifest.number,
        committed_at=manifest.committed_at,
        archive=store.url,
        label=label,
        parts=tuple(_part_reports(metadata)),
        not_carried=metadata.not_carried,
        warnings=manifest.warnings,
        seconds=phases.seconds,
    )


def _part_reports(metadata: Metadata) -> Iterator[PartReport]:
    for part in PARTS:
        if part.name in metadata.sources:
            value = getattr(metadata, part.name)
            entities = len(value) if isinstance(value, tuple) else 1
            source = source_name(metadata.sources[part.name])
            yield PartReport(part.label, entities, source)


def _commit(writing: WritingRun, options: Backup, merged: Merged, started_at: str, label: str) -> Manifest:
    """Commit the restore point: the topics and groups of the one before it, and new metadata."""
    head = writing.archive.head
    number = writing.next_point
    topics = _unselected_topics(head)
    captured = {topic.captured for topic in topics}
    groups = _groups_of(head)
    if groups is None:
        groups = writing.put_document(number, layout.GROUPS, Groups(captured_at=started_at, groups=()))
    metadata = writing.put_document(number, layout.METADATA, merged.metadata)
    own = Capture(number=number, started_at=started_at, groups=groups, metadata=metadata)
    # The first restore point of an archive has none before it.
    captures: tuple[Capture, ...] = ()
    schemas: DocumentRef | None = None
    deletions: DocumentRef | None = None
    if head is not None:
        captures, schemas, deletions = head.captures, head.schemas, head.deletions
    needed = [capture for capture in captures if capture.number in captured]
    warnings = [*merged.warnings, *settings_warnings(merged.metadata)]
    manifest = Manifest(
        archive_id=writing.archive_id,
        number=number,
        run=writing.run,
        previous=writing.previous,
        tool=TOOL,
        started_at=started_at,
        committed_at=now(),
        cluster_id=merged.metadata.cluster_id,
        isolation_level=options.isolation_level,
        warnings=tuple(warnings),
        totals=totals_of((), topics=0, partitions=0, groups=0),
        captures=(*needed, own),
        schemas=schemas,
        deletions=deletions,
        topics=tuple(topics),
    )
    manifest = put_manifest(writing, manifest)
    no_segments = in_table(())

    def operation(state: State) -> State:
        added = add_point(state, manifest, no_segments)
        if label:
            added = label_point(added, label, number)
        # An interrupted backup has left segments. As long as the run stays open, the next backup looks for them.
        return added if writing.interrupted else end_run(added, writing.run)

    writing.commit(operation, "backup", f"restore point {number}: metadata alone")
    return manifest


def _unselected_topics(head: Manifest | None) -> list[TopicState]:
    """Return the topics of the newest restore point, as a backup has topics that it did not select."""
    topics: list[TopicState] = []
    for topic in head.topics if head is not None else ():
        if topic.state == "present":
            topics.append(replace(topic, state="unselected"))
        else:
            topics.append(topic)
    return topics


def _groups_of(head: Manifest | None) -> DocumentRef | None:
    """Return the groups of the newest restore point: a later backup compares with them."""
    if head is None:
        return None
    for capture in head.captures:
        if capture.number == head.number:
            return capture.groups
    return None
