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
    """`what` is wrong with `count` records from offset `source` (null: not in the archive) or `target` (null: not in
    the topic) on. `expected` is the target offset in the offset map, if `what` is 'place' (null: none)."""

    what: tuple[DifferenceKind, ...]
    source: int | None = None
    target: int | None = None
    count: int = 1
    expected: int | None = None


class Comparison(Member, frozen=True, kw_only=True):
    """`records` counts the archive's records that were compared, `bytes` is their size; `same` counts the records that
    are in the topic, whole and in order. `counts` has how many records differ, by what. `after` is how many records the
    topic has after the archive's last one, from target offset `after_from` on. `stopped` is the reason why not all was
    compared."""

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
    """`source` in the archive, `target` in the cluster. Counts are of records, as in `Comparison`. `timestamps` False:
    the cluster's topic has the broker's own times (LogAppendTime), so they were left out."""

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
    """`committed` in the source. `due` is where that record is in the target, or (`how` 'log end', 'empty') the least
    offset after the last one; `found` is what the group has there, null if it has nothing."""

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
    return tuple(
        ComparedTopic(
            source=topic.source,
            target=topic.target,
            partitions=topic.partitions,
            timestamps=topic.target not in unstamped,
            ok=topic.target not in absent and not any(is_wrong(r, exact) for r in by_topic[topic.target]),
            **totals(by_topic[topic.target]),
        )
        for topic in topics
    )


def totals(results: Iterable[Comparison]) -> dict[str, Any]:
    """Return the counts of a report or a topic."""
    some = list(results)
    numbers = {name: sum(getattr(r, name) for r in some) for name in ("records", "bytes", "same", "after")}
    return {**numbers, "counts": sum_counts(some)}


def sum_counts(results: Iterable[Comparison]) -> dict[DifferenceKind, int]:
    total: Counter[DifferenceKind] = Counter()
    for result in results:
        total.update(result.counts)
    return {kind: total[kind] for kind in WORDS if total[kind]}


def findings_of(results: Iterable[Comparison], exact: bool) -> list[str]:
    """Return one line for each partition that differs."""
    findings = []
    for r in results:
        counts = (f"{r.counts[kind]:,} {words}" for kind, words in WORDS.items() if r.counts.get(kind))
        messages = [", ".join(counts)] if r.counts else []
        messages += [f"not compared any further: {r.stopped}"] if r.stopped else []
        messages += [f"{r.after:,} after the last restored one"] if exact and r.after else []
        if messages:
            findings.append(f"{r.target}-{r.partition}: of {r.records:,} records compared, {'; '.join(messages)}")
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
