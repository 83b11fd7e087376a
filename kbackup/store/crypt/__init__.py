"""A store whose objects are encrypted before they reach another one (`formats/encryption.md` has the bytes)."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from typing import Any

from kbackup.errors import StoreError
from kbackup.store.address import Address
from kbackup.store.base import Buffer, Failed, ObjectInfo, Store, Upload, check_key, view_of
from kbackup.store.crypt.frames import (
    HEADER,
    decode_header,
    decrypt_frames,
    encrypt_frames,
    plain_size,
)
from kbackup.store.crypt.key_files import KEYS
from kbackup.store.crypt.keyring import ARCHIVE, Keyring
from kbackup.store.crypt.read import Reader
from kbackup.store.crypt.upload import CryptUpload
from kbackup.store.options import KeyClasses


class CryptStore:
    """`Store` over `inner`; sizes and checksums are those of the plain bytes. `keys/` is its own and no key here.

    An object can be read under its own name alone. An older version, put back under the name, still passes as genuine:
    callers must check what the object should hold.
    """

    encryption = "kbackup-encryption-2"
    """The `encryption` that archive.json names."""

    def __init__(self, inner: Store, keyring: Keyring, key_class: KeyClasses) -> None:
        self._key_class = key_class
        self._inner = inner
        self._keyring = keyring
        self._reader = Reader(inner, keyring)

    def __reduce__(self) -> tuple[Any, ...]:
        return CryptStore, (self._inner, self._keyring, self._key_class)

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def address(self) -> Address:
        return self._inner.address

    @property
    def keyring(self) -> Keyring:
        return self._keyring

    @property
    def inner(self) -> Store:
        return self._inner

    def for_writing(self) -> CryptStore:
        return CryptStore(self._inner, self._keyring.for_writing(), self._key_class)

    def get(self, key: str) -> bytes:
        return self.get_with_etag(key)[0]

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        plain = self._is_plain(key)
        data, etag = self._inner.get_with_etag(key)
        if key == ARCHIVE:
            self._keyring.saw_archive(data)
        return data if plain else self._decrypt(key, data), etag

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return b"".join(self.open_range(key, start, length))

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        if self._is_plain(key):
            yield from self._inner.open_range(key, start, length)
        elif length > 0:
            yield from self._reader.chunks(key, start, length)

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        if self._is_plain(key):
            yield from self._inner.fill(key, start, into)
        elif into:
            yield from self._reader.fill(key, start, into)

    def put(self, key: str, data: Buffer) -> str:
        return self._inner.put(key, self._encrypt(key, data))

    def put_new(self, key: str, data: Buffer) -> str:
        return self._inner.put_new(key, self._encrypt(key, data))

    def replace(self, key: str, data: Buffer, etag: str) -> str:
        return self._inner.replace(key, self._encrypt(key, data), etag)

    def upload(self, key: str) -> Upload:
        if self._is_plain(key):
            return self._inner.upload(key)
        header, cipher = self._keyring.new_cipher(key)
        return CryptUpload(self._inner.upload(key), header, cipher, key)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        for info in self._inner.list(prefix, start_after):
            if not info.key.startswith(KEYS):
                yield self._seen(info)

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        if prefix.startswith(KEYS):
            return
        for name in self._inner.list_dirs(prefix):
            if f"{prefix}{name}/" != KEYS:
                yield name

    def stat(self, key: str) -> ObjectInfo:
        self._is_plain(key)
        return self._seen(self._inner.stat(key))

    def checksum(self, key: str) -> int | None:
        """Return None for encrypted objects: the store's checksum is of the encrypted bytes."""
        if self._is_plain(key):
            return self._inner.checksum(key)
        self._inner.stat(key)
        return None

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        failed: builtins.list[Failed] = []

        def ours() -> Iterator[str]:
            for key in keys:
                if key.startswith(KEYS):
                    failed.append(Failed(key, _reserved(key)))
                else:
                    yield key

        return self._inner.delete(ours()) + failed

    def _seen(self, info: ObjectInfo) -> ObjectInfo:
        return info if self._key_class(info.key).plain else info._replace(size=plain_size(info.size))

    def _is_plain(self, key: str) -> bool:
        """Return True if objects of that name are not encrypted; `StoreError` for a reserved name."""
        if check_key(key).startswith(KEYS):
            raise _reserved(key)
        return self._key_class(key).plain

    def _encrypt(self, key: str, data: Buffer) -> Buffer:
        if self._is_plain(key):
            return data
        header, cipher = self._keyring.new_cipher(key)
        return header.encode() + encrypt_frames(cipher, view_of(data), 0, last=True)

    def _decrypt(self, key: str, data: bytes) -> bytes:
        header = decode_header(data, key)
        cipher = self._keyring.cipher(header, key)
        return bytes(decrypt_frames(cipher, memoryview(data)[HEADER:], key))


def _reserved(key: str) -> StoreError:
    return StoreError(
        f"key {key!r} can't be used", f"use another folder than '{KEYS}', which holds data keys"
    )
