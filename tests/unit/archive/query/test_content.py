"""A moment selects topics, records and groups, on archives whose runs were captured a day apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbackup.archive.catalog.points import PointOverview, list_points
from kbackup.archive.models import TopicState
from kbackup.archive.query.content import NO_POINTS, Content
from kbackup.archive.query.groups import point_lags, sample_points
from kbackup.archive.query.overview import added_after, growth_of
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.plan import UnitRange
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import Window
from kbackup.archive.segments.writer import PartitionWriter, SegmentTarget
from kbackup.config.models import Restore
from kbackup.errors import UsageError
from kbackup.formats.record import decode, encode
from kbackup.jobs.replay import ReadStep, read_range
from kbackup.jobs.restore.plan import select_content
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.library.reading import ArchiveReader
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from kbackup.util.times import ms_of, time_text
from tests.golden.java_archive import PARTITIONS, ROOT
from tests.support.archives import T0, commit_point, group_at, grow, make_archive, topic_state, write
from tests.support.faulty_store import FaultyStore
from tests.support.made_segments import target
from tests.support.memory_store import MemoryStore
from tests.unit.formats.reference import Record, a_record, from_batch, to_batch

FIRST, SECOND = (f"2026-01-0{n}T00:00:00Z" for n in (1, 2))
BETWEEN = "2026-01-01T12:00:00Z"


def chosen(store: Store, **options: object) -> Content:
    return select_content(RestoreRequest.of(msgspec.convert(options, Restore)), store)


def sizes_of(content: Content) -> dict[str, list[tuple[int, int]]]:
    """At most so many records, and segments to read, by topic and partition."""
    return {t.name: [(p.records, len(p.segments)) for p in t.partitions] for t in content.topics}


def groups(content: Content) -> dict[str, list[tuple[str, int, int]]]:
    return {g: [(o.topic, o.partition, o.offset) for o in each.offsets] for g, each in content.groups.items()}


@pytest.mark.parametrize("moment", [FIRST, BETWEEN, "2026-01-01T23:59:59.999Z"])
def test_topics_and_groups_of_the_newest_capture_records_of_every_run(store: FaultyStore, moment: str) -> None:
    """A topic that is gone since is back; what run 2 added to orders has old timestamps and belongs to it."""
    make_archive(store)
    content = chosen(store, to_time=moment)
    assert {t.name: t.as_of for t in content.topics} == {"clicks": 1, "orders": 1}
    assert [sum(r for r, _ in some) for some in sizes_of(content).values()] == [20, 10 + 24 + 12]
    assert groups(content) == {"billing": [("clicks", 0, 5), ("orders", 0, 4), ("orders", 1, 12)]}
    assert content.choice is not None
    assert (content.restore_point, content.choice.as_of, content.choice.groups_as_of) == (1, 1, 1)
    assert content.choice.groups_captured_at == "2026-01-01T00:00:00.000Z"
    assert "restore point 1, captured at 2026-01-01T00:00:00.000Z" in content.choice.notes[1]


def test_a_topic_deleted_by_then_comes_where_it_is_named(store: FaultyStore) -> None:
    make_archive(store)
    assert list(sizes_of(chosen(store, to_time=SECOND))) == ["orders"]
    content = chosen(store, to_time=SECOND, topics=["clicks"])
    assert groups(content) == {"billing": [("clicks", 0, 5)]}
    with pytest.raises(UsageError, match="there is no topic nowhere in restore point 2"):
        chosen(store, to_time=SECOND, topics=["nowhere"])


def test_before_the_first_capture_there_are_records_but_no_groups(store: FaultyStore) -> None:
    make_archive(store)
    content = chosen(store, to_time=str(T0 + 5_000))
    assert sum(p.records for t in content.topics for p in t.partitions) >= 6 + 6 + 6
    assert all(s.min_timestamp <= T0 + 5_000 for t in content.topics for s in t.segments if s.min_timestamp)
    assert content.groups == {}
    assert content.choice is not None
    assert (content.choice.as_of, content.choice.groups_as_of) == (None, None)
    assert "no restore point was captured at or before 2023-11-14T22:13:25.000Z" in content.choice.notes[0]
    with pytest.raises(UsageError, match="there is no topic x in the archive at that time"):
        chosen(store, to_time=str(T0 + 5_000), topics=["/or.*/", "x"])


def test_a_moment_before_the_archive_begins_is_refused_with_its_beginning(store: FaultyStore) -> None:
    make_archive(store)
    with pytest.raises(UsageError) as raised:
        chosen(store, to_time=str(T0 - 1), restore_point=1)
    assert raised.value.message == (
        "2023-11-14T22:13:19.999Z is before the archive begins: its oldest restore point is of "
        "2026-01-01T00:00:00.000Z, its earliest record of 2023-11-14T22:13:20.000Z"
    )
    assert chosen(store, to_time=str(T0)).topics


def test_a_window_from_before_the_archive_begins_is_from_its_beginning(store: FaultyStore) -> None:
    make_archive(store)
    everything = chosen(store, restore_point=2)
    assert sizes_of(chosen(store, from_time="0", restore_point=2)) == sizes_of(everything)


def test_a_window_without_a_record_of_the_topics_says_of_when_they_are(store: FaultyStore) -> None:
    make_archive(store)
    content = chosen(store, from_time="2100-01-01 00:00Z")
    assert content.choice is not None
    assert content.choice.left_out[-1] == (
        "no record is in this window: the records of these topics are from 2023-11-14T22:13:20.000Z to "
        "2023-11-14T22:13:59.000Z"
    )


def test_from_a_time_on_it_is_the_restore_point_that_was_asked_for(store: FaultyStore) -> None:
    make_archive(store)
    content = chosen(store, from_time=str(T0 + 15_000), restore_point=1)
    first, *_ = sizes_of(content)["orders"]
    assert first == (0, 0)
    assert groups(content)["billing"] == [("clicks", 0, 5), ("orders", 0, 4), ("orders", 1, 12)]
    newest = chosen(store, from_time=str(T0 + 15_000))
    assert newest.restore_point == 2
    (kept, _), *_ = sizes_of(newest)["orders"]
    assert kept >= 24
    with pytest.raises(UsageError, match="--from-time now is later than --to-time 2h ago"):
        chosen(store, from_time="now", to_time="2h ago")


def reborn(name: str, captured: int, incarnation: int, segments: Sequence[Segment]) -> TopicState:
    state = topic_state(name, [(0, 50, segments)], captured=captured)
    return msgspec.structs.replace(state, incarnation=incarnation)


def test_topics_new_in_the_next_point_are_selected_if_they_have_records(store: FaultyStore) -> None:
    """Run 2 finds topics that are new, one with records and one without; run 3 finds another, and orders anew."""
    archive = open_or_create(store)
    orders = write(store, SegmentTarget("orders", 1, 0, 1000, "none"), range(5))
    new = write(store, SegmentTarget("new", 1, 0, 1000, "none"), range(5))
    late = write(store, SegmentTarget("late", 1, 0, 1000, "none"), range(5))
    again = write(store, SegmentTarget("orders", 2, 0, 1000, "none"), range(5))
    one = topic_state("orders", [(0, 5, orders)])
    two = [
        topic_state("empty", [(0, 0, [])], captured=2),
        topic_state("new", [(0, 5, new)], captured=2),
        topic_state("orders", [(0, 5, orders)], captured=2),
    ]
    three = [
        topic_state("empty", [(0, 0, [])], captured=3),
        topic_state("late", [(0, 5, late)], captured=3),
        topic_state("new", [(0, 5, new)], captured=3),
        reborn("orders", 3, 2, again),
    ]
    commit_point(archive, 1, topics=[one], segments=orders, groups=[group_at("g", ("orders", 0, 2))])
    commit_point(archive, 2, topics=two, segments=new, groups=[group_at("g", ("orders", 0, 3), ("new", 0, 1))])
    commit_point(
        archive, 3, topics=three, segments=[*late, *again], groups=[group_at("g", ("orders", 0, 4), ("new", 0, 4))]
    )

    content = chosen(store, to_time=BETWEEN)
    assert [(t.name, t.incarnation, t.as_of) for t in content.topics] == [("new", 1, 2), ("orders", 1, 1)]
    assert groups(content) == {"g": [("orders", 0, 2)]}
    assert content.choice is not None
    assert content.choice.notes[-1].endswith("the next one, captured first, with records in the window: new")
    assert [words.partition(" (")[0] for words in content.choice.left_out] == [
        "topic late was first captured later and has records in the window: it is restored where it is asked for "
        "by name",
        "topic orders was created again later",
    ]
    named = chosen(store, to_time=BETWEEN, topics=["late", "new"])
    assert list(sizes_of(named)) == ["late", "new"]
    assert named.choice is not None
    assert named.choice.left_out == ()

    other = chosen(store, to_time=BETWEEN, restore_point=3, topics=["orders"])
    assert [(t.incarnation, t.as_of) for t in other.topics] == [(2, 3)]
    assert other.groups == {}, "they stood in the incarnation before"


def test_a_topic_deleted_by_then_and_made_anew_later(store: FaultyStore) -> None:
    """By its name it comes as it was before then; the other incarnation takes its restore point."""
    archive = open_or_create(store)
    old = write(store, SegmentTarget("orders", 1, 0, 1000, "none"), range(5))
    again = write(store, SegmentTarget("orders", 2, 0, 1000, "none"), range(7))
    there = topic_state("orders", [(0, 5, old)])
    gone = msgspec.structs.replace(there, state="deleted")
    commit_point(archive, 1, topics=[there], segments=old, groups=[group_at("g", ("orders", 0, 2))])
    commit_point(archive, 2, topics=[gone])
    commit_point(archive, 3, topics=[gone])
    commit_point(
        archive, 4, topics=[reborn("orders", 4, 2, again)], segments=again, groups=[group_at("g", ("orders", 0, 6))]
    )
    with pytest.raises(UsageError, match="there is no topic x in restore point 2"):
        chosen(store, to_time="2026-01-02T12:00:00Z", topics=["x"])
    content = chosen(store, to_time="2026-01-02T12:00:00Z", topics=["orders"])
    assert sizes_of(content) == {"orders": [(5, 1)]}
    assert groups(content) == {"g": [("orders", 0, 2)]}
    everything = chosen(store, to_time="2026-01-02T12:00:00Z")
    assert everything.topics == ()
    assert everything.choice is not None
    assert "incarnation 1 is of that time" in everything.choice.left_out[0]


# Windows on a folder that the Java tool wrote: no restore points, and no segment's timestamps are known.


STORE = FileStore(ROOT / "archive")
STAMPS = sorted(r.timestamp for p in PARTITIONS for r in p.truth() if r.timestamp is not None)


def found(**options: object) -> dict[tuple[str, int], list[Record]]:
    """Return the records that a restore would write, by topic and partition."""
    content = select_content(RestoreRequest.of(msgspec.convert(options, Restore)), STORE)
    assert content.choice is not None
    assert content.choice.notes == (NO_POINTS,)
    records: dict[tuple[str, int], list[Record]] = {}
    for topic in content.topics:
        for p in topic.partitions:
            part = UnitRange(topic=topic.name, partition=p.partition, target="t", segments=p.segments, window=p.window)
            blocks = [piece.block for piece in read_range(STORE, part) if piece.block is not None]
            records[topic.name, p.partition] = [r for b in blocks for r in from_batch(decode(b))]
            assert len(records[topic.name, p.partition]) <= p.records
    return records


@pytest.mark.parametrize("index", [0, len(STAMPS) // 3, len(STAMPS) // 2, len(STAMPS) - 1])
def test_a_window_of_times_selects_the_records_within(index: int) -> None:
    low, high = STAMPS[index // 2], STAMPS[index]
    assert low >= 0
    assert found(from_time=str(low), to_time=str(high)) == {
        (p.topic, p.number): [r for r in p.truth() if r.timestamp is not None and low <= r.timestamp <= high]
        for p in PARTITIONS
    }


def test_a_range_of_offsets_selects_the_records_within() -> None:
    one = max(PARTITIONS, key=lambda p: len(p.truth()))
    truth = one.truth()
    low, high = truth[len(truth) // 4].offset, truth[-1].offset
    chosen = found(range=[f"{one.topic}:{one.number}:{low}-{high}"])
    assert chosen[one.topic, one.number] == [r for r in truth if low <= r.offset < high]
    others = [records for key, records in chosen.items() if key != (one.topic, one.number) and records]
    assert not others, f"records of partitions that were not chosen: {others}"
    with pytest.raises(UsageError, match=f"is archived from {truth[0].offset} to {high + 1}"):
        found(range=[f"{one.topic}:{one.number}:{low}-{high + 2}"])


# Notes on the window of a moment: what it lacks, and why.


def left_out(store: Store, **options: object) -> list[str]:
    """Return the notes on the window, without the restored records."""
    choice = chosen(store, **options).choice
    assert choice is not None
    return list(choice.left_out)


def test_where_the_window_ends_after_the_archive_that_is_said(store: FaultyStore) -> None:
    """From the very beginning of the newest restore point on; before, it has what was there at the moment."""
    make_archive(store)
    assert left_out(store, to_time=SECOND) == []
    assert left_out(store, from_time=str(T0)) == []
    later = "2026-01-02T00:00:00.001Z"
    words = ["restore point 2 was begun at 2026-01-02T00:00:00.000Z, before the window ends: it has no later records"]
    assert left_out(store, to_time=later) == words
    beside = ["orders: its partitions 1 are not restored: --range names others"]
    assert left_out(store, to_time=later, range=["orders:0:5-9"]) == words + beside
    shown = ArchiveReader(store, "latest", ms_of(later)).overview().choice
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
    few = write(store, SegmentTarget("few", 1, 0, 1000, "none"), range(3))
    orders = [write(store, SegmentTarget("orders", 1, p, 1000, "none"), r) for p, r in ((0, range(5)), (1, range(9)))]
    many = topic_state("many", [(0, 0, [])] * 12)
    states = [topic_state("few", [(0, 3, few)]), many, topic_state("orders", [(0, 5, orders[0]), (0, 9, orders[1])])]
    waiting = [
        msgspec.structs.replace(s, partitions=tuple(msgspec.structs.replace(p, log_end=20) for p in s.partitions))
        for s in states[1:]
    ]
    commit_point(archive, 1, topics=[states[0], *waiting], segments=[*few, *orders[0], *orders[1]])
    words = [
        f"offsets {n} to 19 of orders-{p}, or some of them, are not in restore point 1" for p, n in ((0, 5), (1, 9))
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


# Ranges of offsets at a moment, partitions that were added, and times as text.


def test_partitions_that_were_added_come_as_far_as_they_have_records(store: FaultyStore) -> None:
    archive = open_or_create(store)
    segments = {p: write(store, SegmentTarget("orders", 1, p, 1000, "none"), r) for p, r in ((0, range(5)), (2, [9]))}
    segments[4] = write(store, SegmentTarget("orders", 1, 4, 1000, "none"), [10**9 // 1000 * 900])
    before = topic_state("orders", [(0, 5, segments[0])])
    ends = [(0, 5, segments[0]), (0, 0, []), (0, 10, segments[2]), (0, 0, []), (0, 10**9, segments[4])]
    commit_point(archive, 1, topics=[before], segments=segments[0])
    commit_point(archive, 2, topics=[topic_state("orders", ends, captured=2)], segments=[*segments[2], *segments[4]])
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
        ({"range": ["orders:3:-"]}, "topic orders has no partition 3; use one of its 3 archived partition"),
        ({"range": ["nowhere:0:-"]}, "there is no topic nowhere in restore point 2"),
        ({"range": ["orders:0:-"], "topics": ["orders"]}, "--range names its topics itself"),
    ],
)
def test_ranges_that_are_not_archived_are_refused(store: FaultyStore, options: dict[str, object], words: str) -> None:
    make_archive(store)
    with pytest.raises(UsageError, match=words):
        chosen(store, **options)


def test_without_a_window_nothing_changes(store: FaultyStore) -> None:
    make_archive(store)
    content = chosen(store)
    assert content.choice is None
    assert {p.window for t in content.topics for p in t.partitions} == {None}


def test_a_time_that_no_calendar_has_is_shown_in_milliseconds() -> None:
    assert datetime.fromisoformat(time_text(T0)).timestamp() * 1000 == T0
    assert time_text(2**63 - 1) == f"{2**63 - 1} ms"


# Windows against a filter of one record at a time.


TIMES = st.integers(0, 40)
OFFSETS = st.integers(0, 400)


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Rising offsets with gaps; timestamps in any order, none for some records."""
    stamps = draw(st.lists(st.none() | TIMES | st.just(2**63 - 1), max_size=80))
    steps = draw(st.lists(st.integers(1, 9), min_size=len(stamps), max_size=len(stamps)))
    made: list[Record] = []
    offset = draw(st.integers(0, 50))
    for stamp, step in zip(stamps, steps, strict=True):
        kind = -2 if stamp is None else stamp % 2
        value = None if step == 1 else b"v" * (step * 9)
        made.append(
            a_record(
                offset,
                kind=kind,
                timestamp=stamp,
                key=b"k" * (step % 3),
                value=value,
                headers=[("h", None)] * (step % 2),
            )
        )
        offset += step
    return made


