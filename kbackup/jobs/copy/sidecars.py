"""Copy the files beside restore points: data keys, and the files of restores and drills."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from kbackup.archive import layout
from kbackup.archive.segments.transfer import THREADS, put_same
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store
from kbackup.store.crypt.raw import stored


def copy_keys(source: Store, target: Store) -> None:
    """Copy the files of data keys, before the objects that are encrypted under them. They are created and never
    replaced."""
    raw_source, raw_target = stored(source), stored(target)
    there = {entry.key for entry in raw_target.list(layout.KEYS)}
    for entry in raw_source.list(layout.KEYS):
        if entry.key not in there:
            put_same(target, entry.key, raw_source.get(entry.key))


def check_keys(source: Store, target: Store) -> None:
    """Raise `CorruptError` for a file of data keys that both have and that is not the same: it is never replaced, so
    one of the two may hold the only genuine data keys."""
    raw_source, raw_target = stored(source), stored(target)

    def check(key: str) -> None:
        with suppress(NotFoundError):  # a rotation was faster
            if raw_source.get(key) != raw_target.get(key):
                raise CorruptError(
                    f"file {key} at {target.url} is not the one at {source.url}; nothing was copied",
                    "find out which one was replaced; move it away and restore it from the other",
                )

    there = {entry.key for entry in raw_target.list(layout.KEYS)}
    both = [entry.key for entry in raw_source.list(layout.KEYS) if entry.key in there]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(check, both))


def copy_beside(source: Store, target: Store) -> int:
    """Copy the files of restores and drills that are missing or different, and return their number. Reports are copied
    last: a report tells that its restore is finished. Data keys that came since, under which some files may be
    encrypted, follow."""
    raw_source, raw_target = stored(source), stored(target)

    def one(key: str) -> int:
        data = raw_source.get(key)
        if key in sizes and raw_target.get(key) == data:
            return 0
        raw_target.put(key, data)
        return 1

    copied = 0
    for folder in (layout.RESTORES, layout.DRILLS):
        sizes = {entry.key: entry.size for entry in raw_target.list(folder)}
        found = list(raw_source.list(folder))
        changed = [e.key for e in found if sizes.get(e.key) != e.size or e.key.endswith(".json")]
        reports = [key for key in changed if key.endswith("/" + layout.REPORT)]
        with ThreadPoolExecutor(THREADS) as pool:
            copied += sum(pool.map(one, [key for key in changed if key not in set(reports)]))
            copied += sum(pool.map(one, reports))
    copy_keys(source, target)
    return copied
