"""Try a store with a small object: its clock, and whether it honours conditional writes, which some S3 servers ignore
silently."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from kbackup.errors import AlreadyExistsError, PreconditionError, StoreError
from kbackup.store.base import Store


def check_conditional_writes(store: Store, folder: str) -> None:
    """Create, replace and remove a small object under `folder`; `StoreError` if a condition is ignored."""

    def must_refuse(condition: str, refusal: type[StoreError], write: Callable[[], str]) -> None:
        try:
            write()
        except refusal:
            return
        raise StoreError(
            f"{store.url} ignores conditional writes ({condition})",
            "use a store that honours them: two writers could overwrite each other's objects",
        )

    key = f"{folder}/probe-{secrets.token_hex(8)}"
    first = store.put_new(key, b"1")
    try:
        must_refuse("If-None-Match", AlreadyExistsError, lambda: store.put_new(key, b"333"))
        store.replace(key, b"22", first)
        must_refuse("If-Match", PreconditionError, lambda: store.replace(key, b"4444", first))
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
