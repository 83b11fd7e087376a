"""Find the archived records that a target topic would refuse, by its demands on keys, sizes and timestamps.

The table of segments proves that most records fit: it has the largest record and the range of timestamps of each
segment. Where it proves nothing, the records are read: whether they have keys is written nowhere, a large record may
fit when it is compressed, and a segment may hold records that a window leaves out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from kbackup.archive.restores.plan import UnitRange
from kbackup.archive.segments.table import Segment, bounds, untimed
from kbackup.formats.block import heads
from kbackup.jobs.replay import read_range
from kbackup.kafka.client import Properties
from kbackup.metrics.registry import ProgressListener
from kbackup.spark.tasks import ProgressSender, Spark, pack, run_counted
from kbackup.store.base import Store
from kbackup.types import Bytes, Int64Array, RecordBlock, TopicPartition

BATCH_OVERHEAD = 100
"""Bytes that a record batch of one record takes beside the record."""

LARGE_CODEC = "zstd"
"""The codec of a producer with records that are too large for their topic uncompressed. It packs tightest."""

_ZSTD_LEVEL = 3  # of librdkafka and of brokers, unless they are told otherwise
_UNSURE = 64  # another library's codec may pack less tightly than ours, by less than 1/64
_TASK_BYTES = 64 << 20
_BYTES_WITHOUT_SPARK = 32 << 20  # so much is read sooner than Spark starts

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
UnfitKind = Literal["no key", "too large", "too early", "too late"]


class TimeLimit(NamedTuple):
    """By how many milliseconds a timestamp may differ from the broker's clock, and the name of that config."""

    ms: int
    config: str


@dataclass(frozen=True)
class Demands:
    """The demands of a topic on each record. `key`: it must have a key. `limit` is how many bytes a batch may have,
    packed by each of `codecs`: the producer's, and the topic's own where brokers pack again. Timestamps must lie around
    `now` (ms since the epoch), within `before` and `after`; None is no bound."""

    key: bool
    limit: int
    codecs: tuple[Codec, ...]
    now: int = 0
    before: TimeLimit | None = None
    after: TimeLimit | None = None

    @property
    def earliest(self) -> int | None:
        """The least timestamp that the topic takes."""
        return None if self.before is None else self.now - self.before.ms

    @property
    def latest(self) -> int | None:
        """The greatest timestamp that the topic takes."""
        return None if self.after is None else self.now + self.after.ms

    def proven_by(self, segment: Segment) -> bool:
        """Return whether the table of segments shows that every record of the segment fits."""
        times_fit = self.times_fit(segment.min_timestamp, segment.max_timestamp)
        return not self.key and self.sizes_fit(segment.largest) and times_fit

    def sizes_fit(self, largest: int) -> bool:
        return largest + BATCH_OVERHEAD <= self.limit

    def times_fit(self, low: int | None, high: int | None) -> bool:
        """Return whether timestamps from `low` to `high` fit. Unknown timestamps (None) fit if there is no bound."""
        if self.earliest is None and self.latest is None:
            return True
        if low is None or high is None:
            return False
        late_enough = self.earliest is None or low >= self.earliest
        early_enough = self.latest is None or high <= self.latest
        return late_enough and early_enough


class UnfitRecords(NamedTuple):
    """Records of one partition that their topic refuses for one reason: the first one's offset in the source, how many,
    and the worst one's size in bytes or timestamp in ms (0 for a missing key)."""

    target: str
    source: TopicPartition
    kind: UnfitKind
    first: int
    records: int
    worst: int


@dataclass(frozen=True)
class ExamineRecords:
    """Reads ranges and yields the records that do not meet the demands of their topic, by its name on the target."""

    store: Store
    demands: Mapping[str, Demands]

    def __call__(self, task: Sequence[UnitRange], progress: ProgressSender) -> Iterator[UnfitRecords]:
        for range_ in task:
            yield from self._examine(range_, progress)

    def _examine(self, range_: UnitRange, progress: ProgressSender) -> Iterator[UnfitRecords]:
        demands = self.demands[range_.target]
        found: dict[UnfitKind, UnfitRecords] = {}
        for step in read_range(self.store, range_):
            if step.block is None:
                continue
            for kind, offsets, worst in unfit_in(step.block, demands):
                new = UnfitRecords(range_.target, range_.source, kind, int(offsets[0]), len(offsets), worst)
                if kind in found:
                    new = joined_unfit([found[kind], new])
                found[kind] = new
            progress.add(len(step.block), step.block.nbytes)
        yield from found.values()


def joined_unfit(some: Sequence[UnfitRecords]) -> UnfitRecords:
    """Return records that are unfit for the same reason as one entry, with the first record of the first partition."""
    first = min(some, key=_place)
    worst = [unfit.worst for unfit in some]
    worst_of_all = min(worst) if first.kind == "too early" else max(worst)
    records = sum(unfit.records for unfit in some)
    return first._replace(records=records, worst=worst_of_all)


def _place(unfit: UnfitRecords) -> tuple[TopicPartition, int]:
    return unfit.source, unfit.first


