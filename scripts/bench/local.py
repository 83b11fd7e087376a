"""Measure one core without any server: python -m scripts.bench.local [--records N] [--json FILE]

Verify reads an archive's segments from a directory as `kbackup verify` does; decode and encode go to Arrow and
back. The checksum is that of an upload: of blocks that are in no cache of the processor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from awscrt.checksums import crc64nvme

from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import PartitionWriter, Target
from kbackup.archive.verify.findings import ToRead, check_segment
from kbackup.formats.index import encode_entries
from kbackup.formats.record import decode, encode
from kbackup.store import Store
from kbackup.store.file import FileStore
from kbackup.types import RECORDS, RecordBlock
from scripts.bench.data import Made, Record, encoded_bytes, records

_SIZES = (140, 1024)
_ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="of 140 bytes; fewer of larger ones")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = list(chain.from_iterable(measure(size, arguments.records * 140 // size) for size in _SIZES))
    for row in rows:
        print(f"{row['value_bytes']:>6} B  {row['what']:<28} {row['median']:>14,.1f} {row['unit']}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def measure(size: int, count: int) -> list[dict[str, object]]:
    """The medians of `_ROUNDS` rounds over `count` records with values of `size` bytes."""
    made = list(blocks(size, count))
    batches = [decode(block) for block in made]
    total = sum(block.nbytes for block in made)
    rounds: dict[tuple[str, str], list[float]] = {}
    for compression, name in (("none", "verify"), ("zstd", "verify (zstd)")):
        with tempfile.TemporaryDirectory() as folder:
            store = FileStore(folder)
            verify_all = partial(check_segments, store, write_segments(store, compression, made))
            rounds[name, "MB/s"] = [total / 1e6 / _time(verify_all) for _ in range(_ROUNDS)]
    for _ in range(_ROUNDS):
        rates: dict[str, Callable[[], object]] = {
            "decode to Arrow": lambda: [decode(block).num_rows for block in made],
            "encode from Arrow": lambda: [len(encode(batch)) for batch in batches],
            "encode index": lambda: [len(encode_entries(b.offsets, b.positions, b.lengths, 1)) for b in made],
        }
        for label, work in rates.items():
            rounds.setdefault((label, "records/s"), []).append(count / _time(work))
        crc = _time(lambda: [crc64nvme(block.data.data) for block in made])
        rounds.setdefault(("checksum", "MB/s"), []).append(total / 1e6 / crc)
    return [
        {"value_bytes": size, "what": label, "unit": unit, "median": statistics.median(all_), "all": all_}
        for (label, unit), all_ in rounds.items()
    ]


def _time(work: Callable[[], object]) -> float:
    """CPU seconds, all threads together: the figures are for one core, whatever else the machine does."""
    before = time.process_time()
    work()
    return time.process_time() - before


def blocks(size: int, count: int, memory: int = 8 << 20, made: Made = records) -> list[RecordBlock]:
    """`count` records with values of `size` bytes, in blocks of about `memory` bytes."""
    each = max(memory // encoded_bytes(size), 1)
    return [_block(made(size, first, min(each, count - first)), first) for first in range(0, count, each)]


def _block(new: Iterator[Record], first: int) -> RecordBlock:
    made = list(new)
    count = len(made)
    headers: Any = pa.array([[]] * count, RECORDS.field("headers").type)
    columns: list[Any] = [
        pa.array(np.arange(first, first + count)),
        pa.array(np.zeros(count, np.int8)),
        pa.array([r.timestamp for r in made], pa.int64()),
        pa.array([r.key for r in made], pa.large_binary()),
        pa.array([r.value for r in made], pa.large_binary()),
        headers,
    ]
    return encode(pa.RecordBatch.from_arrays(columns, schema=RECORDS))


def write_segments(store: Store, compression: str, blocks: list[RecordBlock]) -> list[Segment]:
    """Write blocks of one partition as segments."""
    with PartitionWriter(store, Target("topic", 1, 0, 128 << 20, compression)) as writer:
        ended = [segment for block in blocks for segment in writer.append(block)]
        return ended + writer.finish()


def check_segments(store: Store, segments: list[Segment]) -> None:
    """Read segments as `kbackup verify` does. Raises `AssertionError` for a finding."""
    for segment in segments:
        result = check_segment(store, ToRead(segment, index=True, records=True))
        if result.findings or result.records != segment.count:
            raise AssertionError(result.findings)


if __name__ == "__main__":
    main()
