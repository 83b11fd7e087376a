"""Encrypted stores are pickled, and opened by address and key."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.errors import KbackupError, WrongKeyError
from kbackup.store import open_store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.keyring import KEYS, Keyring
from tests.support.encrypted_stores import MARKER, Stores


def test_a_pickled_store_needs_the_key_no_more(stores: Stores, tmp_path: Path) -> None:
    """Executors get the data keys of the archive, and not what wraps them."""
    stores.opened().put("by/another/run", b"1")
    stores.store.put("by/this/run", b"2")
    kek = (tmp_path / "key").read_text()
    pickled = pickle.dumps(stores.store)
    assert kek.encode() not in pickled
    (tmp_path / "key").unlink()
    other: CryptStore = pickle.loads(pickled)
    assert (other.get("by/another/run"), other.get("by/this/run")) == (b"1", b"2")
    other.put("by/a/task", b"3")
    assert len(list(stores.inner.list(KEYS))) == 2  # under this run's data key


def test_a_store_is_pickled_whatever_it_can_not_read(stores: Stores, tmp_path: Path) -> None:
    stores.store.put("key", b"data")
    stores.inner.put(KEYS + "damaged.json", b"{")
    other: CryptStore = pickle.loads(pickle.dumps(stores.opened()))
    assert other.get("key") == b"data"
    (tmp_path / "key").unlink()
    other = pickle.loads(pickle.dumps(stores.opened()))
    with pytest.raises(WrongKeyError, match="can't read the key file"):
        other.get("key")


def test_a_store_is_opened_by_address_and_key(stores: Stores, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "archive"), None, stores.key, key_class=layout.key_class)
    store.put("key", MARKER)
    assert stores.opened().get("key") == MARKER
    assert MARKER not in stores.inner.get("key")
    assert store.url == str(tmp_path / "archive")


@pytest.mark.parametrize("source", ["", "AAAA", "hush", "/path", "vault:x", "file:", "env: "])
def test_invalid_key_sources_are_refused(source: str, stores: Stores) -> None:
    with pytest.raises(KbackupError, match="named by where it is") as caught:
        Keyring(stores.inner, source)
    assert caught.value.exit_code == 2
    assert not source.strip() or source not in caught.value.message
