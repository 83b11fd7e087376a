"""The promote job: a copy becomes an archive of its own."""

from __future__ import annotations

from dataclasses import dataclass

from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.copies import promote as promote_state
from kbackup.archive.reader import open_archive
from kbackup.store.base import Store


@dataclass(frozen=True)
class PromoteReport:
    """`origin` is the address of the source that the copy followed."""

    archive: str
    archive_id: str
    origin: str


def promote(store: Store) -> PromoteReport:
    """Make the copy at `store` an archive of its own, also where its source is lost. `RefusedError` for no copy."""
    archive = open_archive(store)
    origin = archive.state.origin
    summary = f"promoted; it was a copy of {origin.archive}" if origin is not None else ""
    commit(store, archive.committed, promote_state, Author("promote", "", summary))
    return PromoteReport(store.url, archive.info.id, origin.archive if origin is not None else "")
