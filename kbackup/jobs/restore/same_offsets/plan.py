"""Plan a restore whose records keep their offsets: where each log begins and ends, how its gaps are filled, and how
long that takes. What can't be done in a sensible time is refused before the first record."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from kbackup.archive.restores.plan import LogBounds, RestorePlan, SameOffsets, UnitRange
from kbackup.archive.segments.table import sum_of
from kbackup.config.windows import Range
from kbackup.jobs.restore.report import TopicFill
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.jobs.restore.same_offsets.pieces import LogShape, shape_of
from kbackup.jobs.restore.same_offsets.task import MARKER_IDS
from kbackup.jobs.transform import Transform
from kbackup.kafka.control.append import new_producer
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.markers import EmptyTransactions
from kbackup.kafka.produce import FENCED_RESTORE
from kbackup.metrics.registry import ProgressListener
from kbackup.spark.tasks import ProgressSender, Spark, pack, run_counted
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.text import human_duration, plural

Fill = Literal["markers", "aborted", "tombstones"]

_MOST_SECONDS = 600.0
"""Markers that take longer than this are written only if they were asked for."""

_FILLERS_PER_SECOND = 3_000_000
"""What a broker takes of the fillers before the first record, on two busy cores; an idle one takes twice as many."""

_FILLER_BYTES = 0.82
"""Of a filler in the log of a topic that keeps our compression."""

_TASK_BYTES = 64 << 20


# Look at the records.


@dataclass(frozen=True)
class MeasureLogs:
    store: Store
    transform: Transform | None = None

    def __call__(
        self, task: Sequence[UnitRange], progress: ProgressSender
    ) -> Iterator[tuple[TopicPartition, LogShape]]:
        for range_ in task:
            yield range_.tp, shape_of(self.store, range_, self.transform)
            progress.add(sum_of(range_.segments, "count"), sum_of(range_.segments, "bytes"))


def measure_logs(
    ranges: Iterable[UnitRange],
    store: Store,
    spark: Spark,
    listener: ProgressListener,
    transform: Transform | None = None,
) -> dict[TopicPartition, LogShape]:
    """Return the shape of each range's records. Ranges that their segments' descriptors leave open are read, by
    tasks; with a transform all of them are, as it may leave records out."""
    shapes: dict[TopicPartition, LogShape] = {}
    unknown: list[UnitRange] = []
    for range_ in ranges:
        if transform is None and _is_told(range_):
            shapes[range_.tp] = shape_of(store, range_)
        else:
            unknown.append(range_)
    if unknown:

        def size_of(range_: UnitRange) -> int:
            return sum_of(range_.segments, "bytes")

        tasks = pack(unknown, size_of, _TASK_BYTES, len(unknown))
        expected = sum(sum_of(range_.segments, "count") for range_ in unknown)
        shapes |= dict(run_counted(spark, tasks, MeasureLogs(store, transform), listener, expected))
    return shapes


def _is_told(range_: UnitRange) -> bool:
    """Return whether the descriptors of a range's segments tell all of its offsets."""
    if range_.window is not None:
        return False
    return all(segment.count == segment.last + 1 - segment.first for segment in range_.segments)


# Where logs begin and end.


def with_logs(plan: RestorePlan, request: RestoreRequest, shapes: Mapping[TopicPartition, LogShape]) -> RestorePlan:
    """Return the plan with the bounds of each log, as far as the window of the request moves them."""
    by_partition: defaultdict[TopicPartition, list[Range]] = defaultdict(list)
    for asked in request.ranges:
        by_partition[TopicPartition(asked.topic, asked.partition)].append(asked)
    units: list[tuple[UnitRange, ...]] = []
    for unit in plan.units:
        ranges: list[UnitRange] = []
        for range_ in unit:
            log = _bounds(range_, request, by_partition.get(range_.source, ()), shapes[range_.tp])
            ranges.append(msgspec.structs.replace(range_, log=log))
        units.append(tuple(ranges))
    return msgspec.structs.replace(plan, units=tuple(units))


def _bounds(range_: UnitRange, request: RestoreRequest, asked: Sequence[Range], shape: LogShape) -> LogBounds:
    """Return where a log begins and ends: as the restore point has it, or where the window begins and ends."""
    assert isinstance(range_.log, LogBounds)  # noqa: S101 (`make_units` has given each range its own)
    start, end = range_.log.start, range_.log.end
    if asked:
        start = min((each.start for each in asked if each.start is not None), default=start)
        ends = [each.end for each in asked if each.end is not None]
        if len(ends) == len(asked):
            end = max(ends)
    elif shape.first is None or shape.end is None:
        # Nothing is selected. An empty log ends where it began; of a window in time, the log is empty at its end.
        if request.window.timed:
            start = end
    else:
        if request.window.from_time is not None:
            start = shape.first
        if request.window.to_time is not None:
            end = shape.end
    return LogBounds(start=start, end=end)


# How gaps are filled.


def plan_fills(
    plan: RestorePlan, shapes: Mapping[TopicPartition, LogShape], fill: Fill | None, rate: float
) -> tuple[TopicFill, ...]:
    """Return how the logs of each topic are filled, by `fill` or by markers where it is None. `rate` is how many
    markers a second one log gets."""
    fills: list[TopicFill] = []
    ranges: defaultdict[str, list[UnitRange]] = defaultdict(list)
    for range_ in plan.ranges:
        ranges[range_.target].append(range_)
    for topic in plan.topics:
        logs: list[tuple[LogBounds, LogShape]] = []
        for range_ in ranges[topic.target]:
            assert isinstance(range_.log, LogBounds)  # noqa: S101 (see `with_logs`)
            logs.append((range_.log, shapes[range_.tp].within(range_.log)))
        fills.append(_fill_of_topic(topic.source, topic.target, logs, fill or "markers", rate))
    return tuple(fills)


