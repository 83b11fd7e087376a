"""The data keys of an encrypted archive: which there are, and handing them over to another key."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from kbackup.archive import layout
from kbackup.archive.catalog.sweep import table_refs
from kbackup.archive.identity import read_info
from kbackup.archive.lease import HeldLease
from kbackup.archive.reader import open_archive
from kbackup.archive.verify.findings import Findings
from kbackup.errors import CorruptError, WrongKeyError
from kbackup.store.base import Store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import load_kek
from kbackup.store.crypt.keyring import (
    Keyring,
    Rotated,
    Skipped,
    find_conflicts,
    list_files,
    read_files,
    rotate,
    unwrap_files,
)


@dataclass(frozen=True)
class HeldKeys:
    """A file of data keys. `ours` tells whether the given key opens it."""

    file: str
    created_at: str
    kek: str
    keys: int
    ours: bool


class KeyFiles(NamedTuple):
    """`held` are the files of data keys, oldest first. `skipped` are damaged, of another archive, or not what the key
    wrapped. Files in `conflicts` hold different data keys under one id."""

    held: list[HeldKeys]
    skipped: list[Skipped]
    conflicts: list[CorruptError]


def held_keys(store: Store) -> KeyFiles:
    """Read the files of data keys of an encrypted archive."""
    return _read_key_files(_encrypted(store))


def check_data_keys(store: Store, findings: Findings) -> None:
    """Add a finding for each two files of data keys in conflict, and a note for each file that gives no data key."""
    if isinstance(store, CryptStore):
        files = _read_key_files(store)
        for conflict in files.conflicts:
            findings.add(layout.KEYS, conflict.message, conflict.hint)
        for path, error in files.skipped:
            findings.note(path, f"gives no data key: {error.message}")


def _read_key_files(crypt: CryptStore) -> KeyFiles:
    kek = crypt.keyring.kek
    archive_id = crypt.keyring.archive_id
    files = list_files(crypt.inner)
    found, unusable = read_files(crypt.inner, files, archive_id)
    under_our_key = [each for each in found if each.file.kek == kek.name]
    opened, closed = unwrap_files(kek, under_our_key, archive_id)
    ours = {each.path for each in opened}
    held: list[HeldKeys] = []
    for path, file in found:
        held.append(HeldKeys(path, file.created_at, file.kek, len(file.keys), path in ours))
    held.sort(key=attrgetter("created_at", "file"))
    # Files that can't be read, and files that our key does not open.
    skipped = [*unusable, *closed]
    return KeyFiles(held, skipped, find_conflicts(opened))


def try_key(store: Store) -> str:
    """Return the name of the key that an encrypting store is opened with, after wrapping and unwrapping by it."""
    if not isinstance(store, CryptStore):
        raise WrongKeyError(f"{store.url} is opened without a key", "set encryption.key")
    return store.keyring.try_out()


def rotate_keys(store: Store, new: str, lease_seconds: float) -> Rotated:
    """Wrap the data keys under the key that `new` names, instead of the key that `store` is opened with. The writer's
    lease is held meanwhile."""
    crypt = _encrypted(store)
    kek = load_kek(new)
    inner = crypt.inner
    archive_id = crypt.keyring.archive_id

    def samples() -> list[str]:
        """Return the tables of the newest catalog and the manifest of each restore point. Every run wrote one of these
        objects, so each data key is tried."""
        opened = CryptStore(inner, Keyring(inner, new, archive_id=archive_id), layout.key_class)
        committed = open_archive(opened).committed
        tables = table_refs(committed.catalog) if committed.catalog is not None else []
        keys = [ref.key for ref in tables]
        keys += [point.documents[0] for point in committed.state.restore_points]
        return keys

    # No other run may begin meanwhile: it would wrap new data keys under the old key.
    with HeldLease(store, "kbackup key rotate", lease_seconds) as lease:
        lease.check()
        return rotate(inner, crypt.keyring.kek, kek, archive_id, samples)


def _encrypted(store: Store) -> CryptStore:
    read_info(store)  # its errors tell which key or store does not fit
    if not isinstance(store, CryptStore):
        raise WrongKeyError(f"archive {store.url} is not encrypted", "create an encrypted archive for this command")
    return store