@st.composite
def windows(draw: st.DrawFn) -> Window:
    edges = sorted(set(draw(st.lists(OFFSETS, max_size=6))))
    pairs = tuple(zip(edges[::2], edges[1::2], strict=False))
    return Window(
        from_time=draw(st.none() | TIMES),
        to_time=draw(st.none() | TIMES | st.just(2**63 - 1)),
        ranges=draw(st.none() | st.just(pairs)),
    )


def wanted(record: Record, window: Window) -> bool:
    if window.ranges is not None and not any(a <= record.offset < b for a, b in window.ranges):
        return False
    if window.from_time is None and window.to_time is None:
        return True
    if record.timestamp is None:
        return False
    early = window.from_time is not None and record.timestamp < window.from_time
    return not early and (window.to_time is None or record.timestamp <= window.to_time)


def write_window(store: Store, log: list[Record], threshold: int, compression: str) -> list[Segment]:
    with PartitionWriter(store, target(threshold=threshold, compression=compression)) as writer:
        return (writer.append(encode(to_batch(log))) if log else []) + writer.finish()


def part(segments: Sequence[Segment], window: Window | None) -> UnitRange:
    chosen = tuple(s for s in segments if window is None or window.may_hold(s))
    return UnitRange(topic="orders", partition=0, target="orders", segments=chosen, window=window)


