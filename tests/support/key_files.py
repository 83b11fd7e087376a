"""Keys in files and by a command, and stores encrypted with them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kbackup.archive import layout
from kbackup.archive.run import open_or_create
from kbackup.store.base import Store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.frames import FRAME
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from kbackup.store.file import FileStore

# A KMS: its key is in a file beside it, which also notes what it was called with.
KMS = """
import base64, pathlib, sys
from cryptography.fernet import Fernet
folder, verb = pathlib.Path(sys.argv[1]), sys.argv[2]
with (folder / "calls").open("a") as calls:
    print(*sys.argv[2:], file=calls)
box = Fernet((folder / "kms-key").read_bytes())
if verb == "name":
    print("kms:backup")
for line in sys.stdin.buffer.read().split():
    data = base64.b64decode(line)
    print(base64.b64encode(box.encrypt(data) if verb == "wrap" else box.decrypt(data)).decode())
"""


def key_file(folder: Path, name: str = "key") -> str:
    (folder / name).write_text(generate_key() + "\n")
    return f"file:{folder / name}"


def kms(folder: Path) -> str:
    from cryptography.fernet import Fernet

    folder.mkdir(exist_ok=True)
    (folder / "kms-key").write_bytes(Fernet.generate_key())
    (folder / "kms.py").write_text(KMS)
    return f"command:{sys.executable} {folder / 'kms.py'} {folder}"


def opened(inner: FileStore, source: str) -> CryptStore:
    return CryptStore(inner, Keyring(inner, source), layout.key_class)


def change(inner: FileStore, path: str, **members: Any) -> None:
    inner.put(path, json.dumps(json.loads(inner.get(path)) | members).encode())


def filled(inner: FileStore, source: str, runs: int = 3) -> dict[str, bytes]:
    """An archive with objects of some runs; returns what is stored of them."""
    open_or_create(opened(inner, source))
    for run in range(runs):
        opened(inner, source).put(f"run/{run}", b"data")
    return {info.key: inner.get(info.key) for info in inner.list("run/")}


SIZES = [0, 1, 1000, FRAME - 1, FRAME, FRAME + 1, 2 * FRAME, 3 * FRAME + 77]
MARKER = b"nobody-but-us-may-read-this"


def data_of(size: int) -> bytes:
    return (bytes(n * 31 % 251 for n in range(997)) * (size // 997 + 1))[:size]


def encrypted(inner: Store, folder: Path) -> CryptStore:
    """Return a store whose key is in a file of `folder`, which is made where there is none."""
    key = folder / "key"
    if not key.exists():
        key.write_text(generate_key())
    return CryptStore(inner, Keyring(inner, f"file:{key}"), layout.key_class)


class Stores:
    """A directory, encrypted, and as it is."""

    def __init__(self, folder: Path) -> None:
        self.key = f"file:{folder / 'key'}"
        self.inner = FileStore(folder / "archive")
        self.store = encrypted(self.inner, folder)

    def opened(self) -> CryptStore:
        return CryptStore(self.inner, Keyring(self.inner, self.key), layout.key_class)
