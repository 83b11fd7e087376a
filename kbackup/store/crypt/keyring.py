"""The data keys of an archive: files under keys/ hold them wrapped, each by one key-encryption key."""

from __future__ import annotations

import base64
import binascii
import secrets
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec

from kbackup.errors import CorruptError, KbackupError, NotFoundError, WrongKeyError
from kbackup.store.base import Store
from kbackup.store.crypt.frames import KEY_BYTES, KEY_ID_BYTES
from kbackup.store.crypt.kek import Kek, check_source, load_kek

KEYS = "keys/"
_THREADS = 16
_SECONDS = 24 * 3600.0
"""How long a data key is used: in a locked bucket its file is under retention as long as what it encrypted first."""
_SINGLY = 3
"""A reader of one restore point needs the files of a run or two; who meets more is going to meet them all, and gets
them at once."""
_LOST = "restore it from a bucket version or a copy: what was encrypted under its keys is lost without it"


class KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """keys/<name>.json. `keys` is data key id (32 hex digits): wrapped data key (base64)."""

    format: Literal["kbackup-keys"] = "kbackup-keys"
    version: Literal[1] = 1
    created_at: str
    kek: str
    keys: dict[str, str]

    def wrapped(self) -> dict[bytes, bytes]:
        return {
            bytes.fromhex(name): base64.b64decode(text, validate=True) for name, text in self.keys.items()
        }


class DataKey(NamedTuple):
    id: bytes
    key: bytes


class Keyring:
    """The data keys under `source`'s key-encryption key, which is asked for when it is needed and stays in this
    process: pickled, a keyring takes along all data keys. Thread-safe."""

    def __init__(
        self,
        store: Store,
        source: str,
        known: Mapping[bytes, bytes] | None = None,
        writing: bytes | None = None,
    ) -> None:
        check_source(source)
        self._store = store
        self._source = source
        self._known = dict(known or {})
        self._writing = writing
        self._others: dict[bytes, str] = {}
        self._read: set[str] = set()
        self._kek: Kek | None = None
        self._since = time.monotonic()
        self._singly = 0
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        with self._lock:
            # tasks run where the key-encryption key may not be; what fails here fails there by name, if it is needed
            with suppress(KbackupError):
                self._load(damaged=False)
            return Keyring, (self._store, self._source, dict(self._known), self._writing)

    @property
    def kek(self) -> Kek:
        with self._lock:
            if self._kek is None:
                self._kek = load_kek(self._source)
            return self._kek

    def current(self) -> DataKey:
        """The key that this run encrypts with, made and kept in the store at its first use, and another a day later."""
        with self._lock:
            if self._writing is None or time.monotonic() > self._since + _SECONDS:
                self.check()
                made = DataKey(secrets.token_bytes(KEY_ID_BYTES), secrets.token_bytes(KEY_BYTES))
                self._store.put_new(*new_file(self.kek, {made.id: made.key}, made.id.hex()))
                self._known[made.id] = made.key
                self._writing, self._since = made.id, time.monotonic()
            return DataKey(self._writing, self._known[self._writing])

    def find(self, key_id: bytes, name: str) -> bytes:
        """The data key of file `name`. `WrongKeyError` where it is wrapped by another key than ours."""
        with self._lock:
            if key_id not in self._known and self._singly < _SINGLY:
                self._singly += 1
                self._take(read_files(self._store, [_path(key_id.hex())], self._read))
            if key_id not in self._known:  # its file was folded into another one
                self._load()
            if key_id in self._known:
                return self._known[key_id]
            if key_id in self._others:
                raise self._wrong(f"file {name} was encrypted under", {self._others[key_id]})
        raise CorruptError(f"file {name} at byte 8: no file of {KEYS} holds data key {key_id.hex()}", _LOST)

    def try_out(self) -> str:
        """The name of the key-encryption key, when it has given back what it wrapped, and opens what is there."""
        with self._lock:
            self.check()
            made = {secrets.token_bytes(KEY_ID_BYTES): secrets.token_bytes(KEY_BYTES)}
            if self.kek.unwrap(self.kek.wrap(made)) != made:
                raise WrongKeyError(
                    f"key {self.kek.name} does not give back what it wrapped", "check the key command"
                )
            return self.kek.name

    def check(self) -> None:
        """`WrongKeyError` where the archive has data keys and ours opens none of them."""
        with self._lock:
            if not self._known:
                self._load()
            if self._others and not self._known:
                raise self._wrong(f"archive {self._store.url} is encrypted under", set(self._others.values()))

    def _wrong(self, what: str, names: set[str]) -> WrongKeyError:
        return WrongKeyError(
            f"{what} key {' and '.join(sorted(names))}, encryption.key names {self.kek.name}",
            "give the key that it was written with, or was rotated to last",
        )

    def _load(self, *, damaged: bool = True) -> None:
        """Look through the files that were not there before; `CorruptError` for one that is `damaged`, or it is left
        out."""
        self._take(read_files(self._store, list_files(self._store), self._read, damaged=damaged))

    def _take(self, files: Iterable[tuple[str, KeyFile]]) -> None:
        """Learn the keys of `files`; one call unwraps all."""
        wanted: dict[bytes, bytes] = {}
        for path, file in files:
            self._read.add(path)
            if file.kek == self.kek.name:
                wanted |= {
                    key_id: data for key_id, data in file.wrapped().items() if key_id not in self._known
                }
            else:
                self._others |= dict.fromkeys(file.wrapped(), file.kek)
        if wanted:
            self._known |= self.kek.unwrap(wanted)


def new_file(kek: Kek, keys: Mapping[bytes, bytes], name: str) -> tuple[str, bytes]:
    """Key and bytes of a file that holds `keys`, wrapped."""
    file = KeyFile(
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        kek=kek.name,
        keys={key_id.hex(): base64.b64encode(data).decode() for key_id, data in kek.wrap(keys).items()},
    )
    return _path(name), msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n"


def _path(name: str) -> str:
    return f"{KEYS}{name}.json"


def list_files(store: Store) -> list[str]:
    """Where key files are, in the store."""
    return [info.key for info in store.list(KEYS) if info.key.endswith(".json")]


def read_files(
    store: Store, paths: Iterable[str], known: Collection[str] = (), *, damaged: bool = True
) -> list[tuple[str, KeyFile]]:
    """The files at `paths` but those `known`. One that is not there (a rotation removes it when its keys stand in
    another) is left out; one that is `damaged` is a `CorruptError`, or left out as well."""

    def read(path: str) -> tuple[str, KeyFile] | None:
        try:
            return path, decode_file(store.get(path), path)
        except NotFoundError:
            return None
        except CorruptError:
            if damaged:
                raise
            return None

    with ThreadPoolExecutor(_THREADS) as pool:
        wanted = [path for path in paths if path not in known]
        return [found for found in pool.map(read, wanted) if found is not None]


def decode_file(data: bytes, name: str) -> KeyFile:
    try:
        file = msgspec.json.decode(data, type=KeyFile)
        ids = file.wrapped()
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, ValueError) as error:
        raise CorruptError(f"file {name}: {error}", _LOST) from error
    if not all(len(key_id) == KEY_ID_BYTES for key_id in ids):
        raise CorruptError(f"file {name}: the id of a data key has {2 * KEY_ID_BYTES} digits", _LOST)
    return file
