"""Lag of groups at a sample of restore points."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from kbackup.archive.query.groups import point_lags, sample_points
from kbackup.archive.query.overview import PointOverview, list_points
from kbackup.archive.reader import open_archive
from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore

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
