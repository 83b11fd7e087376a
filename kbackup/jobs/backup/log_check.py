"""Check that each log still holds the last archived records.

A log can be cut (an unclean leader election, a disk or machine that was rolled back) and grow past the archived end
afterwards. Its end offset does not show that. Its records at the offsets of the last archived records do:

- The records are the same, the last one with the same leader epoch: no record below it was replaced.
- A record is another one, has another epoch, or is missing in the archive: the log has another history, from this
  offset or from before.
- The last record is the same, and one of those remembered at growing distance before it is another one: the log was
  cut below, and its last record came again. The nearer ones come with the fetch of the last record. The farther ones
  take a fetch each, so they are read of logs with many new records, and of those with a new leader.
- The last record is not there: compaction, retention or a cut. Without compaction, every offset of a log has a record
  or a marker. With compaction, the log's batch at the offset can show another history, and so can the leader epochs
  that the archive knows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import replace
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np

from kbackup.archive.catalog.documents import IsolationLevel
from kbackup.archive.catalog.operations import may_salvage
from kbackup.archive.last_record import FEW, digest_of, earlier_records, last_records, read_last_records
from kbackup.archive.models import EpochEnd, LastRecord, Manifest, PartitionState, TopicState
from kbackup.archive.query.overview import lost_ranges
from kbackup.archive.reader import Archive
from kbackup.archive.segments.table import Segment
from kbackup.jobs.capture import BackupSession, Live, LiveTopic, SourceCluster
from kbackup.kafka.consume import OpenSource, RangeReader
from kbackup.kafka.control.logs import LogBatch, log_batches
from kbackup.kafka.control.offsets import EpochPosition
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.kafka.messages import HeaderKeyError
from kbackup.kafka.record_clients import open_message_source, open_source
from kbackup.types import OffsetRange, RecordBlock, TopicPartition
from kbackup.util.text import plural

BATCH = 500
"""Partitions that are read together."""
TUNING = {"fetch.message.max.bytes": 64 << 10, "fetch.wait.max.ms": 10}
"""A partition's share of a fetch is small: the batch with the last record is wanted, not all that came since."""


_FEW_PARTITIONS = 32
"""Logs whose last records are compared without the native kernel. Loading the kernel takes 0.4 s. Without it, the
records that come along in the 64 KiB of a fetch take up to 10 ms of each log."""


class ExpectedRecords(NamedTuple):
    """What a log that is the archived one has in `range`.

    From `exact_from` on, the log has some of the `archived` records and no others; it has none there if the archive has
    none. Below `exact_from`, it has any records, and those of `earlier` (digests by offset) are among them, unless they
    were deleted. `far` are more earlier records, below the range. `epochs` are known leader epochs before the epoch of
    the last record.
    """

    range: OffsetRange
    archived: tuple[LastRecord, ...]
    epochs: tuple[EpochEnd, ...] = ()
    earlier: Mapping[int, str] = MappingProxyType({})
    far: Mapping[int, str] = MappingProxyType({})

    @property
    def last(self) -> LastRecord:
        return self.archived[-1]

    @property
    def exact_from(self) -> int:
        if self.archived:
            return self.archived[0].offset
        return self.range.end if self.earlier else self.range.start


class SeenRecords(NamedTuple):
    """Records that a log has in an expected range.

    From `exact_from` on: the digests of the first records by offset, how many records there are, and the last leader
    epoch (-1: unknown). Below `exact_from`: the digests of expected records that are there, in `earlier`.
    """

    digests: Mapping[int, str]
    records: int
    leader_epoch: int
    earlier: Mapping[int, str] = MappingProxyType({})


class Unseen(NamedTuple):
    """Offsets of remembered records that the log lacks, in order."""

    expected: ExpectedRecords
    offsets: tuple[int, ...]

    @property
    def tp(self) -> TopicPartition:
        return self.expected.range.tp

    @property
    def lacks_last(self) -> bool:
        return bool(self.expected.archived) and self.expected.last.offset in self.offsets


Compared = tuple[dict[TopicPartition, int], list[Unseen]]
"""The partitions whose log differs, with the lowest offset that differs; and the records that logs lack."""


