"""Handing an archive's data keys over to another key-encryption key, without touching what they encrypt."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import NamedTuple

from kbackup.errors import CorruptError, WrongKeyError
from kbackup.store.base import Failed, Store
from kbackup.store.crypt.kek import Kek
from kbackup.store.crypt.keyring import KeyFile, decode_file, list_files, new_file, read_files


class Rotated(NamedTuple):
    """`file` holds all `keys` data keys now. `removed` are the files that did before; those `left` could not be
    deleted: the former key still opens them."""

    kek: str
    keys: int
    file: str
    removed: tuple[str, ...]
    left: tuple[Failed, ...]


def rotate(store: Store, old: Kek, new: Kek) -> Rotated:
    """All data keys of `store` into one file under `new`; the others go when that one has been read back. Run
    again after a crash, it ends what was begun. The caller sees to it that nobody writes keys meanwhile.

    `WrongKeyError` where a file is under neither key; nothing is changed then.
    """
    files = read_files(store, list_files(store))
    keys = _unwrapped(files, old, new)
    if not keys:
        raise WrongKeyError(
            f"archive {store.url} has no data key yet", "the first backup makes one: set encryption.key"
        )
    whole = [path for path, file in files if file.kek == new.name and file.wrapped().keys() == keys.keys()]
    file = whole[0] if whole else _publish(store, new, keys)
    others = [path for path, _ in files if path != file]
    left = tuple(store.delete(others))
    stayed = {failed.key for failed in left}
    return Rotated(new.name, len(keys), file, tuple(p for p in others if p not in stayed), left)


def _unwrapped(files: Iterable[tuple[str, KeyFile]], old: Kek, new: Kek) -> dict[bytes, bytes]:
    wrapped: dict[str, dict[bytes, bytes]] = {old.name: {}, new.name: {}}
    for path, file in files:
        if file.kek not in wrapped:
            raise WrongKeyError(
                f"file {path} is under key {file.kek}, which is neither {old.name} nor {new.name}",
                "rotate from that key first",
            )
        wrapped[file.kek] |= file.wrapped()
    return old.unwrap(wrapped[old.name]) | new.unwrap(wrapped[new.name])


def _publish(store: Store, kek: Kek, keys: dict[bytes, bytes]) -> str:
    path, data = new_file(kek, keys, secrets.token_hex(16))
    store.put_new(path, data)
    if kek.unwrap(decode_file(store.get(path), path).wrapped()) != keys:
        store.delete([path])
        raise CorruptError(
            f"file {path}: the new key does not give back what it wrapped",
            "nothing was changed; check the key command",
        )
    return path