def records(pieces: Sequence[ReadStep]) -> list[Record]:
    return [r for p in pieces if p.block is not None for r in from_batch(decode(p.block))]


@settings(max_examples=150)
@given(
    log=logs(),
    window=windows(),
    threshold=st.sampled_from([1, 200, 600, 1 << 20]),
    compression=st.sampled_from(["none", "zstd"]),
    start=OFFSETS,
)
def test_a_window_selects_as_a_filter_of_every_record(
    log: list[Record], window: Window, threshold: int, compression: str, start: int
) -> None:
    store = MemoryStore()
    segments = write_window(store, log, threshold, compression)
    expected = [r for r in log if wanted(r, window)]
    cut = part(segments, window)
    assert records(list(read_range(store, cut))) == expected
    pieces = list(read_range(store, cut, start))
    assert records(pieces) == [r for r in expected if r.offset >= start]
    assert sum(map(window.at_most, segments)) >= len(expected)
    assert all(p.block is None or len(p.block) for p in pieces)


@settings(max_examples=50)
@given(log=logs(), window=windows(), stop=st.integers(0, 30))
def test_going_on_after_any_piece_brings_the_rest_and_counts_each_once(
    log: list[Record], window: Window, stop: int
) -> None:
    store = MemoryStore()
    cut = part(write_window(store, log, 300, "none"), window)
    whole = list(read_range(store, cut))
    before = whole[:stop]
    after = list(read_range(store, cut, before[-1].next if before else 0))
    assert records([*before, *after]) == records(whole)
    assert sum(p.untimed for p in [*before, *after]) == sum(p.untimed for p in whole)
    in_read = [r for r in log if any(s.first <= r.offset <= s.last for s in cut.segments)]
    without = Window(ranges=window.ranges)
    untimed = [r for r in in_read if r.timestamp is None and window.timed and wanted(r, without)]
    assert sum(p.untimed for p in whole) == len(untimed)


