"""Archives that a repair leaves alone, and the errors of readers before it."""

from __future__ import annotations

import hashlib
import re

import msgspec
import pytest

from kbackup.archive import layout
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import NewerError
from kbackup.archive.reader import open_archive
from kbackup.errors import CorruptError, NoArchiveError
from tests.support.memory_store import MemoryStore
from tests.support.repairs import LAST, catalogs, contents, harm, key_of, run

pytestmark = pytest.mark.exhaustive(keep=2)

CHECKSUM = re.compile(rb'"checksum":"[^"]*"')


def newer(data: bytes, change: tuple[bytes, bytes]) -> bytes:
    """A document as a later version may write it, with its own checksum."""
    assert change[0] in data
    changed = CHECKSUM.sub(b'"checksum":""', msgspec.json.format(data.replace(*change, 1), indent=-1))
    whole = f'"checksum":"sha256:{hashlib.sha256(changed).hexdigest()}"'.encode()
    return changed.replace(b'"checksum":""', whole, 1)


NEWER = re.compile(rb'"version": \d+')


@pytest.mark.parametrize("how", ["version", "member"])
@pytest.mark.parametrize(
    "name",
    [
        layout.LOCK,
        layout.ARCHIVE,
        layout.LATEST,
        layout.DERIVED,
        layout.CATALOG,
        layout.MANIFEST,
        layout.GROUPS,
        layout.METADATA,
    ],
)
def test_objects_of_a_newer_version_are_not_damage(store: MemoryStore, name: str, how: str) -> None:
    with HeldLease(store, "kbackup backup", 60):
        pass
    harm(store, key_of(store, 5, layout.GROUPS), "gone")
    key = name
    if name == layout.CATALOG:
        key = catalogs(store)[-1]
    elif name in (layout.MANIFEST, layout.GROUPS, layout.METADATA):
        key = key_of(store, 3, name)
    data = store.get(key)
    version = NEWER.search(data)
    assert version is not None
    change = (version[0], b'"version": 99') if how == "version" else (b'"checksum"', b'"new": 1, "checksum"')
    store.put(key, newer(data, change))
    before, changed = contents(store), store.get(key)
    for confirm in (False, True):
        with pytest.raises(NewerError, match=key):
            run(store, confirm)
    assert contents(store) == before
    assert store.get(key) == changed


def test_there_must_be_something_of_an_archive() -> None:
    with pytest.raises(NoArchiveError):
        run(MemoryStore())


@pytest.mark.parametrize("name", [layout.MANIFEST, layout.CATALOG, layout.TABLES])
def test_errors_of_readers_name_the_lost_object_and_the_repair(store: MemoryStore, name: str) -> None:
    catalog = open_archive(store).committed.catalog
    assert catalog is not None
    key = {
        layout.MANIFEST: key_of(store, LAST, layout.MANIFEST),
        layout.CATALOG: catalogs(store)[-1],
        layout.TABLES: catalog.tables.points[0].key,
    }[name]
    harm(store, key, "gone")
    with pytest.raises(CorruptError, match=key) as raised:
        _ = open_archive(store).head
    assert "kbackup repair" in raised.value.hint
