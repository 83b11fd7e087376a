"""Records whose keys were deleted at the source: what restores leave out, and who keeps the list of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kbackup.archive import layout
from kbackup.archive.models import UnseenDeletions
from kbackup.archive.query.content import Content
from kbackup.archive.query.overview import overview
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.plan import UnitRange
from kbackup.config.models import Restore
from kbackup.jobs.replay import read_range
from kbackup.jobs.restore.plan import make_units, select_content
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.store.base import Store
from tests.support.archives import commit_point, deletions_of, make_archive
from tests.support.copies import copied, swept
from tests.support.memory_store import MemoryStore
from tests.support.repairs import expire_some, key_of

DELETED = ((2, 4), (17, 18))
"""Of orders-0, which has the offsets 0 to 9, 15, and 17 to 39."""
PRESENT = [*range(10), 15, *range(17, 40)]


@pytest.fixture
def store() -> MemoryStore:
    """Restore point 3 is the first with deletions."""
    store = MemoryStore()
    archive = make_archive(store)
    topics = archive.restore_point(2).topics
    commit_point(archive, 3, topics=topics, deletions=deletions_of("orders", *DELETED))
    return store


def selected(store: Store, **options: Any) -> Content:
    return select_content(RestoreRequest.of(msgspec.convert({"topics": ["orders"], **options}, Restore)), store)


def restored(store: Store, **options: Any) -> list[int]:
    """The offsets of orders-0 that a restore reads."""
    content = selected(store, **options)
    units = make_units(content, {"orders": "orders"})
    (first,) = [part for unit in units for part in unit if part.partition == 0]
    return offsets_in(store, first)


def offsets_in(store: Store, part: UnitRange) -> list[int]:
    blocks = [step.block for step in read_range(store, part) if step.block is not None]
    return [int(offset) for block in blocks for offset in block.offsets]


def left_out(*offsets: int) -> list[int]:
    return [offset for offset in PRESENT if offset not in offsets]


def test_a_restore_leaves_out_the_records_of_deleted_keys(store: MemoryStore) -> None:
    assert restored(store) == left_out(2, 3, 17)


def test_earlier_restore_points_have_them(store: MemoryStore) -> None:
    assert restored(store, restore_point=2) == PRESENT


def test_a_moment_has_the_deletions_that_were_known_by_then(store: MemoryStore) -> None:
    assert restored(store, to_time="2026-01-02T12:00:00Z") == PRESENT
    assert restored(store, to_time="2026-01-03T12:00:00Z") == left_out(2, 3, 17)


def test_a_range_and_what_is_skipped_have_none_of_them(store: MemoryStore) -> None:
    range_ = selected(store, topics=[], range=["orders:0:0-18"])
    (part,) = [part for unit in make_units(range_, {"orders": "orders"}) for part in unit]
    assert offsets_in(store, part) == [0, 1, 4, 5, 6, 7, 8, 9, 15]
    assert restored(store, skip=["orders:0:4-6"]) == left_out(2, 3, 4, 5, 17)


def test_a_restore_says_how_many_records_it_leaves_out(store: MemoryStore) -> None:
    (warning,) = selected(store).warnings
    assert warning.startswith("topic orders: 3 archived records left out")
    assert selected(store, restore_point=2).warnings == ()


def test_a_restore_repeats_that_deletions_may_be_missing(store: MemoryStore) -> None:
    archive = open_archive(store)
    (orders,) = [topic for topic in archive.restore_point(3).topics if topic.name == "orders"]
    unseen = UnseenDeletions(offsets=7, since="2026-01-02T00:00:00.000Z")
    first = msgspec.structs.replace(orders.partitions[0], unseen=unseen)
    doubtful = msgspec.structs.replace(orders, partitions=(first, *orders.partitions[1:]))
    commit_point(archive, 4, topics=[doubtful])
    (warning,) = selected(store).warnings
    assert "deletions may have been compacted away unseen: 7 offsets of orders-0" in warning


def test_info_counts_them_and_has_all_archived_records(store: MemoryStore) -> None:
    shown = overview(open_archive(store), store, "latest")
    (orders,) = [topic for topic in shown.topics if topic.name == "orders"]
    assert orders.deleted_records == 3
    assert orders.sums.records == len(PRESENT) + 12


def test_a_copy_has_the_deletions(store: MemoryStore) -> None:
    copy = MemoryStore()
    copied(store, copy)
    assert restored(copy) == left_out(2, 3, 17)


def test_a_sweep_keeps_the_list_as_long_as_a_restore_point_refers_to_it(store: MemoryStore) -> None:
    key = key_of(store, 3, layout.DELETIONS)
    archive = open_archive(store)
    third = archive.restore_point(3)
    commit_point(archive, 4, topics=third.topics, deletions=third.deletions)
    expire_some(store, {1, 2, 3}, None)
    swept(store)
    assert key in keys(store)
    assert restored(store) == left_out(2, 3, 17)

    commit_point(archive, 5, topics=third.topics)
    expire_some(store, {4}, None)
    swept(store)
    assert key not in keys(store)
    assert restored(store) == PRESENT


def keys(store: Store) -> set[str]:
    return {entry.key for entry in store.list()}