def test_without_a_window_every_record_comes_uncopied(store: FaultyStore) -> None:
    log = [a_record(o, timestamp=o, value=b"v" * 50) for o in range(40)]
    segments = write_window(store, log, 700, "none")
    assert len(segments) > 3
    pieces = list(read_range(store, part(segments, None)))
    assert records(pieces) == log
    assert [p.next for p in pieces if p.block is None] == [s.last + 1 for s in segments]
    assert sum(p.read for p in pieces) == sum(s.bytes - 1 for s in segments)
    assert {p.untimed for p in pieces} == {0}


def test_bounds_of_a_segment_clip_to_the_window() -> None:
    assert Window(from_time=5).clip(1, 9) == (5, 9)
    assert Window(to_time=5).clip(1, 9) == (1, 5)
    assert Window(from_time=5).clip(None, None) == (None, None)
    assert Window(from_time=0).timed
    assert not Window(ranges=()).timed
    assert Window(ranges=()).nothing


# Growth of topics by the catalog.


def test_growth_is_summed_by_restore_point() -> None:
    store = FaultyStore(MemoryStore())
    make_archive(store)
    grow(store, 3, 12, 20)
    archive = open_archive(store)
    orders, clicks = ("orders", 1), ("clicks", 1)
    by_point = dict.fromkeys((1, 2, 3), 0)
    added = archive.ordered(0, 3)
    for number, segment in zip(added.points.tolist(), added.segments, strict=True):
        by_point[number] += segment.stored if segment.topic == "orders" else 0
    newest = archive.restore_point("latest")
    store.calls.clear()
    growth = growth_of(archive, newest, {orders, clicks, ("nowhere", 1), ("orders", 2)})
    assert set(growth) == {orders, clicks}
    one, two, three = (by_point[number] for number in (1, 2, 3))
    assert growth[orders] == [(1, one), (2, one + two), (3, one + two + three)]
    ((number, all_clicks),) = growth[clicks]
    assert number == 1
    assert growth_of(archive, archive.restore_point(2), [orders])[orders] == growth[orders][:2]
    assert added_after(archive, newest, 1) == {orders: two + three}
    assert added_after(archive, newest, 0)[clicks] == all_clicks
    assert not [key for _, key in store.calls if key.startswith("points/") and "manifest" not in key]


