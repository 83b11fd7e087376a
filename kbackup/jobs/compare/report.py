"""Report of `verify --against`: totals, partitions with differences, groups, and what was not compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from kbackup.archive.models import Member
from kbackup.archive.restores.offset_map import How
from kbackup.archive.restores.plan import PlannedTopic
from kbackup.jobs.newer import NewerRecords
from kbackup.metrics.registry import counted

Against = Literal["target", "source"]
DifferenceKind = Literal["missing", "extra", "order", "key", "value", "headers", "timestamp", "place"]


class Difference(Member, frozen=True, kw_only=True):
    """`count` records that differ in `what`, from offset `source` in the archive (null: not there) and offset `target`
    in the topic (null: not there) on. `expected` is the target offset in the offset map, if `what` is 'place' (null:
    none)."""

    what: tuple[DifferenceKind, ...]
    source: int | None = None
    target: int | None = None
    count: int = 1
    expected: int | None = None


class Comparison(Member, frozen=True, kw_only=True):
    """The result of a partition. `records` counts the archive's records that were compared, and `bytes` is their size.
    `same` counts the records that are in the topic, whole and in order. `counts` has how many records differ, by what.
    `after` is how many records the topic has after the archive's last one, from target offset `after_from` on.
    `stopped` is the reason why not all was compared."""

    topic: str
    partition: int
    target: str
    records: int
    bytes: int
    same: int
    counts: dict[DifferenceKind, int]
    differences: tuple[Difference, ...]
    after: int = 0
    after_from: int | None = None
    stopped: str = ""


class ComparedTopic(Member, frozen=True, kw_only=True):
    """A topic, called `source` in the archive and `target` in the cluster. Counts are of records, as in `Comparison`.
    If `timestamps` is False, the cluster's topic has the broker's own times (LogAppendTime), so they were left out."""

    source: str
    target: str
    partitions: int
    records: int
    bytes: int
    same: int
    counts: dict[DifferenceKind, int]
    after: int
    timestamps: bool
    ok: bool


class GroupOffsetCheck(Member, frozen=True, kw_only=True):
    """A group's offset, `committed` in the source. `due` is where that record is in the target, or (`how` 'log end',
    'empty') the least offset after the last record. `found` is the group's offset there, null if it has none."""

    group: str
    source_group: str
    topic: str
    partition: int
    committed: int
    due: int
    found: int | None
    how: How
    ok: bool


class AgainstReport(Member, frozen=True, kw_only=True):
    """`partitions` differ, or have records after the archive's last one. `findings` describe what is wrong, and `notes`
    what is worth knowing. `groups` are all offsets that were compared. `newer` are topics of the source with records
    that the restore point lacks, which are not compared."""

    against: Against
    cluster_id: str
    archive: str
    archive_id: str
    restore_point: int
    restore_id: str | None
    topics: tuple[ComparedTopic, ...]
    partitions: tuple[Comparison, ...]
    groups: tuple[GroupOffsetCheck, ...]
    partitions_compared: int
    records: int
    bytes: int
    same: int
    counts: dict[DifferenceKind, int]
    after: int
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: dict[str, float]
    newer: tuple[NewerRecords, ...] = ()


WORDS: dict[DifferenceKind, str] = {
    "missing": "missing in the topic",
    "extra": "in the topic and not in the archive",
    "order": "in another order",
    "key": "with another key",
    "value": "with another value",
    "headers": "with other headers",
    "timestamp": "with another timestamp",
    "place": "at another offset than the offset map says",
}


def is_wrong(comparison: Comparison, exact: bool) -> bool:
    return bool(comparison.counts or comparison.stopped or (exact and comparison.after))


def topics_of(
    topics: Iterable[PlannedTopic], results: Sequence[Comparison], unstamped: set[str], absent: set[str], exact: bool
) -> tuple[ComparedTopic, ...]:
    """`results` are without partitions that are empty on both sides; `unstamped` and `absent` are targets."""
    by_topic: dict[str, list[Comparison]] = defaultdict(list)
    for result in results:
        by_topic[result.target].append(result)
    compared: list[ComparedTopic] = []
    for topic in topics:
        own = by_topic[topic.target]
        is_any_wrong = any(is_wrong(result, exact) for result in own)
        entry = ComparedTopic(
            source=topic.source,
            target=topic.target,
            partitions=topic.partitions,
            timestamps=topic.target not in unstamped,
            ok=topic.target not in absent and not is_any_wrong,
            **totals(own),
        )
        compared.append(entry)
    return tuple(compared)


def totals(results: Iterable[Comparison]) -> dict[str, Any]:
    """Return the counts of a report or a topic."""
    every = list(results)
    records = size = same = after = 0
    for result in every:
        records += result.records
        size += result.bytes
        same += result.same
        after += result.after
    return {"records": records, "bytes": size, "same": same, "after": after, "counts": sum_counts(every)}


def sum_counts(results: Iterable[Comparison]) -> dict[DifferenceKind, int]:
    total: Counter[DifferenceKind] = Counter()
    for result in results:
        total.update(result.counts)
    return {kind: total[kind] for kind in WORDS if total[kind]}


def findings_of(results: Iterable[Comparison], exact: bool) -> list[str]:
    """Return one line for each partition that differs."""
    findings: list[str] = []
    for result in results:
        messages: list[str] = []
        if result.counts:
            counts = [f"{result.counts[kind]:,} {words}" for kind, words in WORDS.items() if result.counts.get(kind)]
            messages.append(", ".join(counts))
        if result.stopped:
            messages.append(f"not compared any further: {result.stopped}")
        if exact and result.after:
            messages.append(f"{result.after:,} after the last restored one")
        if messages:
            partition = f"{result.target}-{result.partition}"
            findings.append(f"{partition}: of {result.records:,} records compared, {'; '.join(messages)}")
    return findings


def fewer_named(results: Sequence[Comparison], show: int) -> tuple[Comparison, ...]:
    """Return the comparisons with at most `show` named differences in all."""
    made = []
    for result in results:
        named = result.differences[:show]
        show -= len(named)
        made.append(replace(result, differences=named))
    return tuple(made)


def count_comparison(report: AgainstReport) -> None:
    """Count messages a comparison did, for Prometheus."""
    counted.add("kbackup_records_total", report.records)
    counted.add("kbackup_bytes_total", report.bytes)
    counted.put("kbackup_findings", len(report.findings))
