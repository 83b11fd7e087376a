"""A new restore point: its manifest, and its rows for the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from kbackup import __version__
from kbackup.archive import layout
from kbackup.archive.catalog.operations import NewPoint
from kbackup.archive.catalog.state import Point
from kbackup.archive.models import Capture, DocumentRef, Groups, Loss, Manifest, Metadata, TopicState, Totals, load
from kbackup.archive.run import WritingRun
from kbackup.archive.segments.table import Segment, in_order, to_batch
from kbackup.errors import NotFoundError, StoreError
from kbackup.store.base import Store


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A manifest before its run and its checksum are filled in. `groups` and `captured_…` are counts."""

    number: int
    started_at: str
    committed_at: str
    topics: Sequence[TopicState]
    segments: Sequence[Segment]
    captures: Sequence[Capture]
    groups: int
    captured_topics: int
    captured_partitions: int
    cluster_id: str = ""
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"
    origin: Literal["cluster", "folder", "tables", "repair"] = "cluster"
    losses: Sequence[Loss] = ()
    warnings: Sequence[str] = ()
    not_known: Sequence[str] = ()


def put_capture(writing: WritingRun, number: int, started_at: str, groups: Groups, metadata: Metadata) -> Capture:
    """Create the documents of a capture for restore point `number`."""
    return Capture(
        number=number,
        started_at=started_at,
        groups=writing.put_document(number, layout.GROUPS, groups),
        metadata=writing.put_document(number, layout.METADATA, metadata),
    )


def put_manifest(writing: WritingRun, draft: Draft) -> tuple[Manifest, DocumentRef]:
    """Create the manifest of the next restore point of `writing`."""
    previous = writing.archive.state.newest
    manifest = Manifest(
        archive_id=writing.archive.info.id,
        number=draft.number,
        run=writing.run,
        previous=previous.number if previous is not None else None,
        origin=draft.origin,
        tool=f"kbackup {__version__}",
        started_at=draft.started_at,
        committed_at=draft.committed_at,
        cluster_id=draft.cluster_id,
        isolation_level=draft.isolation_level,
        losses=tuple(draft.losses),
        warnings=tuple(draft.warnings),
        not_known=tuple(draft.not_known),
        totals=Totals(
            topics=draft.captured_topics,
            partitions=draft.captured_partitions,
            segments=len(draft.segments),
            records=sum(s.count for s in draft.segments),
            bytes=sum(s.bytes for s in draft.segments),
            stored_bytes=sum(s.stored for s in draft.segments),
            groups=draft.groups,
        ),
        captures=tuple(draft.captures),
        topics=tuple(draft.topics),
    )
    ref = writing.put_document(draft.number, layout.MANIFEST, manifest)
    return load(Manifest, writing.store.get(ref.key), ref.key), ref


def check_written(store: Store, segments: Sequence[Segment]) -> None:
    """Raise `StoreError` if a directory lacks a segment that a task wrote: that one may have had another machine's
    disk."""
    for segment in () if store.address.server else segments:
        try:
            size = store.stat(segment.key).size
        except NotFoundError:
            size = None
        if size != segment.stored:
            has = "is not there" if size is None else f"has {size} bytes, not {segment.stored}"
            raise StoreError(
                f"{store.url} can't have a new restore point: {segment.key} {has}",
                "see that every worker of Spark has the same directory there, and run the command again",
            )


def new_point(manifest: Manifest, ref: DocumentRef, segments: Sequence[Segment]) -> NewPoint:
    """Return the rows of a restore point that added `segments`."""
    incarnations = {t.name: t.incarnation for t in manifest.topics}
    return NewPoint(
        point=point_of(manifest, ref),
        segments=pa.Table.from_batches([to_batch(sorted(segments, key=in_order))]),
        incarnations={(t.name, t.incarnation): t.id for t in manifest.topics},
        losses=[(incarnations.get(loss.topic, 1), loss) for loss in manifest.losses],
    )


def point_of(manifest: Manifest, ref: DocumentRef) -> Point:
    """Return the row of a manifest in the points table."""
    totals = manifest.totals
    documents = dict.fromkeys([ref.key, *(r.key for c in manifest.captures for r in (c.groups, c.metadata))])
    return Point(
        number=manifest.number,
        run=manifest.run,
        origin=manifest.origin,
        started_at=manifest.started_at,
        committed_at=manifest.committed_at,
        cluster_id=manifest.cluster_id,
        isolation_level=manifest.isolation_level,
        topics=totals.topics,
        partitions=totals.partitions,
        segments=totals.segments,
        records=totals.records,
        bytes=totals.bytes,
        stored_bytes=totals.stored_bytes,
        groups=totals.groups,
        losses=len(manifest.losses),
        warnings=len(manifest.warnings),
        manifest=manifest.checksum,
        documents=tuple(documents),
    )
