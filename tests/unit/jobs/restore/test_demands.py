"""Which archived records a target topic would refuse, and which segments must be read to know."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kbackup.archive.restores.plan import UnitRange
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import Window
from kbackup.jobs.restore.demands import (
    Codec,
    Demands,
    ExamineRecords,
    TimeLimit,
    codecs_of,
    find_unfit,
    segments_to_read,
    unfit_in,
)
from kbackup.metrics.registry import Silent
from kbackup.spark.tasks import ProgressSender
from kbackup.store.base import Store
from tests.support.made_segments import a_segment, target, write
from tests.support.memory_store import MemoryStore
from tests.support.plain_records import Plain, block_of

ANY = Demands(key=False, limit=1 << 20, codecs=("zstd",))
NOW = 1_000_000


def problems(records: Sequence[Plain], demands: Demands) -> dict[str, tuple[list[int], int]]:
    """Return the offsets and the worst value of each kind of unfit records."""
    found = unfit_in(block_of(records, range(100, 100 + len(records))), demands)
    return {kind: (offsets.tolist(), worst) for kind, offsets, worst in found}


def test_records_without_a_key_are_found_whatever_their_timestamp() -> None:
    records = [Plain(b"k", b"v"), Plain(None, b"v"), Plain(b"", b"v"), Plain(None, b"v", -1), Plain(b"k", b"v", -2)]
    assert problems(records, replace(ANY, key=True)) == {"no key": ([101, 103], 0)}
    assert problems(records, ANY) == {}


def test_timestamps_beyond_the_bounds_are_found() -> None:
    stamps = [NOW - 11, NOW - 10, NOW, NOW + 5, NOW + 6, NOW + 9]
    records = [*(Plain(b"k", b"v", 0, stamp) for stamp in stamps), Plain(b"k", b"v", -1)]
    bounded = replace(ANY, now=NOW, before=TimeLimit(10, "b"), after=TimeLimit(5, "a"))
    assert problems(records, bounded) == {"too early": ([100], NOW - 11), "too late": ([104, 105], NOW + 9)}


@pytest.mark.parametrize(("codecs", "fits"), [(("zstd",), True), (("lz4",), True), (("zstd", "none"), False)])
def test_a_large_record_fits_where_every_codec_makes_it_small_enough(codecs: tuple[Codec, ...], fits: bool) -> None:
    demands = replace(ANY, limit=2000, codecs=codecs)
    assert (problems([Plain(b"k", b"the same again " * 1000)], demands) == {}) is fits
    noise = random.Random(1).randbytes(3000)
    ((kind, (offsets, worst)),) = problems([Plain(b"k", b"v"), Plain(b"k", noise)], demands).items()
    assert (kind, offsets) == ("too large", [101])
    assert worst > 3000


@pytest.mark.parametrize(
    ("properties", "topic", "codecs"),
    [
        ({}, "producer", ("zstd",)),
        ({}, "gzip", ("zstd", "gzip")),
        ({}, "uncompressed", ("zstd", "none")),
        ({"compression.type": "lz4"}, "producer", ("lz4",)),
        ({"compression.codec": "none"}, "zstd", ("none", "zstd")),
    ],
)
def test_a_record_is_packed_by_the_producer_and_by_brokers_of_another_codec(
    properties: dict[str, str], topic: str, codecs: tuple[Codec, ...]
) -> None:
    assert codecs_of(properties, topic) == codecs


def timed(*, min_timestamp: int | None = 5, max_timestamp: int | None = 9, largest: int = 50) -> Segment:
    return a_segment(min_timestamp=min_timestamp, max_timestamp=max_timestamp, largest=largest)


BOUNDED = replace(ANY, now=10, before=TimeLimit(5, "b"), after=TimeLimit(0, "a"))


@pytest.mark.parametrize(
    ("segment", "demands", "read"),
    [
        (timed(), ANY, False),
        (timed(largest=1 << 20), ANY, True),
        (timed(), replace(ANY, key=True), True),
        (timed(), BOUNDED, False),
        (timed(min_timestamp=4), BOUNDED, True),
        (timed(max_timestamp=11), BOUNDED, True),
        (timed(min_timestamp=None, max_timestamp=None), BOUNDED, True),
        (timed(min_timestamp=None, max_timestamp=None), ANY, False),
    ],
)
def test_only_segments_whose_records_are_in_doubt_are_read(segment: Segment, demands: Demands, read: bool) -> None:
    range_ = UnitRange(topic="orders", partition=0, target="t", segments=(segment,))
    assert bool(segments_to_read([range_], {"t": demands})) is read
    assert segments_to_read([range_], {}) == []


@pytest.fixture
def store() -> Store:
    return MemoryStore()


def test_unfit_records_are_counted_by_topic_and_the_first_is_named(store: Store) -> None:
    segments = write(store, target(threshold=300), range(40))
    assert len(segments) > 1
    ranges = [
        UnitRange(topic="orders", partition=number, target="t", segments=tuple(segments), window=window)
        for number, window in enumerate((Window(ranges=((7, 9), (30, 40))), None))
    ]
    demands = replace(ANY, now=0, before=TimeLimit(0, "b"), after=TimeLimit(-(1 << 60), "a"))
    work = ExamineRecords(store, {"t": demands})
    assert {each.records for each in work([ranges[0]], ProgressSender(None, 0))} == {12}
    found = find_unfit(ranges, {"t": demands}, store, lambda: pytest.fail("Spark"), Silent())
    (late,) = found["t"]
    assert (late.kind, late.first, late.records, late.source.partition) == ("too late", 7, 52, 0)
