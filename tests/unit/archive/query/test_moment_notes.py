"""Notes on the window of a moment: what it lacks, and why."""

from __future__ import annotations

import msgspec

from kbackup.archive.query.overview import overview
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.writer import Target
from kbackup.store.base import Store
from kbackup.util.times import ms_of
from tests.support.archives import T0, commit_point, make_archive, topic_state, write
from tests.support.faulty_store import FaultyStore
from tests.support.moments import BETWEEN, FIRST, SECOND, chosen


def left_out(store: Store, **options: object) -> list[str]:
    """Return the notes on the window, without the restored records."""
    choice = chosen(store, **options).choice
    assert choice is not None
    return list(choice.left_out)


def test_where_the_window_ends_after_the_archive_that_is_said(store: FaultyStore) -> None:
    """From the very beginning of the newest restore point on; before, it has what was there at the moment."""
    make_archive(store)
    assert left_out(store, to_time=SECOND) == []
    assert left_out(store, from_time=FIRST) == []
    later = "2026-01-02T00:00:00.001Z"
    words = [
        "restore point 2 was begun at 2026-01-02T00:00:00.000Z, before the window ends: it has no later records"
    ]
    assert left_out(store, to_time=later) == words
    assert left_out(store, to_time=later, range=["orders:0:5-9"]) == words
    shown = overview(store, "latest", ms_of(later)).choice
    assert shown is not None
    assert list(shown.left_out) == words
    (earlier,) = left_out(store, to_time=BETWEEN, restore_point=1)
    assert earlier.startswith("restore point 1 was begun at 2026-01-01T00:00:00.000Z")


def test_a_topic_that_no_run_looked_at_since_the_moment(store: FaultyStore) -> None:
    """Clicks was gone by run 2, which found it out after the moment: what came to it until then is nowhere."""
    make_archive(store)
    assert left_out(store, to_time=FIRST) == []
    assert left_out(store, to_time=BETWEEN) == [
        "restore point 2 has topics as of restore point 1, which was begun at 2026-01-01T00:00:00.000Z, before the "
        "window ends, without later records: clicks"
    ]
    assert left_out(store, to_time=BETWEEN, topics=["orders"]) == []


def test_held_back_records_are_noted_unless_the_partition_reaches_past_the_moment(store: FaultyStore) -> None:
    archive = open_or_create(store)
    few = write(store, Target("few", 1, 0, 1000, "none"), range(3))
    orders = [
        write(store, Target("orders", 1, p, 1000, "none"), r) for p, r in ((0, range(5)), (1, range(9)))
    ]
    many = topic_state("many", 1, "present", [(0, 0, [])] * 12)
    states = [
        topic_state("few", 1, "present", [(0, 3, few)]),
        many,
        topic_state("orders", 1, "present", [(0, 5, orders[0]), (0, 9, orders[1])]),
    ]
    waiting = [
        msgspec.structs.replace(
            s, partitions=tuple(msgspec.structs.replace(p, log_end=20) for p in s.partitions)
        )
        for s in states[1:]
    ]
    commit_point(archive, 1, [states[0], *waiting], [*few, *orders[0], *orders[1]], [])
    words = [
        f"offsets {n} to 19 of orders-{p}, or some of them, are not in restore point 1"
        for p, n in ((0, 5), (1, 9))
    ]
    mine: dict[str, object] = {"topics": ["few", "orders"]}
    assert left_out(store, to_time=FIRST, **mine) == words
    assert left_out(store, to_time=str(T0 + 8_000), **mine) == words
    assert left_out(store, to_time=str(T0 + 7_999), **mine) == words[:1]
    assert left_out(store, to_time=str(T0 + 3_999), **mine) == []
    assert left_out(store, to_time=FIRST, range=["orders:0:1-3", "orders:1:2-"]) == words[1:]
    assert left_out(store, to_time=FIRST)[9:] == [
        "offsets 0 to 19 of many-9, or some of them, are not in restore point 1",
        "nor are offsets of 4 more partitions",
    ]
