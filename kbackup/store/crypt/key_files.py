"""The files under keys/: each holds data keys of an archive, wrapped by one key-encryption key."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

import msgspec

from kbackup.errors import CorruptError, KbackupError, NotFoundError
from kbackup.store.base import Store
from kbackup.store.crypt.frames import KEY_ID_BYTES
from kbackup.store.crypt.kek import Kek
from kbackup.util.printable import printable
from kbackup.util.text import SomeArchiveId
from kbackup.util.times import now

KEYS = "keys/"
LOST = "restore it from a bucket version or a copy: what was encrypted under its keys is lost without it"
CONFLICT = "find out who wrote the newer one, and move it out of keys/; a copy or a bucket version has the genuine one"
_THREADS = 16


class KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """keys/<name>.json. `keys` is data key id (32 hex digits): wrapped data key (base64)."""

    format: Literal["kbackup-keys"] = "kbackup-keys"
    version: Literal[2] = 2
    archive_id: SomeArchiveId
    created_at: str
    kek: str
    keys: dict[str, str]

    def wrapped(self) -> dict[bytes, bytes]:
        return {
            bytes.fromhex(name): base64.b64decode(text, validate=True) for name, text in self.keys.items()
        }


class Named(NamedTuple):
    """A file of data keys and where it is."""

    path: str
    file: KeyFile


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
    named = kek.name
    wrapped = kek.wrap(keys, archive_id)
    file = KeyFile(
        archive_id=archive_id,
        created_at=now(),
        kek=named,
        keys={key_id.hex(): base64.b64encode(data).decode() for key_id, data in wrapped.items()},
    )
    return path_of(name), msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n"


def path_of(name: str) -> str:
    return f"{KEYS}{name}.json"


def list_files(store: Store) -> list[str]:
    """Return the store's keys of files of data keys."""
    return [info.key for info in store.list(KEYS) if info.key.endswith(".json")]


def read_files(
    store: Store, paths: Iterable[str], known: Collection[str] = ()
) -> tuple[list[Named], list[Skipped]]:
    """Return the files at `paths` but those `known`, and the files that can't be read: anybody who may write can add
    one. A file that a rotation has removed meanwhile is in neither."""

    def read(path: str) -> Named | Skipped | None:
        try:
            return Named(path, decode_file(store.get(path), path))
        except NotFoundError:
            return None
        except CorruptError as error:
            return Skipped(path, error)

    with ThreadPoolExecutor(_THREADS) as pool:
        entries = list(pool.map(read, [path for path in paths if path not in known]))
    return [e for e in entries if isinstance(e, Named)], [e for e in entries if isinstance(e, Skipped)]


def unwrap_files(kek: Kek, files: Iterable[Named], archive_id: str) -> tuple[list[Opened], list[Skipped]]:
    """Return the data keys of each of `files`, which are under `kek`, and the files that it can't unwrap.

    One call unwraps all files that have no data key id in common. They are tried one by one only if it fails.
    """
    batches: dict[int, list[Named]] = {}
    seen: dict[str, int] = {}
    for named in files:
        number = max((seen.get(key_id, 0) for key_id in named.file.keys), default=0)
        batches.setdefault(number, []).append(named)
        seen |= dict.fromkeys(named.file.keys, number + 1)
    parts = [_unwrap_batch(kek, batch, archive_id) for batch in batches.values()]
    return [each for opened, _ in parts for each in opened], [each for _, closed in parts for each in closed]


def _unwrap_batch(kek: Kek, files: Sequence[Named], archive_id: str) -> tuple[list[Opened], list[Skipped]]:
    """Unwrap files that have no data key id in common."""
    try:
        keys = kek.unwrap({k: data for _, file in files for k, data in file.wrapped().items()}, archive_id)
        return [Opened(path, {k: keys[k] for k in file.wrapped()}) for path, file in files], []
    except KbackupError as error:
        if len(files) == 1:
            return [], [Skipped(files[0].path, error)]
    with ThreadPoolExecutor(_THREADS) as pool:
        parts = list(pool.map(lambda named: _unwrap_batch(kek, [named], archive_id), files))
    return [each for opened, _ in parts for each in opened], [each for _, closed in parts for each in closed]


def find_conflicts(files: Iterable[Opened]) -> list[CorruptError]:
    """Return an error for each two files that hold different data keys under one id. Which of them is genuine, only the
    objects tell."""
    first: dict[bytes, Opened] = {}
    return [
        CorruptError(f"files {other.path} and {file.path} hold different data keys {key_id.hex()}", CONFLICT)
        for file in files
        for key_id, key in file.keys.items()
        if (other := first.setdefault(key_id, file)).keys[key_id] != key
    ]


def split_foreign(files: Iterable[Named], archive_id: str) -> tuple[list[Named], list[Skipped]]:
    """Split files into files of this archive, and files that are skipped because they are of another."""
    ours: list[Named] = []
    skipped: list[Skipped] = []
    for named in files:
        owner = named.file.archive_id
        if owner == archive_id:
            ours.append(named)
        else:
            message = f"it belongs to archive {owner or '(none)'}, not to {printable(archive_id) or '(none)'}"
            skipped.append(
                Skipped(named.path, CorruptError(message, "delete it, or move it to its own archive"))
            )
    return ours, skipped


def decode_file(data: bytes, name: str) -> KeyFile:
    try:
        file = msgspec.json.decode(data, type=KeyFile)
        ids = file.wrapped()
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, ValueError) as error:
        raise CorruptError(f"file {name}: {error}", LOST) from error
    if {key_id.hex() for key_id in ids} != file.keys.keys() or any(len(k) != KEY_ID_BYTES for k in ids):
        raise CorruptError(
            f"file {name}: the id of a data key has {2 * KEY_ID_BYTES} lower-case hex digits", LOST
        )
    return file


class _ArchiveId(msgspec.Struct, frozen=True):
    """The only member of archive.json that a keyring needs."""

    id: str


def archive_id_in(data: bytes) -> str | None:
    """Return the archive's id; None where archive.json is damaged."""
    try:
        return msgspec.json.decode(data, type=_ArchiveId).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
