"""Model a cluster of executors at work on partitions and bytes, in plain formulas (`infra/docs/scale.md`)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kbackup.archive.segments.read import FETCH_SPAN
from kbackup.config.models import Backup
from kbackup.jobs.backup.task import PACK_PARTITIONS
from kbackup.store.options import S3Options

MIB = 1 << 20

PRICES = {"PUT": 0.005, "LIST": 0.005, "GET": 0.0004, "DELETE": 0.0}
"""US dollars for 1,000 requests: S3 Standard, us-east-1. Every part of a multipart upload is a PUT, and so are its
beginning and its end; HEAD counts as GET."""

PREFIX_RATES = {"PUT": 3_500, "GET": 5_500}
"""Requests a second that S3 promises for one prefix, before it has split a busy one."""


def cost(requests: Mapping[str, int]) -> float:
    """US dollars."""
    return sum(PRICES[kind] * number / 1000 for kind, number in requests.items())


def upload_requests(size: float, part: int | None = None) -> int:
    """PUTs of one object of `size` bytes: one where it fits into a part, else its parts, a beginning and an end."""
    part = S3Options().part_size if part is None else part
    parts = max(1, -(-int(size) // part))
    return 1 if parts == 1 else parts + 2


def segments_of(size: float, threshold: int | None = None) -> int:
    """Segments that `size` bytes of one partition make in one run."""
    return (
        max(1, -(-int(size) // (Backup().segment_bytes if threshold is None else threshold))) if size else 0
    )


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
    def index_bytes(self) -> float:
        """24 bytes a record."""
        return 24 * self.size / self.record

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

    @property
    def slots(self) -> int:
        return self.executors * self.cores

    def seconds(self, tasks: Sequence[float]) -> float:
        """The data phase of `tasks` (bytes each), handed out in this order to whoever is free."""
        free = [0.0] * self.slots
        end = 0.0
        for number, size in enumerate(tasks):
            begin = max(heapq.heappop(free), number / self.launch)
            done = begin + self.task + size / self.rate
            heapq.heappush(free, done)
            end = max(end, done)
        return self.start + end

    def bound(self, size: float, tasks: int) -> float:
        """Return seconds by one formula: bytes and tasks spread evenly, or as fast as the driver hands tasks out."""
        return self.start + max((size / self.rate + tasks * self.task) / self.slots, tasks / self.launch)


def total(requests: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for some in requests:
        for kind, number in some.items():
            found[kind] = found.get(kind, 0) + number
    return found
