"""Filters against the same told record by record."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as ds

from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import Window
from kbackup.spark.source.batch import remembered
from kbackup.spark.source.options import Pushed, both, common, joined, push, window_of
from tests.support.plain_records import Plain, block_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TOPICS = ["orders", "orders-2", "clicks", "Orders", "ördérs"]


def segment(topic: str, partition: int) -> Segment:
    key = f"topics/{topic}/segment_{partition}"
    return Segment(topic, 1, partition, 0, 29, 30, 1000, 1000, None, None, 60, "", "", key)


def moment(micros: int) -> datetime:
    return EPOCH.astimezone(timezone(timedelta(hours=5, minutes=30))) + timedelta(microseconds=micros)


COMPARED = [ds.EqualTo, ds.EqualNullSafe, ds.GreaterThan, ds.GreaterThanOrEqual, ds.LessThan, ds.LessThanOrEqual]


def about(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[ds.Filter]:
    compared = st.builds(lambda kind, value: kind((column,), value), st.sampled_from(COMPARED), values)
    within = st.lists(values, max_size=4).map(lambda some: ds.In((column,), tuple(some)))
    plain = compared | within
    return plain | plain.map(ds.Not)


text = st.sampled_from(TOPICS) | st.sampled_from(["", "o", "orders", "ö"])
strings = st.builds(
    lambda kind, value: kind(("topic",), value),
    st.sampled_from([ds.StringStartsWith, ds.StringEndsWith, ds.StringContains]),
    text,
)
filters = st.lists(
    about("topic", text)
    | strings
    | strings.map(ds.Not)
    | about("partition", st.integers(-1, 4))
    | about("offset", st.integers(-3, 40) | st.sampled_from([2**63 - 1, -(2**63)]))
    | about("timestamp", st.integers(-2000, 12_000).map(moment))
    | about("segment", st.sampled_from(["topics/clicks/segment_1", "x"]))
    | st.sampled_from([ds.IsNotNull((name,)) for name in ("offset", "timestamp", "topic", "key")]),
    max_size=5,
)

# a record at every offset from 0 to 29; each third has no timestamp, the others are 400 ms apart
RECORDS = [Plain(b"k", b"v", -2 if n % 3 == 2 else 0, n * 400) for n in range(30)]


def holds(one: ds.Filter, row: dict[str, Any]) -> bool:
    """As SQL has it: what compares with a null is not true."""
    if isinstance(one, ds.Not):
        inner: Any = one.child
        return row[inner.attribute[0]] is not None and not holds(inner, row)
    plain: Any = one
    mine = row[plain.attribute[0]]
    if isinstance(one, ds.IsNotNull):
        return mine is not None
    if mine is None:
        return False
    tests: dict[type, Callable[[], Any]] = {
        ds.EqualTo: lambda: mine == plain.value,
        ds.EqualNullSafe: lambda: mine == plain.value,
        ds.GreaterThan: lambda: mine > plain.value,
        ds.GreaterThanOrEqual: lambda: mine >= plain.value,
        ds.LessThan: lambda: mine < plain.value,
        ds.LessThanOrEqual: lambda: mine <= plain.value,
        ds.In: lambda: mine in plain.value,
        ds.StringStartsWith: lambda: mine.startswith(plain.value),
        ds.StringEndsWith: lambda: mine.endswith(plain.value),
        ds.StringContains: lambda: plain.value in mine,
    }
    return bool(tests[type(one)]())


def selected_by(filters: list[ds.Filter], of: Segment) -> list[int]:
    return [
        n
        for n, record in enumerate(RECORDS)
        if all(
            holds(
                one,
                {
                    "topic": of.topic,
                    "partition": of.partition,
                    "segment": of.key,
                    "offset": n,
                    "key": record.key,
                    "timestamp": moment(record.timestamp * 1000) if record.kind >= 0 else None,
                },
            )
            for one in filters
        )
    ]


def read_by(asked: list[Pushed], of: Segment) -> list[int]:
    window = window_of(asked, of)
    if window is None or not window.may_hold(of):
        return []
    return [int(offset) for offset in window.cut(block_of(RECORDS))[0].offsets]


@given(filters, st.sampled_from(TOPICS), st.integers(0, 3))
def test_reads_cover_the_selected_records(combined: list[ds.Filter], topic: str, partition: int) -> None:
    of = segment(topic, partition)
    read, selected = read_by([push(combined)], of), selected_by(combined, of)
    assert set(selected) <= set(read)
    if all(exact(one) for one in combined):
        assert read == selected


@given(st.lists(filters, min_size=1, max_size=3), st.sampled_from(TOPICS), st.integers(0, 3))
def test_reads_for_many_filters(many: list[list[ds.Filter]], topic: str, partition: int) -> None:
    of = segment(topic, partition)
    read = read_by([push(combined) for combined in many], of)
    assert {n for combined in many for n in selected_by(combined, of)} <= set(read)


def exact(one: ds.Filter) -> bool:
    inner: Any = one.child if isinstance(one, ds.Not) else one
    column = inner.attribute[0]
    if isinstance(inner, ds.IsNotNull):
        return column in ("offset", "topic")
    return column != "timestamp" or not isinstance(one, ds.Not | ds.In)


@pytest.mark.parametrize(
    "one",
    [
        ds.EqualTo(("key",), b"k"),
        ds.EqualTo(("headers", "key"), "offset"),
        ds.EqualTo(("offset",), None),
        ds.EqualTo(("offset",), 1.5),
        ds.EqualTo(("offset",), True),
        ds.In(("offset",), (1, None)),
        ds.Not(ds.In(("partition",), (1, None))),
        ds.IsNull(("offset",)),
        ds.IsNotNull(("timestamp",)),
        ds.EqualTo(("timestamp",), datetime(2020, 1, 1)),  # of a column without a zone
        ds.Not(ds.EqualTo(("timestamp",), EPOCH)),
        ds.GreaterThan(("timestampType",), 0),
    ],
)
def test_filters_that_exclude_nothing_are_not_pushed(one: ds.Filter) -> None:
    assert push([one]) == Pushed()


def test_requested_filters() -> None:
    filters = [
        ds.IsNotNull(("offset",)),
        ds.EqualTo(("topic",), "orders"),
        ds.In(("partition",), (1, 2)),
        ds.GreaterThanOrEqual(("offset",), 10),
        ds.Not(ds.EqualTo(("offset",), 12)),
        ds.LessThan(("timestamp",), moment(5_000_001)),
    ]
    pushed = push(filters)
    assert pushed.window == Window(to_time=5000, ranges=((10, 12), (13, 2**63 - 1)))
    assert pushed.wants(segment("orders", 2))
    assert not pushed.wants(segment("orders", 3))
    assert not pushed.wants(segment("clicks", 2))
    later = push([ds.EqualTo(("offset",), 20), ds.GreaterThan(("timestamp",), moment(0))])
    both_of_them = window_of([pushed, later], segment("orders", 2))
    assert both_of_them == Window(ranges=((10, 12), (13, 2**63 - 1)))
    assert window_of([pushed, later], segment("clicks", 2)) == later.window
    assert window_of([pushed], segment("clicks", 2)) is None


def test_windows_that_leave_nothing() -> None:
    pushed = push([ds.GreaterThan(("timestamp",), EPOCH), ds.LessThan(("timestamp",), EPOCH)])
    assert pushed.window.ranges == ()
    assert not pushed.window.may_hold(segment("orders", 0))


def test_earlier_filters_are_remembered(tmp_path: Path) -> None:
    some = [push([ds.EqualTo(("offset",), n)]) for n in range(3)]
    assert remembered(tmp_path, "a", some[0]) == (some[0],)
    assert remembered(tmp_path, "b", some[2]) == (some[2],)
    assert remembered(tmp_path, "a", some[1]) == (some[0], some[1])
    assert remembered(tmp_path, "a", some[0]) == (some[0], some[1])


pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)


@given(pairs, pairs)
def test_ranges(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    def offsets(ranges: Any) -> set[int]:
        return {o for low, high in ranges for o in range(low, high)}

    some = joined(a)
    assert offsets(some) == offsets(a)
    flat = [edge for pair in some for edge in pair]
    assert flat == sorted(set(flat)), "disjoint, rising, and none empty"
    assert offsets(common(joined(a), joined(b))) == offsets(a) & offsets(b)
    window = both(Window(ranges=joined(a), from_time=5), Window(ranges=joined(b), from_time=3, to_time=9))
    assert window == Window(from_time=5, to_time=9, ranges=common(joined(a), joined(b)))
