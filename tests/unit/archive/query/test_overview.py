"""Growth of topics by the catalog."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from kbackup.archive.query.groups import point_lags, sample_points
from kbackup.archive.query.overview import PointOverview, added_after, growth_of, list_points
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


# Lag of groups at a sample of restore points.


START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    store = MemoryStore()
    make_archive(store)
    return store


def points(store: MemoryStore, minutes: list[int]) -> list[PointOverview]:
    point = list_points(open_archive(store))[0]
    return [
        replace(point, number=n, committed_at=(START + timedelta(minutes=minute)).isoformat())
        for n, minute in enumerate(minutes, 1)
    ]


def test_lag_of_every_group_at_a_restore_point(store: MemoryStore) -> None:
    archive = open_archive(store)
    first, second = (point_lags(archive, point) for point in list_points(archive))
    assert first.lags == {"billing": 15 + 6 + 0}
    assert second.lags == {"billing": 24 + 0, "late": 0}
    assert first.time < second.time
    assert archive._manifests == {}, "nothing of it is kept"


def test_damage_is_a_restore_point_without_lags() -> None:
    store = MemoryStore()
    archive = make_archive(store)
    first = list_points(archive)[0]
    store.put(archive.capture(1).groups.key, b"{}")
    assert point_lags(archive, first).lags is None


@pytest.mark.parametrize("count", [1, 24, 25, 1000, 10_000])
def test_a_sample_is_spread_and_has_the_newest(store: MemoryStore, count: int) -> None:
    every = points(store, list(range(count)))
    sample = sample_points(every, 24)
    assert min(count, 12) <= len(sample) <= 24
    assert (sample[0], sample[-1]) == (every[0], every[-1])
    assert len({point.number for point in sample}) == len(sample)


def test_a_sample_stays_as_the_archive_grows(store: MemoryStore) -> None:
    """Its restore points were read before."""
    every = points(store, list(range(9_000)))
    before, after = sample_points(every[:8_990], 24), sample_points(every, 24)
    assert {p.number for p in before[:-1]} <= {p.number for p in after}


def test_a_sample_of_thinned_restore_points(store: MemoryStore) -> None:
    """A year of days, then a day of minutes: days have their share."""
    days = [1440 * day for day in range(365)]
    sample = sample_points(points(store, [*days, *(1440 * 364 + n for n in range(1, 1441))]), 24)
    assert sum(point.number <= 365 for point in sample) > 10
