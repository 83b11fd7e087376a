"""Files of commands on this machine: a cache of metadata, and the newest catalog that they read."""

from __future__ import annotations

import logging

import click

from kbackup.archive import layout
from kbackup.archive.catalog.seen import SeenCatalog
from kbackup.archive.identity import check_archive_id
from kbackup.cli.common.frame import Frame
from kbackup.errors import KbackupError
from kbackup.metrics.registry import counted
from kbackup.store import Store, open_store
from kbackup.util.folders import cache_folder

log = logging.getLogger(__name__)


def cached_archive_store(frame: Frame, address: str | None = None) -> Store:
    """Open the store of the command's archive, or of the archive at `address`, with the cache of metadata."""
    config = frame.config
    folder = cache_folder() if config.metadata_cache else None
    key = config.encryption.key or ""
    metadata = folder / "archives" if folder is not None else None
    store = open_store(
        address or frame.archive, config.s3, key, metadata, config.archive_id, key_class=layout.key_class
    )
    counted.archive(store.url)
    check_archive_id(store, config.archive_id)
    check_seen(frame, store)
    return store


def check_seen(frame: Frame, store: Store, *, commits: bool = False) -> None:
    """Compare the newest catalog with the newest that this machine has read.

    A command that `commits` stores the number of the newest catalog at its end."""
    folder = cache_folder() if frame.config.metadata_cache else None
    if folder is None:
        return
    seen = SeenCatalog(store, folder / "seen")
    seen.check(frame.accept_rollback)

    def remember() -> None:
        try:
            seen.remember()
        except KbackupError as error:
            log.info("can't read the number of the newest catalog: %s", error)

    if commits:
        click.get_current_context().call_on_close(remember)