def unfit_in(block: RecordBlock, demands: Demands) -> Iterator[tuple[UnfitKind, Int64Array, int]]:
    """Yield the records of a block that do not meet the demands: the kind, their offsets, and the worst value."""
    head = heads(block.data, block.positions)
    is_timed = head["type"] >= 0
    if demands.key:
        # In a record without a timestamp, the key's length stands in the upper half of the timestamp's place.
        without_time = (head["timestamp"].astype(np.int64) >> 32).astype(np.int32)
        lengths = np.where(is_timed, head["key_length"].astype(np.int32), without_time)
        keyless = block.offsets[lengths < 0]
        if len(keyless):
            yield "no key", keyless, 0
    stamps = head["timestamp"].astype(np.int64)
    if demands.earliest is not None:
        early = is_timed & (stamps < demands.earliest)
        if early.any():
            yield "too early", block.offsets[early], int(stamps[early].min())
    if demands.latest is not None:
        late = is_timed & (stamps > demands.latest)
        if late.any():
            yield "too late", block.offsets[late], int(stamps[late].max())
    beyond = np.flatnonzero(block.lengths + BATCH_OVERHEAD > demands.limit).tolist()
    large = [at for at in beyond if not _fits(block, at, demands)]
    if large:
        yield "too large", block.offsets[large], int(block.lengths[large].max())


def _fits(block: RecordBlock, at: int, demands: Demands) -> bool:
    """Return whether a large record fits when it is packed. Records that large are few, so each is packed by itself, as
    the producer does."""
    start = int(block.positions[at])
    record = block.data[start : start + int(block.lengths[at])]
    return all(_packed_size(record, codec) + BATCH_OVERHEAD <= demands.limit for codec in demands.codecs)


def _packed_size(record: Bytes, codec: Codec) -> int:
    """Return how many bytes a record may have when it is packed, at most."""
    if codec == "none":
        return len(record)
    level = _ZSTD_LEVEL if codec == "zstd" else None
    packer = pa.Codec(codec, compression_level=level)
    data: Any = packer.compress(record.tobytes())
    size: int = data.size
    at_most = size + size // _UNSURE
    # A batch that would become larger is sent as it is.
    return min(len(record), at_most)


_CODECS: Mapping[str, Codec] = {"gzip": "gzip", "snappy": "snappy", "lz4": "lz4", "zstd": "zstd"}


def codecs_of(properties: Properties, topic_codec: str) -> tuple[Codec, ...]:
    """Return the codecs by which a large record of a topic with this `compression.type` is packed: by our producer, and
    by brokers where the topic has its own."""
    ours = properties.get("compression.type") or properties.get("compression.codec") or LARGE_CODEC
    names = [ours] if topic_codec == "producer" else [ours, topic_codec]
    return tuple(_CODECS.get(name, "none") for name in names)


# Find the unfit records of a whole plan.


def segments_to_read(ranges: Iterable[UnitRange], demands: Mapping[str, Demands]) -> list[UnitRange]:
    """Return one range for each segment whose records the table of segments can't vouch for."""
    to_read: list[UnitRange] = []
    for range_ in ranges:
        of_topic = demands.get(range_.target)
        # Most ranges are proven as a whole: no look at each of a hundred thousand segments.
        if of_topic is None or _all_proven(range_, of_topic):
            continue
        for segment in range_.segments:
            if of_topic.proven_by(segment):
                continue
            to_read.append(
                UnitRange(
                    topic=range_.topic,
                    partition=range_.partition,
                    target=range_.target,
                    segments=(segment,),
                    window=range_.window,
                )
            )
    return to_read


def _all_proven(range_: UnitRange, demands: Demands) -> bool:
    """Return whether the bounds of all segments of a range prove every record, without a look at each segment."""
    if demands.key or next(untimed(range_.segments), None) is not None:
        return False
    _, largest = bounds(range_.segments, "largest", "largest")
    low, high = bounds(range_.segments, "min_timestamp", "max_timestamp")
    return demands.sizes_fit(largest or 0) and demands.times_fit(low, high)


def find_unfit(
    ranges: Iterable[UnitRange], demands: Mapping[str, Demands], store: Store, spark: Spark, listener: ProgressListener
) -> dict[str, list[UnfitRecords]]:
    """Return the records that the target would refuse, by its topic: one entry for each reason. Reads the records that
    the table of segments can't vouch for; a few of them here, many by tasks."""
    to_read = segments_to_read(ranges, demands)
    of_read_topics = {range_.target: demands[range_.target] for range_ in to_read}
    work = ExamineRecords(store, of_read_topics)
    size = sum(_size(range_) for range_ in to_read)
    if size <= _BYTES_WITHOUT_SPARK:
        unseen = ProgressSender(None, 0)
        found = list(work(to_read, unseen))
    else:
        tasks = pack(to_read, _size, _TASK_BYTES, len(to_read))
        expected = sum(range_.segments[0].count for range_ in to_read)
        found = run_counted(spark, tasks, work, listener, expected)
    by_reason: defaultdict[tuple[str, UnfitKind], list[UnfitRecords]] = defaultdict(list)
    for unfit in found:
        by_reason[unfit.target, unfit.kind].append(unfit)
    by_topic: defaultdict[str, list[UnfitRecords]] = defaultdict(list)
    for (target, _), of_reason in by_reason.items():
        by_topic[target].append(joined_unfit(of_reason))
    return dict(by_topic)


def _size(range_: UnitRange) -> int:
    return range_.segments[0].bytes
