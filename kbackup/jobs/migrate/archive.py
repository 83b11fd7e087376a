"""The job of `kbackup migrate archive`: a restore point of metadata alone.

Topics and groups stand in it as of the restore point before it, as topics do that a backup did not select. The next
backup goes on where the last one ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.catalog.operations import add_point, end_run, label_point
from kbackup.archive.catalog.run import WritingRun, open_or_create
from kbackup.archive.catalog.state import State
from kbackup.archive.lease.hold import HeldLease
from kbackup.archive.models import Capture, DocumentRef, Groups, Manifest, Metadata
from kbackup.archive.new_point import Draft, new_point, put_manifest
from kbackup.archive.secrets import as_archived
from kbackup.config.jobs import Backup
from kbackup.errors import UsageError
from kbackup.jobs.backup.job import begin_point
from kbackup.jobs.capture.settings import settings_warnings
from kbackup.jobs.metadata.merge import Merged
from kbackup.jobs.metadata.read import read_all
from kbackup.jobs.migrate.lag import lag_warnings
from kbackup.metadata.entities import NotCarried, source_name
from kbackup.metadata.parts import PARTS
from kbackup.metadata.sources import Sources
from kbackup.metrics.events import Listener, Phases
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
    options: Backup, sources: Sources, store: Store, listener: Listener, label: str = ""
) -> ArchiveReport:
    """Commit a restore point of the cluster's metadata, with `label`; raises a `KbackupError` when there is none in the
    end."""
    if not (sources.kafka.get("bootstrap.servers") or sources.zookeeper or sources.metadata_log):
        raise UsageError(
            "[source] names no cluster", "set bootstrap.servers, zookeeper.connect or metadata.log.dir"
        )
    phases, started_at = Phases(listener), now()
    with phases.step("read metadata"):
        open_or_create(store)
        merged = read_all(sources)
        lagging = lag_warnings(sources)
    with HeldLease(store, "kbackup migrate archive", options.lease_seconds) as lease:
        with phases.step("connect"):
            writing = begin_point(options, store, merged.metadata.cluster_id, lease)
        with phases.step("commit"):
            metadata = as_archived(merged.metadata, writing.archive.info)
            manifest = _commit(
                writing, options, Merged(metadata, (*merged.warnings, *lagging)), started_at, label
            )
            writing.refresh_derived()
    return ArchiveReport(
        restore_point=manifest.number,
        committed_at=manifest.committed_at,
        archive=store.url,
        label=label,
        parts=tuple(_parts(metadata)),
        not_carried=metadata.not_carried,
        warnings=manifest.warnings,
        seconds=phases.seconds,
    )


def _commit(writing: WritingRun, options: Backup, merged: Merged, started_at: str, label: str) -> Manifest:
    head, number = writing.archive.head, writing.next_point
    topics = (
        [replace(t, state="unselected") if t.state == "present" else t for t in head.topics] if head else []
    )
    captured = {topic.captured for topic in topics}
    own = Capture(
        number=number,
        started_at=started_at,
        groups=_groups(writing, head, started_at),
        metadata=writing.put_document(number, layout.METADATA, merged.metadata),
    )
    draft = Draft(
        number=number,
        started_at=started_at,
        committed_at=now(),
        cluster_id=merged.metadata.cluster_id,
        isolation_level=options.isolation_level,
        topics=topics,
        segments=(),
        warnings=(*merged.warnings, *settings_warnings(merged.metadata)),
        captures=(*(c for c in (head.captures if head else ()) if c.number in captured), own),
        groups=0,
        captured_topics=0,
        captured_partitions=0,
    )
    manifest, ref = put_manifest(writing, draft)
    new = new_point(manifest, ref, ())

    def operation(state: State) -> State:
        added = add_point(state, writing.run, new)
        added = label_point(added, label, number) if label else added
        # an interrupted backup has left segments: an open run has the next backup look for them
        return added if writing.interrupted else end_run(added, writing.run)

    writing.commit(operation, "backup", f"restore point {number}: metadata alone")
    return manifest


def _groups(writing: WritingRun, head: Manifest | None, started_at: str) -> DocumentRef:
    """The groups document of the restore point before, which a later backup compares with; else one without groups."""
    known = next((c.groups for c in head.captures if c.number == head.number), None) if head else None
    return known or writing.put_document(
        writing.next_point, layout.GROUPS, Groups(captured_at=started_at, groups=())
    )


def _parts(metadata: Metadata) -> list[PartReport]:
    reports = []
    for part in PARTS:
        value, source = getattr(metadata, part.name), metadata.sources.get(part.name)
        if source is not None:
            reports.append(
                PartReport(part.label, len(value) if isinstance(value, tuple) else 1, source_name(source))
            )
    return reports
