"""The data keys of an archive, wrapped by key-encryption keys in the files under keys/, and their rotation."""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec

from kbackup.errors import CorruptError, KbackupError, NotFoundError, WrongKeyError
from kbackup.store.base import Failed, Store
from kbackup.store.crypt import frames
from kbackup.store.crypt.kek import Kek, check_source, load_kek
from kbackup.util.system import in_threads
from kbackup.util.text import SomeArchiveId, printable
from kbackup.util.times import now

KEYS = "keys/"
LOST = "restore it from a bucket version or a copy: what was encrypted under its keys is lost without it"
CONFLICT = "find out who wrote the newer one, and move it out of keys/; a copy or a bucket version has the genuine one"
log = logging.getLogger(__name__)

ARCHIVE = "archive.json"
# A day: in a locked bucket the retention of its file must cover the retention of all its objects.
_SECONDS = 24 * 3600.0
"""Seconds of use of a data key."""
_SAMPLE = 3
# A reader of one restore point needs the keys of a run or two. A reader that needs more is going to need all, and loads
# all at once.
_SINGLY = 3
"""Files of data keys that are read one by one."""


class KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """keys/<name>.json. `keys` is data key id (32 hex digits): wrapped data key (base64)."""

    format: Literal["kbackup-keys"] = "kbackup-keys"
    version: Literal[2] = 2
    archive_id: SomeArchiveId
    created_at: str
    kek: str
    keys: dict[str, str]

    def wrapped(self) -> dict[bytes, bytes]:
        return {bytes.fromhex(name): base64.b64decode(text, validate=True) for name, text in self.keys.items()}


class NamedKeyFile(NamedTuple):
    """A file of data keys and where it is."""

    path: str
    file: KeyFile


class _ArchiveId(msgspec.Struct, frozen=True):
    """The only member of archive.json that a keyring needs."""

    id: str


class Opened(NamedTuple):
    """A file of data keys, unwrapped: data keys by id."""

    path: str
    keys: dict[bytes, bytes]

    def __repr__(self) -> str:
        return f"Opened({self.path})"


class Skipped(NamedTuple):
    """A file under keys/ that gives no data key, and why."""

    path: str
    error: KbackupError

    def __str__(self) -> str:
        return f"{self.path} is left out: {self.error.message}"


def new_file(kek: Kek, keys: Mapping[bytes, bytes], name: str, archive_id: str) -> tuple[str, bytes]:
    """Return key and bytes of a file that holds `keys`, wrapped."""
    kek_name = kek.name
    wrapped = {}
    for key_id, data in kek.wrap(keys, archive_id).items():
        wrapped[key_id.hex()] = base64.b64encode(data).decode()
    file = KeyFile(archive_id=archive_id, created_at=now(), kek=kek_name, keys=wrapped)
    text = msgspec.json.format(msgspec.json.encode(file), indent=1)
    return path_of(name), text + b"\n"


def path_of(name: str) -> str:
    return f"{KEYS}{name}.json"


def list_files(store: Store) -> list[str]:
    """Return the store's keys of files of data keys."""
    return [info.key for info in store.list(KEYS) if info.key.endswith(".json")]


def read_files(
    store: Store, paths: Iterable[str], archive_id: str | None, known: Collection[str] = ()
) -> tuple[list[NamedKeyFile], list[Skipped]]:
    """Return the files at `paths` but those `known`, and the files that can't be read or are of another archive than
    `archive_id` (None: any). A file that a rotation has removed meanwhile is in neither list."""

    # Anybody who may write to the store can add a file under keys/: one that is of no use must not end the reading.
    def read(path: str) -> NamedKeyFile | Skipped | None:
        try:
            file = decode_file(store.get(path), path)
        except NotFoundError:
            return None
        except CorruptError as error:
            return Skipped(path, error)
        if archive_id is None or file.archive_id == archive_id:
            return NamedKeyFile(path, file)
        owner, own = file.archive_id or "(none)", printable(archive_id) or "(none)"
        message = f"it belongs to archive {owner}, not to {own}"
        return Skipped(path, CorruptError(message, "delete it, or move it to its own archive"))

    files: list[NamedKeyFile] = []
    skipped: list[Skipped] = []
    unread = [path for path in paths if path not in known]
    for entry in in_threads(read, unread):
        if isinstance(entry, NamedKeyFile):
            files.append(entry)
        elif entry is not None:
            skipped.append(entry)
    return files, skipped


