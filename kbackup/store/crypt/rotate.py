"""Wrap an archive's data keys with another key-encryption key; the encrypted objects stay as they are."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from kbackup.errors import CorruptError, KbackupError, NotFoundError, WrongKeyError
from kbackup.store.base import Failed, Store
from kbackup.store.crypt.frames import HEADER, Cipher, decode_header, decrypt_frames
from kbackup.store.crypt.kek import Kek
from kbackup.store.crypt.key_files import (
    Named,
    Opened,
    Skipped,
    decode_file,
    find_conflicts,
    list_files,
    new_file,
    read_files,
    split_foreign,
    unwrap_files,
)

_THREADS = 16


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


def rotate(
    store: Store, old: Kek, new: Kek, archive_id: str, samples: Callable[[], Iterable[str]] = tuple
) -> Rotated:
    """Wrap all data keys of `store` in one file under `new`, try that file, and delete the other files.

    `samples` names objects of the archive that must open with the keys of the new file before anything is deleted. It
    is called when the new key opens the archive. A second call after a crash finishes the rotation. The caller must
    make sure that nobody writes keys meanwhile. `WrongKeyError` if neither key unwraps any file, `CorruptError` if two
    files hold different data keys under one id; nothing is changed then.
    """
    files, damaged = read_files(store, list_files(store))
    ours, foreign = split_foreign(files, archive_id)
    under, others = _split_by_kek(ours, {old.name, new.name})
    useful: list[Opened] = []
    closed: list[Skipped] = []
    for kek in {old.name: old, new.name: new}.values():
        opened, failed = unwrap_files(kek, [each for each in under if each.file.kek == kek.name], archive_id)
        useful, closed = useful + opened, closed + failed
    skipped = (*damaged, *foreign, *others, *closed)
    for conflict in find_conflicts(useful):
        raise CorruptError(f"{conflict.message}; nothing was changed", conflict.hint)
    keys = {key_id: key for file in useful for key_id, key in file.keys.items()}
    if not keys:
        raise _no_keys(store, skipped)
    renewed = {path for path, file in under if file.kek == new.name}
    whole = [path for path, held in useful if path in renewed and held == keys]
    file = whole[0] if whole else _publish(store, new, keys, archive_id)
    _try_out(store, new, file, keys, archive_id, samples)
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
    return path


def _try_out(
    store: Store,
    kek: Kek,
    path: str,
    keys: dict[bytes, bytes],
    archive_id: str,
    samples: Callable[[], Iterable[str]],
) -> None:
    """Read the file at `path` back, and open `samples` with its keys. A sample under another key, or that is missing,
    is passed over: no file that may hold its key is deleted."""
    unwrapped = kek.unwrap(decode_file(store.get(path), path).wrapped(), archive_id)
    if unwrapped != keys:
        raise CorruptError(
            f"file {path}: the new key does not give back what it wrapped",
            f"check the key command and delete {path}; no other file was changed",
        )

    def try_one(name: str) -> None:
        with suppress(NotFoundError):
            data = store.get(name)
            header = decode_header(data, name)
            if header.key_id in keys:
                cipher = Cipher(keys[header.key_id], header, archive_id, name)
                decrypt_frames(cipher, memoryview(data)[HEADER:], name)

    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(try_one, samples()))
    except CorruptError as error:
        raise CorruptError(
            f"{error.message}: it was damaged, or its data key was replaced; no file of data keys was deleted",
            "run 'kbackup verify' and 'kbackup repair', then run the command again",
        ) from error
