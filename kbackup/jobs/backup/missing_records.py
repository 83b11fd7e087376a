"""Tell a cut from compaction and retention, where a log lacks the last archived record.

Without compaction, every offset of a log has a record or a marker. With compaction, the log's batch at the offset can
show another history, and so can the leader epochs that the archive knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from kbackup.archive import layout
from kbackup.archive.models import EpochEnd, LastRecord
from kbackup.jobs.backup.run import Run
from kbackup.kafka.admin.security_types import Untold
from kbackup.kafka.admin_protocol.session import log_batches
from kbackup.kafka.consume.epochs import EpochPosition, validate_epochs
from kbackup.types import OffsetRange, TopicPartition
from kbackup.util.text import plural

if TYPE_CHECKING:
    from kbackup.kafka.admin_protocol.log_batches import LogBatch  # which loads kafka-python


class Expected(NamedTuple):
    """The records of `range` in the log are some of `archived`; none, where the archive has none.

    `epochs` are known leader epochs before that of the last record.
    """

    range: OffsetRange
    archived: tuple[LastRecord, ...]
    epochs: tuple[EpochEnd, ...] = ()

    @property
    def last(self) -> LastRecord:
        return self.archived[-1]


def compare_missing(
    run: Run, unseen: Sequence[Expected], *, committed: bool
) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the partitions whose log was cut, each with an offset that differs; and warnings.

    `unseen` are logs without the last archived record; `committed`: the archive has no aborted record.
    """
    if not unseen:
        return {}, []
    # retention and DeleteRecords may have taken them since the log starts were read
    starts = run.cluster.log_starts([each.range.tp for each in unseen])
    missing = [each for each in unseen if starts[each.range.tp] <= each.last.offset]
    compacted = _compacted(run, {each.range.topic for each in missing})
    cut = {each.range.tp: each.last.offset for each in missing if each.range.topic not in compacted}
    missing = [each for each in missing if each.range.topic in compacted]
    replaced, warnings = _compare_batches(run, missing, committed=committed)
    missing = [each for each in missing if each.range.tp not in replaced]
    truncated, unanswered = _compare_epochs(run, missing, starts)
    return {**cut, **replaced, **truncated}, [*warnings, *unanswered]


def is_compacted(policy: str | None) -> bool:
    """Return whether a cleanup.policy compacts the log."""
    return "compact" in (policy or "")


def _compacted(run: Run, topics: Set[str]) -> Set[str]:
    """Return the topics whose records compaction may have taken since the newest restore point."""
    if not topics:
        return set()
    now = run.cluster.one_config(topics, "cleanup.policy")
    before = {t.name: t.configs.get("cleanup.policy") for t in run.settings.topics} if run.settings else {}
    return {name for name in topics if is_compacted(now[name]) or is_compacted(before.get(name))}


def _compare_batches(
    run: Run, missing: Sequence[Expected], *, committed: bool
) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the partitions whose log has a batch of another history at the last archived record; and a warning."""
    if not missing:
        return {}, []
    last = {each.range.tp: each.last for each in missing}
    batches = log_batches(run.cluster.connection, {tp: record.offset for tp, record in last.items()})
    if isinstance(batches, Untold):
        why, batches = batches.why, {}
    else:
        why = "no answer of their leaders"
    cut = {tp: last[tp].offset for tp, b in batches.items() if is_replaced(last[tp], b, committed=committed)}
    if not (silent := sorted(last.keys() - batches.keys())):
        return cut, []
    return cut, [
        f"{plural(len(silent), 'log')} ({silent[0]}, …) that compaction may have changed "
        f"were compared with the archive by leader epochs alone: {why}"
    ]


def is_replaced(last: LastRecord, batch: LogBatch, *, committed: bool) -> bool:
    """Return whether `batch` shows that the log never had the record `last`, which it lacks.

    `committed`: the archive has no record of an aborted transaction.
    """
    if not batch.first <= last.offset <= batch.last:
        return False
    other_epoch = last.leader_epoch is not None and batch.leader_epoch != last.leader_epoch
    return batch.control or other_epoch or (committed and batch.aborted)


def _compare_epochs(
    run: Run, missing: Sequence[Expected], starts: Mapping[TopicPartition, int]
) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the partitions whose log was cut below an archived record whose epoch is known; and warnings."""
    truncated: dict[TopicPartition, int] = {}
    unanswered: set[TopicPartition] = set()
    known = {each.range.tp: positions(each, starts[each.range.tp]) for each in missing}
    for depth in range(max(map(len, known.values()), default=0)):
        asked = {tp: ends[depth] for tp, ends in known.items() if depth < len(ends) and tp not in truncated}
        cut, silent = validate_epochs(
            run.source,
            asked,
            layout.reader_group("backup", run.writing.run),
            run.options.poll_timeout_seconds,
        )
        truncated |= {tp: asked[tp].offset - 1 for tp in cut}
        unanswered |= silent
    return truncated, [
        f"the log of {tp} was not compared with the archive: the cluster did not validate its leader epoch in time"
        for tp in sorted(unanswered - truncated.keys())
    ]


def positions(expected: Expected, start: int) -> list[EpochPosition]:
    """Return the offset after the last known record of each leader epoch, the newest epoch first.

    A log that begins at `start` has forgotten earlier epochs.
    """
    last = expected.last
    ends = [] if last.leader_epoch is None else [EpochPosition(last.offset + 1, last.leader_epoch)]
    ends += [
        EpochPosition(e.offset + 1, e.leader_epoch) for e in reversed(expected.epochs) if e.offset >= start
    ]
    return ends