def unwrap_files(kek: Kek, files: Iterable[NamedKeyFile], archive_id: str) -> tuple[list[Opened], list[Skipped]]:
    """Return the data keys of each of `files`, which are under `kek`, and the files that it can't unwrap.

    One call unwraps all files that have no data key id in common. They are tried one by one only if it fails.
    """
    batches: dict[int, list[NamedKeyFile]] = {}
    next_batch: dict[str, int] = {}
    for named in files:
        # The first batch that has none of the file's ids.
        number = max((next_batch.get(key_id, 0) for key_id in named.file.keys), default=0)
        batches.setdefault(number, []).append(named)
        next_batch |= dict.fromkeys(named.file.keys, number + 1)
    return _joined([_unwrap_batch(kek, batch, archive_id) for batch in batches.values()])


def _joined(parts: Iterable[tuple[list[Opened], list[Skipped]]]) -> tuple[list[Opened], list[Skipped]]:
    all_opened: list[Opened] = []
    all_skipped: list[Skipped] = []
    for opened, skipped in parts:
        all_opened += opened
        all_skipped += skipped
    return all_opened, all_skipped


def _unwrap_batch(kek: Kek, files: Sequence[NamedKeyFile], archive_id: str) -> tuple[list[Opened], list[Skipped]]:
    """Unwrap files that have no data key id in common."""
    wrapped: dict[bytes, bytes] = {}
    for _, file in files:
        wrapped |= file.wrapped()
    try:
        keys = kek.unwrap(wrapped, archive_id)
    except KbackupError as error:
        if len(files) == 1:
            return [], [Skipped(files[0].path, error)]
    else:
        opened = []
        for path, file in files:
            own = {key_id: keys[key_id] for key_id in file.wrapped()}
            opened.append(Opened(path, own))
        return opened, []

    def unwrap_alone(named: NamedKeyFile) -> tuple[list[Opened], list[Skipped]]:
        return _unwrap_batch(kek, [named], archive_id)

    return _joined(in_threads(unwrap_alone, files))


def find_conflicts(files: Iterable[Opened]) -> list[CorruptError]:
    """Return one error for each two files that hold different data keys under one id. Only the objects show which is
    genuine."""
    first: dict[bytes, Opened] = {}
    conflicts = []
    for file in files:
        for key_id, key in file.keys.items():
            other = first.setdefault(key_id, file)
            if other.keys[key_id] != key:
                text = f"files {other.path} and {file.path} hold different data keys {key_id.hex()}"
                conflicts.append(CorruptError(text, CONFLICT))
    return conflicts


def decode_file(data: bytes, name: str) -> KeyFile:
    try:
        file = msgspec.json.decode(data, type=KeyFile)
        ids = file.wrapped()
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, ValueError) as error:
        raise CorruptError(f"file {name}: {error}", LOST) from error
    # Python reads upper-case digits and blanks as well: an id is written in one way only.
    written = {key_id.hex() for key_id in ids}
    have_right_size = all(len(key_id) == frames.KEY_ID_BYTES for key_id in ids)
    if written != file.keys.keys() or not have_right_size:
        digits = 2 * frames.KEY_ID_BYTES
        raise CorruptError(f"file {name}: the id of a data key has {digits} lower-case hex digits", LOST)
    return file


