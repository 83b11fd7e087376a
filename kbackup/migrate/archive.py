"""The job of `kbackup migrate archive`: a restore point of metadata alone.

Topics and groups stand in it as of the restore point before it, as topics do that a backup did not select. The next
backup goes on where the last one ended.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.catalog.labels import check_label
from kbackup.archive.catalog.operations import add_point, end_run, label_point
from kbackup.archive.catalog.state import State
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Capture, Groups, Manifest
from kbackup.archive.reader import Archive
from kbackup.archive.run import TOOL, WritingRun, open_or_create, put_manifest, totals_of
from kbackup.archive.secrets import as_archived
from kbackup.archive.segments.table import in_table
from kbackup.config.models import Backup
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.backup.job import begin_point
from kbackup.jobs.capture import settings_warnings
from kbackup.jobs.metadata import Merged, read_all
from kbackup.metadata.entities import PARTS, NotCarried, source_name
from kbackup.metadata.sources import Sources
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.migrate.lag import lag_warnings
from kbackup.migrate.metadata_log.image import (
    NAME,
    producer_id_record,
    quota_records,
    scram_record,
    token_record,
    write_bootstrap,
)
from kbackup.store.base import Store
from kbackup.util.text import join_names
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
    phases, started_at = Phases(listener), now()
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
            manifest = _commit(writing, options, Merged(metadata, (*merged.warnings, *lagging)), started_at, label)
            writing.refresh_derived()
    return ArchiveReport(
        restore_point=manifest.number,
        committed_at=manifest.committed_at,
        archive=store.url,
        label=label,
        parts=tuple(
            PartReport(
                part.label,
                len(value) if isinstance(value := getattr(metadata, part.name), tuple) else 1,
                source_name(metadata.sources[part.name]),
            )
            for part in PARTS
            if part.name in metadata.sources
        ),
        not_carried=metadata.not_carried,
        warnings=manifest.warnings,
        seconds=phases.seconds,
    )


def _commit(writing: WritingRun, options: Backup, merged: Merged, started_at: str, label: str) -> Manifest:
    head, number = writing.archive.head, writing.next_point
    topics = [replace(t, state="unselected") if t.state == "present" else t for t in head.topics] if head else []
    captured = {topic.captured for topic in topics}
    # a later backup compares with the groups of the restore point before
    groups = next((c.groups for c in head.captures if c.number == head.number), None) if head else None
    own = Capture(
        number=number,
        started_at=started_at,
        groups=groups or writing.put_document(number, layout.GROUPS, Groups(captured_at=started_at, groups=())),
        metadata=writing.put_document(number, layout.METADATA, merged.metadata),
    )
    needed = tuple(c for c in (head.captures if head else ()) if c.number in captured)
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
        warnings=(*merged.warnings, *settings_warnings(merged.metadata)),
        totals=totals_of((), topics=0, partitions=0, groups=0),
        captures=(*needed, own),
        schemas=head.schemas if head else None,
        deletions=head.deletions if head else None,
        topics=tuple(topics),
    )
    manifest = put_manifest(writing, manifest)
    no_segments = in_table(())

    def operation(state: State) -> State:
        added = add_point(state, manifest, no_segments)
        added = label_point(added, label, number) if label else added
        # an interrupted backup has left segments: an open run has the next backup look for them
        return added if writing.interrupted else end_run(added, writing.run)

    writing.commit(operation, "backup", f"restore point {number}: metadata alone")
    return manifest


# The job of `kbackup migrate bootstrap`: the bootstrap.checkpoint that a fresh KRaft cluster starts from.
#
# It holds what no running cluster takes: the stored keys of SCRAM users, delegation tokens and the next producer id.
# Client quotas go with them.


_SOME = 5
_WHOLE = (
    "run 'kbackup migrate archive' into an encrypted archive, with zookeeper.connect or metadata.log.dir in [source]"
)


@dataclass(frozen=True)
class BootstrapReport:
    """`expired` are the ids of delegation tokens that were left out. `next_producer_id` is the first id that the old
    cluster had in no block; None if the restore point has none. `live` are the words for `restore --with` of what
    the archive has and the file doesn't set."""

    restore_point: int
    file: str
    scram_users: int
    client_quotas: int
    delegation_tokens: int
    next_producer_id: int | None
    expired: tuple[str, ...]
    live: tuple[str, ...]


def make_bootstrap(archive: Archive, backup: str, base: Path, out: Path) -> BootstrapReport:
    """Write `out`/bootstrap.checkpoint: `base`, which `kafka-storage format` made, with the users, quotas, tokens
    and the next producer id of a restore point. `RefusedError` if the restore point has no secrets."""
    point = archive.find_point(backup)
    metadata = archive.metadata(point.number)
    if metadata.scram_users is None:
        raise RefusedError(f"restore point {point.number} has no SCRAM users: they were not captured", _WHOLE)
    if without := [u.user for u in metadata.scram_users if None in (u.salt, u.stored_key, u.server_key)]:
        users = join_names(without, _SOME)
        raise RefusedError(f"restore point {point.number} has no secrets of SCRAM user {users}", _WHOLE)
    now = datetime.now(UTC).timestamp() * 1000
    tokens = metadata.delegation_tokens or ()
    valid = [token for token in tokens if token.expires_at > now]
    records = [*map(scram_record, metadata.scram_users)]
    records += [record for quota in metadata.client_quotas or () for record in quota_records(quota)]
    if metadata.next_producer_id is not None:
        records.append(producer_id_record(metadata.next_producer_id))
    try:
        formatted = base.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{base}: {(error.strerror or str(error)).lower()}",
            f"name the {NAME} that 'kafka-storage format' wrote into the controller's metadata folder",
        ) from None
    data = write_bootstrap(formatted, [*records, *map(token_record, valid)])
    live = {
        "acls": metadata.acls,
        "configs": metadata.broker_configs or metadata.group_configs or metadata.client_metrics,
    }
    path = out / NAME
    _write(path, data)
    return BootstrapReport(
        restore_point=point.number,
        file=str(path),
        scram_users=len(metadata.scram_users),
        client_quotas=len(metadata.client_quotas or ()),
        delegation_tokens=len(valid),
        next_producer_id=metadata.next_producer_id,
        expired=tuple(token.id for token in tokens if token.expires_at <= now),
        live=tuple(word for word, entities in live.items() if entities),
    )


def _write(path: Path, data: bytes) -> None:
    """Create the file for its owner alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise UsageError(f"{path} is there already", "name another folder by --out") from None
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}", "name another folder by --out") from None
