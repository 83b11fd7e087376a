"""Windows against a filter of one record at a time."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from kbackup.archive.restores.plan import UnitRange
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import Window
from kbackup.archive.segments.writer import PartitionWriter
from kbackup.formats.record import decode, encode
from kbackup.jobs.replay import ReadStep, read_range
from kbackup.store.base import Store
from tests.support.faulty_store import FaultyStore
from tests.support.made_segments import target
from tests.support.memory_store import MemoryStore
from tests.unit.formats.reference import Record, from_batch, to_batch

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
        made.append(Record(offset, kind, stamp, b"k" * (step % 3), value, [("h", None)] * (step % 2)))
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


def write(store: Store, log: list[Record], threshold: int, compression: str) -> list[Segment]:
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
    log: list[Record],
    window: Window,
    threshold: int,
    compression: str,
    start: int,
) -> None:
    store = MemoryStore()
    segments = write(store, log, threshold, compression)
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
    cut = part(write(store, log, 300, "none"), window)
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
    log = [Record(o, 0, o, b"k", b"v" * 50, []) for o in range(40)]
    segments = write(store, log, 700, "none")
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
