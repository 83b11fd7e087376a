"""A writing run: an archive under the lease, opened by a fence, which adds restore points. What another run closed
commits nothing more."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from kbackup import __version__
from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit, write_hint
from kbackup.archive.catalog.documents import IsolationLevel, OpenRun, OperationKind
from kbackup.archive.catalog.operations import begin_run, end_run
from kbackup.archive.catalog.points import manifest_key
from kbackup.archive.catalog.state import State
from kbackup.archive.derived import Files, refresh_derived, write_none
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import (
    ArchiveInfo,
    Capture,
    Document,
    DocumentRef,
    Groups,
    Manifest,
    Metadata,
    Totals,
    document_ref,
    dump,
    load,
)
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.secrets import as_archived
from kbackup.archive.segments.table import Segment, sum_of
from kbackup.errors import AlreadyExistsError, LeaseLostError, NoArchiveError, NotFoundError, StoreError
from kbackup.store.base import Store, check_conditional_writes, encryption_of
from kbackup.store.wrappers import GuardedStore
from kbackup.util.times import now

TOOL = f"kbackup {__version__}"
"""The program that made a restore point, as its manifest names it."""


def open_or_create(store: Store) -> Archive:
    """Return the archive at `store`, made when there is none; `StoreError` for a store that can't keep one safe."""
    try:
        return open_archive(store)
    except NoArchiveError:
        info = ArchiveInfo(id=uuid.uuid4().hex, created_at=now(), encryption=encryption_of(store))
    # Before anything is written: without conditional writes two runs could commit at once.
    check_conditional_writes(store, "check")
    # Suppressed: another run made it just now. Then the archive that is there counts.
    with suppress(AlreadyExistsError):
        store.put_new(layout.ARCHIVE, dump(info))
    return open_archive(store)


@dataclass
class WritingRun:
    """The one run that may write segments and restore points. `archive` moves on with each commit.

    `store` checks the lease before each write; `plain` is the same store for tasks on other machines.
    """

    archive: Archive
    plain: Store
    lease: HeldLease
    kind: OperationKind
    interrupted: bool = False
    """True if the run before this one was interrupted and may have left segments behind."""
    began: int = 0
    """The catalog of the fence."""
    hints: bool = True
    """False: latest.json is written with the derived files, not with each commit."""
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def store(self) -> Store:
        return self.archive.store

    @property
    def archive_id(self) -> str:
        return self.archive.info.id

    @property
    def next_point(self) -> int:
        return self.archive.state.next_point

    @property
    def previous(self) -> int | None:
        """The number of the newest restore point, which the next one comes after; None for the first."""
        newest = self.archive.state.newest
        return newest.number if newest is not None else None

    def commit(self, operation: Callable[[State], State], kind: OperationKind, summary: str) -> None:
        """Commit an operation and move the archive on to it."""
        author = Author(kind, self.run, summary)
        committed = commit(self.store, self.archive.committed, operation, author, hint=self.hints)
        self.archive.move(committed)

    def put_document(self, number: int, name: str, document: Document) -> DocumentRef:
        """Create a document of restore point `number`, before the commit that refers to it.

        An archive that is not encrypted gets metadata without its secrets.
        """
        if isinstance(document, Metadata):
            document = as_archived(document, self.archive.info)
        data = dump(document)
        key = layout.point_key(number, self.run, name)
        self.store.put_new(key, data)
        return document_ref(key, data)

    def refresh_derived(self, write: Callable[[Files], Files] = write_none) -> None:
        """Write the derived files that changed since they were last written; `write` as in `refresh_derived`."""
        if not self.hints:
            write_hint(self.store, self.archive.state)
        refresh_derived(self.archive, write)

    @cached_property
    def since(self) -> float:
        """The time when this run began, in seconds since the epoch by the store's clock."""
        fence = self.store.stat(layout.catalog_key(self.began))
        return fence.modified

    def end(self) -> None:
        """Close the run. A later run would close it as well, so it does no harm if this one can't any more."""

        def close(state: State) -> State:
            return end_run(state, self.run)

        with suppress(LeaseLostError):
            self.commit(close, "end", f"{self.kind} ended")


def begin_writing(
    store: Store, lease: HeldLease, kind: OperationKind, isolation_level: IsolationLevel = "read_committed"
) -> WritingRun:
    """Fence off every other run, and write the derived files that an interrupted run left behind.

    The archive must exist (`open_or_create`), and `lease` be held.
    """
    archive = open_archive(GuardedStore(store, lease.check))
    # A run that ended well is no longer open.
    interrupted = archive.state.open_run is not None
    writing = WritingRun(archive, store, lease, kind, interrupted)
    opened = OpenRun(
        run=writing.run, command=kind, host=socket.gethostname(), started_at=now(), isolation_level=isolation_level
    )

    def fence(state: State) -> State:
        return begin_run(state, opened)

    # From this commit on no earlier run can commit, whatever it still writes.
    writing.commit(fence, "begin", f"{kind} began")
    writing.began = archive.state.number
    writing.refresh_derived()
    return writing


def put_capture(writing: WritingRun, number: int, started_at: str, groups: Groups, metadata: Metadata) -> Capture:
    """Create the documents of a capture for restore point `number`."""
    return Capture(
        number=number,
        started_at=started_at,
        groups=writing.put_document(number, layout.GROUPS, groups),
        metadata=writing.put_document(number, layout.METADATA, metadata),
    )


def put_manifest(writing: WritingRun, manifest: Manifest) -> Manifest:
    """Create the manifest of the next restore point of `writing`, before the commit that adds the restore point; return
    it as its bytes say, with its checksum."""
    key = manifest_key(manifest)
    data = dump(manifest)
    writing.store.put_new(key, data)
    return load(Manifest, data, key)


def totals_of(segments: Sequence[Segment], *, topics: int, partitions: int, groups: int) -> Totals:
    """Return the totals of a restore point that adds `segments`, and captured so many topics, partitions and groups."""
    return Totals(
        topics=topics,
        partitions=partitions,
        segments=len(segments),
        records=sum_of(segments, "count"),
        bytes=sum_of(segments, "bytes"),
        stored_bytes=sum_of(segments, "stored"),
        groups=groups,
    )


def check_written(store: Store, segments: Sequence[Segment]) -> None:
    """Raise `StoreError` if a directory lacks a segment that a task wrote: the task may have written it to the disk of
    another machine."""
    # A store behind a server is the same for all machines.
    if store.address.server:
        return
    for segment in segments:
        try:
            size = store.stat(segment.key).size
        except NotFoundError:
            size = None
        if size == segment.stored:
            continue
        problem = "is not there" if size is None else f"has {size} bytes, not {segment.stored}"
        raise StoreError(
            f"{store.url} can't have a new restore point: {segment.key} {problem}",
            "see that every worker of Spark has the same directory there, and run the command again",
        )
