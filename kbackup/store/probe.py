"""Try a store with a small object: its clock, and whether it honours conditional writes, which some S3 servers ignore
silently."""

from __future__ import annotations

import secrets

from kbackup.errors import AlreadyExistsError, PreconditionError, StoreError
from kbackup.store.base import Store


def check_conditional_writes(store: Store, folder: str) -> None:
    """Create, replace and remove a small object under `folder`; `StoreError` if a condition is ignored."""
    key = f"{folder}/probe-{secrets.token_hex(8)}"
    first = store.put_new(key, b"1")
    try:
        _must_refuse_create(store, key)
        store.replace(key, b"22", first)
        _must_refuse_replace(store, key, first)
    finally:
        failed = store.delete([key])
    if failed:
        raise failed[0].error


def store_time(store: Store, folder: str) -> float:
    """Return the time of the store's clock, in seconds since the epoch: that of an object written now.

    As a listing has it, like the times that it is compared with: S3's other answers leave fractions of seconds out.
    """
    key = f"{folder}/clock-{secrets.token_hex(8)}"
    try:
        store.put_new(key, b"1")
        return next(entry.modified for entry in store.list(key) if entry.key == key)
    finally:
        store.delete([key])


def _must_refuse_create(store: Store, key: str) -> None:
    try:
        store.put_new(key, b"333")
    except AlreadyExistsError:
        return
    raise _ignored(store, "If-None-Match")


def _must_refuse_replace(store: Store, key: str, etag: str) -> None:
    try:
        store.replace(key, b"4444", etag)
    except PreconditionError:
        return
    raise _ignored(store, "If-Match")


def _ignored(store: Store, condition: str) -> StoreError:
    return StoreError(
        f"{store.url} ignores conditional writes ({condition})",
        "use a store that honours them: two writers could overwrite each other's objects",
    )
