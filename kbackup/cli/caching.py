"""The store of a command that only looks: what it reads of an archive's metadata is kept for the next one."""

from __future__ import annotations

import os
from pathlib import Path

from kbackup.archive.expected import check_archive_id
from kbackup.cli.frame import Frame
from kbackup.metrics import counted
from kbackup.store import Store, open_store


def looked_into(frame: Frame) -> Store:
    """The store of the archive that the command is about."""
    config = frame.config
    folder = cache_folder() if config.metadata_cache else None
    store = open_store(frame.archive, config.s3, config.encryption.key or "", folder, config.archive_id)
    counted.archive(store.url)
    check_archive_id(store, config.archive_id)
    return store


def cache_folder() -> Path | None:
    """By the XDG base directories; None where there is no home."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        base = named if named.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "kbackup" / "archives"