def archive_id_in(data: bytes) -> str | None:
    """Return the archive's id; None where archive.json is damaged."""
    try:
        return msgspec.json.decode(data, type=_ArchiveId).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


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
            # Tasks run where the key-encryption key may not be, so they get data keys. What fails here fails there by
            # name, if it is needed.
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
        """Return the id of the keyring's archive, as archive.json names it, or files of data keys if archive.json is
        lost; '' if there is no archive, as in the state of restores kept elsewhere."""
        with self._lock:
            if self._archive_id is not None:
                return self._archive_id
            archive_id = None
            with suppress(NotFoundError):
                archive_id = archive_id_in(self._store.get(ARCHIVE))
            if not archive_id:
                newest = list_files(self._store)[-_SAMPLE:]
                files, _ = read_files(self._store, newest, None)
                owners = sorted({named.file.archive_id for named in files})
                if len(owners) > 1:
                    raise CorruptError(
                        f"file {ARCHIVE} at {self._store.url} can't be read, and files of {KEYS} belong to archives "
                        f"{' and '.join(owners)}",
                        "set archive_id to the id of this archive",
                    )
                archive_id = owners[0] if owners else ""
            # Without an id, an archive may be made here yet: then the id is looked for again.
            if archive_id or self._known:
                self._archive_id = archive_id
            return archive_id

    def saw_archive(self, data: bytes) -> None:
        """Learn the id from an archive.json that was read for another purpose."""
        with self._lock:
            if self._archive_id is None:
                self._archive_id = archive_id_in(data)

    def cipher(self, header: frames.Header, name: str) -> frames.Cipher:
        """Return the cipher that decrypts file `name`, which begins with `header`."""
        key = self.find(header.key_id, name)
        return frames.Cipher(key, header, self.archive_id, name, partial(self._rivals, header.key_id))

    def new_cipher(self, name: str) -> tuple[frames.Header, frames.Cipher]:
        """Return header and cipher of a new file `name`."""
        made = self.current()
        header = frames.new_header(made.id)
        return header, frames.Cipher(made.key, header, self.archive_id, name)

    def current(self) -> DataKey:
        """Return the data key that this run encrypts with; make and store one at first use, and another a day later."""
        with self._lock:
            if self._writing is None or time.monotonic() > self._since + _SECONDS:
                self.check()
                made = DataKey(secrets.token_bytes(frames.KEY_ID_BYTES), secrets.token_bytes(frames.KEY_BYTES))
                # The file is there before anything is encrypted with its key.
                path, data = new_file(self.kek, {made.id: made.key}, made.id.hex(), self.archive_id)
                self._store.put_new(path, data)
                self._known[made.id] = (made.key,)
                self._writing, self._since = made.id, time.monotonic()
            return DataKey(self._writing, self._known[self._writing][0])

    def find(self, key_id: bytes, name: str) -> bytes:
        """Return the data key of file `name`; `WrongKeyError` if another key-encryption key wraps it."""
        with self._lock:
            if key_id not in self._known and self._singly < _SINGLY:
                self._singly += 1
                self._take([path_of(key_id.hex())])
            # A rotation may have moved the key to another file.
            if key_id not in self._known:
                self._load()
            if key_id in self._known:
                return self._known[key_id][0]
            if key_id in self._others:
                raise self._wrong(f"file {name} was encrypted under", {self._others[key_id]})
            own_path = path_of(key_id.hex())
            if own_path in self._skipped:
                raise self._skipped[own_path]
            for error in self._skipped.values():
                if isinstance(error, WrongKeyError):
                    raise error
            raise CorruptError(f"file {name} at byte 8: no file of {KEYS} holds data key {key_id.hex()}", LOST)

    def _rivals(self, key_id: bytes) -> tuple[bytes, ...]:
        """Return the other data keys under an id, from all files: the first one did not open an object."""
        with self._lock:
            if not self._asked_all:
                self._asked_all = True
                # Tasks may have no key-encryption key. Then the object's damage is reported.
                with suppress(KbackupError):
                    self._load()
            return self._known[key_id][1:]

    def try_out(self) -> str:
        """Check that the key-encryption key unwraps its own output and the archive's keys; return its name."""
        with self._lock:
            self.check()
            made = {secrets.token_bytes(frames.KEY_ID_BYTES): secrets.token_bytes(frames.KEY_BYTES)}
            if self.kek.unwrap(self.kek.wrap(made, self.archive_id), self.archive_id) != made:
                raise WrongKeyError(f"key {self.kek.name} does not give back what it wrapped", "check the key command")
            return self.kek.name

    def check(self) -> None:
        """Raise `WrongKeyError` if the archive has data keys and the key-encryption key unwraps none of them."""
        with self._lock:
            if not self._known:
                self._load()
            if self._others and not self._known:
                names = set(self._others.values())
                raise self._wrong(f"archive {self._store.url} is encrypted under", names)

    def _wrong(self, statement: str, names: set[str]) -> WrongKeyError:
        return WrongKeyError(
            f"{statement} key {' and '.join(sorted(names))}, encryption.key names {self.kek.name}",
            "give the key that it was written with, or was rotated to last",
        )

    def _load(self) -> None:
        """Read all files of data keys that were not read before."""
        self._take(list_files(self._store))

    def _take(self, paths: Iterable[str]) -> None:
        """Learn the keys of the files at `paths` that were not read before; one call unwraps all."""
        ours, unusable = read_files(self._store, paths, self.archive_id, self._read)
        mine = [named for named in ours if named.file.kek == self.kek.name]
        for _, file in ours:
            if file.kek != self.kek.name:
                self._others |= dict.fromkeys(file.wrapped(), file.kek)
        opened, closed = unwrap_files(self.kek, mine, self.archive_id)
        warned = {error.message for error in find_conflicts(self._opened)}
        self._opened += opened
        # A conflict is no error yet: only an object shows which of the keys is genuine.
        for error in find_conflicts(self._opened):
            if error.message not in warned:
                log.warning("%s; each object is read with the key that opens it", error.message)
        for _, keys in opened:
            for key_id, key in keys.items():
                known = self._known.get(key_id, ())
                if key not in known:
                    self._known[key_id] = (*known, key)
        self._read |= {named.path for named in ours}
        for skipped in (*unusable, *closed):
            if skipped.path not in self._skipped:
                log.warning("%s", skipped)
            self._read.add(skipped.path)
            self._skipped[skipped.path] = skipped.error


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


