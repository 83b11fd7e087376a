"""A run that would mix two clusters in one archive is refused before it writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbackup.archive.lease import HeldLease
from kbackup.archive.run import open_or_create
from kbackup.errors import MismatchError
from kbackup.jobs.backup.job import begin
from kbackup.jobs.capture import Base
from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore


def begun(store: MemoryStore, cluster_id: str, *, adopt: bool = False) -> Base:
    source: Any = SimpleNamespace(id=cluster_id, isolation_level="read_committed")
    with HeldLease(store, "kbackup backup", 60) as lease:
        open_or_create(store)
        return begin(store, lease, source, adopt)


def test_another_cluster_is_refused_before_anything_is_written() -> None:
    store = MemoryStore()
    make_archive(store)
    before = {e.key: store.get(e.key) for e in store.list() if e.key != "lock.json"}
    with pytest.raises(MismatchError, match="is of cluster source, the source is cluster other") as raised:
        begun(store, "other")
    assert raised.value.exit_code == 10
    assert "--adopt-cluster" in raised.value.hint
    store.delete(["lock.json"])
    assert {e.key: store.get(e.key) for e in store.list()} == before


def test_same_and_rebuilt_clusters_continue_the_archive() -> None:
    store = MemoryStore()
    make_archive(store)
    assert begun(store, "source").run.next_point == 3
    assert begun(store, "other", adopt=True).run.next_point == 3
    assert begun(store, "").run.next_point == 3, "a source that tells no id"
    assert begun(MemoryStore(), "other").run.next_point == 1, "an archive without a restore point"
