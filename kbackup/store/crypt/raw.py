"""Read encrypted objects as they are stored, and check them on the way: copies keep the encrypted bytes."""

from __future__ import annotations

from collections.abc import Iterator

from kbackup.store.base import Buffer, Store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.frames import HEADER, TAG, decode_header, split_frames, stored_size
from kbackup.store.guarded import GuardedStore


def stored(store: Store) -> Store:
    """Return the store of encrypted bytes below `store`; a store that checks before each write still does."""
    if isinstance(store, GuardedStore):
        return GuardedStore(stored(store.inner), store.check)
    return store.inner if isinstance(store, CryptStore) else store


def _crypt(store: Store) -> CryptStore | None:
    inner = store.inner if isinstance(store, GuardedStore) else store
    return inner if isinstance(inner, CryptStore) else None


def size_of(store: Store, plain: int) -> int:
    """Return the size in `store` of an object that holds `plain` bytes."""
    return stored_size(plain) if _crypt(store) is not None else plain


def read_chunks(store: Store, key: str, plain: int) -> Iterator[tuple[Buffer, Buffer]]:
    """Yield the object at `key`, which holds `plain` bytes, as (stored bytes, plain bytes), with bounded memory.

    `CorruptError` at the first frame that is not genuine.
    """
    crypt = _crypt(store)
    if crypt is None:
        for chunk in store.open_range(key, 0, plain):
            yield chunk, chunk
        return
    head = crypt.inner.get_range(key, 0, HEADER)
    header = decode_header(head, key)
    cipher = crypt.keyring.cipher(header, key)
    yield head, b""
    remaining = plain
    for number, frame in enumerate(
        split_frames(crypt.inner.open_range(key, HEADER, stored_size(plain) - HEADER))
    ):
        decrypted = memoryview(bytearray(len(frame) - TAG))
        remaining -= len(decrypted)
        cipher.decrypt(number, remaining == 0, frame, decrypted)
        yield frame, decrypted