def compare_logs(
    source: SourceCluster, session: BackupSession, live: Sequence[LiveTopic]
) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the partitions whose log differs from the archive, each with an offset that differs; and warnings. Adds
    the last records that could be read to the newest restore point, `session.head`. Logs that were compared under the
    same leader are left out."""
    if session.head is None:
        return {}, []
    # A log is cut when its leader changes: with the same epoch as at the last comparison, there is nothing to find.
    due: dict[TopicPartition, int | None] = {}
    for topic in live:
        for number, partition in topic.partitions.items():
            tp = TopicPartition(topic.name, number)
            if partition.epoch is None or session.compared.get(tp) != partition.epoch:
                due[tp] = partition.epoch
    if not due:
        return {}, []
    live = [_with_partitions(topic, due) for topic in live]
    session.head, warnings = with_last_records(session.archive, session.head, live)
    exact = may_salvage(session.archive.state)
    expected = expectations(session.head, live, exact=exact)
    # A range without an archived record is expected to be empty. That the archive has lost the records is found out by
    # reading its tables, and so only if there is such a range.
    if not all(each.archived for each in expected):
        expected = _without_lost(session.archive, session.head, expected)
    diverged, unanswered = _compare(source, session, expected)
    for tp, epoch in due.items():
        if epoch is not None:
            session.compared[tp] = epoch
    return diverged, [*warnings, *unanswered]


def _with_partitions(topic: LiveTopic, kept: Collection[TopicPartition]) -> LiveTopic:
    """Return the topic with the partitions in `kept` alone."""
    partitions: dict[int, Live] = {}
    for number, live in topic.partitions.items():
        if TopicPartition(topic.name, number) in kept:
            partitions[number] = live
    return replace(topic, partitions=partitions)


def _without_lost(archive: Archive, head: Manifest, expected: Sequence[ExpectedRecords]) -> list[ExpectedRecords]:
    """Leave out the ranges that may have no record in the archive only because the archive lost them."""
    incarnations = {topic.name: topic.incarnation for topic in head.topics}
    lost = lost_ranges(archive, head)

    def is_lost(of: OffsetRange) -> bool:
        ranges = lost.get((of.topic, incarnations[of.topic], of.partition), ())
        return any(start < of.end and of.start < end for start, end in ranges)

    return [each for each in expected if each.archived or not is_lost(each.range)]


def truncated_partitions(
    source: SourceCluster, session: BackupSession, segments: Sequence[Segment]
) -> Set[TopicPartition]:
    """Return the partitions whose log was cut after an earlier run read `segments`. A partition whose last segment
    can't be read is among them."""
    by_partition: dict[TopicPartition, list[Segment]] = defaultdict(list)
    for segment in sorted(segments, key=attrgetter("last")):
        by_partition[TopicPartition(segment.topic, segment.partition)].append(segment)
    # The last segment is enough: a log that was cut below it differs at its end, or at one of its earlier records.
    newest = {tp: own[-1] for tp, own in by_partition.items()}
    records = last_records(session.archive.store, newest)
    unreadable = {tp for tp, few in records.items() if isinstance(few, str)}
    readable = {tp: own for tp, own in by_partition.items() if tp not in unreadable}
    remembered = earlier_records(session.archive.store, readable)
    expected: list[ExpectedRecords] = []
    for tp, few in records.items():
        if isinstance(few, str):
            continue
        segment = newest[tp]
        record_bytes = segment.bytes / segment.count
        each = ExpectedRecords(OffsetRange(*tp, few[0].offset, few[-1].offset + 1), few)
        expected.append(with_earlier(each, remembered[tp], record_bytes))
    diverged, _ = _compare(source, session, expected)
    return diverged.keys() | unreadable


