"""The data keys of an encrypted archive: which there are, and handing them over to another key."""

from __future__ import annotations

from dataclasses import dataclass

from kbackup.archive.lease.hold import HeldLease
from kbackup.archive.reader import open_archive
from kbackup.errors import WrongKeyError
from kbackup.store.base import Store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import load_kek
from kbackup.store.crypt.key_files import Skipped, list_files, read_files, split_foreign
from kbackup.store.crypt.rotate import Rotated, rotate


@dataclass(frozen=True)
class HeldKeys:
    """A file of data keys. `ours`: the key that is given opens it."""

    file: str
    created_at: str
    kek: str
    keys: int
    ours: bool


def held_keys(store: Store) -> tuple[list[HeldKeys], list[Skipped]]:
    """The files of data keys, oldest first, and those that are damaged or of another archive."""
    opened = _encrypted(store)
    ours = opened.keyring.kek.name
    files, damaged = read_files(opened.inner, list_files(opened.inner))
    found, foreign = split_foreign(files, opened.keyring.archive_id)
    held = [
        HeldKeys(path, file.created_at, file.kek, len(file.keys), file.kek == ours) for path, file in found
    ]
    return sorted(held, key=lambda h: (h.created_at, h.file)), [*damaged, *foreign]


def try_key(store: Store) -> str:
    """The name of the key that an encrypting store is opened with, when it does its work."""
    if not isinstance(store, CryptStore):
        raise WrongKeyError(f"{store.url} is opened without a key", "set encryption.key")
    return store.keyring.try_out()


def rotate_keys(store: Store, new: str, lease_seconds: float) -> Rotated:
    """Wrap the data keys under the key that `new` names, instead of the key that `store` is opened with; under the
    writer's lease."""
    opened = _encrypted(store)
    kek = load_kek(new)
    with HeldLease(store, "kbackup key rotate", lease_seconds) as lease:
        lease.check()
        return rotate(opened.inner, opened.keyring.kek, kek, opened.keyring.archive_id)


def _encrypted(store: Store) -> CryptStore:
    open_archive(store)  # says what does not fit
    if not isinstance(store, CryptStore):
        raise WrongKeyError(
            f"archive {store.url} is not encrypted", "create an encrypted archive for this command"
        )
    return store
