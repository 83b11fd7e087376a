"""A writing run: an archive under the lease, opened by a fence. What another run closed commits nothing more."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.documents import IsolationLevel, Kind, OpenRun
from kbackup.archive.catalog.operations import begin_run, end_run
from kbackup.archive.catalog.state import State
from kbackup.archive.derived import refresh_derived
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import ArchiveInfo, Document, DocumentRef, Metadata, document_ref, dump
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.secrets import as_archived
from kbackup.errors import AlreadyExistsError, LeaseLostError, NoArchiveError
from kbackup.store.base import Store, encryption_of
from kbackup.store.probe import check_conditional_writes
from kbackup.store.wrappers import GuardedStore
from kbackup.util.times import now


def open_or_create(store: Store) -> Archive:
    """Return the archive at `store`, made when there is none; `StoreError` for a store that can't keep one safe."""
    try:
        return open_archive(store)
    except NoArchiveError:
        info = ArchiveInfo(id=uuid.uuid4().hex, created_at=now(), encryption=encryption_of(store))
    check_conditional_writes(store, "check")
    with suppress(AlreadyExistsError):  # another run made it just now: the one that is there counts
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
    kind: Kind
    interrupted: bool = False
    """True if the run before this one was interrupted and may have left segments behind."""
    began: int = 0
    """The catalog of the fence."""
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def store(self) -> Store:
        return self.archive.store

    @property
    def next_point(self) -> int:
        return self.archive.state.next_point

    def commit(self, operation: Callable[[State], State], kind: Kind, summary: str) -> None:
        """Commit an operation and move the archive on to it."""
        author = Author(kind, self.run, summary)
        self.archive.move(commit(self.store, self.archive.committed, operation, author))

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

    def refresh_derived(self) -> None:
        """Write the derived files that changed since they were last written."""
        refresh_derived(self.archive)

    def since(self) -> float:
        """Return the time when this run began, in seconds since the epoch by the store's clock."""
        return self.store.stat(layout.catalog_key(self.began)).modified

    def end(self) -> None:
        """Close the run. A later run would close it as well."""
        with suppress(LeaseLostError):
            self.commit(lambda state: end_run(state, self.run), "end", f"{self.kind} ended")


def begin_writing(
    store: Store,
    lease: HeldLease,
    kind: Kind,
    isolation_level: IsolationLevel = "read_committed",
    archive: Archive | None = None,
) -> WritingRun:
    """Fence off every other run, and write the derived files that an interrupted run left behind.

    The archive must exist (`open_or_create`), and `lease` be held. A repair hands over the `archive` at the catalog
    that it goes on from.
    """
    if archive is None:
        archive = open_archive(GuardedStore(store, lease.check))
    writing = WritingRun(archive, store, lease, kind, archive.state.open_run is not None)
    opened = OpenRun(
        run=writing.run, command=kind, host=socket.gethostname(), started_at=now(), isolation_level=isolation_level
    )
    writing.commit(lambda state: begin_run(state, opened), "begin", f"{kind} began")
    writing.began = archive.state.number
    writing.refresh_derived()
    return writing
