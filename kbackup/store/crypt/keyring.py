"""The data keys of an archive, as its readers and writers use them."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from kbackup.errors import CorruptError, KbackupError, NotFoundError, WrongKeyError
from kbackup.store.base import Store
from kbackup.store.crypt.frames import KEY_BYTES, KEY_ID_BYTES, Cipher, Header, new_header
from kbackup.store.crypt.kek import Kek, check_source, load_kek
from kbackup.store.crypt.key_files import (
    KEYS,
    LOST,
    Named,
    Opened,
    Skipped,
    archive_id_in,
    find_conflicts,
    list_files,
    new_file,
    path_of,
    read_files,
    split_foreign,
    unwrap_files,
)

log = logging.getLogger(__name__)

ARCHIVE = "archive.json"
_SECONDS = 24 * 3600.0
"""Seconds of use of a data key: in a locked bucket the retention of its file must cover that of all its objects."""
_SAMPLE = 3
_SINGLY = 3
"""Files of data keys that are read one by one. A reader of one restore point needs the keys of a run or two; a reader
that needs more is going to need all, and loads all at once."""


class DataKey(NamedTuple):
    id: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"DataKey({self.id.hex()})"


class Keyring:
    """The data keys under `source`'s key-encryption key, which is asked for when it is needed and stays in this
    process: pickled, a keyring takes along all data keys. Thread-safe.

    Files under keys/ that are damaged, of another archive or not what was wrapped are left out with a warning: whoever
    may write can put one there. What needs their keys fails by name. Where files hold different data keys under one id,
    each object is read with the key that opens it.
    """

    def __init__(
        self,
        store: Store,
        source: str,
        known: Mapping[bytes, tuple[bytes, ...]] | None = None,
        writing: bytes | None = None,
        archive_id: str | None = None,
        *,
        narrow: bool = False,
    ) -> None:
        """`archive_id`: the archive that the keys must be of; None: the one that archive.json names. `narrow`: pickled,
        it takes along `known` alone."""
        check_source(source)
        self._store = store
        self._source = source
        self._known = dict(known or {})
        self._writing = writing
        self._opened: list[Opened] = []
        self._others: dict[bytes, str] = {}
        self._asked_all = False
        self._archive_id = archive_id
        self._narrow = narrow
        self._read: set[str] = set()
        self._skipped: dict[str, KbackupError] = {}
        self._kek: Kek | None = None
        self._since = time.monotonic()
        self._singly = 0
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        with self._lock:
            # tasks run where the key-encryption key may not be; what fails here fails there by name, if it is needed
            with suppress(KbackupError):
                if not self._narrow:
                    self._load()
            return Keyring, (self._store, self._source, dict(self._known), self._writing, self._archive_id)

    def for_writing(self) -> Keyring:
        """Return a keyring for tasks that read only objects of this run: pickled, it holds the run's data key alone."""
        made = self.current()
        one = {made.id: (made.key,)}
        return Keyring(self._store, self._source, one, made.id, self.archive_id, narrow=True)

    @property
    def kek(self) -> Kek:
        with self._lock:
            if self._kek is None:
                self._kek = load_kek(self._source)
            return self._kek

    @property
    def archive_id(self) -> str:
        """Return the id of the keyring's archive; '' where there is no archive, as in the state of restores kept
        elsewhere."""
        with self._lock:
            if self._archive_id is not None:
                return self._archive_id
            archive_id = self._find_archive_id()
            if archive_id or self._known:  # else an archive may be made here yet
                self._archive_id = archive_id
            return archive_id

    def saw_archive(self, data: bytes) -> None:
        """Learn the id from an archive.json that was read for another purpose."""
        with self._lock:
            if self._archive_id is None:
                self._archive_id = archive_id_in(data)

    def _find_archive_id(self) -> str:
        """Read the archive's id from archive.json, or from files of data keys if archive.json is lost."""
        with suppress(NotFoundError):
            if archive_id := archive_id_in(self._store.get(ARCHIVE)):
                return archive_id
        files, _ = read_files(self._store, list_files(self._store)[-_SAMPLE:])
        owners = {named.file.archive_id for named in files}
        if len(owners) > 1:
            raise CorruptError(
                f"file {ARCHIVE} at {self._store.url} can't be read, and files of {KEYS} belong to archives "
                f"{' and '.join(sorted(owners))}",
                "set archive_id to the id of this archive",
            )
        return owners.pop() if owners else ""

    def cipher(self, header: Header, name: str) -> Cipher:
        """Return the cipher that decrypts file `name`, which begins with `header`."""
        key = self.find(header.key_id, name)
        return Cipher(key, header, self.archive_id, name, partial(self._rivals, header.key_id))

    def new_cipher(self, name: str) -> tuple[Header, Cipher]:
        """Return header and cipher of a new file `name`."""
        made = self.current()
        header = new_header(made.id)
        return header, Cipher(made.key, header, self.archive_id, name)

    def current(self) -> DataKey:
        """Return the data key that this run encrypts with; make and store one at first use, and another a day later."""
        with self._lock:
            if self._writing is None or time.monotonic() > self._since + _SECONDS:
                self.check()
                made = DataKey(secrets.token_bytes(KEY_ID_BYTES), secrets.token_bytes(KEY_BYTES))
                self._store.put_new(*new_file(self.kek, {made.id: made.key}, made.id.hex(), self.archive_id))
                self._known[made.id] = (made.key,)
                self._writing, self._since = made.id, time.monotonic()
            return DataKey(self._writing, self._known[self._writing][0])

    def find(self, key_id: bytes, name: str) -> bytes:
        """Return the data key of file `name`; `WrongKeyError` if another key-encryption key wraps it."""
        with self._lock:
            if key_id not in self._known and self._singly < _SINGLY:
                self._singly += 1
                self._take(*read_files(self._store, [path_of(key_id.hex())], self._read))
            if key_id not in self._known:  # a rotation moved it to another file
                self._load()
            if key_id in self._known:
                return self._known[key_id][0]
            if key_id in self._others:
                raise self._wrong(f"file {name} was encrypted under", {self._others[key_id]})
            raise self._lost(key_id, name)

    def _rivals(self, key_id: bytes) -> tuple[bytes, ...]:
        """Return the other data keys under an id, from all files: the first one did not open an object."""
        with self._lock:
            if not self._asked_all:
                self._asked_all = True
                with suppress(
                    KbackupError
                ):  # tasks may have no key-encryption key: the object's damage is reported
                    self._load()
            return self._known[key_id][1:]

    def _lost(self, key_id: bytes, name: str) -> KbackupError:
        """Return the error that explains why data key `key_id` is missing."""
        its_own = self._skipped.get(path_of(key_id.hex()))
        refused = [error for error in self._skipped.values() if isinstance(error, WrongKeyError)]
        if its_own is not None or refused:
            return its_own or refused[0]
        return CorruptError(f"file {name} at byte 8: no file of {KEYS} holds data key {key_id.hex()}", LOST)

    def try_out(self) -> str:
        """Check that the key-encryption key unwraps its own output and the archive's keys; return its name."""
        with self._lock:
            self.check()
            made = {secrets.token_bytes(KEY_ID_BYTES): secrets.token_bytes(KEY_BYTES)}
            if self.kek.unwrap(self.kek.wrap(made, self.archive_id), self.archive_id) != made:
                raise WrongKeyError(
                    f"key {self.kek.name} does not give back what it wrapped", "check the key command"
                )
            return self.kek.name

    def check(self) -> None:
        """Raise `WrongKeyError` if the archive has data keys and the key-encryption key unwraps none of them."""
        with self._lock:
            if not self._known:
                self._load()
            if self._others and not self._known:
                raise self._wrong(f"archive {self._store.url} is encrypted under", set(self._others.values()))

    def _wrong(self, statement: str, names: set[str]) -> WrongKeyError:
        return WrongKeyError(
            f"{statement} key {' and '.join(sorted(names))}, encryption.key names {self.kek.name}",
            "give the key that it was written with, or was rotated to last",
        )

    def _load(self) -> None:
        """Read all files of data keys that were not read before."""
        self._take(*read_files(self._store, list_files(self._store), self._read))

    def _take(self, files: Iterable[Named], damaged: Iterable[Skipped]) -> None:
        """Learn the keys of `files`; one call unwraps all."""
        ours, foreign = split_foreign(files, self.archive_id)
        mine = [named for named in ours if named.file.kek == self.kek.name]
        for _, file in ours:
            if file.kek != self.kek.name:
                self._others |= dict.fromkeys(file.wrapped(), file.kek)
        opened, closed = unwrap_files(self.kek, mine, self.archive_id)
        warned = {error.message for error in find_conflicts(self._opened)}
        self._opened += opened
        for error in find_conflicts(self._opened):
            if error.message not in warned:
                log.warning("%s; each object is read with the key that opens it", error.message)
        for _, keys in opened:
            for key_id, key in keys.items():
                self._known[key_id] = tuple(dict.fromkeys((*self._known.get(key_id, ()), key)))
        self._read |= {named.path for named in ours}
        for skipped in (*damaged, *foreign, *closed):
            if skipped.path not in self._skipped:
                log.warning("%s", skipped)
            self._read.add(skipped.path)
            self._skipped[skipped.path] = skipped.error
