"""Sealing, publishing and what is derived from a restore point."""

from __future__ import annotations

import json

import pytest

from kbackup.archive import layout
from kbackup.archive.commit import open_or_create, publish, put_part, refresh_derived, seal_unfinished
from kbackup.archive.models import Manifest, load
from kbackup.archive.reader import open_archive
from kbackup.errors import LeaseLostError, OutcomeUnknownError
from kbackup.formats.index import decode_partition_index
from tests.support.faulty_store import FaultyStore, lost_answer
from tests.unit.archive.making import TOPIC, committed, intend, manifest, state, target, write


def test_an_archive_is_made_once(store: FaultyStore) -> None:
    first = open_or_create(store)
    assert open_or_create(store).info == first.info == open_archive(store).info


def test_two_that_make_it_at_once_end_in_one(store: FaultyStore) -> None:
    """The other one was faster, between our look and our put."""

    class Slow(FaultyStore):
        def put_new(self, key: str, data: object) -> str:
            open_or_create(store)
            return store.put_new(key, bytes(data))  # type: ignore[call-overload]

    assert open_or_create(Slow(store.inner)).info == open_archive(store).info


def test_an_archive_whose_making_is_in_doubt_is_no_archive_of_ours_yet(store: FaultyStore) -> None:
    store.faults.append(lost_answer("put_new", layout.ARCHIVE))
    with pytest.raises(OutcomeUnknownError):
        open_or_create(store)
    assert open_or_create(store).runs == [], "the next run uses what is there"


def test_a_number_with_an_intent_is_sealed_for_good(store: FaultyStore) -> None:
    archive = open_or_create(store)
    intents = [intend(archive, seq) for seq in (1, 2)]
    assert [i.seq for i in seal_unfinished(archive, "next run")] == [1, 2]
    key = layout.backup_key(1, layout.MANIFEST)
    seal = load(Manifest, store.get(key), key)
    assert (seal.status, seal.run_id, seal.started_at) == ("abandoned", "next run", intents[0].started_at)
    assert archive.restore_points == []
    with pytest.raises(LeaseLostError, match="restore point 2 was closed by another writer"):
        publish(archive, manifest(archive, 2, None))
    assert open_archive(store).restore_points == []
    assert seal_unfinished(archive, "again") == [], "there is nothing left to seal"


def test_what_was_committed_in_this_moment_stands(store: FaultyStore) -> None:
    archive = open_or_create(store)
    intend(archive, 1)
    assert [run.seq for run in archive.runs] == [1]  # looked at before the commit below
    publish(open_archive(store), manifest(archive, 1, None))
    assert seal_unfinished(archive, "too late") == []
    assert [m.status for m in archive.restore_points] == ["committed"]


def test_a_run_without_an_intent_wrote_nothing_to_seal(store: FaultyStore) -> None:
    archive = open_or_create(store)
    put_part(archive, 1, layout.GROUPS, b"whatever")
    assert seal_unfinished(archive, "next") == []
    assert not archive.restore_points


def test_a_commit_whose_answer_is_lost_is_not_called_a_success(store: FaultyStore) -> None:
    archive = open_or_create(store)
    intend(archive, 1)
    store.faults.append(lost_answer("put_new", "backups/*/manifest.json"))
    with pytest.raises(OutcomeUnknownError):
        publish(archive, manifest(archive, 1, None))
    assert [m.seq for m in open_archive(store).restore_points] == [1], "here it had taken effect"


def test_derived_files_follow_from_the_restore_point(store: FaultyStore) -> None:
    first = write(store, target(), range(10)) + write(store, target(1), range(4))
    topics = [state((0, 0, 10), (1, 0, 4), (2, 0, 0), seq=1)]
    archive, point = committed(store, 1, None, first, topics, {"g": 7, "h": 0})
    refresh_derived(archive, point)
    names = _index(store, 0)
    assert names == [(layout.segment_stem(0, s.first), s.first) for s in first if s.partition == 0]
    assert len(names) > 1
    assert _index(store, 2) == []
    assert json.loads(store.get(f"topics/{TOPIC}/consumer_offsets_partition_000")) == {"g": 7, "h": 0}
    assert json.loads(store.get(f"topics/{TOPIC}/consumer_offsets_partition_001")) == {}
    assert layout.REFRESHED in open_archive(store).runs[0].files


def test_only_what_was_touched_is_written_again(store: FaultyStore) -> None:
    first = write(store, target(), range(10)) + write(store, target(1), range(4))
    archive, point = committed(store, 1, None, first, [state((0, 0, 10), (1, 0, 4), seq=1)])
    refresh_derived(archive, point)
    second = write(store, target(1), range(4, 9))
    archive, point = committed(store, 2, 1, second, [state((0, 0, 10), (1, 0, 9), seq=2)])
    store.calls.clear()
    refresh_derived(archive, point, {(TOPIC, 1, 1)})
    written = [key for operation, key in store.calls if operation == "put"]
    assert [key for key in written if "/index_" in key] == [f"topics/{TOPIC}/index_partition_001"]
    assert [start for _, start in _index(store, 1)] == [
        s.first for s in [*first, *second] if s.partition == 1
    ]
    assert written[-1] == layout.backup_key(2, layout.REFRESHED), "said last, when all is done"


def test_group_files_that_did_not_change_are_left_alone(store: FaultyStore) -> None:
    first = write(store, target(), range(10))
    archive, parent = committed(store, 1, None, first, [state((0, 0, 10), (1, 0, 0), seq=1)], {"g": 7})
    refresh_derived(archive, parent)
    archive, point = committed(store, 2, 1, [], [state((0, 0, 10), (1, 0, 0), seq=2)], {"g": 9})
    store.calls.clear()
    refresh_derived(archive, point, set(), parent)
    written = [key for operation, key in store.calls if operation == "put" and "/consumer_offsets_" in key]
    assert written == [f"topics/{TOPIC}/consumer_offsets_partition_000"]
    assert json.loads(store.get(written[0])) == {"g": 9}


def test_without_the_lease_no_derived_file_is_written(store: FaultyStore) -> None:
    def lost() -> None:
        raise LeaseLostError("it is lost", "")

    archive, point = committed(store, 1, None, write(store, target(), range(9)), [state((0, 0, 9), seq=1)])
    before = [e.key for e in store.list()]
    with pytest.raises(LeaseLostError):
        refresh_derived(archive, point, check=lost)
    assert [e.key for e in store.list()] == before


def _index(store: FaultyStore, partition: int) -> list[tuple[str, int]]:
    key = f"topics/{TOPIC}/index_partition_{partition:03d}"
    return [(entry.name, entry.start_offset) for entry in decode_partition_index(store.get(key), key)]
