"""The store of a command that only looks: what it reads of an archive's metadata is kept for the next one."""

from __future__ import annotations

import os
from pathlib import Path

from kbackup.cli.frame import Frame
from kbackup.metrics import counted
from kbackup.store import Store, open_store


def looked_into(frame: Frame) -> Store:
    """The store of the archive that the command is about."""
    folder = cache_folder() if frame.config.metadata_cache else None
    store = open_store(frame.archive, frame.config.s3, frame.config.encryption.key or "", folder)
    counted.archive(store.url)
    return store


def cache_folder() -> Path | None:
    """By the XDG base directories; None where there is no home."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        base = named if named.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "kbackup" / "archives"
