"""Look at the topics of the target before a restore writes to them: whether they hold records, and whose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

from kbackup.archive import layout
from kbackup.archive.restores.plan import RestorePlan, UnitRange
from kbackup.errors import RefusedError
from kbackup.formats.record import Row, rows
from kbackup.jobs.replay import SILENCE, read_range
from kbackup.jobs.transform import Transform
from kbackup.kafka.client import Properties
from kbackup.kafka.consume import RangeReader
from kbackup.kafka.control.cluster import Cluster
from kbackup.store.base import Store
from kbackup.types import OffsetRange, TopicPartition
from kbackup.util.text import plural

Offsets = Mapping[TopicPartition, int]

_HEAD = 100  # offsets at the beginning of a log


@dataclass(frozen=True)
class TargetReading:
    """The target cluster, as the restore of this id reads it."""

    cluster: Cluster
    properties: Properties
    restore_id: str

    def reader(self, partitions: int) -> RangeReader:
        """Return a reader of committed records. Close it after use."""
        group = layout.reader_group("verify", self.restore_id)
        return RangeReader(self.properties, "read_committed", group, SILENCE, partitions, role="target")


def only_aborted(reading: TargetReading, starts: Offsets, ends: Offsets) -> set[str]:
    """Return the topics whose logs, from `starts` to `ends`, are not empty and hold no record that was ever committed:
    an attempt that was given up leaves such logs. Where a transaction is open, a record may still become visible: such
    a topic is not among them.

    Whose records were aborted does not matter: no consumer that reads committed records gets one, now or later.
    """
    partitions = [tp for tp in starts if ends[tp] > starts[tp]]
    if not partitions:
        return set()
    stable = reading.cluster.log_ends(partitions, "read_committed")
    with_open_transaction = {tp.topic for tp in partitions if stable[tp] < ends[tp]}
    candidates = {tp.topic for tp in partitions} - with_open_transaction
    # Most topics hold a record at the beginning of a log, and one reader finds them all there.
    heads: list[OffsetRange] = []
    for tp in partitions:
        if tp.topic in candidates:
            end = min(stable[tp], starts[tp] + _HEAD)
            heads.append(OffsetRange(*tp, starts[tp], end))
    candidates -= set(_with_records(reading, heads))
    empty: set[str] = set()
    for name in sorted(candidates):
        whole = [OffsetRange(*tp, starts[tp], stable[tp]) for tp in partitions if tp.topic == name]
        if next(_with_records(reading, whole), None) is None:
            empty.add(name)
    return empty


def foreign_topics(reading: TargetReading, plan: RestorePlan, starts: Offsets, ends: Offsets) -> set[str]:
    """Return the topics with committed records, from `starts` to `ends`, of which the restore's own progress on the
    target says nothing. Whoever may only write to the archive can write a plan, but no progress: it is committed in the
    target, in one transaction with the records.

    Records of open transactions don't count: an attempt that was killed leaves some, and the next one aborts them.
    """
    committed, unread = reading.cluster.groups.committed(plan.progress_group_names)
    if unread:
        reason = next(iter(unread.values()))
        raise RefusedError(
            f"the progress of restore {plan.restore_id} can't be read: {reason}", "give Read on its groups"
        )
    own_topics: set[str] = set()
    for positions in committed.values():
        own_topics.update(position.tp.topic for position in positions)
    # A topic with any progress is the restore's own: all its partitions, also the ones that it has not come to.
    filled_topics = {tp.topic for tp in starts if ends[tp] > starts[tp]}
    without_progress = filled_topics - own_topics
    partitions = [tp for tp in starts if tp.topic in without_progress]
    stable = reading.cluster.log_ends(partitions, "read_committed")
    ranges = [OffsetRange(*tp, starts[tp], stable[tp]) for tp in partitions if stable[tp] > starts[tp]]
    return set(_with_records(reading, ranges))


def _with_records(reading: TargetReading, ranges: Sequence[OffsetRange]) -> Iterator[str]:
    """Yield the topics of ranges that hold a committed record, some of them more than once."""
    if not ranges:
        return
    with closing(reading.reader(len(ranges))) as reader:
        for tp, block in reader.read(ranges):
            if len(block):
                yield tp.topic


_COMPARED = 20  # records of a partition, and partitions of a topic, that are compared


def warn_of_existing(reading: TargetReading, store: Store, plan: RestorePlan, transform: Transform | None) -> list[str]:
    """Return warnings of the target topics to which the restore would append: how much they hold, and whether they
    begin with the records that are to be restored, as `transform` makes them."""
    ranges: dict[str, list[UnitRange]] = defaultdict(list)
    for range_ in plan.ranges:
        ranges[range_.target].append(range_)
    existing = set(reading.cluster.topic_names())
    planned = {topic.target for topic in plan.topics}
    topics = reading.cluster.topics(existing & planned)
    partitions: list[TopicPartition] = []
    for topic in topics.values():
        partitions += [TopicPartition(topic.name, number) for number in topic.partitions]
    starts = reading.cluster.log_starts(partitions)
    ends = reading.cluster.log_ends(partitions, "read_committed")
    warnings: list[str] = []
    for name in topics:
        held = sum(ends[tp] - starts[tp] for tp in partitions if tp.topic == name)
        if not held:
            continue
        filled = [range_ for range_ in ranges[name] if ends[range_.tp] > starts[range_.tp]]
        warning = f"target topic {name} holds up to {plural(held, 'record')} now"
        if begin_alike(reading, store, filled[:_COMPARED], transform, starts, ends):
            warning += ", and begins with the same records: they would be in it twice"
        warnings.append(warning)
    return warnings


def begin_alike(
    reading: TargetReading,
    store: Store,
    ranges: Sequence[UnitRange],
    transform: Transform | None,
    starts: Offsets,
    ends: Offsets,
) -> bool:
    """Return whether the target's partitions of some ranges begin with the records of these ranges. Partitions without
    a committed record at their beginning don't count; False if there are no others."""
    heads: list[OffsetRange] = []
    for range_ in ranges:
        start = starts[range_.tp]
        end = min(ends[range_.tp], start + _COMPARED)
        heads.append(OffsetRange(*range_.tp, start, end))
    present: dict[TopicPartition, list[Row]] = defaultdict(list)
    reader = reading.reader(max(1, len(heads)))
    with closing(reader):
        for tp, block in reader.read(heads):
            present[tp] += rows(block, str(tp))
    alike = False
    for range_ in ranges:
        on_target = present[range_.tp]
        if not on_target:
            continue
        archived = _first_rows(store, range_, len(on_target), transform)
        if _contents(on_target) != _contents(archived):
            return False
        alike = True
    return alike


def _first_rows(store: Store, range_: UnitRange, count: int, transform: Transform | None) -> list[Row]:
    first: list[Row] = []
    for step in read_range(store, range_, transform=transform):
        if step.block is not None:
            missing = count - len(first)
            block_rows = rows(step.block, str(range_.source))
            first += islice(block_rows, missing)
        if len(first) >= count:
            break
    return first


def _contents(records: Sequence[Row]) -> list[tuple[object, ...]]:
    # Not their timestamps: the target may have given them the time at which they were appended.
    return [(row.key, row.value, row.headers) for row in records]
