"""python -m scripts.bench.rewrite merge: what an archive of many small segments costs before and after they are merged.
python -m scripts.bench.rewrite erase: what the erasure of some keys costs beside one read of the same segments.
python -m scripts.bench.rewrite compact: the same of a compaction.

Archives are kbackup's own, in a directory, without a cluster: no broker and no network are in the figures. `list` is a
process of its own, as a user runs it; all else is called here. Figures are seconds of CPU, of all threads, the least of
--repeat times: on a machine that does other things as well they stay what they are.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa

from kbackup.archive.catalog.merging import MergeSizes
from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import open_archive
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.read import read_segment, read_small
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import PartitionWriter, SegmentTarget
from kbackup.config.models import Backup, Restore
from kbackup.formats.record import encode
from kbackup.jobs.erase import Erasure, erase
from kbackup.jobs.key_matching import KeyMatch
from kbackup.jobs.retention import Expiry, Policy, expire
from kbackup.jobs.rewrite import Rewriting, rewrite
from kbackup.metrics.registry import Silent
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from kbackup.types import RECORDS, RecordBlock
from scripts.bench.archives import TOPIC, build
from scripts.bench.requests import write_segment
from tests.support.archives import commit_point, topic_state
from tests.support.restores import make_plan

_LEASE = 3600.0  # s
_NOW = timedelta(0)
_THREADS = 4  # as many as an erasure reads by
_BLOCK = 10_000  # records
_FIRST = 1_700_000_000_000  # ms since the epoch


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the archive goes meanwhile (a temporary folder)")
    parser.add_argument("--repeat", type=int, default=3)
    commands = parser.add_subparsers(required=True)
    merging = commands.add_parser("merge")
    merging.add_argument("--points", type=int, default=4_320, help="restore points of one segment; a month has 43,200")
    merging.add_argument("--keep", type=int, default=60, help="newest restore points that do not expire")
    merging.add_argument("--partitions", type=int, default=1)
    merging.set_defaults(run=measure_merge)
    erasing = commands.add_parser("erase")
    erasing.add_argument("--megabytes", type=int, default=1_000)
    erasing.add_argument("--keys", type=int, default=1_000, help="how many are erased")
    erasing.add_argument("--per-key", type=int, default=10, help="records of a key, one after another")
    erasing.add_argument("--within", type=float, default=1.0, help="share of the log that the erased keys lie in")
    erasing.add_argument("--record", type=int, default=1_000, help="bytes of a value")
    erasing.set_defaults(run=measure_erasure)
    compacting = commands.add_parser("compact")
    compacting.add_argument("--megabytes", type=int, default=1_000)
    compacting.add_argument("--per-key", type=int, default=10, help="records of a key, one after another")
    compacting.add_argument("--record", type=int, default=1_000, help="bytes of a value")
    compacting.set_defaults(run=measure_compaction)
    options = parser.parse_args(argv)
    with TemporaryDirectory(dir=options.folder) as folder:
        options.run(FileStore(Path(folder) / "archive"), options)


def _cpu() -> float:
    """Return the seconds of CPU that this process and its children have had."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _seconds(work: Callable[[], object], repeat: int = 1) -> float:
    """Return the seconds of CPU of the cheapest of some runs."""
    took: list[float] = []
    for _ in range(repeat):
        began = _cpu()
        work()
        took.append(_cpu() - began)
    return min(took)


@contextmanager
def _told(step: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{step}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)


# Merges.


class Costs(NamedTuple):
    """What an archive costs its readers: segments, and seconds."""

    segments: float
    open: float
    list: float
    plan: float
    read: float


def measure_merge(store: FileStore, options: argparse.Namespace) -> None:
    """Print the costs of an archive whose old restore points have expired, before and after its segments are merged."""
    with _told(f"{options.points:,} restore points written"):
        build(store, options.points, 1, options.partitions, partial(write_segment, store), sparse=True, written=True)
    with _told("expired"):
        expire(store, Expiry(Policy(last=options.keep), None, _NOW), _LEASE, Silent(), confirm=True)
    before = _costs(store, options.repeat)
    sizes = MergeSizes(below=8 << 20, largest=Backup().segment_bytes)
    with _told("merged"):
        merging = _seconds(lambda: rewrite(store, Rewriting(sizes), _LEASE, _NOW, Silent(), confirm=True))
    with _told("swept"):
        expire(store, Expiry(Policy(), None, _NOW), _LEASE, Silent(), confirm=True)
    after = _costs(store, options.repeat)
    print(f"| of {options.points:,} restore points, {options.keep:,} kept | before | after | ratio |")
    print("|---|---|---|---|")
    for name, one, other in zip(Costs._fields, before, after, strict=True):
        print(f"| {name} | {_shown(one)} | {_shown(other)} | {one / other:.1f} |")
    print(f"merging took {merging:.1f} s, {merging / before.read:.1f} times one read of the records")


def _shown(value: float) -> str:
    return f"{value:.3f} s" if isinstance(value, float) else f"{value:,}"


def _costs(store: FileStore, repeat: int) -> Costs:
    """Measure opening the archive, listing its restore points, planning a restore of the newest one, and reading all
    its records."""
    archive = open_archive(store)
    segments = archive.segments(archive.restore_point("latest"))
    listing = [sys.executable, "-m", "kbackup", "list", store.url]

    def read() -> None:
        for segment in segments:
            for _ in read_small(store, segment):
                pass

    return Costs(
        segments=len(archive.state.segments),
        open=_seconds(lambda: open_archive(store), repeat),
        list=_seconds(lambda: subprocess.run(listing, check=True, capture_output=True), repeat),
        plan=_seconds(lambda: make_plan(Restore(), store, "target"), repeat),
        read=_seconds(read, repeat),
    )