# Lag of groups at a sample of restore points.


START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def lagging() -> MemoryStore:
    store = MemoryStore()
    make_archive(store)
    return store


def points(lagging: MemoryStore, minutes: list[int]) -> list[PointOverview]:
    point = list_points(open_archive(lagging).state)[0]
    return [
        replace(point, number=n, committed_at=(START + timedelta(minutes=minute)).isoformat())
        for n, minute in enumerate(minutes, 1)
    ]


def test_lag_of_every_group_at_a_restore_point(lagging: MemoryStore) -> None:
    archive = open_archive(lagging)
    first, second = (point_lags(archive, point) for point in list_points(archive.state))
    assert first.lags == {"billing": 15 + 6 + 0}
    assert second.lags == {"billing": 24 + 0, "late": 0}
    assert first.time < second.time
    assert archive._manifests == {}, "nothing of it is kept"


def test_damage_is_a_restore_point_without_lags() -> None:
    store = MemoryStore()
    archive = make_archive(store)
    first = list_points(archive.state)[0]
    store.put(archive.capture(1).groups.key, b"{}")
    assert point_lags(archive, first).lags is None


@pytest.mark.parametrize("count", [1, 24, 25, 1000, 10_000])
def test_a_sample_is_spread_and_has_the_newest(lagging: MemoryStore, count: int) -> None:
    every = points(lagging, list(range(count)))
    sample = sample_points(every, 24)
    assert min(count, 12) <= len(sample) <= 24
    assert (sample[0], sample[-1]) == (every[0], every[-1])
    assert len({point.number for point in sample}) == len(sample)


def test_a_sample_stays_as_the_archive_grows(lagging: MemoryStore) -> None:
    """Its restore points were read before."""
    every = points(lagging, list(range(9_000)))
    before, after = sample_points(every[:8_990], 24), sample_points(every, 24)
    assert {p.number for p in before[:-1]} <= {p.number for p in after}


def test_a_sample_of_thinned_restore_points(lagging: MemoryStore) -> None:
    """A year of days, then a day of minutes: days have their share."""
    days = [1440 * day for day in range(365)]
    sample = sample_points(points(lagging, [*days, *(1440 * 364 + n for n in range(1, 1441))]), 24)
    assert sum(point.number <= 365 for point in sample) > 10
