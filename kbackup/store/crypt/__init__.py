"""An encrypted store: objects are encrypted before they reach the store below, and decrypted by ranges."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from awscrt.checksums import crc64nvme

from kbackup.errors import CorruptError, StoreError
from kbackup.store import base
from kbackup.store.base import KeyClasses
from kbackup.store.crypt import frames
from kbackup.store.crypt.frames import ENCRYPTED_FRAME, FRAME, HEADER, TAG, Cipher
from kbackup.store.crypt.keyring import ARCHIVE, KEYS, Keyring
from kbackup.store.wrappers import DelegatingStore, GuardedStore
from kbackup.util.system import BufferPool

if TYPE_CHECKING:
    from kbackup.types import Bytes


_REMEMBERED = 1024
_VERSIONS = 5


class _Object(NamedTuple):
    """A version of an object: its sizes in bytes, and its cipher."""

    etag: str
    stored: int
    plain: int
    cipher: Cipher


class DecryptingReader:
    """Reads ranges of objects. Remembers the headers of the objects that it read last; a replaced object is noticed,
    because the remembered header decrypts none of its frames."""

    def __init__(self, store: base.Store, keyring: Keyring) -> None:
        self._store = store
        self._keyring = keyring
        self._objects: dict[str, _Object] = {}
        self._lock = threading.Lock()

    def chunks(self, key: str, start: int, length: int) -> Iterator[bytes]:
        return map(bytes, self._views(key, start, start + length, None))

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        at = 0
        for view in self._views(key, start, start + len(into), into):
            filled = into[at : at + len(view)]
            if view.obj is not into.obj:
                filled[:] = view
            at += len(view)
            yield filled

    def _views(self, key: str, start: int, end: int, into: memoryview | None) -> Iterator[memoryview]:
        """Yield the bytes from `start` to `end`, a frame at a time, all from one version of the object. Frames that lie
        within them are decrypted straight into `into`."""
        version = self._objects.get(key) or self._read_header(key)
        # A remembered version may be replaced by now, and the next one while it is read.
        for _ in range(_VERSIONS):
            begun = False
            try:
                for view in self._decrypt(key, version, start, end, into):
                    begun = True
                    yield view
            except CorruptError:
                # The object is damaged, or it was replaced since its header was read. Bytes of another version can't
                # follow those that were given away.
                before, version = version, self._read_header(key)
                if begun or version.etag == before.etag:
                    raise
            else:
                return
        raise CorruptError(
            f"file {key} changed during each of {_VERSIONS} reads", "stop the other program that writes it"
        )

    def _decrypt(
        self, key: str, version: _Object, start: int, end: int, into: memoryview | None
    ) -> Iterator[memoryview]:
        if end > version.plain:
            raise CorruptError(f"file {key} has {version.plain} bytes, wanted up to byte {end}", base.SHORTER)
        number = start // FRAME
        count = (end - 1) // FRAME + 1
        at = HEADER + number * ENCRYPTED_FRAME
        length = min(HEADER + count * ENCRYPTED_FRAME, version.stored) - at
        for frame in frames.split_frames(self._store.open_range(key, at, length)):
            first = number * FRAME
            last = first + len(frame) - TAG
            if into is not None and start <= first and last <= end:
                plain = into[first - start : last - start]
            else:
                plain = memoryview(bytearray(len(frame) - TAG))
            version.cipher.decrypt(number, last == version.plain, frame, plain)
            yield plain[max(0, start - first) : min(last, end) - first]
            number += 1

    def _read_header(self, key: str) -> _Object:
        info = self._store.stat(key)
        if info.size < HEADER + TAG:
            # A header that is none is the better error: such an object was never encrypted.
            frames.decode_header(self._store.get(key), key)
            raise CorruptError(
                f"file {key} at byte {info.size}: ends within a frame",
                "restore it from a bucket version or a copy: it was cut or replaced",
            )
        header = frames.decode_header(self._store.get_range(key, 0, HEADER), key)
        plain_size = frames.plain_size(info.size)
        version = _Object(info.etag, info.size, plain_size, self._keyring.cipher(header, key))
        with self._lock:
            self._objects.pop(key, None)
            while len(self._objects) >= _REMEMBERED:
                oldest = next(iter(self._objects))
                del self._objects[oldest]
            self._objects[key] = version
        return version


# Four buffers nearly make an upload part of 16 MiB, and at most three such parts are in flight. New memory for each
# frame, or for sixteen, took as much CPU as encrypting them.
_POOL = BufferPool(63 * ENCRYPTED_FRAME, keep=12)


class CryptUpload(base.Upload):
    """`Upload` into another one. `write` copies its data: the caller may change them as soon as it has returned."""

    # A frame says whether it is the last one, which is known at `commit` alone: so one frame is always held back.

    def __init__(self, inner: base.Upload, header: frames.Header, cipher: Cipher, name: str) -> None:
        self._inner = inner
        self._cipher = cipher
        self._name = f"file {name}"
        self._pending = bytearray()
        self._encrypted: Bytes | None = None
        self._used = 0
        self._number = self._size = self._crc = 0
        inner.write(header.encode())

    def write(self, data: base.Buffer) -> None:
        self._check_open()
        view = base.view_of(data)
        self._size += len(view)
        if self._pending:
            take = FRAME - len(self._pending)
            self._hold(view[:take])
            view = view[take:]
            if not view:
                return
            self._encrypt(memoryview(self._pending))
            self._pending = bytearray()
        whole = max(0, len(view) - 1) // FRAME * FRAME
        for at in range(0, whole, FRAME):
            frame = view[at : at + FRAME]
            self._crc = crc64nvme(frame, self._crc)
            self._encrypt(frame)
        self._hold(view[whole:])

    def _hold(self, view: memoryview) -> None:
        self._crc = crc64nvme(view, self._crc)
        self._pending += view

    def _encrypt(self, frame: memoryview) -> None:
        """Encrypt a whole frame, which is not the last one."""
        if self._encrypted is None:
            self._encrypted, self._used = _POOL.take(), 0
        into = self._encrypted.data[self._used : self._used + ENCRYPTED_FRAME]
        self._cipher.encrypt(self._number, False, frame, into)
        self._number += 1
        self._used += ENCRYPTED_FRAME
        if self._used == _POOL.size:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._encrypted is not None:
            self._inner.write(self._encrypted[: self._used])
            self._encrypted = None

    def in_parts(self) -> None:
        self._inner.in_parts()

    def commit(self) -> tuple[int, int]:
        """Publish; size and checksum are of the plain bytes."""
        with self._committing():
            self._pass_on()
            last_frame = frames.encrypt_frames(self._cipher, memoryview(self._pending), self._number)
            self._inner.write(last_frame)
            self._inner.commit()
        self._open = False
        return self._size, self._crc

    def abort(self) -> None:
        self._open = False
        self._pending, self._encrypted = bytearray(), None
        self._inner.abort()


class CryptStore(DelegatingStore):
    """`Store` over `inner` (`formats/encryption.md` has the bytes); sizes and checksums are those of the plain bytes.
    `keys/` is its own and no key here.

    An object can be read under its own name alone. An older version, put back under the name, still passes as genuine:
    callers must check what the object should hold.
    """

    encryption = "kbackup-encryption-2"
    """The `encryption` that archive.json names."""

    def __init__(self, inner: base.Store, keyring: Keyring, key_class: KeyClasses) -> None:
        super().__init__(inner)
        self.encryption = CryptStore.encryption
        self.keyring = keyring
        self._key_class = key_class
        self._reader = DecryptingReader(inner, keyring)

    def __reduce__(self) -> tuple[Any, ...]:
        return CryptStore, (self.inner, self.keyring, self._key_class)

    def for_writing(self) -> CryptStore:
        return CryptStore(self.inner, self.keyring.for_writing(), self._key_class)

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        plain = self._is_plain(key)
        data, etag = self.inner.get_with_etag(key)
        if key == ARCHIVE:
            # Spares the keyring a request of its own for the archive's id.
            self.keyring.saw_archive(data)
        return data if plain else self._decrypt(key, data), etag

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        if self._is_plain(key):
            yield from self.inner.open_range(key, start, length)
        elif length > 0:
            yield from self._reader.chunks(key, start, length)

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        if self._is_plain(key):
            yield from self.inner.fill(key, start, into)
        elif into:
            yield from self._reader.fill(key, start, into)

    def put(self, key: str, data: base.Buffer) -> str:
        return self.inner.put(key, self._encrypt(key, data))

    def put_new(self, key: str, data: base.Buffer) -> str:
        return self.inner.put_new(key, self._encrypt(key, data))

    def replace(self, key: str, data: base.Buffer, etag: str) -> str:
        return self.inner.replace(key, self._encrypt(key, data), etag)

    def upload(self, key: str) -> base.Upload:
        if self._is_plain(key):
            return self.inner.upload(key)
        header, cipher = self.keyring.new_cipher(key)
        return CryptUpload(self.inner.upload(key), header, cipher, key)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[base.ObjectInfo]:
        for info in self.inner.list(prefix, start_after):
            if not info.key.startswith(KEYS):
                yield self._seen(info)

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        if prefix.startswith(KEYS):
            return
        for name in self.inner.list_dirs(prefix):
            if f"{prefix}{name}/" != KEYS:
                yield name

    def stat(self, key: str) -> base.ObjectInfo:
        self._is_plain(key)
        return self._seen(self.inner.stat(key))

    def checksum(self, key: str) -> int | None:
        """Return None for encrypted objects: the store's checksum is of the encrypted bytes."""
        if self._is_plain(key):
            return self.inner.checksum(key)
        self.inner.stat(key)
        return None

    def delete(self, keys: Iterable[str]) -> builtins.list[base.Failed]:
        failed: builtins.list[base.Failed] = []

        def ours() -> Iterator[str]:
            for key in keys:
                if key.startswith(KEYS):
                    refusal = _reserved(key)
                    failed.append(base.Failed(key, refusal))
                else:
                    yield key

        return self.inner.delete(ours()) + failed

    def _seen(self, info: base.ObjectInfo) -> base.ObjectInfo:
        if self._key_class(info.key).plain:
            return info
        return info._replace(size=frames.plain_size(info.size))

    def _is_plain(self, key: str) -> bool:
        """Return True if objects of that name are not encrypted; `StoreError` for a reserved name."""
        if base.check_key(key).startswith(KEYS):
            raise _reserved(key)
        return self._key_class(key).plain

    def _encrypt(self, key: str, data: base.Buffer) -> base.Buffer:
        if self._is_plain(key):
            return data
        header, cipher = self.keyring.new_cipher(key)
        return header.encode() + frames.encrypt_frames(cipher, base.view_of(data), 0)

    def _decrypt(self, key: str, data: bytes) -> bytes:
        header = frames.decode_header(data, key)
        cipher = self.keyring.cipher(header, key)
        return bytes(frames.decrypt_frames(cipher, memoryview(data)[HEADER:], key))


