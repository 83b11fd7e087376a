"""Check that each log still holds the last archived record.

A log can be cut (an unclean leader election, a disk or machine that was rolled back) and grow past the archived end
afterwards. Its end offset does not show that. The record at the offset of the last archived record shows it:

- The record is the same, with the same leader epoch: no record below it was replaced.
- The record is another one, or has another epoch: the log has another history, from this offset or from before.
- Compaction deleted the record: the cluster validates the leader epoch at this offset (`kafka.epochs`). A later record
  below the archived end is missing in the archive.
- Retention deleted the record: nothing is known. Brokers forget leader epochs below the log start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from kbackup.archive.models import LastRecord, Manifest, PartitionState, TopicState
from kbackup.archive.reader import Archive
from kbackup.archive.segments.last_record import digest_of, last_records, read_last_records
from kbackup.archive.segments.table import Segment
from kbackup.jobs.backup.run import Run
from kbackup.jobs.capture.live import Live, LiveTopic
from kbackup.kafka.consume.epochs import EpochPosition, validate_epochs
from kbackup.kafka.consume.read import RangeReader
from kbackup.types import OffsetRange, TopicPartition

BATCH = 500
"""Partitions that are read together."""
_FETCH_BYTES = 64 << 10
"""A partition's share of a fetch: the batch with the last record is wanted, not all that came since."""
TUNING = {"fetch.message.max.bytes": _FETCH_BYTES, "fetch.wait.max.ms": 10}


class Expected(NamedTuple):
    """The records of `range` in the log are `last` alone."""

    range: OffsetRange
    last: LastRecord


class Seen(NamedTuple):
    """Records of a log in an expected range: the first record, their number, the last epoch (-1: unknown)."""

    offset: int
    digest: str
    records: int
    leader_epoch: int


class Comparison(NamedTuple):
    """Result of comparing logs with the archive.

    `diverged`: partitions whose log differs, with the offset of the last archived record. `unseen`: partitions whose
    log lacks this record, which alone is no difference.
    """

    diverged: dict[TopicPartition, int]
    unseen: list[Expected]


def compare_logs(run: Run, live: Sequence[LiveTopic]) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the partitions whose log differs from the archive, each with the offset that differs; and warnings.

    Adds the last records that could be read to the newest restore point of `run`.
    """
    if run.head is None:
        return {}, []
    run.head, warnings = with_last_records(run.archive, run.head, live)
    comparison = _compare(run, expectations(run.head, live))
    truncated, unanswered = _compare_epochs(run, comparison.unseen)
    return {**comparison.diverged, **truncated}, [*warnings, *unanswered]


def of_another_history(run: Run, segments: Sequence[Segment]) -> Collection[TopicPartition]:
    """Return the partitions whose log was cut after an earlier run read `segments`.

    A partition whose last segment can't be read is among them.
    """
    newest: dict[TopicPartition, Segment] = {}
    for segment in sorted(segments, key=lambda s: s.last):
        newest[TopicPartition(segment.topic, segment.partition)] = segment
    records = last_records(run.archive.store, newest)
    expected = [
        Expected(OffsetRange(*tp, record.offset, record.offset + 1), record)
        for tp, record in records.items()
        if isinstance(record, LastRecord)
    ]
    return _compare(run, expected).diverged.keys() | {
        tp for tp, why in records.items() if isinstance(why, str)
    }


def _compare(run: Run, expected: Sequence[Expected]) -> Comparison:
    if not expected:
        return Comparison({}, [])
    isolation = run.options.isolation_level
    reader = RangeReader(
        run.source,
        isolation,
        f"kbackup-backup-{run.writing.run}",
        run.options.poll_timeout_seconds,
        BATCH,
        tuning=TUNING,
    )
    try:
        return compare(reader, expected, committed=isolation == "read_committed")
    finally:
        reader.close()


def _compare_epochs(run: Run, unseen: Sequence[Expected]) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the partitions of `unseen` whose log was cut below the last archived record; and warnings."""
    last = {each.range.tp: each.last.offset for each in unseen}
    group = f"kbackup-backup-{run.writing.run}"
    truncated, unanswered = validate_epochs(
        run.source, epoch_positions(unseen), group, run.options.poll_timeout_seconds
    )
    return {tp: last[tp] for tp in truncated}, [
        f"the log of {tp} was not compared with the archive: the cluster did not validate its leader epoch in time"
        for tp in sorted(unanswered)
    ]