def _compare(
    source: SourceCluster, session: BackupSession, expected: Sequence[ExpectedRecords]
) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the partitions whose log differs, each with the lowest offset that is seen to differ; and warnings."""
    if not expected:
        return {}, []
    exact = may_salvage(session.archive.state)  # all runs, this one too, read with the same isolation level
    isolation = source.isolation_level if exact else "read_uncommitted"
    read = partial(_read_and_compare, source, session, expected, isolation, exact=exact)
    seen = _compare_few(read) if len(expected) <= _FEW_PARTITIONS else None
    diverged, unseen = seen or read(open_source)
    missing, warnings = compare_missing(source, session, unseen, committed=isolation == "read_committed")
    lowest = dict(diverged)
    for tp, offset in missing.items():
        lowest[tp] = min(offset, lowest.get(tp, offset))
    return lowest, warnings


def _compare_few(read: Callable[[OpenSource], Compared]) -> Compared | None:
    """Compare a few logs without loading the native kernel. Return None where only the kernel can tell."""
    try:
        diverged, unseen = read(open_message_source)
    except HeaderKeyError:
        return None
    # confluent-kafka cuts header keys at a NUL byte: a record may look like another one that is the same.
    return None if diverged else (diverged, unseen)


def _read_and_compare(
    source: SourceCluster,
    session: BackupSession,
    expected: Sequence[ExpectedRecords],
    isolation: IsolationLevel,
    open_client: OpenSource,
    *,
    exact: bool,
) -> Compared:
    """Read the logs, the far records too, and return what `compare` returns for all of them."""
    timeout = source.poll_timeout
    reader = RangeReader(source.properties, isolation, session.group, timeout, BATCH, tuning=TUNING, source=open_client)
    with closing(reader):
        diverged, unseen = compare(reader, expected, exact=exact)
        for farther in far_records(expected):
            also_diverged, also_unseen = compare(reader, farther, exact=exact)
            diverged |= also_diverged  # lower offsets than before
            unseen += also_unseen
    return diverged, unseen


def far_records(expected: Sequence[ExpectedRecords]) -> Iterator[list[ExpectedRecords]]:
    """Yield the far records to read: one of each partition at a time, since a reader takes one range per partition. The
    nearest record comes first."""
    waiting: list[tuple[TopicPartition, list[tuple[int, str]]]] = []
    for each in expected:
        if each.far:
            waiting.append((each.range.tp, sorted(each.far.items(), reverse=True)))
    depth = 0
    while waiting:
        taken: list[ExpectedRecords] = []
        for tp, records in waiting:
            offset, digest = records[depth]
            taken.append(ExpectedRecords(OffsetRange(*tp, offset, offset + 1), (), earlier={offset: digest}))
        yield taken
        depth += 1
        waiting = [(tp, records) for tp, records in waiting if len(records) > depth]


def with_last_records(archive: Archive, head: Manifest, live: Sequence[LiveTopic]) -> tuple[Manifest, list[str]]:
    """Return `head` with the last record of each partition that the backup continues; and warnings. The record is read
    from the archive where the manifest lacks it: in older archives, and after salvage."""
    missing: set[TopicPartition] = set()
    for topic, state, _ in _continued(head, live):
        if state.last is None and state.records:
            missing.add(TopicPartition(topic.name, state.partition))
    if not missing:
        return head, []
    known: dict[TopicPartition, tuple[LastRecord, ...]] = {}
    warnings: list[str] = []
    # A damaged segment is no reason to stop backing up: its log goes uncompared, and the restore point says so.
    for tp, answer in read_last_records(archive, head, missing).items():
        if isinstance(answer, str):
            warnings.append(f"the log of {tp} was not compared with the archive: {answer}")
        else:
            known[tp] = answer

    def filled(topic: str, state: PartitionState) -> PartitionState:
        records = known.get(TopicPartition(topic, state.partition))
        if not records:
            return state
        return msgspec.structs.replace(state, last=records[-1], tail=records[:-1])

    topics: list[TopicState] = []
    for topic in head.topics:
        partitions = tuple(filled(topic.name, state) for state in topic.partitions)
        topics.append(msgspec.structs.replace(topic, partitions=partitions))
    return msgspec.structs.replace(head, topics=tuple(topics)), warnings


def _continued(head: Manifest, live: Sequence[LiveTopic]) -> Iterator[tuple[TopicState, PartitionState, Live]]:
    """Yield the partitions of the archive that the cluster has with the same topic id."""
    known = {topic.name: topic for topic in head.topics}
    for topic in live:
        before = known.get(topic.name)
        if before is None or (before.id and topic.id and before.id != topic.id):
            continue
        for state in before.partitions:
            if state.partition in topic.partitions:
                yield before, state, topic.partitions[state.partition]


def expectations(head: Manifest, live: Sequence[LiveTopic], *, exact: bool) -> list[ExpectedRecords]:
    """Return the records that the logs must have, where the logs reach back to them. A log that ends before the archive
    is left out: its end alone is a difference. With `exact`, a range in which the archive has no record at all has none
    in the log either."""
    expected: list[ExpectedRecords] = []
    for topic, state, now in _continued(head, live):
        if now.high < state.end:
            continue  # the plan finds that, without reading a record
        last = state.last
        if last is None:
            start = max(state.start, now.start)
            end = min(state.end, now.end)
            if exact and not state.records and not state.held and start < end:
                empty_range = OffsetRange(topic.name, state.partition, start, end)
                expected.append(ExpectedRecords(empty_range, ()))
        elif now.start <= last.offset < now.end:
            expected.append(_expected_end(topic.name, state, last, now, exact=exact))
    return expected


def _expected_end(topic: str, state: PartitionState, last: LastRecord, now: Live, *, exact: bool) -> ExpectedRecords:
    """Return the records that a log must have at the archived end, whose `last` record is there."""
    tail: tuple[LastRecord, ...] = ()
    if exact:  # else the log may show more records than the archive has: `tail` and `last` may be far apart
        # The log has records in held ranges that the archive lacks: no range may reach over one.
        held_ends = [high for _, high in state.held if high <= last.offset]
        whole_from = max(held_ends, default=now.start)
        tail = tuple(record for record in state.tail if record.offset >= max(now.start, whole_from))
    start = tail[0].offset if tail else last.offset
    if last.leader_epoch is None:
        # the log of a salvaged segment may have had later records, which were deleted since
        end = last.offset + 1
    else:
        held_starts = [low for low, _ in state.held if low > last.offset]
        end = min([state.end, now.end, *held_starts])
    expected_range = OffsetRange(topic, state.partition, start, end)
    expected = ExpectedRecords(expected_range, (*tail, last), state.epochs)
    earlier = {offset: digest for offset, digest in state.earlier.items() if offset >= now.start}
    record_bytes = state.bytes / max(1, state.records)
    expected = with_earlier(expected, earlier, record_bytes)
    if not _is_worth_far_reads(state, now, record_bytes):
        expected = expected._replace(far={})
    return expected


def _is_worth_far_reads(state: PartitionState, now: Live, record_bytes: float) -> bool:
    """Return whether the far records of a log are read: where the backup reads much more of it anyway, or where a new
    leader has written since the newest restore point.

    Each far record takes a fetch of a whole batch, which may have 1 MiB. With one of 140 KB in each of 1,000
    partitions, the check took five times as long. Other logs must do with the near records, which cost nothing.
    """
    if now.high == state.log_end:
        return False
    if (now.end - state.end) * record_bytes >= _FAR_WORTH:
        return True
    known = state.last.leader_epoch if state.last is not None else None
    return known is not None and now.epoch is not None and now.epoch != known


_FAR_WORTH = 1 << 20
"""Bytes of new records in a log beside which the reads of far records don't count."""
_NEAR_BYTES = TUNING["fetch.message.max.bytes"]
_NEAR_RECORDS = 2
"""Earlier records that are read with the last one however large they are."""


