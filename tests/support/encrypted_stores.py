"""An encrypted store above a directory."""

from __future__ import annotations

from pathlib import Path

from kbackup.archive import layout
from kbackup.store.base import Store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.frames import FRAME
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from kbackup.store.file import FileStore

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
