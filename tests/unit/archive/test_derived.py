"""Derived files follow from the restore point that a run committed."""

from __future__ import annotations

import json

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.documents import Derived
from kbackup.archive.derived import refresh_derived
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import load
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.run import begin_writing
from kbackup.errors import (
    LeaseLostError,
    UnreachableError,
)
from kbackup.formats.index import decode_partition_index
from kbackup.store.wrappers import GuardedStore
from tests.support.faulty_store import FaultyStore, down
from tests.support.made_segments import TOPIC, committed, state, target, write


def test_derived_files_follow_from_the_restore_point(store: FaultyStore) -> None:
    spare = write(store, target(1)._replace(spare=1), range(4))  # an orphan had the plain name
    first = write(store, target(), range(10)) + spare
    topics = [state((0, 0, 10), (1, 0, 4), (2, 0, 0), number=1)]
    archive, _ = committed(store, 1, None, first, topics, {"g": 7, "h": 0})
    names = _index(store, 0)
    assert names == [(layout.segment_stem(0, s.first), s.first) for s in first if s.partition == 0]
    assert len(names) > 1
    assert _index(store, 1) == [(layout.stem_of(s.key), s.first) for s in spare]
    assert _index(store, 2) == []
    assert json.loads(store.get(f"topics/{TOPIC}/consumer_offsets_partition_000")) == {"g": 7, "h": 0}
    assert json.loads(store.get(f"topics/{TOPIC}/consumer_offsets_partition_001")) == {}
    mark = load(Derived, store.get(layout.DERIVED), layout.DERIVED)
    assert mark.catalog == archive.state.number


def test_only_what_was_touched_is_written_again(store: FaultyStore) -> None:
    first = write(store, target(), range(10)) + write(store, target(1), range(4))
    committed(store, 1, None, first, [state((0, 0, 10), (1, 0, 4), number=1)])
    second = write(store, target(1), range(4, 9))
    store.calls.clear()
    committed(store, 2, 1, second, [state((0, 0, 10), (1, 0, 9), number=2)])
    written = [key for operation, key in store.calls if operation == "put"]
    assert [key for key in written if "/index_" in key] == [f"topics/{TOPIC}/index_partition_001"]
    assert [start for _, start in _index(store, 1)] == [
        s.first for s in [*first, *second] if s.partition == 1
    ]
    assert written[-1] == layout.DERIVED, "said last, when all is done"


def test_group_files_that_did_not_change_are_left_alone(store: FaultyStore) -> None:
    first = write(store, target(), range(10))
    topics = [state((0, 0, 10), (1, 0, 0), number=1)]
    committed(store, 1, None, first, topics, {"g": 7})
    store.calls.clear()
    committed(store, 2, 1, [], topics, {"g": 9})
    written = [key for operation, key in store.calls if operation == "put" and key.startswith(layout.TOPICS)]
    assert written == [], "the topic was not captured again"
    store.calls.clear()
    committed(store, 3, 2, [], [state((0, 0, 10), (1, 0, 0), number=3)], {"g": 9})
    written = [key for operation, key in store.calls if operation == "put" and key.startswith(layout.TOPICS)]
    assert f"topics/{TOPIC}/consumer_offsets_partition_000" in written
    assert not [key for key in written if "/index_" in key]
    assert json.loads(store.get(f"topics/{TOPIC}/consumer_offsets_partition_000")) == {"g": 9}
    store.calls.clear()
    committed(store, 4, 3, [], [state((0, 0, 10), (1, 0, 0), (2, 0, 0), number=4)], {"g": 9})
    written = [key for operation, key in store.calls if operation == "put" and key.startswith(layout.TOPICS)]
    files = [f"topics/{TOPIC}/{name}_partition_002" for name in ("consumer_offsets", "index")]
    assert sorted(written) == files, "captured again, with the same groups"


def test_derived_files_that_a_crash_left_behind_are_written_by_the_next_run(store: FaultyStore) -> None:
    committed(store, 1, None, write(store, target(), range(10)), [state((0, 0, 10), number=1)])
    store.faults.append(down("put", "topics/*"))
    with pytest.raises(UnreachableError):
        committed(store, 2, 1, write(store, target(), range(10, 19)), [state((0, 0, 19), number=2)])
    store.faults.clear()
    assert [p.number for p in open_archive(store).restore_points] == [1, 2]
    assert _index(store, 0)[-1][1] < 10
    with HeldLease(store, "kbackup test", 60) as lease:
        begin_writing(store, lease, "backup")
    archive = open_archive(store)
    assert [start for _, start in _index(store, 0)] == [s.first for s in archive.added(0, 2)]


def test_without_the_lease_no_derived_file_is_written(store: FaultyStore) -> None:
    def lost() -> None:
        raise LeaseLostError("it is lost", "")

    archive, _ = committed(store, 1, None, write(store, target(), range(9)), [state((0, 0, 9), number=1)])
    store.delete([layout.DERIVED])
    before = [(e.key, e.etag) for e in store.list()]
    with pytest.raises(LeaseLostError):
        refresh_derived(Archive(GuardedStore(store, lost), archive.info, archive.committed))
    assert [(e.key, e.etag) for e in store.list()] == before


def _index(store: FaultyStore, partition: int) -> list[tuple[str, int]]:
    key = f"topics/{TOPIC}/index_partition_{partition:03d}"
    return [(entry.name, entry.start_offset) for entry in decode_partition_index(store.get(key), key)]