def with_earlier(expected: ExpectedRecords, earlier: Mapping[int, str], record_bytes: float) -> ExpectedRecords:
    """Return `expected` with the remembered records of `earlier` that lie below its archived ones. Those that the same
    fetch is likely to bring, by the mean `record_bytes` of a record, are read in one range with the last record."""
    near: dict[int, str] = {}
    far: dict[int, str] = {}
    for offset, digest in sorted(earlier.items(), reverse=True):
        if offset >= expected.exact_from:
            continue
        size = (expected.last.offset - offset) * record_bytes
        if size <= _NEAR_BYTES or len(near) < _NEAR_RECORDS:
            near[offset] = digest
        else:
            far[offset] = digest
    start = min([expected.range.start, *near])
    return expected._replace(range=expected.range._replace(start=start), earlier=near, far=far)


def differs(expected: ExpectedRecords, seen: SeenRecords | None, *, exact: bool) -> int | None:
    """Return an offset at which the log differs from the archived one, None if none is known. With `exact`, the archive
    has every record that can be seen in the log."""
    if seen is None:
        return None
    for offset, digest in sorted(expected.earlier.items()):
        if seen.earlier.get(offset, digest) != digest:
            return offset
    archived = {record.offset: record.digest for record in expected.archived}
    # Of the first `FEW` records from `exact_from` on, digests are known; of all others behind them, the number alone.
    for offset, digest in seen.digests.items():
        if archived.get(offset, digest) != digest or (exact and offset not in archived):
            return offset
    has_more = seen.records > len(seen.digests)
    if exact and has_more:
        return max(seen.digests) + 1
    if not archived or not seen.digests or has_more or max(seen.digests) != expected.last.offset:
        return None  # the last record of the log is another one: so is its epoch
    known_epoch = expected.last.leader_epoch
    if known_epoch is None or seen.leader_epoch < 0 or seen.leader_epoch == known_epoch:
        return None
    return expected.last.offset