def _reserved(key: str) -> StoreError:
    return StoreError(f"key {key!r} can't be used", f"use another folder than '{KEYS}', which holds data keys")


def stored(store: base.Store) -> base.Store:
    """Return the store of encrypted bytes below `store`; a store that checks before each write still does."""
    if isinstance(store, GuardedStore):
        return GuardedStore(stored(store.inner), store.check)
    return store.inner if isinstance(store, CryptStore) else store


def _crypt(store: base.Store) -> CryptStore | None:
    inner = store.inner if isinstance(store, GuardedStore) else store
    return inner if isinstance(inner, CryptStore) else None


def size_of(store: base.Store, plain: int) -> int:
    """Return the size in `store` of an object that holds `plain` bytes."""
    return frames.stored_size(plain) if _crypt(store) is not None else plain


def read_chunks(store: base.Store, key: str, plain: int) -> Iterator[tuple[base.Buffer, base.Buffer]]:
    """Yield the object at `key`, which holds `plain` bytes, as (stored bytes, plain bytes), with bounded memory.

    `CorruptError` at the first frame that is not genuine.
    """
    crypt = _crypt(store)
    if crypt is None:
        for chunk in store.open_range(key, 0, plain):
            yield chunk, chunk
        return
    head = crypt.inner.get_range(key, 0, HEADER)
    header = frames.decode_header(head, key)
    cipher = crypt.keyring.cipher(header, key)
    yield head, b""
    remaining = plain
    stored_chunks = crypt.inner.open_range(key, HEADER, frames.stored_size(plain) - HEADER)
    for number, frame in enumerate(frames.split_frames(stored_chunks)):
        decrypted = memoryview(bytearray(len(frame) - TAG))
        remaining -= len(decrypted)
        cipher.decrypt(number, remaining == 0, frame, decrypted)
        yield frame, decrypted
