"""Charts: their geometry, on pages, and how many objects they read."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.catalog.points import list_points
from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.reader import open_archive
from kbackup.archive.run import open_or_create
from kbackup.library.reading import ArchiveReader
from kbackup.store.base import Store
from kbackup.web.archive_cache import SAMPLES
from kbackup.web.charts import COLUMNS, HEIGHT, STEPS, WIDTH, Unit, area, running_totals, strip, ticks, timeline
from kbackup.web.render import short
from tests.support.archives import commit_point, expired, group_at, grow, topic_state
from tests.support.faulty_store import FaultyStore
from tests.support.memory_store import MemoryStore
from tests.support.visits import tags, text, visit


def test_a_timeline_has_each_restore_point_in_its_order(rich: Store) -> None:
    points = list_points(open_archive(rich).state)
    drawn = timeline(points)
    assert [p.number for c in drawn.columns for p in c.points] == [p.number for p in points]
    assert [c.x for c in drawn.columns] == sorted(c.x for c in drawn.columns)
    assert all(c.x >= 0 and c.x + c.width <= WIDTH and 0 < c.height <= HEIGHT for c in drawn.columns)
    (pause,) = drawn.pauses
    assert (pause.after.number, pause.before.number) == (6, 7)
    assert drawn.usual == 86_400
    levels = [level.value for level in drawn.levels]
    assert [level.y for level in drawn.levels] == pytest.approx([HEIGHT - HEIGHT * v / levels[-1] for v in levels])
    assert HEIGHT / 2 < max(c.height for c in drawn.columns) <= HEIGHT
    assert not [c for c in drawn.columns if c.cut]
    assert [tick.text[-2:] for tick in drawn.ticks] == ["02", "04", "06", "08"]


@pytest.mark.parametrize(
    ("added", "levels", "heights"),
    [
        ([0, 0, 0], ["0 B", "1 B"], [2, 2, 2]),
        ([7, 7, 7], ["0 B", "2 B", "4 B", "6 B", "8 B"], [87.5, 87.5, 87.5]),
        ([10**9, 30, 0, 40], ["0 B", "10 B", "20 B", "30 B", "40 B"], [100, 75, 2, 100]),
    ],
)
def test_a_large_backup_hides_no_other(rich: Store, added: list[int], levels: list[str], heights: list[float]) -> None:
    points = list_points(open_archive(rich).state)
    drawn = timeline([replace(point, stored_bytes=size) for point, size in zip(points, added, strict=False)])
    assert [short(level.value, "bytes") for level in drawn.levels] == levels
    assert [c.height for c in drawn.columns] == heights
    assert [c.cut for c in drawn.columns] == [size == 10**9 for size in added]


def test_a_timeline_of_one_and_of_many(rich: Store) -> None:
    points = list_points(open_archive(rich).state)
    one = timeline(points[:1])
    assert (len(one.columns), one.pauses, one.usual) == (1, (), None)
    start = datetime(2020, 1, 1, tzinfo=UTC)
    many = [
        replace(points[0], number=n, committed_at=(start + timedelta(minutes=n)).isoformat()) for n in range(1, 10_001)
    ]
    drawn = timeline(many)
    assert len(drawn.columns) == COLUMNS
    assert sum(len(c.points) for c in drawn.columns) == len(many)
    assert drawn.pauses == ()


def test_expired_points_leave_no_gap(rich: Store) -> None:
    points = list_points(open_archive(rich).state)
    assert len(timeline(points).pauses) == 1
    left = timeline([points[0], *points[3:]], [2, 3])
    assert [(pause.after.number, pause.before.number) for pause in left.pauses] == [(6, 7)]
    assert left.usual == 86_400


@given(st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 10**15)), max_size=900))
def test_an_area_is_drawn_in_few_steps_up_to_its_last_sample(samples: list[tuple[int, int]]) -> None:
    samples.sort()
    drawn = area(samples)
    if len({time for time, _ in samples}) < 2:
        assert drawn is None
        return
    assert drawn is not None
    assert drawn.most <= max(value for _, value in samples)
    *_, (_, last) = samples
    assert drawn.last == last
    assert drawn.line.startswith("M0.0 ")
    assert drawn.line.endswith("H1000.0")
    assert drawn.line.count("H") <= STEPS + 1
    *_, before, after = map(float, re.findall(r"H([\d.]+)", f"H0{drawn.line}"))
    assert after - before >= 0.015 * WIDTH, "the last value can be seen"


def test_an_area_is_steps() -> None:
    drawn = area([(0, 0), (5, 50), (10, 100)])
    assert drawn is not None
    assert drawn.line == "M0.0 100.00H333.3V50.00H666.7V0.00H1000.0", "the last as long as the others"
    assert [(level.y, level.value) for level in drawn.levels] == [(100, 0), (50, 50), (0, 100)]
    assert (drawn.most, drawn.last) == (100, 100)
    assert running_totals([(1, 2), (2, 3)]) == [(1, 2), (2, 5)]


@pytest.mark.parametrize(
    ("most", "unit", "labels"),
    [
        (0, "count", ["0", "1"]),
        (1, "count", ["0", "1"]),
        (7, "count", ["0", "2", "4", "6", "8"]),
        (33_000_000, "count", ["0", "10M", "20M", "30M", "40M"]),
        (0, "bytes", ["0 B", "1 B"]),
        (5 << 18, "bytes", ["0 B", "512 KiB", "1 MiB", "1.5 MiB"]),
        (350 << 10, "bytes", ["0 B", "100 KiB", "200 KiB", "300 KiB", "400 KiB"]),
        (32_000, "ms", ["0s", "10s", "20s", "30s", "40s"]),
        (5 * 3_600_000, "ms", ["0s", "2h", "4h", "6h"]),
        (9 * 86_400_000, "ms", ["0s", "5d", "10d"]),
    ],
)
def test_levels_of_a_chart_are_round_numbers(most: int, unit: Unit, labels: list[str]) -> None:
    drawn = area([(0, 0), (1, most)], unit)
    assert drawn is not None
    assert [short(level.value, unit) for level in drawn.levels] == labels


@pytest.mark.parametrize(
    ("start", "end", "labels"),
    [
        ("2026-10-03T02:30", "2026-10-03T02:30", ["2026-10-03 02:30:00"]),
        ("2026-10-03T02:30:00.100", "2026-10-03T02:30:00.900", ["2026-10-03 02:30:00"]),
        ("2026-10-03T02:30", "2026-10-03T02:30:04", ["02:30:00", "02:30:01", "02:30:02", "02:30:03", "02:30:04"]),
        ("2026-10-03T02:29:59", "2026-10-03T02:33", ["10-03 02:30", "10-03 02:31", "10-03 02:32", "10-03 02:33"]),
        ("2026-10-03T22:10", "2026-10-04T02:50", ["10-03 23:00", "10-04 00:00", "10-04 01:00", "10-04 02:00"]),
        ("2026-10-03T02:30", "2026-10-04T02:30", ["10-03 06:00", "10-03 12:00", "10-03 18:00", "10-04 00:00"]),
        ("2026-10-03", "2026-10-05", ["10-03 00:00", "10-03 12:00", "10-04 00:00", "10-04 12:00", "10-05 00:00"]),
        (
            "2026-10-03T02:30",
            "2026-10-25T02:30",
            ["2026-10-04", "2026-10-09", "2026-10-14", "2026-10-19", "2026-10-24"],
        ),
        ("2016-10-03", "2026-10-25", ["2019-04-14", "2022-01-08", "2024-10-04"]),
    ],
)
def test_ticks_of_a_chart_are_round_times(start: str, end: str, labels: list[str]) -> None:
    first, last = (round(datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp() * 1000) for at in (start, end))
    assert [tick.text for tick in ticks(first, last)] == labels


@given(st.integers(0, 2**62), st.integers(0, 2**62), st.sampled_from([0.0, 0.25]), st.sampled_from([50.0, 67.0, 99.6]))
def test_ticks_are_even_and_within_the_axis(start: int, span: int, begin: float, reach: float) -> None:
    drawn = ticks(start, start + span, reach, begin)
    places = [tick.at for tick in drawn]
    assert all(begin - 1e-6 <= at <= reach + 1e-6 for at in places), places
    assert 1 <= len(drawn) <= 5
    gaps = [b - a for a, b in pairwise(places)]
    assert gaps == pytest.approx([gaps[0]] * len(gaps) if gaps else [], rel=1e-3)
    assert all(gap > 16 for gap in gaps), "room for each label"


def test_a_strip_shows_what_a_partition_has_and_who_reads_where(rich: Store) -> None:
    partition = ArchiveReader(rich).catalogue("orders").partition("orders", 0)
    drawn = strip(partition, [("a", 0), ("b", 90), ("c", 500), ("d", -4)])
    assert [(s.start, s.end) for s in drawn.spans] == [(0, 120), (160, 180)]
    assert [round(m.x) for m in drawn.marks] == [0, 500, 1000, 0]
    assert [m.outside[:6] for m in drawn.marks] == ["", "", "after ", "before"]
    moved = replace(partition, start=160, segments=partition.segments[-1:])
    assert [(round(s.x), round(s.width)) for s in strip(moved).spans] == [(0, 1000)]
    assert strip(ArchivedPartition(0, 7, 7, ())).spans == ()


def test_lost_and_expired_ranges_of_a_strip(rich: Store) -> None:
    partition = replace(ArchiveReader(rich).catalogue("orders").partition("orders", 0), start=20)
    drawn = strip(partition, [("a", 60), ("b", 60), ("c", 160)], [(120, 160), (50, 51), (180, 200)], (0, 20))
    assert (drawn.start, drawn.end) == (0, 200), "with what is lost behind the last record"
    assert [(s.start, s.end) for s in drawn.lost] == [(50, 51), (120, 160), (180, 200)]
    assert [round(s.width) for s in drawn.lost] == [5, 200, 100]
    assert [(s.x, s.width, s.end) for s in drawn.expired] == [(0, 100, 20)]
    assert [(round(m.x), m.name, m.others) for m in drawn.marks] == [(300, "a", 1), (800, "c", 0)]
    many = strip(ArchivedPartition(0, 0, 10**9, ()), lost=[(n * 2, n * 2 + 1) for n in range(10_000)])
    assert [(s.start, s.end, s.width) for s in many.lost] == [(0, 19_999, 4.0)]
    assert strip(ArchivedPartition(0, 0, 10**9, ()), lost=[(10**9 - 1, 10**9)]).lost[0].x == WIDTH - 4


# Charts on pages: lag, growth and strips, and how many objects they read.


def test_lag_is_drawn_over_restore_points(rich: Store) -> None:
    client = visit(rich)
    shown = client.get("/group?name=billing").text
    assert 'aria-label="Lag at each restore point:' in shown
    assert "The chart shows" not in text(shown), "all restore points"
    charts = client.get("/groups/lag").text
    assert charts.count('<figure class="chart">') == 8
    assert charts.count("now <b>") == 8


@pytest.mark.exhaustive
def test_a_chart_reads_a_sample_of_restore_points() -> None:
    store = FaultyStore(MemoryStore())
    archive = open_or_create(store)
    count = 2 * SAMPLES
    for number in range(1, count + 1):
        at = f"2026-01-{number // 24 + 1:02}T{number % 24:02}:00:00.000Z"
        topic = topic_state("orders", [(0, 100 + number, [])], captured=number)
        commit_point(archive, number, topics=[topic], groups=[group_at("billing", ("orders", 0, 50))], at=at)
    client = visit(store)
    client.get("/groups")
    store.calls.clear()
    shown = text(client.get("/group?name=billing").text)
    assert f"of {count} restore points" in shown
    read = {key for _, key in store.calls if key.startswith("points/")}
    assert SAMPLES < len(read) <= 2 * SAMPLES
    store.calls.clear()
    assert client.get("/groups/lag").status_code == 200
    assert store.calls == [], "read once"


def test_growth_is_drawn_for_the_archive_and_each_topic(rich: Store) -> None:
    client = visit(rich)
    growth = client.get("/growth").text
    assert growth.count('<figure class="chart">') == 4 + 6
    assert "in the last 7 days" in text(growth)
    assert "Stored bytes at each restore point" in text(client.get("/topics/orders").text)


def test_strips_show_what_is_lost(rich: Store, store: Store) -> None:
    for address in ("/topics/orders/1", "/topics/orders"):
        shown = visit(rich).get(address).text
        assert "lost: offsets 4 to 6" in shown
        assert "archived , lost" in text(shown) or "archived, lost" in text(shown)
    titles = [attributes for tag, attributes in tags(visit(store).get("/topics/orders/0").text) if tag == "rect"]
    assert [rect["class"] for rect in titles] == ["rail", "fill", "fill", "lost"]


def test_strips_of_expired_records(store: Store) -> None:
    grow(store, 3, 12, 20)
    expired(store, before=15)
    shown = visit(store).get("/topics/orders/1").text
    assert "expired: offsets before 12" in shown
    assert 'class="ticks"><span><data class="n" value="0">' in shown
    assert "expired" in text(visit(store).get("/topics/orders").text)
