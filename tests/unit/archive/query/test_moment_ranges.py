"""Ranges of offsets at a moment, partitions that were added, and times as text."""

from __future__ import annotations

from datetime import datetime

import pytest

from kbackup.archive.run import open_or_create
from kbackup.archive.segments.writer import Target
from kbackup.errors import UsageError
from kbackup.util.times import time_text
from tests.support.archives import T0, commit_point, make_archive, topic_state, write
from tests.support.faulty_store import FaultyStore
from tests.support.moments import chosen, sizes_of


def test_partitions_that_were_added_come_as_far_as_they_have_records(store: FaultyStore) -> None:
    archive = open_or_create(store)
    segments = {
        p: write(store, Target("orders", 1, p, 1000, "none"), r) for p, r in ((0, range(5)), (2, [9]))
    }
    segments[4] = write(store, Target("orders", 1, 4, 1000, "none"), [10**9 // 1000 * 900])
    before = topic_state("orders", 1, "present", [(0, 5, segments[0])])
    ends = [(0, 5, segments[0]), (0, 0, []), (0, 10, segments[2]), (0, 0, []), (0, 10**9, segments[4])]
    commit_point(archive, 1, [before], segments[0], [])
    commit_point(archive, 2, [topic_state("orders", 2, "present", ends)], [*segments[2], *segments[4]], [])
    content = chosen(store, to_time="2023-12-31T00:00:00Z")
    assert [(t.name, t.as_of) for t in content.topics] == [("orders", 1)]
    assert sizes_of(content)["orders"] == [(5, 1), (0, 0), (1, 1)]


def test_ranges_name_their_topics_and_are_exact(store: FaultyStore) -> None:
    make_archive(store)
    content = chosen(store, range=["orders:0:8-17", "orders:0:5-9", "orders:0:30-", "clicks:0:-1"])
    windows = {(t.name, p.partition): p.window for t in content.topics for p in t.partitions}
    assert {key: w.ranges for key, w in windows.items() if w} == {
        ("clicks", 0): ((0, 1),),
        ("orders", 0): ((5, 17), (30, 41)),
        ("orders", 1): (),
        ("orders", 2): (),
    }
    assert content.choice is not None
    assert content.choice.ranges == ("orders:0:8-17", "orders:0:5-9", "orders:0:30-", "clicks:0:-1")
    assert sizes_of(content)["orders"][1:] == [(0, 0), (0, 0)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"range": ["orders:0:0-42"]}, "orders-0 is archived from 0 to 41 .exclusive."),
        ({"range": ["orders:0:42-"]}, "--range orders:0:42-: orders-0 is archived from 0 to 41"),
        (
            {"range": ["orders:3:-"]},
            "topic orders has no partition 3; use one of its 3 archived partition",
        ),
        ({"range": ["nowhere:0:-"]}, "there is no topic nowhere in restore point 2"),
        ({"range": ["orders:0:-"], "topics": ["orders"]}, "--range names its topics itself"),
    ],
)
def test_ranges_that_are_not_archived_are_refused(
    store: FaultyStore, options: dict[str, object], words: str
) -> None:
    make_archive(store)
    with pytest.raises(UsageError, match=words):
        chosen(store, **options)


def test_without_a_window_nothing_changes(store: FaultyStore) -> None:
    make_archive(store)
    content = chosen(store)
    assert content.choice is None
    assert {p.window for t in content.topics for p in t.partitions} == {None}


def test_times_as_text() -> None:
    assert datetime.fromisoformat(time_text(T0)).timestamp() * 1000 == T0
    assert time_text(2**63 - 1) == f"{2**63 - 1} ms"
