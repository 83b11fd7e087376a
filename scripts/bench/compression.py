"""python -m scripts.bench.compression: what compression costs and saves, for JSON and for random bytes.

Segments are written to MinIO and read back, plain and with zstd levels in turns. `--jobs` runs whole backups and
restores instead, with a broker. CPU seconds are those of kbackup's process, and of the servers beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

from kbackup.archive.segments.table import Segment
from kbackup.formats.frames import FrameCompressor
from kbackup.store import S3Options, Store, open_store
from kbackup.types import RecordBlock
from scripts.bench.data import Made, random_records, records
from scripts.bench.local import blocks, check_segments, write_segments
from scripts.bench.measure import Bench, Result
from scripts.bench.processes import cpu_of
from scripts.bench.servers import Servers
from scripts.dev.minio import Minio

KINDS: dict[str, Made] = {"JSON": records, "random": random_records}
_FORMS = {"none": ("none", 0), "zstd 1": ("zstd", 1), "zstd 3": ("zstd", 3)}
_JOBS = {"none": {"backup": "backup", "restore": "restore"}}
_JOBS["zstd 1"] = {job: f"{job} zstd" for job in _JOBS["none"]}
_SERVERS = ("broker", "minio")


@dataclass(frozen=True)
class Row:
    """CPU seconds of a GiB of plain bytes: of kbackup, and of the servers; `stored` bytes to plain ones."""

    kind: str
    work: str
    form: str
    own: float
    servers: float
    stored: float


class _Segments:
    """Writes segments of one kind of records in one form, and reads them back."""

    def __init__(self, server: Minio, store: Store, kind: str, made: list[RecordBlock]) -> None:
        self._server, self._store, self._kind, self._blocks = server, store, kind, made
        self._plain = sum(block.nbytes for block in made)

    def turn(self, form: str) -> Iterator[Row]:
        compression, level = _FORMS[form]
        own, servers = self._cpu()
        with patch("kbackup.archive.segments.writer.FrameCompressor", partial(FrameCompressor, level)):
            segments = write_segments(self._store, compression, self._blocks)
        yield self._row("write", form, own, servers, segments)
        own, servers = self._cpu()
        check_segments(self._store, segments)
        yield self._row("read", form, own, servers, segments)
        failed = self._store.delete([entry.key for entry in self._store.list()])
        if failed:
            raise failed[0].error

    def _cpu(self) -> tuple[float, float]:
        return time.process_time(), cpu_of(self._server.pid)

    def _row(self, work: str, form: str, own: float, servers: float, segments: list[Segment]) -> Row:
        gib = self._plain / (1 << 30)
        now = self._cpu()
        stored = sum(s.stored for s in segments) / sum(s.bytes for s in segments)
        return Row(self._kind, work, form, (now[0] - own) / gib, (now[1] - servers) / gib, stored)


def measure_segments(options: argparse.Namespace) -> list[Row]:
    """Measure every form `repeat` times in turns, after one turn that doesn't count."""
    rows: list[Row] = []
    with Minio() as server:
        server.create_bucket("bench")
        s3 = S3Options(
            endpoint_url=server.endpoint_url,
            region=server.region,
            access_key_id=server.access_key,
            secret_access_key=server.secret_key,
        )
        for kind, made in KINDS.items():
            store = open_store(f"s3://bench/{kind}", s3)
            segments = _Segments(server, store, kind, blocks(options.size, options.records, made=made))
            for number in range(options.repeat + 1):
                turn = [row for form in _FORMS for row in segments.turn(form)]
                rows += turn if number else []
    return rows


def measure_jobs(options: argparse.Namespace) -> list[Row]:
    """Run backups and restores with both forms, `repeat` times; the first of a pair alternates."""
    rows: list[Row] = []
    for kind, made in KINDS.items():
        with Servers("minio") as servers:
            bench = Bench(servers, options.size, options.records, options.tasks, made=made)
            for number in range(options.repeat):
                forms = list(_JOBS) if number % 2 == 0 else list(_JOBS)[::-1]
                for job in ("backup", "restore"):
                    rows += [_job_row(kind, job, form, bench.run(_JOBS[form][job])) for form in forms]
                    print(*rows[-2:], sep="\n", file=sys.stderr, flush=True)
    return rows


def _job_row(kind: str, job: str, form: str, result: Result) -> Row:
    gib = result.records * result.size / (1 << 30)
    servers = sum(seconds for role, seconds in result.cpu.items() if role in _SERVERS)
    own = sum(result.cpu.values()) - servers
    stored = result.stored_share if "stored" in result.sizes else 0.0
    return Row(kind, job, form, own / gib, servers / gib, stored)


def report(rows: Sequence[Row]) -> Iterator[str]:
    """Lines of a table: medians of CPU seconds a GiB, and the sum of both to that without compression."""
    yield f"{'VALUES':<8} {'WORK':<8} {'FORM':<7} {'KBACKUP':>12} {'SERVERS':>12} {'TO NONE':>8} {'STORED':>7}"
    both: dict[tuple[str, str], float] = {}
    for kind, work, form in dict.fromkeys((r.kind, r.work, r.form) for r in rows):
        same = [r for r in rows if (r.kind, r.work, r.form) == (kind, work, form)]
        own, servers = statistics.median(r.own for r in same), statistics.median(r.servers for r in same)
        plain = both.setdefault((kind, work), own + servers)
        yield (
            f"{kind:<8} {work:<8} {form:<7} {own:>6.2f} s/GiB {servers:>6.2f} s/GiB {(own + servers) / plain:>8.2f}"
            f" {statistics.median(r.stored for r in same):>7.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.compression", description=__doc__)
    parser.add_argument("--jobs", action="store_true", help="whole backups and restores, with a broker")
    parser.add_argument("--size", type=int, default=540, help="bytes of a value (540)")
    parser.add_argument("--records", type=int, default=400_000, help="records of each kind (400,000)")
    parser.add_argument("--repeat", type=int, default=5, help="rounds (5)")
    parser.add_argument("--tasks", type=int, default=2, help="tasks of a job at a time (2)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything that was measured to FILE"
    )
    options = parser.parse_args()
    rows = measure_jobs(options) if options.jobs else measure_segments(options)
    print("\n".join(report(rows)))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
