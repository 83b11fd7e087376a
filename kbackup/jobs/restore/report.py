"""The report of a finished restore: restores/<id>/report.json."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from kbackup.archive.models import Document, Member
from kbackup.archive.restores.map_parts import NOTHING, Cut, WrittenMap
from kbackup.archive.restores.plan import RestorePlan
from kbackup.archive.segments.table import sum_of
from kbackup.archive.segments.window import Choice
from kbackup.archive.transforms import named_transform
from kbackup.jobs.finding_kinds import of_kind
from kbackup.jobs.groups.report import GroupResult, not_applied
from kbackup.jobs.newer import NewerRecords
from kbackup.jobs.schemas.records import SchemasReport
from kbackup.jobs.settings.plan import SettingsReport
from kbackup.metrics.registry import counted
from kbackup.types import TopicPartition
from kbackup.util.text import plural


@dataclass(frozen=True)
class Restored:
    """Restored records by target topic, and the bytes of all. `cut` counts the records that windows selected."""

    topics: Mapping[str, int]
    bytes: int
    cut: Cut = NOTHING

    @property
    def records(self) -> int:
        return sum(self.topics.values())


def planned(plan: RestorePlan) -> Restored:
    """Return the planned counts; with a window, they are upper bounds."""
    return Restored({t.target: t.records for t in plan.topics}, plan.bytes)


def restored(plan: RestorePlan, written: WrittenMap, cuts: Iterable[Cut], left_out: Container[str] = ()) -> Restored:
    """Return the restored counts, by the offset map and by `cuts`, the records that windows selected after its last
    parts. The bytes of topics that are `left_out` (by their names on the target) don't count."""
    cut = reduce(Cut.plus, cuts, written.cut)
    size = cut.bytes
    for range_ in plan.ranges:
        if range_.window is None and range_.target not in left_out:
            size += sum_of(range_.segments, "bytes")
    records = {topic.target: written.records.get(topic.target, 0) for topic in plan.topics}
    return Restored(records, size, cut)


class RestoredTopic(Member, frozen=True, kw_only=True):
    source: str
    target: str
    partitions: int
    records: int


class NotRestoredTopic(Member, frozen=True, kw_only=True):
    """A topic that the target refuses, wholly or from some record on: the reason, and a hint."""

    source: str
    target: str
    reason: str
    hint: str

    @property
    def sentence(self) -> str:
        return f"topic {self.source} is not restored: {self.reason}; {self.hint}"


class TopicFill(Member, frozen=True, kw_only=True):
    """How the logs of a topic get their offsets, by its names in the source and on the target.

    `head` are the offsets before the first records, filled and deleted again, and `head_bytes` what they take on disk
    for a moment. `gaps` have no record, `markers` are the offsets in them that transactions without records fill, and
    `fillers` those that records fill. `seconds` is how long head and gaps take, about, and `broker_seconds` how long
    one core of the brokers that lead the logs works on fillers. `largest` is the largest gap.
    """

    source: str
    target: str
    way: Literal["in place", "markers", "aborted", "tombstones"]
    head: int
    head_bytes: int
    gaps: int
    largest: int
    markers: int
    fillers: int
    seconds: float
    broker_seconds: float = 0.0


class TransformReport(Member, frozen=True, kw_only=True):
    """The function that the records of a restore went through: `name` and `sha256` as in the plan. `left_out` are the
    records that it left out, by topic of the source."""

    name: str
    sha256: str
    left_out: dict[str, int]

    @property
    def sentence(self) -> str:
        """Return in words what the transform left out."""
        records = sum(self.left_out.values())
        topics = [f"{topic} {count:,}" for topic, count in self.left_out.items()]
        by_topic = f" ({', '.join(topics)})" if topics else ""
        return f"left out by the transform {self.name}: {plural(records, 'record')}{by_topic}"


class RestoreReport(Document, frozen=True, kw_only=True):
    """restores/<id>/report.json: the results of a finished restore. `status` 'planned' is never written (it is a dry
    run's, whose counts are upper bounds if there is a window), nor is 'incomplete': topics in `failed` are not
    restored, and the same restore goes on with them. `excluded` are topics of the plan, by their names in the source,
    that a later run was to leave out."""

    format: Literal["kbackup-restore-report"] = "kbackup-restore-report"
    status: Literal["planned", "restored", "incomplete"]
    restore_id: str
    archive: str
    restore_point: int
    target_cluster_id: str
    topics: tuple[RestoredTopic, ...]
    records: int
    bytes: int
    groups: tuple[GroupResult, ...]
    warnings: tuple[str, ...]
    missing: tuple[str, ...]
    """Requested things that could not be done, and losses of the archive among the selected records."""
    seconds: dict[str, float]
    settings: SettingsReport | None = None
    choice: Choice | None = None
    archive_id: str = ""
    """As in the plan; '' if an older version wrote it."""
    schemas: SchemasReport | None = None
    newer: tuple[NewerRecords, ...] = ()
    """Topics of the source with records that the restore point lacks, where the target is the source."""
    failed: tuple[NotRestoredTopic, ...] = ()
    excluded: tuple[str, ...] = ()
    fills: tuple[TopicFill, ...] = ()
    """How logs get the offsets that they had at the source, with `--same-offsets`."""
    transform: TransformReport | UnsetType = UNSET
    """Missing if records stayed as they are archived, so that earlier versions can read the report."""

    @property
    def losses(self) -> tuple[str, ...]:
        """Those of `missing` that are records which the archive lacks."""
        return of_kind("loss", self.missing)


