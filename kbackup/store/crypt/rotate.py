"""Wrap an archive's data keys with another key-encryption key; the encrypted objects stay as they are."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from kbackup.errors import CorruptError, KbackupError, WrongKeyError
from kbackup.store.base import Failed, Store
from kbackup.store.crypt.kek import Kek
from kbackup.store.crypt.key_files import (
    Named,
    Skipped,
    decode_file,
    list_files,
    new_file,
    read_files,
    split_foreign,
    unwrap_files,
)


class Rotated(NamedTuple):
    """The result of a rotation: `file` holds all `keys` data keys now.

    `removed` are the files that held them before. Files of `undeleted` could not be deleted: the former key still
    unwraps them. Files of `skipped` gave no data key, and stay as they are.
    """

    kek: str
    keys: int
    file: str
    removed: tuple[str, ...]
    undeleted: tuple[Failed, ...]
    skipped: tuple[Skipped, ...]


def rotate(store: Store, old: Kek, new: Kek, archive_id: str) -> Rotated:
    """Wrap all data keys of `store` in one file under `new`, read it back, and delete the other files.

    A second call after a crash finishes the rotation. The caller must make sure that nobody writes keys meanwhile.
    `WrongKeyError` if neither key unwraps any file; nothing is changed then.
    """
    files, damaged = read_files(store, list_files(store))
    ours, foreign = split_foreign(files, archive_id)
    under, others = _split_by_kek(ours, {old.name, new.name})
    keys: dict[bytes, bytes] = {}
    closed: list[Skipped] = []
    for kek in {old.name: old, new.name: new}.values():
        opened, failed = unwrap_files(kek, [each for each in under if each.file.kek == kek.name], archive_id)
        keys, closed = keys | opened, closed + failed
    skipped = (*damaged, *foreign, *others, *closed)
    if not keys:
        raise _no_keys(store, skipped)
    useful = [each for each in under if each.path not in {failed.path for failed in closed}]
    whole = [path for path, file in useful if file.kek == new.name and file.wrapped().keys() == keys.keys()]
    file = whole[0] if whole else _publish(store, new, keys, archive_id)
    replaced = [path for path, _ in useful if path != file]
    undeleted = tuple(store.delete(replaced))
    failed_paths = {failed.key for failed in undeleted}
    removed = tuple(path for path in replaced if path not in failed_paths)
    return Rotated(new.name, len(keys), file, removed, undeleted, skipped)


def _split_by_kek(files: Sequence[Named], names: set[str]) -> tuple[list[Named], list[Skipped]]:
    """Return the files under keys of these names, and the other files, which anybody who may write can add."""
    under = [named for named in files if named.file.kek in names]
    return under, [
        Skipped(
            path,
            WrongKeyError(
                f"it is under key {file.kek}, which is neither {' nor '.join(sorted(names))}",
                "rotate from that key as well if its data keys are yours",
            ),
        )
        for path, file in files
        if file.kek not in names
    ]


def _no_keys(store: Store, skipped: Sequence[Skipped]) -> KbackupError:
    if not skipped:
        return WrongKeyError(
            f"archive {store.url} has no data key yet",
            "set encryption.key: the first backup makes a data key",
        )
    first = skipped[0]
    return WrongKeyError(f"file {first.path}: {first.error.message}", first.error.hint)


def _publish(store: Store, kek: Kek, keys: dict[bytes, bytes], archive_id: str) -> str:
    path, data = new_file(kek, keys, secrets.token_hex(16), archive_id)
    store.put_new(path, data)
    if kek.unwrap(decode_file(store.get(path), path).wrapped(), archive_id) != keys:
        store.delete([path])
        raise CorruptError(
            f"file {path}: the new key does not give back what it wrapped",
            "check the key command; nothing was changed",
        )
    return path