def _fill_of_topic(
    source: str, target: str, logs: Sequence[tuple[LogBounds, LogShape]], fill: Fill, rate: float
) -> TopicFill:
    head = gaps = missing = most_gaps = most_missing = largest = 0
    for bounds, shape in logs:
        head += bounds.start
        gaps += shape.gaps
        missing += shape.missing
        most_gaps = max(most_gaps, shape.gaps)
        most_missing = max(most_missing, shape.missing)
        largest = max(largest, shape.largest)
    # Markers go into all logs that wait for one at once: the log with most of them decides.
    longest = most_missing
    markers, fillers = missing, 0
    if fill == "aborted":
        markers, fillers, longest = gaps, missing - gaps, most_gaps
    elif fill == "tombstones":
        markers, fillers, longest = 0, missing, 0
    broker_seconds = (head + fillers) / _FILLERS_PER_SECOND
    seconds = broker_seconds
    if longest:
        seconds += longest / rate
    return TopicFill(
        source=source,
        target=target,
        way=fill if missing else "in place",
        head=head,
        head_bytes=round(head * _FILLER_BYTES),
        gaps=gaps,
        largest=largest,
        markers=markers,
        fillers=fillers,
        seconds=seconds,
        broker_seconds=broker_seconds,
    )


def has_gaps(plan: RestorePlan, shapes: Mapping[TopicPartition, LogShape]) -> bool:
    """Return whether any log of the plan has an offset without a record."""
    for range_ in plan.ranges:
        if isinstance(range_.log, LogBounds) and shapes[range_.tp].within(range_.log).gaps:
            return True
    return False


_TOMBSTONES = "--fill tombstones, where consumers see deletions of a key kbackup-filler until compaction"


def problems_of(
    fill: TopicFill, asked: Fill | None, configs: Mapping[str, str], *, exists: bool, may_mark: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield why a topic with these configs can't be restored so, each with a hint. `exists`: the target has it, so that
    its configs are not the restore's to change. `may_mark`: gaps may be filled by transactions."""
    policy = configs.get("cleanup.policy", "delete")
    is_compacted = "compact" in policy
    if fill.head and exists and is_compacted and "delete" not in policy:
        yield (
            f"topic {fill.target} is compacted, so that its brokers delete nothing of what fills its logs up to their "
            "first offsets",
            "delete the empty topic: the restore then creates it",
        )
    if fill.head and configs.get("remote.storage.enable") == "true":
        yield (
            f"the offsets of topic {fill.target} do not begin at 0, and what fills them would go to remote storage",
            "leave remote.storage.enable out with --topic-config remote.storage.enable= and set it when the restore is "
            "done",
        )
    if fill.way == "tombstones" and not is_compacted:
        yield (
            f"topic {fill.target} is not compacted: tombstones would stay in it for good",
            "give --fill markers or --fill aborted, or leave --fill out",
        )
    if fill.markers and not may_mark:
        ways = ["leave --no-transactions out: records go out without transactions in any case"]
        if is_compacted:
            ways.append(f"give {_TOMBSTONES}")
        gaps = plural(fill.gaps, "gap")
        yield (
            f"topic {fill.source} has {gaps} between its records, and --no-transactions forbids the transactions that "
            "fill them",
            ", or ".join(ways),
        )
    elif asked is None and fill.markers and fill.seconds > _MOST_SECONDS:
        ways = ["--fill markers to take that time"]
        if fill.markers >= 2 * fill.gaps:
            ways.append("--fill aborted, where consumers that read uncommitted records see fillers without a value")
        if is_compacted:
            ways.append(_TOMBSTONES)
        yield (
            f"topic {fill.source} has {plural(fill.gaps, 'gap')} of up to {plural(fill.largest, 'offset')} between its "
            f"records: to fill them by transactions without records takes about {human_duration(fill.seconds)}",
            f"give {', or '.join(ways)}",
        )


def same_offsets_of(cluster: Cluster, fill: Fill | None) -> SameOffsets:
    """Return how all runs of a restore fill logs: with a producer id of its own."""
    producer = new_producer(cluster.router)
    return SameOffsets(fill=fill or "markers", producer_id=producer.id, producer_epoch=producer.epoch)


_RATE_ROUNDS = 5


def markers_per_second(cluster: Cluster, restore_id: str, group: str) -> float:
    """Return how many transactions without records the cluster ends in a second, under `MARKER_IDS` ids: as many
    markers a second as one log gets. It is measured on the offsets of a group, without a position of it."""
    ids = [f"kbackup-{restore_id}-rate-{uuid.uuid4().hex[:8]}-{number}" for number in range(MARKER_IDS)]
    transactions = EmptyTransactions(cluster.router, ids, FENCED_RESTORE)
    transactions.begin()
    began = time.monotonic()
    for _ in range(_RATE_ROUNDS):
        transactions.add_group(group, ids)
        transactions.end(ids, commit=True)
    return _RATE_ROUNDS * len(ids) / (time.monotonic() - began)
