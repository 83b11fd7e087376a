"""Repairs that are interrupted, encrypted, or beside other writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.operations import label_point
from kbackup.archive.lease import HeldLease
from kbackup.archive.reader import open_archive
from kbackup.archive.segments.writer import Target
from kbackup.errors import LockedError, WrongKeyError
from kbackup.store.base import Store
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from tests.support.archives import make_archive, write
from tests.support.crash_store import CrashStore, crashed
from tests.support.memory_store import MemoryStore
from tests.support.repairs import (
    ORDERS,
    all_objects,
    catalogs,
    check_healed,
    contents,
    do,
    harm,
    key_of,
    listed_segments,
    records,
    run,
    verified,
)

pytestmark = pytest.mark.exhaustive(keep=2)


def records_listed(store: Store) -> set[str]:
    return open_archive(store).keys()


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("kind", ["documents", "catalogs", "all"])
def test_a_repair_may_be_killed_anywhere(made: MemoryStore, kind: str) -> None:
    harmed = made.copy()
    lost = {
        "documents": [
            layout.ARCHIVE,
            key_of(made, 3, layout.MANIFEST),
            key_of(made, 1, layout.GROUPS),
            f"{ORDERS}08_records",
            f"{ORDERS}15_index",
        ],
        "catalogs": [*catalogs(made)[-3:], "topics/more/index_partition_000"],
        "all": [key for key in all_objects(made) if not key.startswith(layout.TOPICS)],
    }[kind]
    harmed.delete(lost)
    whole = harmed.copy()
    run(whole)
    for store in crashed(harmed, run):
        run(store)
        if kind != "all":
            assert listed_segments(store) == listed_segments(whole)
        assert records(store) == records(harmed)
        check_healed(store)


def test_a_repair_is_not_committed_to_a_changed_archive(store: MemoryStore) -> None:
    class Rival(CrashStore):
        def _before(self, operation: Any, key: str) -> None:
            if operation == "put_new" and layout.parse_catalog_key(key) and not self.down:
                self.down = True
                do(store, lambda state: label_point(state, "rival", 6))
                self.down = False

    harm(store, f"{ORDERS}15_records", "cut")
    with pytest.raises(Exception, match="changed during the repair"):
        run(Rival(store))
    assert open_archive(store).state.labels["rival"] == 6
    assert run(store).losses


def test_an_encrypted_archive_is_repaired_with_its_key_alone(tmp_path: Path) -> None:
    inner = MemoryStore()
    (tmp_path / "key").write_text(generate_key())
    store = CryptStore(inner, Keyring(inner, f"file:{tmp_path / 'key'}"), layout.key_class)
    make_archive(store)
    truth = records(store)
    for key in (layout.ARCHIVE, *(e.key for e in store.list(layout.POINTS)), f"{ORDERS}15_index"):
        harm(store, key, "gone")
    bad = f"{ORDERS}32_records"
    sealed = inner.get(bad)
    inner.put(bad, sealed[:-1])
    with pytest.raises(WrongKeyError, match="is encrypted"):
        run(inner)
    report = run(store)
    assert [line for line in report.losses if "offsets 32 to " in line]
    assert inner.get(bad) == sealed[:-1]
    assert verified(store).findings == ()
    assert {
        key for places in listed_segments(store).values() for some in places.values() for key in some
    } == truth.keys() - {bad}


@pytest.mark.parametrize("how", ["gone", "cut"])
def test_the_index_of_an_orphan_is_left_alone(store: MemoryStore, how: str) -> None:
    """A later run may give a compressed segment the same name, and write the index."""
    orphan = write(store, Target("more", 1, 0, 1 << 20, "none"), range(100, 105))[0]
    key = layout.index_key_of(orphan.key)
    harm(store, key, how)
    harm(store, catalogs(store)[-1], "gone")  # orphans are read
    before = contents(store).get(key)
    run(store)
    assert orphan.key not in records_listed(store)
    assert contents(store).get(key) == before


def test_a_key_for_an_archive_that_is_not_encrypted_is_no_damage(store: MemoryStore, tmp_path: Path) -> None:
    harm(store, layout.ARCHIVE, "gone")
    (tmp_path / "key").write_text(generate_key())
    with pytest.raises(WrongKeyError):
        run(CryptStore(store, Keyring(store, f"file:{tmp_path / 'key'}"), layout.key_class))


def test_a_repair_waits_for_no_writer(store: MemoryStore) -> None:
    with HeldLease(store, "kbackup backup", 60), pytest.raises(LockedError):
        run(store)