def rotate(store: Store, old: Kek, new: Kek, archive_id: str, samples: Callable[[], Iterable[str]] = tuple) -> Rotated:
    """Wrap all data keys of `store` in one file under `new`, try that file, and delete the other files; the encrypted
    objects stay as they are.

    `samples` names objects of the archive that must open with the keys of the new file before anything is deleted. It
    is called when the new key opens the archive. A second call after a crash finishes the rotation. The caller must
    make sure that nobody writes keys meanwhile. `WrongKeyError` if neither key unwraps any file, `CorruptError` if two
    files hold different data keys under one id; nothing is changed then.
    """
    ours, unusable = read_files(store, list_files(store), archive_id)
    keks = {old.name: old, new.name: new}
    useful: list[Opened] = []
    closed: list[Skipped] = []
    for kek in keks.values():
        under_kek = [named for named in ours if named.file.kek == kek.name]
        opened, failed = unwrap_files(kek, under_kek, archive_id)
        useful += opened
        closed += failed
    skipped = (*unusable, *_under_other_keks(ours, keks), *closed)
    for conflict in find_conflicts(useful):
        raise CorruptError(f"{conflict.message}; nothing was changed", conflict.hint)
    keys: dict[bytes, bytes] = {}
    for opened_file in useful:
        keys |= opened_file.keys
    if not keys and skipped:
        raise WrongKeyError(f"file {skipped[0].path}: {skipped[0].error.message}", skipped[0].error.hint)
    if not keys:
        raise WrongKeyError(
            f"archive {store.url} has no data key yet", "set encryption.key: the first backup makes a data key"
        )
    # A rotation that crashed after this step has left the file that is needed.
    renewed = {path for path, named in ours if named.kek == new.name}
    file = next((path for path, held in useful if path in renewed and held == keys), "")
    if not file:
        file, data = new_file(new, keys, secrets.token_hex(16), archive_id)
        store.put_new(file, data)
    # Nothing is deleted before the new file has given back all keys, and has opened objects of the archive.
    _try_out(store, new, file, keys, archive_id, samples)
    replaced = [path for path, _ in useful if path != file]
    undeleted = tuple(store.delete(replaced))
    failed_paths = {each.key for each in undeleted}
    removed = tuple(path for path in replaced if path not in failed_paths)
    return Rotated(new.name, len(keys), file, removed, undeleted, skipped)


def _under_other_keks(files: Iterable[NamedKeyFile], keks: Mapping[str, Kek]) -> list[Skipped]:
    """Return the files under none of `keks`. They end nothing: anybody who may write to the store can add one."""
    names = " nor ".join(sorted(keks))
    hint = "rotate from that key as well if its data keys are yours"
    others = []
    for path, file in files:
        if file.kek not in keks:
            error = WrongKeyError(f"it is under key {file.kek}, which is neither {names}", hint)
            others.append(Skipped(path, error))
    return others


def _try_out(
    store: Store, kek: Kek, path: str, keys: dict[bytes, bytes], archive_id: str, samples: Callable[[], Iterable[str]]
) -> None:
    """Read the file at `path` back, and open `samples` with its keys. A sample under another key, or that is missing,
    is passed over: no file that may hold its key is deleted."""
    file = decode_file(store.get(path), path)
    if kek.unwrap(file.wrapped(), archive_id) != keys:
        raise CorruptError(
            f"file {path}: the new key does not give back what it wrapped",
            f"check the key command and delete {path}; no other file was changed",
        )

    def try_one(name: str) -> None:
        # A sample may have been swept meanwhile.
        with suppress(NotFoundError):
            data = store.get(name)
            header = frames.decode_header(data, name)
            if header.key_id in keys:
                cipher = frames.Cipher(keys[header.key_id], header, archive_id, name)
                frames.decrypt_frames(cipher, memoryview(data)[frames.HEADER :], name)

    try:
        in_threads(try_one, samples())
    except CorruptError as error:
        raise CorruptError(
            f"{error.message}: it was damaged, or its data key was replaced; no file of data keys was deleted",
            "run 'kbackup verify' and 'kbackup repair', then run the command again",
        ) from error
