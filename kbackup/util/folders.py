"""Folders of the user on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_folder(env: Mapping[str, str] = os.environ) -> Path | None:
    """Return kbackup's folder below XDG_CACHE_HOME, as a rule ~/.cache; None where there is no home."""
    named = Path(env.get("XDG_CACHE_HOME", ""))
    try:
        base = named if named.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "kbackup"