def make_report(
    plan: RestorePlan,
    archive: str,
    done: Restored,
    *,
    groups: tuple[GroupResult, ...],
    warnings: Sequence[str],
    seconds: dict[str, float],
    status: Literal["planned", "restored", "incomplete"],
    settings: SettingsReport | None = None,
    hidden: Iterable[TopicPartition] = (),
    schemas: SchemasReport | None = None,
    newer: tuple[NewerRecords, ...] = (),
    failed: Sequence[NotRestoredTopic] = (),
    excluded: Sequence[str] = (),
    fills: tuple[TopicFill, ...] = (),
) -> RestoreReport:
    """Return the report; a dry run has no missing `settings` yet. `hidden` are partitions with records that consumers
    can't see yet. `failed` are topics that are not restored, `excluded` topics to be left out."""
    all_warnings: list[str] = []
    if plan.choice is not None:
        all_warnings += plan.choice.left_out
    all_warnings += plan.group_warnings
    all_warnings += warnings
    missing = list(plan.damaged)
    missing += dict.fromkeys(topic.sentence for topic in failed)  # one sentence, however many problems say the same
    for tp in hidden:
        missing.append(f"consumers can't see all of {tp} yet: a transaction is open there, see troubleshooting.md")
    missing += not_applied(groups, "--restore-id", plan.restore_id)
    if settings is not None and status != "planned":
        missing += settings.missing
    if schemas is not None:
        missing += schemas.not_set
        missing += schemas.uncovered
        missing += [records.words for records in schemas.unmapped]
    topics: list[RestoredTopic] = []
    for topic in plan.topics:
        if topic.source in excluded:
            continue
        records = done.topics[topic.target]
        topics.append(
            RestoredTopic(source=topic.source, target=topic.target, partitions=topic.partitions, records=records)
        )
    return RestoreReport(
        status=status,
        restore_id=plan.restore_id,
        archive=archive,
        archive_id=plan.archive_id,
        restore_point=plan.restore_point,
        target_cluster_id=plan.target_cluster_id,
        topics=tuple(topics),
        records=done.records,
        bytes=done.bytes,
        groups=groups,
        warnings=tuple(all_warnings),
        missing=tuple(missing),
        seconds=dict(seconds),
        settings=settings,
        choice=plan.choice,
        schemas=schemas,
        newer=newer,
        failed=tuple(failed),
        excluded=tuple(excluded),
        fills=fills,
        transform=_transform_report(plan, done),
    )


def _transform_report(plan: RestorePlan, done: Restored) -> TransformReport | UnsetType:
    transform = named_transform(plan.transform)
    if transform is None:
        return UNSET
    sources = {topic.target: topic.source for topic in plan.topics}
    left_out = {sources[target]: records for target, records in done.cut.left_out}
    return TransformReport(name=transform.name, sha256=transform.sha256, left_out=left_out)


def with_warning(report: RestoreReport, warning: str) -> RestoreReport:
    return replace(report, warnings=(*report.warnings, warning))


def late_warnings(done: Restored, moved: int) -> list[str]:
    """Return the warnings that only the restored records give. `moved` is how many got a new timestamp."""
    warnings: list[str] = []
    if moved:
        warnings.append(
            f"{moved} record(s) with timestamp 0 were restored with timestamp 1: librdkafka takes 0 for 'now'"
        )
    if done.cut.untimed:
        warnings.append(
            f"at least {done.cut.untimed} record(s) without a timestamp were left out: nobody knows whether they "
            "belong into a window in time; --range restores them by offset"
        )
    return warnings


def count_restore(report: RestoreReport) -> None:
    """Count the results of a restore for Prometheus."""
    counted.add("kbackup_records_total", report.records)
    counted.add("kbackup_bytes_total", report.bytes)
    counted.put("kbackup_topics", len(report.topics))
    counted.put("kbackup_groups", len(report.groups))
    counted.put("kbackup_missing", len(report.missing))
