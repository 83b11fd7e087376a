"""What a cluster of executors makes of a run, and what the run costs, by the formulas of `infra/docs/scale.md`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kbackup.archive.segments.read import FETCH_SPAN
from kbackup.config.models import Backup
from kbackup.jobs.backup.task import PACK_PARTITIONS
from kbackup.store.s3 import S3Options
from scripts.bench.archives import segments_of

PRICES = {"PUT": 0.005, "LIST": 0.005, "GET": 0.0004, "DELETE": 0.0}
"""US dollars for 1,000 requests: S3 Standard, us-east-1. Every part of a multipart upload is a PUT, and so are its
beginning and its end; HEAD counts as GET."""

PREFIX_RATES = {"PUT": 3_500, "GET": 5_500}
"""Requests a second that S3 promises for one prefix, before it has split a busy one."""


def cost(requests: Mapping[str, int]) -> float:
    """Return US dollars."""
    return sum(PRICES[kind] * number / 1000 for kind, number in requests.items())


def upload_requests(size: float) -> int:
    """Return the PUTs of an object of `size` bytes: one, or its parts and two more."""
    parts = max(1, -(-int(size) // S3Options().part_size))
    return 1 if parts == 1 else parts + 2


@dataclass(frozen=True)
class Data:
    """The new data of one run: `partitions` with new records, of `size` bytes in all and `record` bytes each."""

    partitions: int
    size: float
    record: int

    @property
    def share(self) -> float:
        """Bytes of one partition."""
        return self.size / self.partitions

    @property
    def segments(self) -> int:
        return self.partitions * segments_of(self.share)

    @property
    def tasks(self) -> int:
        """The number of tasks into which `make_tasks` cuts and packs partitions that are all alike."""
        records = max(1, int(self.share / self.record))
        options = Backup()
        if records >= options.pack_records:
            return self.partitions * -(-records // options.split_records)
        return -(-self.partitions // min(PACK_PARTITIONS, options.pack_records // records))

    def puts(self) -> int:
        """Of segments and their indexes."""
        each = segments_of(self.share)
        bytes_each = self.share / each
        return self.segments * (upload_requests(bytes_each) + upload_requests(24 * bytes_each / self.record))

    def gets(self) -> int:
        """Of reading them back: ranges of segments, and whole indexes."""
        return self.segments * (1 + -(-int(self.share / segments_of(self.share)) // FETCH_SPAN))


@dataclass(frozen=True)
class Cluster:
    """`rate` is bytes/s of one core, `start` the seconds before the first byte, `task` seconds that a task costs
    beside its bytes, `launch` tasks a second that the driver can hand out."""

    executors: int
    cores: int
    rate: float
    start: float = 4.0
    task: float = 0.1
    launch: float = 100.0

    def bound(self, size: float, tasks: int) -> float:
        """Return seconds by one formula: bytes and tasks spread evenly, or as fast as the driver hands tasks out."""
        slots = self.executors * self.cores
        return self.start + max((size / self.rate + tasks * self.task) / slots, tasks / self.launch)


CASES = ((1_000, 1e12), (10_000, 1e14), (100_000, 1e15))
RUNS = {"first": 1.0, "night": 0.01}
EXECUTORS = (1, 4, 16, 64)
CORES, RATE, RECORD = 4, 150e6, 1024
RUN = 14
"""PUTs of a run beside segments and derived files: lease, catalogs, tables, manifest, groups, metadata."""


def worked_rows() -> Iterator[str]:
    """Lines of a Markdown table, without its head."""
    for partitions, size in CASES:
        for name, share in RUNS.items():
            data = Data(partitions, size * share, RECORD)
            puts, gets = data.puts() + 2 * data.partitions + RUN, data.gets()
            total = f"{data.size / 1e15:g} PB" if data.size >= 1e15 else f"{data.size / 1e12:g} TB"
            hours = (Cluster(n, CORES, RATE).bound(data.size, data.tasks) / 3600 for n in EXECUTORS)
            cells = (
                *(f"{data.partitions:,}", total, name, f"{data.tasks:,}", f"{data.segments:,}"),
                *(f"{puts:,}", f"{cost({'PUT': puts}):,.2f}", *(f"{each:,.2f}" for each in hours)),
                *(f"{gets:,}", f"{cost({'GET': gets}):,.2f}"),
            )
            yield f"| {' | '.join(cells)} |"
