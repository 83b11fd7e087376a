"""What commands keep on this machine: metadata that they read, and the newest catalog that they saw."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import click

from kbackup.archive.catalog.seen import SeenCatalog
from kbackup.archive.identity import check_archive_id
from kbackup.cli.common.frame import Frame
from kbackup.errors import KbackupError
from kbackup.metrics.registry import counted
from kbackup.store import Store, open_store

log = logging.getLogger(__name__)


def looked_into(frame: Frame, address: str | None = None) -> Store:
    """The store of the archive that the command is about; `address`: of one of several that it is about."""
    config = frame.config
    folder = cache_folder() if config.metadata_cache else None
    key = config.encryption.key or ""
    store = open_store(address or frame.archive, config.s3, key, folder, config.archive_id)
    counted.archive(store.url)
    check_archive_id(store, config.archive_id)
    check_seen(frame, store)
    return store


def cache_folder() -> Path | None:
    """By the XDG base directories; None where there is no home."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        base = named if named.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "kbackup" / "archives"


def check_seen(frame: Frame, store: Store, *, commits: bool = False) -> None:
    """Compare the newest catalog with the newest that this machine has seen; again at the end where it `commits`."""
    folder = cache_folder() if frame.config.metadata_cache else None
    if folder is None:
        return
    seen = SeenCatalog(store, folder.with_name("seen"))
    seen.check(frame.accept_rollback)

    def remember() -> None:
        try:
            seen.remember()
        except KbackupError as error:
            log.info("the newest catalog number can't be asked for: %s", error)

    if commits:
        click.get_current_context().call_on_close(remember)
