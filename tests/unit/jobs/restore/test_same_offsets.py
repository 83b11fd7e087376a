"""What is known of logs before they are filled: their shapes, how long it takes, and what is refused."""

from __future__ import annotations

from typing import Literal

import pytest

from kbackup.archive.restores.plan import LogBounds, UnitRange
from kbackup.archive.segments.window import Window
from kbackup.config.models import Restore
from kbackup.errors import UsageError
from kbackup.jobs.restore.report import TopicFill
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.jobs.restore.same_offsets.pieces import Gap, LogShape, RecordRun, RunCollector, pieces, shape_of
from kbackup.jobs.restore.same_offsets.plan import plan_fills, problems_of
from kbackup.types import TopicPartition
from tests.support import made_segments
from tests.support.archives import planned_topic, restore_plan
from tests.support.memory_store import MemoryStore
from tests.support.transforms import EVEN_OFFSETS, a_transform


def _range(store: MemoryStore, offsets: list[int], window: Window | None = None) -> UnitRange:
    segments = made_segments.write(store, made_segments.target(), offsets)
    return UnitRange(topic="orders", partition=0, target="orders", segments=tuple(segments), window=window)


def test_records_and_gaps_come_in_order_from_the_start_of_the_log_to_its_end() -> None:
    block = made_segments.block([3, 4, 8])
    found = list(pieces([block], LogBounds(start=1, end=10)))
    told = [(type(each), each.first, each.end) for each in found]
    assert told == [(Gap, 1, 3), (RecordRun, 3, 5), (Gap, 5, 8), (RecordRun, 8, 9), (Gap, 9, 10)]


def test_runs_that_follow_one_another_are_one_run_of_the_offset_map() -> None:
    collector = RunCollector()
    for first, end in ((0, 5), (5, 9), (12, 13)):
        collector.add(first, end)
    source, target, count = collector.runs
    assert source.tolist() == target.tolist() == [0, 12]
    assert count.tolist() == [9, 1]


def test_the_shape_of_segments_without_gaps_is_known_without_reading_them() -> None:
    store = MemoryStore()
    range_ = _range(store, list(range(5, 40)))
    store.requests.clear()
    assert shape_of(store, range_) == LogShape(records=35, first=5, end=40)
    assert not store.requests


def test_the_shape_counts_gaps_inside_segments_between_them_and_at_the_edges() -> None:
    store = MemoryStore()
    shape = shape_of(store, _range(store, [2, 3, 7, 8, 30]))
    assert shape == LogShape(records=5, first=2, end=31, gaps=2, missing=24, largest=21)
    assert shape.within(LogBounds(start=0, end=100)) == shape._replace(gaps=4, missing=95, largest=69)


def test_records_outside_of_a_window_are_gaps() -> None:
    store = MemoryStore()
    window = Window(ranges=((0, 10), (20, 30)))
    shape = shape_of(store, _range(store, list(range(40)), window))
    assert shape == LogShape(records=20, first=0, end=30, gaps=1, missing=10, largest=10)


def test_records_that_a_transform_leaves_out_are_gaps() -> None:
    store = MemoryStore()
    shape = shape_of(store, _range(store, list(range(7))), a_transform(EVEN_OFFSETS))
    assert shape == LogShape(records=4, first=0, end=7, gaps=3, missing=3, largest=1)


def _fill(**changed: object) -> TopicFill:
    usual = TopicFill(
        source="orders",
        target="orders",
        way="markers",
        head=0,
        head_bytes=0,
        gaps=3,
        largest=100_000,
        markers=300_000,
        fillers=0,
        seconds=3000.0,
    )
    values = {name: getattr(usual, name) for name in usual.__struct_fields__}
    return TopicFill(**{**values, **changed})


COMPACTED = {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("way", "markers", "fillers", "longest"),
    [("markers", 150, 0, 100), ("aborted", 5, 145, 4), ("tombstones", 0, 150, 0)],
)
def test_the_fill_of_a_topic_sums_up_its_logs(
    way: Literal["markers", "aborted", "tombstones"], markers: int, fillers: int, longest: int
) -> None:
    """One log has few gaps that are long, the other many that are short; logs get their markers side by side."""
    shapes = {
        TopicPartition("copy", 0): LogShape(records=10, first=20, end=130, gaps=1, missing=100, largest=100),
        TopicPartition("copy", 1): LogShape(records=10, first=30, end=90, gaps=4, missing=50, largest=20),
    }
    ranges = (
        UnitRange(topic="orders", partition=0, target="copy", log=LogBounds(start=20, end=130)),
        UnitRange(topic="orders", partition=1, target="copy", log=LogBounds(start=30, end=90)),
    )
    plan = restore_plan(topics=(planned_topic("orders", "copy"),), units=(ranges,))
    (fill,) = plan_fills(plan, shapes, way, rate=1.0)
    assert (fill.way, fill.head, fill.gaps, fill.largest) == (way, 50, 5, 100)
    assert (fill.markers, fill.fillers) == (markers, fillers)
    assert longest <= fill.seconds < longest + 1


def test_gaps_that_take_too_long_are_held_back_with_what_helps() -> None:
    ((problem, hint),) = problems_of(_fill(), None, COMPACTED, exists=False)
    assert "3 gaps of up to 100,000 offsets" in problem
    assert "50m" in problem
    for way in ("--fill markers", "--fill aborted", "--fill tombstones"):
        assert way in hint


def test_tombstones_are_offered_for_compacted_topics_alone() -> None:
    ((_, hint),) = problems_of(_fill(), None, {}, exists=False)
    assert "tombstones" not in hint


def test_time_that_was_asked_for_is_no_problem() -> None:
    assert list(problems_of(_fill(), "markers", {}, exists=False)) == []
    assert list(problems_of(_fill(seconds=20.0), None, {}, exists=False)) == []


def test_gaps_are_held_back_where_transactions_are_forbidden() -> None:
    ((problem, hint),) = problems_of(_fill(seconds=1.0), "markers", {}, exists=False, may_mark=False)
    assert "--no-transactions forbids" in problem
    assert "tombstones" not in hint
    ((_, hint),) = problems_of(_fill(), None, COMPACTED, exists=False, may_mark=False)
    assert "--fill tombstones" in hint
    assert list(problems_of(_fill(markers=0), None, {}, exists=False, may_mark=False)) == []


def test_tombstones_stay_out_of_topics_that_keep_them() -> None:
    ((problem, _),) = problems_of(_fill(way="tombstones", markers=0), "tombstones", {}, exists=False)
    assert "not compacted" in problem


def test_a_head_in_remote_storage_or_in_a_compacted_topic_that_exists_is_held_back() -> None:
    head = _fill(way="in place", head=5, markers=0, seconds=1.0)
    ((problem, _),) = problems_of(head, None, {"remote.storage.enable": "true"}, exists=False)
    assert "remote storage" in problem
    ((problem, _),) = problems_of(head, None, COMPACTED, exists=True)
    assert "compacted" in problem
    assert list(problems_of(head, None, COMPACTED, exists=False)) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Restore(same_offsets=True, into_existing=True), "--same-offsets takes new topics"),
        (Restore(fill="aborted"), "--fill is for --same-offsets alone"),
    ],
)
def test_options_that_exclude_each_other_are_refused(given: Restore, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        RestoreRequest.of(given).check_selection()
