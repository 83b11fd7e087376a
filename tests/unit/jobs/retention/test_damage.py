"""Damage of any file that retention reads is found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from kbackup.errors import (
    CorruptError,
)
from kbackup.jobs.points import history as history_of
from kbackup.jobs.points import pin
from kbackup.jobs.verify.job import verify
from kbackup.metrics.registry import Silent
from kbackup.store.base import Store
from tests.support.expirations import all_seen, check_whole, expired
from tests.support.histories import History
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.exhaustive(keep=2)


@pytest.mark.exhaustive
def test_damage_is_found(built: MemoryStore) -> None:
    """Nothing is taken for expired that was not."""
    store = built.copy()
    history = History(store)
    history.topics = {t.name: t for t in open_archive(store).restore_point("latest").topics}
    pin(store, "3")
    expired(store, last=3, days=4)
    history.run(10, {"a": 3, "b": 2, "c": "out"})
    expired(store, last=2)
    catalog = open_archive(store).committed.catalog
    assert catalog is not None
    refs = [getattr(catalog.tables, name)[0].key for name in catalog.tables.__struct_fields__]
    keys = [key for key in refs if key]
    manifests = [point.documents[0] for point in open_archive(store).restore_points]
    for key in (layout.catalog_key(catalog.number), *keys, *manifests):
        whole = store.get(key)
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        for data in (None, b"", whole[:-2], flipped):
            with changed(store, key, data):
                report = verify(store, "all", True, lambda: None, Silent())  # type: ignore[arg-type, return-value]
                assert any(key in f"{f.file} {f.what}" for f in report.findings), (key, data)
                with pytest.raises(CorruptError, match=key):
                    use(store)
    check_whole(store)


def use(store: Store) -> None:
    archive = open_archive(store)
    all_seen(archive)
    history_of(archive)
    expired(store, last=1, confirm=False)


@contextmanager
def changed(store: Store, key: str, data: bytes | None) -> Iterator[None]:
    before = store.get(key)
    store.delete([key])
    if data is not None:
        store.put(key, data)
    yield
    store.put(key, before)
