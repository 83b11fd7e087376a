"""Growth of topics by the catalog."""

from __future__ import annotations

from kbackup.archive.query.overview import added_after, growth_of
from kbackup.archive.reader import open_archive
from tests.support.archives import make_archive
from tests.support.faulty_store import FaultyStore
from tests.support.growing_archive import grow
from tests.support.memory_store import MemoryStore


def test_growth_is_summed_by_restore_point() -> None:
    store = FaultyStore(MemoryStore())
    make_archive(store)
    grow(store, 3, 12, 20)
    archive = open_archive(store)
    orders, clicks = ("orders", 1), ("clicks", 1)
    by_point = dict.fromkeys((1, 2, 3), 0)
    for number, segment in archive.added_by(0, 3):
        by_point[number] += segment.stored if segment.topic == "orders" else 0
    newest = archive.restore_point("latest")
    store.calls.clear()
    growth = growth_of(archive, newest, {orders, clicks, ("nowhere", 1), ("orders", 2)})
    assert set(growth) == {orders, clicks}
    one, two, three = (by_point[number] for number in (1, 2, 3))
    assert growth[orders] == [(1, one), (2, one + two), (3, one + two + three)]
    assert [number for number, _ in growth[clicks]] == [1]
    assert growth_of(archive, archive.restore_point(2), [orders])[orders] == growth[orders][:2]
    assert added_after(archive, newest, 1) == {orders: two + three}
    assert added_after(archive, newest, 0)[clicks] == growth[clicks][0][1]
    assert not [key for _, key in store.calls if key.startswith("points/") and "manifest" not in key]
