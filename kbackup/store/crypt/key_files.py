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
from kbackup.util.times import now

KEYS = "keys/"
LOST = "restore it from a bucket version or a copy: what was encrypted under its keys is lost without it"
_THREADS = 16


class KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """keys/<name>.json. `keys` is data key id (32 hex digits): wrapped data key (base64)."""

    format: Literal["kbackup-keys"] = "kbackup-keys"
    version: Literal[2] = 2
    archive_id: str
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


def unwrap_files(
    kek: Kek, files: Sequence[Named], archive_id: str
) -> tuple[dict[bytes, bytes], list[Skipped]]:
    """Return the data keys of `files`, which are under `kek`, and the files that it can't unwrap.

    One call unwraps all files; they are tried one by one only if it fails.
    """
    try:
        every = {key_id: data for _, file in files for key_id, data in file.wrapped().items()}
        return kek.unwrap(every, archive_id), []
    except KbackupError as error:
        if len(files) == 1:
            return {}, [Skipped(files[0].path, error)]
    with ThreadPoolExecutor(_THREADS) as pool:
        parts = list(pool.map(lambda named: unwrap_files(kek, [named], archive_id), files))
    keys = {key_id: key for opened, _ in parts for key_id, key in opened.items()}
    return keys, [each for _, skipped in parts for each in skipped]


def split_foreign(files: Iterable[Named], archive_id: str) -> tuple[list[Named], list[Skipped]]:
    """Split files into files of this archive, and files that are skipped because they are of another."""
    ours: list[Named] = []
    skipped: list[Skipped] = []
    for named in files:
        owner = named.file.archive_id
        if owner == archive_id:
            ours.append(named)
        else:
            message = f"it belongs to archive {owner or '(none)'}, not to {archive_id or '(none)'}"
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
    if not all(len(key_id) == KEY_ID_BYTES for key_id in ids):
        raise CorruptError(f"file {name}: the id of a data key has {2 * KEY_ID_BYTES} digits", LOST)
    return file