def epoch_positions(unseen: Sequence[Expected]) -> dict[TopicPartition, EpochPosition]:
    """Return the offset after each last archived record whose leader epoch is known."""
    return {
        each.range.tp: EpochPosition(each.last.offset + 1, each.last.leader_epoch)
        for each in unseen
        if each.last.leader_epoch is not None
    }


def with_last_records(
    archive: Archive, head: Manifest, live: Sequence[LiveTopic]
) -> tuple[Manifest, list[str]]:
    """Return `head` with the last record of each partition that the backup continues; and warnings.

    The record is read from the archive where the manifest lacks it: in older archives, and after salvage.
    """
    missing = {
        TopicPartition(t.name, p.partition)
        for t, p, _ in _going_on(head, live)
        if p.last is None and p.records
    }
    if not missing:
        return head, []
    records = read_last_records(archive, head, missing)

    def filled(topic: TopicState) -> TopicState:
        if topic.name not in {tp.topic for tp in missing}:
            return topic
        partitions = tuple(
            _filled(p, records.get(TopicPartition(topic.name, p.partition))) for p in topic.partitions
        )
        return msgspec.structs.replace(topic, partitions=partitions)

    warnings = [
        f"the log of {tp} was not compared with the archive: {why}"
        for tp, why in records.items()
        if isinstance(why, str)
    ]
    return msgspec.structs.replace(head, topics=tuple(map(filled, head.topics))), warnings


def _filled(state: PartitionState, record: LastRecord | str | None) -> PartitionState:
    return msgspec.structs.replace(state, last=record) if isinstance(record, LastRecord) else state


def _going_on(head: Manifest, live: Sequence[LiveTopic]) -> Iterator[tuple[TopicState, PartitionState, Live]]:
    """Yield the partitions of the archive that the cluster has with the same topic id."""
    known = {t.name: t for t in head.topics}
    for topic in live:
        before = known.get(topic.name)
        if before is None or (before.id and topic.id and before.id != topic.id):
            continue
        for state in before.partitions:
            if state.partition in topic.partitions:
                yield before, state, topic.partitions[state.partition]


def expectations(head: Manifest, live: Sequence[LiveTopic]) -> list[Expected]:
    """Return the records that the logs must have, where the logs reach back to them.

    A log that ends before the archive is left out: its end alone is a difference.
    """
    expected: list[Expected] = []
    for topic, state, now in _going_on(head, live):
        last = state.last
        if last is None or now.high < state.end or not now.start <= last.offset < now.end:
            continue
        # the log of a salvaged segment may have had later records, which were deleted since
        end = last.offset + 1 if last.leader_epoch is None else min(state.end, now.end)
        expected.append(Expected(OffsetRange(topic.name, state.partition, last.offset, end), last))
    return expected


def differs(expected: Expected, seen: Seen | None, *, committed: bool) -> bool:
    """Return whether the log differs from the archived one.

    `committed`: neither has records of aborted transactions.
    """
    if seen is None:
        return False
    last = expected.last
    if seen.offset != last.offset:
        return committed
    if seen.digest != last.digest:
        return True
    if seen.records > 1:
        return committed
    return last.leader_epoch is not None and 0 <= seen.leader_epoch != last.leader_epoch


def compare(reader: RangeReader, expected: Sequence[Expected], *, committed: bool) -> Comparison:
    """Read the last archived record of each partition from its log: one fetch a partition."""
    comparison = Comparison({}, [])
    for at in range(0, len(expected), BATCH):
        batch = expected[at : at + BATCH]
        logs = read_seen(reader, [e.range for e in batch])
        for each in batch:
            seen = logs.get(each.range.tp)
            if differs(each, seen, committed=committed):
                comparison.diverged[each.range.tp] = each.last.offset
            elif seen is None or seen.offset != each.last.offset:
                comparison.unseen.append(each)
    return comparison


def read_seen(reader: RangeReader, ranges: Sequence[OffsetRange]) -> Mapping[TopicPartition, Seen]:
    """Return the records of each log in its range, but for logs whose range retention deleted meanwhile."""
    seen: dict[TopicPartition, Seen] = {}
    for tp, block in reader.read(ranges):
        before = seen.get(tp)
        first = before or Seen(int(block.offsets[0]), digest_of(block, 0), 0, -1)
        seen[tp] = first._replace(records=first.records + len(block), leader_epoch=reader.epochs.get(tp, -1))
    vanished = {v.tp for v in reader.vanished}
    return {tp: each for tp, each in seen.items() if tp not in vanished}
