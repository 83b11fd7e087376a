"""Documents of restores: which of them this machine has written, and which anybody may have."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from kbackup.archive.restores.proof import ProvenStore, check_proven, unproven_documents, with_proof
from kbackup.errors import MismatchError, RefusedError
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from tests.support.memory_store import MemoryStore

PLAN = "restores/r/plan.json"


@pytest.fixture
def shared_store() -> Store:
    return MemoryStore()


def proven(shared_store: Store, folder: Path | None) -> ProvenStore:
    store = with_proof(shared_store, folder)
    assert isinstance(store, ProvenStore)
    return store


def test_what_this_machine_wrote_is_proven_in_later_runs(shared_store: Store, tmp_path: Path) -> None:
    proven(shared_store, tmp_path).put_new(PLAN, b"{}")
    later = proven(shared_store, tmp_path)
    assert later.get(PLAN) == b"{}"
    assert unproven_documents(later) == []
    check_proven(later, "r", accept=False)


@pytest.mark.parametrize(
    "name", ["plan.json", "report.json", "schemas-before.json", "groups-before-12.json", "offsets.parquet"]
)
def test_a_replaced_document_is_refused(shared_store: Store, tmp_path: Path, name: str) -> None:
    key = f"restores/r/{name}"
    proven(shared_store, tmp_path).put(key, b"ours")
    shared_store.put(key, b"theirs")
    with pytest.raises(MismatchError, match="is not the one that this machine has written"):
        proven(shared_store, tmp_path).get(key)


def test_a_document_of_another_machine_is_unproven_until_it_is_accepted(shared_store: Store, tmp_path: Path) -> None:
    shared_store.put(PLAN, b"{}")
    store = proven(shared_store, tmp_path)
    store.get(PLAN)
    assert unproven_documents(store) == [PLAN]
    with pytest.raises(RefusedError, match=f"nothing proves that {PLAN} at .* are what restore r wrote"):
        check_proven(store, "r", accept=False)
    check_proven(store, "r", accept=True)
    later = proven(shared_store, tmp_path)
    later.get(PLAN)
    assert unproven_documents(later) == []


def test_what_is_accepted_is_what_was_read(shared_store: Store, tmp_path: Path) -> None:
    shared_store.put(PLAN, b"shown")
    store = proven(shared_store, tmp_path)
    store.get(PLAN)
    shared_store.put(PLAN, b"swapped")
    check_proven(store, "r", accept=True)
    with pytest.raises(MismatchError, match="is not the one that this machine has written"):
        proven(shared_store, tmp_path).get(PLAN)


def test_restores_of_two_archives_are_told_apart(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    proven(FileStore(tmp_path / "a"), folder).put_new(PLAN, b"{}")
    other = FileStore(tmp_path / "b")
    other.put_new(PLAN, b"other")
    store = proven(other, folder)
    assert store.get(PLAN) == b"other"
    assert unproven_documents(store) == [PLAN]


def test_without_a_folder_nothing_is_proven_in_later_runs(shared_store: Store) -> None:
    first = proven(shared_store, None)
    first.put_new(PLAN, b"{}")
    first.get(PLAN)
    assert unproven_documents(first) == []
    later = proven(shared_store, None)
    later.get(PLAN)
    assert unproven_documents(later) == [PLAN]


def test_other_objects_are_none_of_a_restore(shared_store: Store, tmp_path: Path) -> None:
    shared_store.put("catalog/0000000001.json", b"{}")
    shared_store.put("restores/r/part-1.parquet", b"x")
    store = proven(shared_store, tmp_path)
    store.get("catalog/0000000001.json")
    store.get("restores/r/part-1.parquet")
    assert unproven_documents(store) == []


def test_workers_get_the_store_below(tmp_path: Path) -> None:
    store = proven(FileStore(tmp_path / "archive"), tmp_path / "memory")
    assert isinstance(pickle.loads(pickle.dumps(store)), FileStore)
