"""Folders that are not yet clean. Take a folder out when it is clean; add none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePosixPath

NOT_YET_CLEAN: Sequence[str] = []
"""Folders, files, and patterns of files in one folder."""


def is_listed(path: PurePosixPath, entries: Collection[str]) -> bool:
    return any(_holds(entry, path) for entry in entries)


def stale_entries(problem_paths: Iterable[PurePosixPath], entries: Collection[str]) -> list[str]:
    """Return the entries below which there is no problem any more."""
    paths = set(problem_paths)
    return [entry for entry in entries if not any(_holds(entry, path) for path in paths)]


def _holds(entry: str, path: PurePosixPath) -> bool:
    folder, _, pattern = entry.rpartition("/")
    if "*" in pattern:
        return path.parent == PurePosixPath(folder) and path.match(pattern)
    return path.is_relative_to(entry)