# Erasures.


def measure_erasure(store: FileStore, options: argparse.Namespace) -> None:
    """Print what the erasure of some keys costs, beside one read of all segments by as many threads."""
    records = options.megabytes * 1_000_000 // options.record
    with _told(f"{options.megabytes:,} MB written"):
        _write_log(store, records, options.record, options.per_key)
    persons = max(options.keys, int(records / options.per_key * options.within))
    chosen = random.Random(1).sample(range(persons), options.keys)
    matches = KeyMatch([_key(person) for person in chosen])
    archive = open_archive(store)
    segments = archive.segments(archive.restore_point("latest"))
    # A first read, so that both find the same in the system's cache.
    _read_all(store, segments)
    reading = _seconds(lambda: _read_all(store, segments), options.repeat)
    erasure = Erasure(Selection.of((TOPIC,), ()), matches)

    def look() -> None:
        erase(store, erasure, _LEASE, Silent(), confirm=False)

    search = _seconds(look, options.repeat)
    began = _cpu()
    report = erase(store, erasure, _LEASE, Silent(), confirm=True)
    # It looks for the records once more.
    rewriting = _cpu() - began - search
    old = {segment.key: segment for segment in segments}
    now = open_archive(store)
    new = [segment for segment in now.segments(now.restore_point("latest")) if segment.key not in old]
    concerned = sum(topic.segment_bytes for topic in report.topics)
    written = sum(segment.stored for segment in new)
    stored = sum(segment.stored for segment in segments)
    print(f"{len(segments)} segments of {stored / 1e6:,.0f} MB, {report.searched:,} records")
    print(f"read once: {reading:.2f} s; search: {search:.2f} s, {search / reading:.2f} times")
    print(
        f"{options.keys:,} keys: {report.records:,} records in {report.segments} segments, {concerned / stored:.0%} of "
        f"the bytes; rewritten in {rewriting:.2f} s, {rewriting / reading:.2f} times the read; "
        f"{written / 1e6:,.0f} MB written, {written / concerned:.3f} of the bytes of these segments"
    )


# Compactions.


def measure_compaction(store: FileStore, options: argparse.Namespace) -> None:
    """Print what a compaction costs, beside one read of all segments by as many threads."""
    records = options.megabytes * 1_000_000 // options.record
    with _told(f"{options.megabytes:,} MB written"):
        _write_log(store, records, options.record, options.per_key)
    archive = open_archive(store)
    segments = archive.segments(archive.restore_point("latest"))
    _read_all(store, segments)
    reading = _seconds(lambda: _read_all(store, segments), options.repeat)
    rewriting = Rewriting(MergeSizes(below=0, largest=Backup().segment_bytes), compact=True)
    search = _seconds(lambda: rewrite(store, rewriting, _LEASE, _NOW, Silent(), confirm=False), options.repeat)
    began = _cpu()
    report = rewrite(store, rewriting, _LEASE, _NOW, Silent(), confirm=True)
    # It looks for the records once more.
    writing = _cpu() - began - search
    now = open_archive(store)
    left = sum(segment.stored for segment in now.segments(now.restore_point("latest")))
    stored = sum(segment.stored for segment in segments)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{len(segments)} segments of {stored / 1e6:,.0f} MB, {report.searched:,} records")
    print(f"read once: {reading:.2f} s; search: {search:.2f} s, {search / reading:.2f} times; {most:,} MiB of memory")
    print(
        f"{report.superseded:,} records superseded; {left / 1e6:,.0f} MB are left, written in {writing:.2f} s, "
        f"{writing / reading:.2f} times the read"
    )


def _read_all(store: Store, segments: Sequence[Segment]) -> None:
    def read(segment: Segment) -> None:
        for _ in read_segment(store, segment):
            pass

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(read, segments))


def _key(person: int) -> bytes:
    return b"customer-%09d" % person


def _write_log(store: Store, records: int, size: int, per_key: int) -> None:
    """Write an archive of one partition at the default segment size."""
    values = [random.Random(n).randbytes(size) for n in range(100)]
    segments: list[Segment] = []
    with PartitionWriter(store, SegmentTarget(TOPIC, 1, 0, Backup().segment_bytes, "none")) as writer:
        for start in range(0, records, _BLOCK):
            block = _block(range(start, min(start + _BLOCK, records)), values, per_key)
            segments += writer.append(block)
        segments += writer.finish()
    state = topic_state(TOPIC, [(0, records, segments)])
    configs = {TOPIC: {"cleanup.policy": "compact"}}
    commit_point(open_or_create(store), 1, topics=[state], segments=segments, configs=configs)


def _block(offsets: range, values: Sequence[bytes], per_key: int) -> RecordBlock:
    rows: list[dict[str, Any]] = []
    for offset in offsets:
        row = {"timestamp_type": 0, "timestamp": _FIRST + offset, "value": values[offset % len(values)], "headers": []}
        rows.append({"offset": offset, "key": _key(offset // per_key), **row})
    return encode(pa.RecordBatch.from_pylist(rows, schema=RECORDS))


if __name__ == "__main__":
    main()
