"""Encrypted objects as they are stored, opened on their way: for copies that take them over as they are."""

from __future__ import annotations

from collections.abc import Iterator

from kbackup.store.base import Buffer, Store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.frames import HEADER, TAG, cut, decode_header, stored_size
from kbackup.store.guarded import GuardedStore


def stored(store: Store) -> Store:
    """The store with objects as they are kept; one that checks before each write still does."""
    if isinstance(store, GuardedStore):
        return GuardedStore(stored(store.inner), store.check)
    return store.inner if isinstance(store, CryptStore) else store


def _crypt(store: Store) -> CryptStore | None:
    inner = store.inner if isinstance(store, GuardedStore) else store
    return inner if isinstance(inner, CryptStore) else None


def size_of(store: Store, plain: int) -> int:
    """Bytes of the object that holds `plain` bytes there."""
    return stored_size(plain) if _crypt(store) is not None else plain


def pieces(store: Store, key: str, plain: int) -> Iterator[tuple[Buffer, Buffer]]:
    """The object at `key`, which holds `plain` bytes, with bounded memory: (bytes as they are stored, what they are in
    the clear). `CorruptError` at the first that are not genuine."""
    crypt = _crypt(store)
    if crypt is None:
        for chunk in store.open_range(key, 0, plain):
            yield chunk, chunk
        return
    head = crypt.inner.get_range(key, 0, HEADER)
    header = decode_header(head, key)
    cipher = crypt.keyring.cipher(header, key)
    yield head, b""
    left = plain
    for number, frame in enumerate(cut(crypt.inner.open_range(key, HEADER, stored_size(plain) - HEADER))):
        said = memoryview(bytearray(len(frame) - TAG))
        left -= len(said)
        cipher.open(number, left == 0, frame, said)
        yield frame, said
