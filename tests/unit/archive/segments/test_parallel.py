"""Records as tables, and pieces of work: nothing twice, nothing missing, and no more read than needed."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.archive.query.java import java_content, java_topics
from kbackup.archive.reader import open_archive
from kbackup.archive.segments import parallel as parts
from kbackup.archive.segments.parallel import ReadUnit, plan_reads, read_unit
from kbackup.archive.segments.rows import SCHEMA, to_table_batch
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import Window
from kbackup.errors import CorruptError
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from tests.golden.java_archive import PARTITIONS
from tests.golden.java_archive import ROOT as JAVA
from tests.support import made_segments as making
from tests.support.archives import T0, make_archive
from tests.support.browsing import Counting, encrypting
from tests.support.memory_store import MemoryStore
from tests.support.plain_records import Plain, block_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
small = st.none() | st.binary(max_size=6)
plain = st.builds(
    Plain,
    small,
    small,
    st.sampled_from([-2, -1, 0, 1]),
    st.integers(0, 1 << 42) | st.sampled_from([0, 2**63 - 1]),
    st.lists(st.tuples(st.binary(max_size=3), small), max_size=3).map(tuple),
)


def expected(offset: int, record: Plain) -> dict[str, Any]:
    micros = min(record.timestamp, (2**63 - 1) // 1000) * 1000
    return {
        "key": record.key,
        "value": record.value,
        "topic": "töpic",
        "partition": 3,
        "offset": offset,
        "timestamp": micros if record.kind >= 0 else None,
        "timestampType": 0 if record.kind == -2 else record.kind,
        "headers": [{"key": k.decode(errors="replace"), "value": v} for k, v in record.headers] or None,
        "segment": "its key",
    }


@given(st.lists(plain, max_size=40))
def test_a_block_as_a_table(records: list[Plain]) -> None:
    block = block_of(records, range(5, 5 + len(records)))
    batch = to_table_batch(block, "töpic", 3, "its key")
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA)
    table = pa.table(batch)
    at = SCHEMA.names.index("timestamp")
    rows = table.set_column(at, "timestamp", table.column("timestamp").cast(pa.int64())).to_pylist()
    assert rows == [expected(5 + n, record) for n, record in enumerate(records)]
    some = to_table_batch(block, "töpic", 3, "its key", columns=["offset", "headers", "key"])
    assert some.to_pydict() == pa.table(batch).select(["offset", "headers", "key"]).to_pydict()
    assert (
        to_table_batch(block, "t", 3, "s", headers=False).schema.names
        == [*SCHEMA.names[:7], *SCHEMA.names[8:]]
    )  # fmt: skip


def test_a_damaged_block_is_none() -> None:
    block = block_of([Plain(b"key", b"value")])
    data = block.data.copy()
    data[12:16] = 0xFF
    with pytest.raises(CorruptError, match="its key"):
        to_table_batch(
            type(block)(data, block.offsets + 1, block.positions, block.lengths, None, None, block.largest),
            "t",
            0,
            "its key",
        )


def offsets_of(store: Store, planned: list[ReadUnit], **more: Any) -> list[tuple[str, int, int]]:
    offsets: list[tuple[str, int, int]] = []
    for part in pickle.loads(pickle.dumps(planned)):
        for batch in read_unit(store, part, **more):
            assert batch.num_rows
            names: list[list[Any]] = [
                batch.column(name).to_pylist() for name in ("topic", "partition", "offset")
            ]
            offsets += zip(*names, strict=True)
    return offsets


@pytest.fixture(scope="module")
def gappy() -> tuple[MemoryStore, list[Segment]]:
    store = MemoryStore()
    offsets = [*range(40), *range(60, 90), 500, *range(1000, 1100)]
    return store, making.write(store, making.target(threshold=2000), offsets)


OFFSETS = [*range(40), *range(60, 90), 500, *range(1000, 1100)]
edges = st.lists(st.integers(0, 1200), unique=True, max_size=8).map(sorted)


@given(
    edges,
    st.integers(100, 5000),
    st.integers(100, 5000),
    st.integers(0, 3000),
    st.none() | st.tuples(st.integers(900, 2200), st.integers(900, 2200)),
)
def test_planned_reads_cover_the_selected_records(
    gappy: tuple[MemoryStore, list[Segment]],
    edges: list[int],
    part_bytes: int,
    cut_bytes: int,
    near: int,
    times: tuple[int, int] | None,
) -> None:
    store, segments = gappy
    ranges = tuple(zip(edges[::2], edges[1::2], strict=False)) or None
    low, high = times if times else (None, None)
    window = Window(from_time=low, to_time=high, ranges=ranges)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "_OPENING", 50)
        patch.setattr(parts, "_NEAR", near)
        planned = plan_reads(segments, lambda _: window, part_bytes=part_bytes, cut_bytes=cut_bytes)
    expected = [
        o
        for o in OFFSETS
        if (ranges is None or any(a <= o < b for a, b in ranges))
        and (times is None or times[0] <= 1000 + o <= times[1])
    ]
    assert [o for _, _, o in offsets_of(store, planned)] == expected
    for part in planned:
        assert part.ranges
        assert len(part.ranges) == 1 or part.bytes <= part_bytes
        assert all(piece.bytes <= cut_bytes + 1 for piece in part.ranges)


@pytest.mark.parametrize("encrypted", [False, True])
def test_records_of_every_kind_of_segment(tmp_path: Path, encrypted: bool) -> None:
    """Plain and `.zst`, whole, cut, and by offset; the same records each time."""
    store: Store = encrypting(MemoryStore(), tmp_path) if encrypted else MemoryStore()
    make_archive(store)
    archive = open_archive(store)
    segments = archive.segments(archive.restore_point("latest"))
    assert {layout.compression_of(s.key) for s in segments} == {"none", "zstd"}
    expected = [
        *(("clicks", 0, o) for o in range(20)),
        *(("orders", 0, o) for o in [*range(10), 15, *range(17, 40)]),
        *(("orders", 1, o) for o in range(12)),
    ]
    assert offsets_of(store, plan_reads(segments)) == expected
    assert offsets_of(store, plan_reads(segments, part_bytes=1, cut_bytes=300)) == expected
    narrow = Window(ranges=((4, 6), (18, 19)), from_time=T0 + 5000)
    found = offsets_of(
        store, plan_reads(segments, lambda _: narrow), columns=["topic", "partition", "offset"]
    )
    assert found == [
        ("clicks", 0, 5),
        ("clicks", 0, 18),
        ("orders", 0, 5),
        ("orders", 0, 18),
        ("orders", 1, 5),
    ]


def test_bytes_that_are_read() -> None:
    """Of a segment that is wanted whole each byte, once; of one record an entry of the index and itself; of what can't
    hold any, nothing."""
    store = Counting(MemoryStore())
    segments = making.write(store, making.target(threshold=20_000), range(2000))
    assert len(segments) > 3
    store.read.clear()
    assert len(offsets_of(store, plan_reads(segments))) == 2000
    assert sum(length for key, _, length in store.read if key.endswith("_records")) == sum(
        s.bytes for s in segments
    )
    store.read.clear()
    planned = plan_reads(segments, lambda _: Window(ranges=((1234, 1235),)))
    assert offsets_of(store, planned) == [("orders", 0, 1234)]
    assert [length < 100 for _, _, length in store.read] == [True, True]
    store.calls.clear()
    assert plan_reads(segments, lambda _: Window(from_time=10_000)) == []
    assert plan_reads(segments, lambda _: Window(ranges=((5000, 6000),))) == []
    assert store.calls == []


def test_a_changed_byte_is_found() -> None:
    """In a value, where nothing but the checksum can tell."""
    store = MemoryStore()
    (segment,) = making.write(store, making.target(threshold=1 << 20), range(50))
    data = bytearray(store.get(segment.key))
    data[data.rindex(b"vvvv")] ^= 1
    store.put(segment.key, data)
    with pytest.raises(CorruptError, match=segment.key):
        offsets_of(store, plan_reads([segment]))


def test_batches_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "BATCH_BYTES", 500)
    store = MemoryStore()
    segments = making.write(store, making.target(threshold=1 << 20), range(200))
    (part,) = plan_reads(segments)
    sizes = [batch.num_rows for batch in read_unit(store, part)]
    assert sum(sizes) == 200
    assert max(sizes) <= 10


def test_a_folder_of_the_java_tool() -> None:
    store = FileStore(JAVA / "archive")
    content = java_content(store, java_topics(store))
    offsets: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for part in plan_reads([s for topic in content.topics for s in topic.segments]):
        for batch in read_unit(store, part):
            for row in batch.to_pylist():
                offsets.setdefault((row["topic"], row["partition"]), []).append(row)
    held = {(p.topic, p.number): p.truth() for p in PARTITIONS}
    assert offsets.keys() == {tp for tp, records in held.items() if records}
    for tp, rows in offsets.items():
        for row, record in zip(rows, held[tp], strict=True):
            assert (row["offset"], row["key"], row["value"]) == (record.offset, record.key, record.value)
            assert [(h["key"], h["value"]) for h in row["headers"] or []] == record.headers
            at = None if record.timestamp is None else EPOCH + timedelta(milliseconds=record.timestamp)
            assert row["timestamp"] == at
            assert row["timestampType"] == (0 if record.kind == -2 else record.kind)


def test_columns_are_as_numpy_has_them() -> None:
    block = block_of([Plain(b"k", None, 1, 7)], [2**62])
    batch = to_table_batch(block, "t", 2**31 - 1, "s", columns=["partition", "offset", "timestampType"])
    assert [int(np.asarray(c)[0]) for c in batch.columns] == [2**31 - 1, 2**62, 1]
