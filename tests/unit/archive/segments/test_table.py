"""Segment tables: whole, and the four columns that partition indexes are made from."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.catalog.tables import encode
from kbackup.archive.segments.table import (
    PLACE,
    Segment,
    decode_table,
    from_batches,
    in_order,
    starts_of,
    to_batch,
)
from kbackup.errors import CorruptError


def segment(topic: str, incarnation: int, partition: int, first: int) -> Segment:
    return Segment(
        topic=topic,
        incarnation=incarnation,
        partition=partition,
        first=first,
        last=first + 9,
        count=10,
        bytes=1001,
        stored=400,
        min_timestamp=None,
        max_timestamp=first,
        largest=100,
        crc="0" * 16,
        index_crc="",
        key=f"topics/{topic}/{partition}-{first}",
    )


def table_of(segments: list[Segment]) -> bytes:
    return encode(pa.Table.from_batches([to_batch(segments)]))


SEGMENTS = st.lists(
    st.builds(
        segment,
        st.sampled_from(["orders", "a", "ünï"]),
        st.integers(1, 3),
        st.integers(0, 3),
        st.integers(0, 1 << 62),
    ),
    unique_by=lambda s: s.key + str(s.incarnation),
)


@given(SEGMENTS)
def test_a_table_gives_back_what_it_was_made_of(segments: list[Segment]) -> None:
    assert from_batches(decode_table(table_of(segments), "x").to_batches()) == segments


@given(st.lists(SEGMENTS, max_size=3))
def test_starts_are_those_of_all_tables_in_order(tables: list[list[Segment]]) -> None:
    expected: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for s in sorted((s for table in tables for s in table), key=in_order):
        expected[s.topic, s.incarnation, s.partition].append(s.first)
    found = starts_of([decode_table(table_of(t), "x", columns=PLACE.names) for t in tables])
    assert {place: firsts.tolist() for place, firsts in found.items()} == expected


def test_other_tables_are_refused() -> None:
    with pytest.raises(CorruptError, match="file x is not a Parquet table"):
        decode_table(b"PAR1 no", "x")
    whole = table_of([segment("orders", 1, 0, 0)])
    with pytest.raises(CorruptError, match="file x is not a Parquet table"):
        decode_table(whole[: len(whole) // 2], "x")
    batch = to_batch([segment("orders", 1, 0, 0)]).select(PLACE.names)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([batch]), sink)
    with pytest.raises(CorruptError, match="other columns"):
        decode_table(sink.getvalue().to_pybytes(), "x")
