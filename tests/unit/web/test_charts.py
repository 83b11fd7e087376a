"""Where things are drawn."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.browse import catalogue
from kbackup.archive.content import ArchivedPartition
from kbackup.archive.overview import ExpiredPoints
from kbackup.archive.reader import open_archive
from kbackup.store.base import Store
from kbackup.web import charts
from kbackup.web.charts import HEIGHT, WIDTH


def test_a_timeline(rich: Store) -> None:
    points = open_archive(rich).restore_points
    drawn = charts.timeline(points)
    assert [p.seq for c in drawn.columns for p in c.points] == [p.seq for p in points]
    assert [c.x for c in drawn.columns] == sorted(c.x for c in drawn.columns)
    assert all(c.x >= 0 and c.x + c.width <= WIDTH and 0 < c.height <= HEIGHT for c in drawn.columns)
    (gap,) = drawn.gaps
    assert (gap.after.seq, gap.before.seq) == (6, 7)
    assert drawn.usual == 86_400
    assert (drawn.ticks[0].text, drawn.ticks[-1].text) == ("2026-10-01", "2026-10-09")


def test_a_timeline_of_one_and_of_many(rich: Store) -> None:
    points = open_archive(rich).restore_points
    one = charts.timeline(points[:1])
    assert (len(one.columns), one.gaps, one.usual) == (1, (), None)
    start = datetime(2020, 1, 1, tzinfo=UTC)
    many = [
        msgspec.structs.replace(points[0], seq=n, committed_at=(start + timedelta(minutes=n)).isoformat())
        for n in range(1, 10_001)
    ]
    drawn = charts.timeline(many)
    assert len(drawn.columns) == charts.COLUMNS
    assert sum(len(c.points) for c in drawn.columns) == len(many)
    assert drawn.gaps == ()


def test_what_was_expired_leaves_no_gap(rich: Store) -> None:
    points = open_archive(rich).restore_points
    assert len(charts.timeline(points).gaps) == 1
    gone = [ExpiredPoints(1, 3, 2, "2026-10-20T00:00:00.000Z")]
    left = charts.timeline([points[0], *points[3:]], gone)
    assert [(gap.after.seq, gap.before.seq) for gap in left.gaps] == [(6, 7)]
    assert left.usual == 86_400


@given(st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 10**15)), max_size=900))
def test_areas(samples: list[tuple[int, int]]) -> None:
    samples.sort()
    drawn = charts.area(samples)
    if len({time for time, _ in samples}) < 2:
        assert drawn is None
        return
    assert drawn is not None
    assert drawn.most <= max(value for _, value in samples) or drawn.most == 1
    assert drawn.line.startswith("M0.0 ")
    assert drawn.line.count("H") <= charts.STEPS


def test_an_area_is_steps() -> None:
    drawn = charts.area([(0, 0), (5, 50), (10, 100)])
    assert drawn is not None
    assert drawn.line == "M0.0 100.00H500.0V50.00H1000.0V0.00"
    assert charts.added_up([(1, 2), (2, 3)]) == [(1, 2), (2, 5)]


def test_a_strip(rich: Store) -> None:
    partition = catalogue(rich, topic="orders").partition("orders", 0)
    drawn = charts.strip(partition, [("a", 0), ("b", 90), ("c", 500), ("d", -4)])
    assert [(s.start, s.end) for s in drawn.spans] == [(0, 120), (160, 180)]
    assert [round(m.x) for m in drawn.marks] == [0, 500, 1000, 0]
    assert [m.outside[:6] for m in drawn.marks] == ["", "", "behind", "before"]
    moved = replace(partition, start=160, segments=partition.segments[-1:])
    assert [(round(s.x), round(s.width)) for s in charts.strip(moved).spans] == [(0, 1000)]
    assert charts.strip(ArchivedPartition(0, 7, 7, ())).spans == ()