def compare(reader: RangeReader, expected: Sequence[ExpectedRecords], *, exact: bool) -> Compared:
    """Read the remembered records of each partition from its log, by one fetch per partition, or few. Returns the
    partitions whose log differs, with the lowest offset that differs, and the partitions whose log lacks remembered
    records: compaction or retention may have taken them."""
    diverged: dict[TopicPartition, int] = {}
    unseen: list[Unseen] = []
    for at in range(0, len(expected), BATCH):
        batch = {each.range.tp: each for each in expected[at : at + BATCH]}
        logs: dict[TopicPartition, SeenRecords] = {}
        for tp, block in reader.read([each.range for each in batch.values()]):
            seen = logs.get(tp, SeenRecords({}, 0, -1))
            logs[tp] = _with_block(seen, batch[tp], block, reader.epochs.get(tp, -1))
        for tp, each in batch.items():
            seen = logs.get(tp, SeenRecords({}, 0, -1))
            offset = differs(each, seen, exact=exact)
            if offset is not None:
                diverged[tp] = offset
                continue
            # A record that is not there proves nothing yet: `compare_missing` asks what has taken it.
            missing = [offset for offset in sorted(each.earlier) if offset not in seen.earlier]
            if each.archived and each.last.offset not in seen.digests:
                missing.append(each.last.offset)
            if missing:
                unseen.append(Unseen(each, tuple(missing)))
    return diverged, unseen


def _with_block(seen: SeenRecords, expected: ExpectedRecords, block: RecordBlock, leader_epoch: int) -> SeenRecords:
    """Return `seen` with the records of `block`, which follow."""
    below = int(np.searchsorted(block.offsets, expected.exact_from))
    earlier = dict(seen.earlier)
    for offset in expected.earlier:
        number = int(np.searchsorted(block.offsets, offset))
        if number < below and block.offsets[number] == offset:
            earlier[offset] = digest_of(block, number)
    digests = dict(seen.digests)
    stop = min(len(block), below + FEW - len(digests))
    for number in range(below, stop):
        digests[int(block.offsets[number])] = digest_of(block, number)
    return SeenRecords(digests, seen.records + len(block) - below, leader_epoch, earlier)


# Where a log lacks a remembered record: tell a cut from compaction and retention.


