"""Checkpoints change how many requests an archive takes to open, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbackup.archive import fold as folding
from kbackup.archive import layout
from kbackup.archive.commit import open_or_create, refresh_derived, seal_unfinished
from kbackup.archive.fold import EVERY, fold
from kbackup.archive.models import Manifest, dump, load
from kbackup.archive.overview import list_points, overview
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.segments import encode_folded
from kbackup.errors import CorruptError, DeniedError, LeaseLostError
from kbackup.store.base import Store
from scripts.soak.restore_points import build, copy
from tests.support.faulty_store import Fault, FaultyStore, down
from tests.support.memory_store import MemoryStore
from tests.unit.archive.making import committed, intend


def seen(archive: Archive) -> list[object]:
    """All that can be asked of an archive."""
    points = archive.restore_points
    named = [p.seq for p in points]
    answers: list[object] = [
        [run.seq for run in archive.runs],
        [msgspec.structs.asdict(archive.manifest(p)) for p in points],
        [(p.seq, p.losses, p.totals, p.files, p.committed_at) for p in points],
        [p.seq for p in archive.abandoned],
        archive.head,
        list_points(archive),
        archive.keys(),
    ]
    for seq in {*named[:1], *named[-1:], *named[len(named) // 2 :: 7]}:
        point = archive.restore_point(seq)
        answers.append(archive.segments(point))
        answers.append({place: firsts.tolist() for place, firsts in archive.starts(point).items()})
    return answers


def without_checkpoints(store: Store) -> MemoryStore:
    bare = MemoryStore(store.url)
    copy(store, bare, lambda key: not key.startswith(layout.CHECKPOINTS))
    return bare


def checkpoint_keys(store: Store) -> list[str]:
    return [entry.key for entry in store.list(layout.CHECKPOINTS)]


def damage(store: Store, key: str, how: str) -> None:
    data = store.get(key)
    if how == "gone":
        store.delete([key])
    elif how == "cut":
        store.put(key, data[: len(data) // 2])
    else:
        store.put(key, data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])


@settings(max_examples=25)
@given(
    st.lists(st.sampled_from(["point", "point", "point", "seal", "fold", "merge"]), max_size=40),
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["gone", "cut", "flip"])), max_size=3),
)
def test_an_archive_reads_the_same_with_and_without(history: list[str], harm: list[tuple[int, str]]) -> None:
    """Whatever happened, and whatever became of the checkpoints."""
    store = MemoryStore()
    archive = open_or_create(store)
    seq, parent = 0, None
    for event in history:
        if event in ("fold", "merge"):
            if archive.head is not None:
                fold(archive, archive.head, lambda: None, every=1 if event == "fold" else 5)
            continue
        seq += 1 + seq % 2
        intend(archive, seq, parent)
        if event == "seal":
            seal_unfinished(archive, "next")
        else:
            committed(store, seq, parent)
            archive.forget()
            parent = seq
    for number, how in harm:
        keys = checkpoint_keys(store)
        if keys:
            damage(store, keys[number % len(keys)], how)
    assert seen(open_archive(store)) == seen(open_archive(without_checkpoints(store)))
    assert seen(archive) == seen(open_archive(without_checkpoints(store))), "one that was open all along"


@pytest.fixture(scope="module")
def made() -> MemoryStore:
    store = MemoryStore()
    build(store, 75, 3)
    return store


@pytest.fixture
def many(made: MemoryStore) -> MemoryStore:
    store = MemoryStore()
    copy(made, store)
    return store


def test_segments_come_from_the_checkpoint(many: MemoryStore) -> None:
    archive = open_archive(many)
    assert archive.covered is not None
    assert (archive.covered.seq, EVERY) == (64, 16)
    assert len(archive.segments(archive.restore_point("latest"))) == 75 * 3
    assert seen(open_archive(many)) == seen(open_archive(without_checkpoints(many)))
    whole, bare = overview(many, "latest"), overview(without_checkpoints(many), "latest")
    assert whole == bare
    assert whole.restore_points == 75


def test_how_many_requests_it_takes(many: MemoryStore) -> None:
    many.requests.clear()
    archive = open_archive(many)
    list_points(archive)
    parts = archive.covered.checkpoint.parts if archive.covered else ()
    assert [(p.first, p.last) for p in parts] == [(1, 64)]
    # archive.json, checkpoint.json, points.json; the manifests since
    assert many.requests == {"GET": 3 + 11, "LIST": 3}
    many.requests.clear()
    archive.segments(archive.restore_point("latest"))
    assert many.requests == {"GET": 1 + 11}


@pytest.mark.exhaustive
def test_parts_are_few_and_rows_are_seldom_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    def counted(tables: Sequence[pa.Table]) -> bytes:
        written.append(sum(map(len, tables)))
        return encode_folded(tables)

    monkeypatch.setattr(folding, "encode_folded", counted)
    store = MemoryStore()
    points = 200
    archive = build(store, points, 2, every=1)
    assert archive.covered is not None
    assert [(p.first, p.last) for p in archive.covered.checkpoint.parts] == [(1, 128), (129, 192), (193, 200)]
    assert len(written) == points
    assert sum(written) < 2 * points * 9
    kept = [key for key in checkpoint_keys(store) if key.endswith(layout.CHECKPOINT)]
    assert kept == [layout.checkpoint_key(n, layout.CHECKPOINT) for n in (199, 200)]
    assert len(checkpoint_keys(store)) < 2 * 2 * 8


def test_large_parts_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "FULL", 20)
    store = MemoryStore()
    archive = build(store, 64, 1)
    assert archive.covered is not None
    assert [p.rows for p in archive.covered.checkpoint.parts] == [32, 32, 32, 32]
    assert seen(archive) == seen(open_archive(without_checkpoints(store)))


def newest_key(store: Store, name: str) -> str:
    return [key for key in checkpoint_keys(store) if key.endswith(f"/{name}")][-1]


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("name", [layout.CHECKPOINT, layout.POINTS, layout.SEGMENTS])
@pytest.mark.parametrize("how", ["gone", "cut", "flip"])
def test_a_damaged_one_is_passed_over(many: MemoryStore, name: str, how: str) -> None:
    damage(many, newest_key(many, name), how)
    archive = open_archive(many)
    assert seen(archive) == seen(open_archive(without_checkpoints(many)))
    assert archive.covered is not None
    assert archive.covered.seq == (64 if name == layout.SEGMENTS else 48)


def test_the_next_run_mends_them(many: MemoryStore) -> None:
    for key in checkpoint_keys(many):
        damage(many, key, "cut")
    archive = open_archive(many)
    assert archive.covered is None
    refresh_derived(archive, archive.restore_point("latest"))
    again = open_archive(many)
    assert again.covered is not None
    assert again.covered.seq == 75
    assert seen(again) == seen(open_archive(without_checkpoints(many)))
    assert {key.split("/")[1] for key in checkpoint_keys(many)} == {"0000000075"}


def test_a_stale_one_serves(many: MemoryStore) -> None:
    """What comes after it is read from the manifests."""
    many.delete([key for key in checkpoint_keys(many) if "0000000064" in key])
    many.delete([key for key in checkpoint_keys(many) if key.endswith(f"48/{layout.SEGMENTS}")])
    assert seen(open_archive(many)) == seen(open_archive(without_checkpoints(many)))


def test_one_that_is_ahead_tells_of_a_loss(many: MemoryStore) -> None:
    """Without it the archive would seem to end with the restore point before."""
    gone = [entry.key for entry in many.list(layout.BACKUPS, layout.backup_key(63, "x"))]
    many.delete(gone)
    assert open_archive(without_checkpoints(many)).restore_points[-1].seq == 63
    with pytest.raises(CorruptError, match=r"file backups/0000000064/manifest\.json is missing") as raised:
        _ = open_archive(many).restore_points
    assert "kbackup repair" in raised.value.hint
    many.delete(checkpoint_keys(many))
    assert open_archive(many).restore_points[-1].seq == 63


def test_a_lost_manifest_below_shows_where_it_is_read(many: MemoryStore) -> None:
    many.delete([layout.backup_key(30, layout.MANIFEST)])
    archive = open_archive(many)
    assert archive.head is not None
    with pytest.raises(CorruptError, match=r"backups/0000000030/manifest\.json"):
        archive.restore_point(30)


def test_a_manifest_that_is_another_one_is_refused(many: MemoryStore) -> None:
    key = layout.backup_key(64, layout.MANIFEST)
    manifest = load(Manifest, many.get(key), key)
    many.put(key, dump(msgspec.structs.replace(manifest, run_id="another")))
    with pytest.raises(CorruptError, match="is not the one that checkpoint 64 was made of"):
        open_archive(many).restore_point(64)


def rewritten(store: Store, key: str, change: Callable[[dict[str, Any]], object]) -> None:
    """A document with other values and a sum of its own that is right."""
    from kbackup.archive.models import _sum

    document = json.loads(store.get(key))
    change(document)
    text = json.dumps(document | {"checksum": ""}).encode()
    store.put(key, text.replace(b'"checksum": ""', b'"checksum": "%s"' % _sum(text).encode(), 1))


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(archive_id="another"),
        lambda d: d.update(seq=65),
        lambda d: d.update(parts=[]),
        lambda d: d["parts"][0].update(first=2),
        lambda d: d["parts"][0].update(last=63),
    ],
)
def test_one_that_does_not_account_for_all_is_passed_over(
    many: MemoryStore, change: Callable[[dict[str, Any]], object]
) -> None:
    rewritten(many, newest_key(many, layout.CHECKPOINT), change)
    archive = open_archive(many)
    assert archive.covered is not None
    assert archive.covered.seq == 48
    assert seen(archive) == seen(open_archive(without_checkpoints(many)))


def test_a_run_that_may_yet_commit_is_not_passed_by(many: MemoryStore) -> None:
    archive = open_archive(many)
    intend(archive, 76, 75)
    committed(many, 77, 75)
    archive.forget()
    fold(archive, archive.restore_point("latest"), lambda: None, every=1)
    assert archive.covered is not None
    assert archive.covered.seq == 64
    seal_unfinished(archive, "next")
    fold(archive, archive.restore_point("latest"), lambda: None, every=1)
    assert archive.covered.seq == 77
    assert [p.seq for p in open_archive(many).abandoned] == [76]


def test_what_a_copy_carries_of_a_gone_number_is_no_run(many: MemoryStore) -> None:
    """A copy that was cut off for good keeps groups that nothing names, with no intent: no run will end there."""
    many.put(layout.backup_key(76, layout.GROUPS), b"{}")
    committed(many, 77, 75)
    archive = open_archive(many)
    fold(archive, archive.restore_point("latest"), lambda: None, every=1)
    assert archive.covered is not None
    assert archive.covered.seq == 77
    assert seen(open_archive(many)) == seen(open_archive(without_checkpoints(many)))


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("name", [layout.POINTS, layout.SEGMENTS, layout.CHECKPOINT])
def test_a_run_that_dies_on_the_way_leaves_work_to_the_next(many: MemoryStore, name: str) -> None:
    before = seen(open_archive(without_checkpoints(many)))
    store = FaultyStore(many, down("put_new", f"checkpoints/*/{name}"))
    archive = open_archive(store)
    with pytest.raises(Exception, match="the store is down"):
        fold(archive, archive.restore_point("latest"), lambda: None, every=1)
    assert seen(open_archive(many)) == before
    store.faults.clear()
    archive = open_archive(store)
    fold(archive, archive.restore_point("latest"), lambda: None, every=1)
    found = open_archive(many)
    assert found.covered is not None
    assert found.covered.seq == 75
    assert seen(found) == before


def test_without_the_lease_none_is_written(many: MemoryStore) -> None:
    def lost() -> None:
        raise LeaseLostError("it is lost", "")

    archive, before = open_archive(many), checkpoint_keys(many)
    with pytest.raises(LeaseLostError):
        fold(archive, archive.restore_point("latest"), lost, every=1)
    assert checkpoint_keys(many) == before


def test_a_locked_bucket_keeps_old_ones(many: MemoryStore) -> None:
    store = FaultyStore(many, Fault("delete", "*", DeniedError("object is locked")))
    archive = open_archive(store)
    fold(archive, archive.restore_point("latest"), lambda: None, every=1)
    assert len([k for k in checkpoint_keys(many) if k.endswith(layout.CHECKPOINT)]) == 3
    assert seen(open_archive(many)) == seen(open_archive(without_checkpoints(many)))


def test_what_is_nobodys_is_left_alone(many: MemoryStore) -> None:
    many.put("checkpoints/0000000001/notes", b"x")
    many.put("checkpoints/readme", b"x")
    archive = open_archive(many)
    fold(archive, archive.restore_point("latest"), lambda: None, every=1)
    assert {"checkpoints/0000000001/notes", "checkpoints/readme"} <= set(checkpoint_keys(many))


def test_what_is_in_the_way_is_replaced(many: MemoryStore) -> None:
    """A run that crashed here had other parts to merge."""
    for name in (layout.POINTS, layout.SEGMENTS, layout.CHECKPOINT):
        many.put(layout.checkpoint_key(75, name), b"something else")
    archive = open_archive(many)
    fold(archive, archive.restore_point("latest"), lambda: None, every=1)
    found = open_archive(many)
    assert found.covered is not None
    assert found.covered.seq == 75


def test_which_parts_merge() -> None:
    """A large part is not written again for every small one that comes after it."""
    store = MemoryStore()
    build(store, 16, 40)
    archive = open_archive(store)
    assert archive.covered is not None
    (large,) = archive.covered.checkpoint.parts
    for seq in range(17, 33):
        committed(store, seq, seq - 1)
    archive.forget()
    fold(archive, archive.restore_point("latest"), lambda: None)
    assert archive.covered.checkpoint.parts[0] == large
    assert [p.rows for p in archive.covered.checkpoint.parts] == [16 + 640, 16]
