"""Compare encrypted objects that kbackup writes and reads with an implementation of the specification alone."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag

from kbackup.archive import layout
from kbackup.archive.models import ArchiveInfo, dump
from kbackup.archive.run import open_or_create
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.frames import Cipher, Header, encrypt_frames, stored_size
from kbackup.store.crypt.kek import LocalKek, generate_key
from kbackup.store.crypt.keyring import Keyring
from kbackup.store.file import FileStore
from tests.golden import sealed
from tests.golden.vectors import VECTORS

VECTOR: dict[str, Any] = json.loads((VECTORS / "encryption" / "expected.json").read_text("utf-8"))
KEY = b64decode(VECTOR["key"])
ARCHIVE = VECTOR["archive_id"]
KEY_FILE = json.dumps(VECTOR["key_file"]["content"]).encode()
each_object = pytest.mark.parametrize("vector", VECTOR["objects"].values(), ids=VECTOR["objects"])


def plain_of(vector: dict[str, Any]) -> bytes:
    if "plain" in vector:
        return str(vector["plain"]).encode()
    return bytes(i * 7 % 251 for i in range(vector["pattern"]))


def stored_of(vector: dict[str, Any]) -> bytes:
    """Return the encrypted object, made by the specification alone."""
    ((key_id, data_key),) = sealed.data_keys(KEY_FILE, KEY).items()
    assert data_key.hex() == VECTOR["data_key"]
    return sealed.seal(ARCHIVE, vector["name"], plain_of(vector), key_id, data_key, bytes.fromhex(vector["salt"]))


@each_object
def test_the_vectors_are_what_the_specification_says(vector: dict[str, Any]) -> None:
    stored = stored_of(vector)
    assert stored.hex() == vector.get("stored", stored.hex())
    assert (len(stored), hashlib.sha256(stored).hexdigest()) == (vector["stored_size"], vector["sha256"])


@each_object
def test_kbackup_seals_the_vectors(vector: dict[str, Any]) -> None:
    (key_id,) = sealed.data_keys(KEY_FILE, KEY)
    header = Header(key_id, bytes.fromhex(vector["salt"]))
    cipher = Cipher(bytes.fromhex(VECTOR["data_key"]), header, ARCHIVE, vector["name"])
    made = header.encode() + encrypt_frames(cipher, memoryview(plain_of(vector)), 0)
    assert hashlib.sha256(made).hexdigest() == vector["sha256"]
    assert len(made) == stored_size(len(plain_of(vector)))


@each_object
def test_kbackup_opens_the_vectors(vector: dict[str, Any], tmp_path: Path) -> None:
    store = FileStore(tmp_path / "archive")
    store.put("archive.json", dump(ArchiveInfo(id=ARCHIVE, created_at="", encryption=CryptStore.encryption)))
    store.put(VECTOR["key_file"]["name"], KEY_FILE)
    store.put(vector["name"], stored_of(vector))
    (tmp_path / "key").write_text(VECTOR["key"])
    opened = CryptStore(store, Keyring(store, f"file:{tmp_path / 'key'}"), layout.key_class)
    assert opened.get(vector["name"]) == plain_of(vector)


def test_the_name_of_a_key() -> None:
    assert LocalKek(KEY).name == sealed.kek_name(KEY) == VECTOR["key_file"]["content"]["kek"]


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_a_stranger_reads_what_kbackup_wrote(size: int, tmp_path: Path) -> None:
    key = generate_key()
    (tmp_path / "key").write_text(f"{key}\n")
    inner = FileStore(tmp_path / "archive")
    store = CryptStore(inner, Keyring(inner, f"file:{tmp_path / 'key'}"), layout.key_class)
    archive = open_or_create(store).info.id
    data = plain_of({"pattern": size})
    store.put("topics/größe/put", data)
    with store.upload("topics/größe/uploaded") as upload:
        upload.write(data)
        upload.commit()
    (file,) = [info.key for info in inner.list("keys/")]
    keys = sealed.data_keys(inner.get(file), b64decode(key))
    assert file == f"keys/{next(iter(keys)).hex()}.json"
    for name in ("topics/größe/put", "topics/größe/uploaded"):
        stored = inner.get(name)
        assert sealed.unseal(archive, name, stored, keys.__getitem__) == data
        with pytest.raises(InvalidTag):
            sealed.unseal(archive, name + "2", stored, keys.__getitem__)
        with pytest.raises(InvalidTag):
            sealed.unseal(archive[::-1], name, stored, keys.__getitem__)