def compare_missing(
    source: SourceCluster, session: BackupSession, unseen: Sequence[Unseen], *, committed: bool
) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the partitions whose log was cut, each with the lowest offset that is seen to differ; and warnings.
    `committed`: the archive has no aborted record."""
    if not unseen:
        return {}, []
    # retention and DeleteRecords may have taken them since the log starts were read
    partitions = {each.tp for each in unseen}
    starts = source.cluster.log_starts(list(partitions))
    missing: list[Unseen] = []
    for each in unseen:
        within = tuple(offset for offset in each.offsets if offset >= starts[each.tp])
        if within:
            missing.append(each._replace(offsets=within))
    topics = {each.tp.topic for each in missing}
    compacted = _compacted_topics(source, session, topics)
    cut: dict[TopicPartition, int] = {}
    last_missing: list[ExpectedRecords] = []
    for each in missing:
        if each.tp.topic not in compacted:
            cut[each.tp] = min(each.offsets[0], cut.get(each.tp, each.offsets[0]))
        elif each.lacks_last:
            # of a compacted topic, an earlier record that is missing says nothing
            last_missing.append(each.expected)
    replaced, warnings = _compare_batches(source, last_missing, committed=committed)
    last_missing = [each for each in last_missing if each.range.tp not in replaced]
    truncated, unanswered = _compare_epochs(source, last_missing, starts)
    return {**cut, **replaced, **truncated}, [*warnings, *unanswered]


def _compacted_topics(source: SourceCluster, session: BackupSession, topics: Set[str]) -> set[str]:
    """Return the topics of which compaction may have taken records since the newest restore point: topics that are
    compacted now, or that were compacted at its capture."""
    if not topics:
        return set()
    policies = source.cluster.one_config(topics, "cleanup.policy")
    compacted = {name for name in topics if is_compacted(policies[name])}
    if session.settings is not None:
        for topic in session.settings.topics:
            if topic.name in topics and is_compacted(topic.configs.get("cleanup.policy")):
                compacted.add(topic.name)
    return compacted


def is_compacted(policy: str | None) -> bool:
    """Return whether a cleanup.policy compacts the log."""
    return "compact" in (policy or "")


def _compare_batches(
    source: SourceCluster, missing: Sequence[ExpectedRecords], *, committed: bool
) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the partitions whose log has a batch of another history at the last archived record; and a warning."""
    if not missing:
        return {}, []
    last = {each.range.tp: each.last for each in missing}
    batches = log_batches(source.cluster.router, {tp: record.offset for tp, record in last.items()})
    # Without an answer the leader epochs are left, which show less: a cut within an epoch stays unseen.
    if isinstance(batches, Unavailable):
        why, batches = batches.why, {}
    else:
        why = "no answer of their leaders"
    cut: dict[TopicPartition, int] = {}
    for tp, batch in batches.items():
        if is_replaced(last[tp], batch, committed=committed):
            cut[tp] = last[tp].offset
    silent = sorted(last.keys() - batches.keys())
    if not silent:
        return cut, []
    logs = plural(len(silent), "log")
    warning = (
        f"{logs} ({silent[0]}, …) that compaction may have changed were compared with the archive by leader epochs "
        f"alone: {why}"
    )
    return cut, [warning]


def is_replaced(last: LastRecord, batch: LogBatch, *, committed: bool) -> bool:
    """Return whether `batch` shows that the log never had the record `last`, which it lacks. `committed`: the archive
    has no record of an aborted transaction."""
    if not batch.first <= last.offset <= batch.last:
        return False
    # A batch keeps the epoch that it was written with, also when compaction takes some of its records. A marker never
    # was a record, and an aborted record never was archived.
    other_epoch = last.leader_epoch is not None and batch.leader_epoch != last.leader_epoch
    return batch.control or other_epoch or (committed and batch.aborted)


def _compare_epochs(
    source: SourceCluster, missing: Sequence[ExpectedRecords], starts: Mapping[TopicPartition, int]
) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the partitions whose log was cut below an archived record whose epoch is known; and warnings."""
    truncated: dict[TopicPartition, int] = {}
    unanswered: set[TopicPartition] = set()
    known: dict[TopicPartition, list[EpochPosition]] = {}
    for each in missing:
        tp = each.range.tp
        known[tp] = positions(each, starts[tp])
    most = max(map(len, known.values()), default=0)
    # One request validates one epoch of each log: the newest first, and earlier ones only of logs that are not yet cut.
    for depth in range(most):
        asked: dict[TopicPartition, EpochPosition] = {}
        for tp, ends in known.items():
            if depth < len(ends) and tp not in truncated:
                asked[tp] = ends[depth]
        cut, silent = source.cluster.validate_epochs(asked, source.poll_timeout)
        for tp in cut:
            truncated[tp] = asked[tp].offset - 1
        unanswered |= silent
    warnings: list[str] = []
    for tp in sorted(unanswered - truncated.keys()):
        warnings.append(
            f"the log of {tp} was not compared with the archive: the cluster did not validate its leader epoch in time"
        )
    return truncated, warnings


def positions(expected: ExpectedRecords, start: int) -> list[EpochPosition]:
    """Return the offset after the last known record of each leader epoch, the newest epoch first. A log that begins at
    `start` has forgotten earlier epochs."""
    last = expected.last
    ends: list[EpochPosition] = []
    if last.leader_epoch is not None:
        ends.append(EpochPosition(last.offset + 1, last.leader_epoch))
    for epoch in reversed(expected.epochs):
        if epoch.offset >= start:
            ends.append(EpochPosition(epoch.offset + 1, epoch.leader_epoch))
    return ends
