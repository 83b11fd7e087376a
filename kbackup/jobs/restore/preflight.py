"""Everything that can be known to go wrong with a restore, before its first record."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from msgspec import structs

from kbackup.archive.query.content import span
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.offset_map import runs_by_partition
from kbackup.archive.restores.plan import PlannedGroup, PlannedTopic, RestorePlan, UnitRange
from kbackup.archive.segments.table import Segment, Segments, bounds, expected_in_order, rows_of, sum_of, unpaired
from kbackup.errors import KbackupError, MismatchError, RefusedError
from kbackup.jobs.restore.configs import settle_configs, whole_number
from kbackup.jobs.restore.contents import TargetReading, foreign_topics, only_aborted
from kbackup.jobs.restore.demands import Demands, TimeLimit, UnfitRecords, codecs_of
from kbackup.kafka.client import Properties
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.topics import TopicToCreate
from kbackup.metadata.entities import INTERNAL_TOPICS
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.system import in_threads
from kbackup.util.text import kafka_command, plural

_DAY = 86_400_000
_RETENTION = (("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000))
NO_LIMIT = (1 << 63) - 1
_BATCH_LIMITS = {"max.message.bytes": 1_048_588, "segment.bytes": 1 << 30}
"""Configs that bound a batch, with Kafka's defaults. A batch that is larger than a log segment is refused as well."""
_ROOM = 4096  # bytes that max.message.bytes should have above a record's size
_LOG_CONFIGS = (
    *("retention.ms", "retention.bytes", "cleanup.policy", "message.timestamp.type"),
    *(f"message.timestamp.{limit}.max.ms" for limit in ("before", "after", "difference")),
)
"""Configs of topics whose broker's default has their name after 'log.'."""


@dataclass
class PreflightFindings:
    """What was found before the first record. `problems` forbid the whole restore, `held_back` (by the topic's name on
    the target) what concerns one topic alone; each problem has its hint. `warnings` are shown with the plan.

    `create` are the topics to make and `configs` what each is made with, `alter` the configs to set on topics that an
    earlier run of this restore has made. `demands` are those of the topics whose records are to be examined, and
    `limits` how many bytes a batch of each topic may have.
    """

    problems: list[tuple[str, str]] = field(default_factory=list)
    held_back: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    create: list[str] = field(default_factory=list)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    alter: dict[str, dict[str, str]] = field(default_factory=dict)
    demands: dict[str, Demands] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)

    def refuse(self, problem: str, hint: str) -> None:
        self.problems.append((problem, hint))

    def hold_back(self, topic: PlannedTopic, problem: str, hint: str) -> None:
        self.held_back.setdefault(topic.target, []).append((problem, hint))

    def raise_problems(self) -> None:
        """Raise `RefusedError` with every problem if one of them forbids the restore."""
        if self.problems:
            self._raise()

    def raise_unless_any(self, targets: Iterable[str]) -> None:
        """Raise `RefusedError` with every problem if none of the topics can be restored."""
        if self.held_back and not set(targets) - self.held_back.keys():
            self._raise()

    def _raise(self) -> None:
        every = [*self.problems, *chain.from_iterable(self.held_back.values())]
        listed = "".join(f"\n  - {problem} ({hint})" for problem, hint in every)
        raise RefusedError(
            f"the restore can't begin, nothing was written:{listed}", "fix these problems and run the restore again"
        )


@dataclass(frozen=True)
class TargetCheck:
    """What is checked against the target: a `plan`, and the topic configs that were `given` by option. `resumed`: an
    earlier run has begun the plan, so that its topics hold records of ours."""

    cluster: Cluster
    brokers: int
    properties: Properties
    plan: RestorePlan
    given: Mapping[str, str]
    resumed: bool = False

    @property
    def reading(self) -> TargetReading:
        return TargetReading(self.cluster, self.properties, self.plan.restore_id)


def check_target(check: TargetCheck, ranges: Iterable[UnitRange], left_out: Container[str] = ()) -> PreflightFindings:
    """Check existing topics and our rights to them, sizes, timestamps, retention, replication, and whether the broker
    would create what is missing. `ranges` are those of the plan, with their timestamps. Topics that are `left_out` (by
    their names on the target) are not looked at."""
    findings = PreflightFindings()
    cluster, plan = check.cluster, check.plan
    every = [topic for topic in plan.topics if topic.target not in left_out]
    topics = [topic for topic in every if not _is_kafkas_own(findings, topic)]
    existing = cluster.topics(set(cluster.topic_names()) & {t.target for t in topics})
    defaults = cluster.broker_configs()
    partitions = [TopicPartition(t.name, p) for t in existing.values() for p in t.partitions]
    ends, starts = cluster.log_ends(partitions, "read_uncommitted"), cluster.log_starts(partitions)
    held = {tp.topic for tp in partitions if ends[tp] > starts[tp]}
    empty: set[str] = set()
    if not plan.into_existing and not check.resumed:
        empty = only_aborted(check.reading, starts, ends)
        findings.warnings += [f"target topic {t} holds aborted records only: it counts as empty" for t in sorted(empty)]
    foreign: set[str] = set()
    if not plan.into_existing and check.resumed:
        foreign = foreign_topics(check.reading, plan, starts, ends)
    own_configs = cluster.all_topic_configs(existing)
    denied = cluster.missing_rights(existing, rights_to_write(plan.transactions))
    settled = settle_configs(
        cluster.topic_admin, [topic_to_create(t) for t in topics if t.target not in existing], check.given
    )
    findings.warnings += settled.notes
    ranges_by_target: defaultdict[str, list[UnitRange]] = defaultdict(list)
    for range_ in ranges:
        ranges_by_target[range_.target].append(range_)
    for topic in topics:
        there = existing.get(topic.target)
        if there is not None:
            holds = topic.target in held - empty and not plan.into_existing and not check.resumed
            _check_existing(findings, topic, cluster, len(there.partitions), holds)
            if topic.target in foreign:
                _refuse_foreign(findings, plan, topic)
            _check_rights(findings, topic, denied.get(topic.target, ()))
            configs = _configs_of_existing(findings, check, topic, own_configs[topic.target])
        else:
            findings.create.append(topic.target)
            findings.configs[topic.target] = settled.configs[topic.target]
            as_made = structs.replace(topic, configs=settled.configs[topic.target])
            _check_creation(findings, as_made, check.brokers, settled.refused.get(topic.target))
            configs = effective_configs(as_made.configs, defaults)
        limit = min(whole_number(configs, name, most) for name, most in _BATCH_LIMITS.items())
        findings.limits[topic.target] = limit
        if topic.target not in held or not check.resumed:  # what is begun was examined when it began
            findings.demands[topic.target] = _demands(check, configs, limit)
        mend = Mending(cluster, topic, there is not None and not topic.created)
        _check_retention(findings, mend, ranges_by_target[topic.target], configs)
    return findings


_KAFKAS_OWN = (*INTERNAL_TOPICS, "__cluster_metadata")


def _is_kafkas_own(findings: PreflightFindings, topic: PlannedTopic) -> bool:
    """Hold back a topic that no client may write to."""
    if topic.target not in _KAFKAS_OWN:
        return False
    findings.hold_back(
        topic,
        f"topic {topic.target} is Kafka's own: brokers take no records for it from clients",
        f"leave it out with --exclude-topic {topic.source}, or give it another name with "
        f"--map {topic.source}={topic.source.strip('_')}-restored",
    )
    return True


def topic_to_create(topic: PlannedTopic) -> TopicToCreate:
    return TopicToCreate(topic.target, topic.partitions, topic.replication_factor, topic.configs)


@dataclass(frozen=True)
class Mending:
    """How a config of a topic is changed. `foreign`: the topic was there before the restore, which leaves its configs
    alone."""

    cluster: Cluster
    topic: PlannedTopic
    foreign: bool

    def hint(self, name: str, value: object) -> str:
        if not self.foreign:
            return f"give --topic-config {name}={value}"
        servers = self.cluster.connection.properties["bootstrap.servers"]
        words = ("--alter", "--entity-type", "topics", "--entity-name", self.topic.target)
        return f"run: {kafka_command('kafka-configs', servers, *words, '--add-config', f'{name}={value}')}"


def _check_existing(
    findings: PreflightFindings, topic: PlannedTopic, cluster: Cluster, partitions: int, in_the_way: bool
) -> None:
    """`partitions` is their number in the target; `in_the_way`: they have records."""
    if partitions < topic.partitions:
        findings.hold_back(
            topic,
            f"target topic {topic.target} has {partitions} partitions, the archive {topic.partitions}",
            f"map it to another name (--map {topic.source}={topic.source}-restored), or add partitions: "
            + _topics_command(cluster, topic, "--alter", "--partitions", str(topic.partitions)),
        )
    elif partitions > topic.partitions:
        findings.warnings.append(
            f"target topic {topic.target} has {partitions} partitions, the archive {topic.partitions}: "
            "new records with the same key may go to other partitions than restored ones"
        )
    if in_the_way:
        findings.refuse(
            f"target topic {topic.target} is not empty",
            "restore only the topics that are missing with --topic, restore it beside under another name with "
            f"--map {topic.source}={topic.source}-restored, or append with --into-existing",
        )


def _refuse_foreign(findings: PreflightFindings, plan: RestorePlan, topic: PlannedTopic) -> None:
    """Refuse to go on with a restore into a topic whose records it can't have written."""
    findings.refuse(
        f"target topic {topic.target} holds records, and the progress of restore {plan.restore_id} on the target has "
        "none of them: they are of others, or the progress is gone",
        f"leave it out with --exclude-topic {topic.source}, or begin another restore, under another id and into topics "
        "made anew",
    )


def _topics_command(cluster: Cluster, topic: PlannedTopic, action: str, *options: str) -> str:
    servers = cluster.connection.properties["bootstrap.servers"]
    return kafka_command("kafka-topics", servers, action, "--topic", topic.target, *options)


def rights_to_write(transactions: bool) -> tuple[str, ...]:
    """Return the rights that a restore needs on its topics: to commit progress in a transaction takes Read as well."""
    return ("WRITE", "READ") if transactions else ("WRITE",)


def _check_rights(findings: PreflightFindings, topic: PlannedTopic, missing: Sequence[str]) -> None:
    if missing:
        findings.hold_back(topic, *missing_rights_problem(topic.target, missing))


def missing_rights_problem(target: str, missing: Sequence[str]) -> tuple[str, str]:
    """Return the problem of a topic that our user lacks rights on, and the hint."""
    rights = " and ".join(right.capitalize() for right in missing)
    problem = f"our user may not restore into target topic {target}: it lacks {rights} on the topic"
    return problem, "give its user that right: security.md has the list"


def _configs_of_existing(
    findings: PreflightFindings, check: TargetCheck, topic: PlannedTopic, configs: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the configs that an existing topic will have. Those of a topic that this restore has made are changed as
    options say; those of another topic are not, and a warning tells of it."""
    different = {name: value for name, value in check.given.items() if value and configs.get(name) != value}
    if not different:
        return configs
    if topic.created:
        findings.alter[topic.target] = different
        return {**configs, **different}
    named = ", ".join(f"{name}={value}" for name, value in different.items())
    findings.warnings.append(
        f"target topic {topic.target} exists: --topic-config does not change it, and {named} is not set"
    )
    return configs


def _check_creation(
    findings: PreflightFindings, topic: PlannedTopic, brokers: int, refused: KbackupError | None
) -> None:
    """`refused` is what the target says to the creation of the topic."""
    in_sync = whole_number(topic.configs, "min.insync.replicas", 1)
    if topic.replication_factor > brokers:
        findings.hold_back(
            topic,
            f"topic {topic.target} wants replication factor {topic.replication_factor}, "
            f"the target has {plural(brokers, 'broker')}",
            f"give --replication-factor {brokers} or less",
        )
    elif in_sync > topic.replication_factor > 0:
        findings.hold_back(
            topic,
            f"topic {topic.target} wants min.insync.replicas={in_sync} with replication factor "
            f"{topic.replication_factor}: it would take no record",
            f"give --topic-config min.insync.replicas={topic.replication_factor}",
        )
    elif refused is not None:
        findings.hold_back(topic, f"topic {topic.target} can't be created: {refused.message}", refused.hint)


def effective_configs(configs: Mapping[str, str], broker: Mapping[str, str]) -> dict[str, str]:
    """Return topic configs as they would be, with the broker's names for the defaults that the preflight reads."""
    names = {"max.message.bytes": "message.max.bytes"} | {name: f"log.{name}" for name in _LOG_CONFIGS}
    effective = {name: broker[of_broker] for name, of_broker in names.items() if of_broker in broker}
    for of_broker, ms in _RETENTION:  # the finest one counts
        if "retention.ms" not in effective and of_broker in broker:
            effective["retention.ms"] = str(max(-1, int(broker[of_broker]) * ms))  # below 0: for ever
    return effective | dict(configs)


def _check_retention(
    findings: PreflightFindings, mend: Mending, ranges: Sequence[UnitRange], configs: Mapping[str, str]
) -> None:
    """Warn where the target would delete restored records at once, or give them another time."""
    topic = mend.topic
    deletes = "delete" in configs.get("cleanup.policy", "delete")
    keep_bytes = whole_number(configs, "retention.bytes", -1)
    most = max((sum_of(range_.segments, "bytes") for range_ in ranges), default=0)
    if deletes and 0 <= keep_bytes < most:
        findings.warnings.append(
            f"topic {topic.target} keeps {keep_bytes} bytes a partition, less than the {most} to be restored: "
            f"old records will be deleted again; {mend.hint('retention.bytes', -1)}"
        )
    if configs.get("message.timestamp.type", "CreateTime") == "LogAppendTime":
        findings.warnings.append(
            f"topic {topic.target} has message.timestamp.type=LogAppendTime: restored records will carry "
            f"the time of the restore; {mend.hint('message.timestamp.type', 'CreateTime')} to keep theirs"
        )
        return
    low, _ = span(_timestamps(range_) for range_ in ranges)
    if low is None:
        return
    age = int(time.time() * 1000) - low
    keep = whole_number(configs, "retention.ms", -1)
    if deletes and 0 <= keep < age:
        findings.warnings.append(
            f"topic {topic.target} keeps records for {keep / _DAY:.1f} days, the oldest to be restored is "
            f"{age / _DAY:.1f} days old: it may be deleted again at once; {mend.hint('retention.ms', -1)}"
        )


def _timestamps(range_: UnitRange) -> tuple[int | None, int | None]:
    """Return the bounds on the timestamps of the records to be restored."""
    low, high = bounds(range_.segments, "min_timestamp", "max_timestamp")
    return (low, high) if range_.window is None else range_.window.clip(low, high)


def _demands(check: TargetCheck, configs: Mapping[str, str], limit: int) -> Demands:
    """Return what a topic with these configs demands of records."""
    codecs = codecs_of(check.properties, configs.get("compression.type", "producer"))
    has_key = "compact" in configs.get("cleanup.policy", "delete")
    if configs.get("message.timestamp.type", "CreateTime") == "LogAppendTime":
        return Demands(has_key, limit, codecs)
    now = int(time.time() * 1000)
    before, after = (TimeLimit(*time_limit(configs, side)) for side in ("before", "after"))
    return Demands(
        has_key,
        limit,
        codecs,
        now,
        before=before if before.ms != NO_LIMIT else None,
        after=after if after.ms != NO_LIMIT else None,
    )


def hold_back_unfit(
    findings: PreflightFindings, check: TargetCheck, unfit: Mapping[str, Sequence[UnfitRecords]]
) -> None:
    """Hold back the topics that would refuse records of theirs; `unfit` is by the topic's name on the target."""
    for topic in check.plan.topics:
        foreign = topic.target not in findings.create and not topic.created
        mend = Mending(check.cluster, topic, foreign)
        for records in unfit.get(topic.target, ()):
            findings.hold_back(topic, *_unfit_problem(mend, records, findings.demands[topic.target]))


def _unfit_problem(mend: Mending, unfit: UnfitRecords, demands: Demands) -> tuple[str, str]:
    """Return what a topic has against some of its records, and what helps."""
    target = mend.topic.target
    place = f"{unfit.source.topic}:{unfit.source.partition}:{unfit.first}"
    which, leave_out = f"record {place}", f"leave it out with --skip {place}"
    if unfit.records > 1:
        which = f"{unfit.records:,} records, the first is {place}"
        leave_out = f"leave them out, the first with --skip {place}"
    if unfit.kind == "no key":
        return (
            f"topic {target} is compacted and takes no record without a key, which the archive has ({which})",
            f"{mend.hint('cleanup.policy', 'delete')}, or {leave_out}",
        )
    if unfit.kind == "too large":
        enough = unfit.worst + _ROOM
        mended = mend.hint("max.message.bytes", enough)
        return (
            f"topic {target} takes records of up to {demands.limit} bytes, the archive has one of {unfit.worst} that "
            f"compression makes no smaller than that ({which})",
            f"{mended}, or {leave_out}",
        )
    if unfit.kind == "too late":
        bound, off, words = demands.after, unfit.worst - demands.now, "ahead"
    else:
        bound, off, words = demands.before, demands.now - unfit.worst, "old"
    assert bound is not None  # noqa: S101 (without a bound, no timestamp is unfit)
    return (
        f"topic {target} refuses timestamps more than {bound.ms} ms {words}, the archive has {off} ms ({which})",
        f"{mend.hint(bound.config, NO_LIMIT)}, or {leave_out}",
    )


def time_limit(configs: Mapping[str, str], side: str) -> tuple[int, str]:
    """Return by how much (ms) a timestamp may differ from the broker's clock, and the name of that config. `side` is
    before or after. Brokers before 3.6 know one limit for both, which later ones take as a default."""
    own, both = f"message.timestamp.{side}.max.ms", "message.timestamp.difference.max.ms"
    limit = int(configs.get(own, NO_LIMIT))
    if limit != NO_LIMIT or both not in configs:
        return limit, own
    return int(configs[both]), own if own in configs else both


def warn_of_members(cluster: Cluster, groups: Sequence[PlannedGroup]) -> list[str]:
    """Warnings of groups on the target that have members now: a restore would leave these groups alone."""
    members, unknown = cluster.groups.members(g.target for g in groups)
    warnings: list[str] = []
    for group, live in sorted(members.items()):
        if live:
            warnings.append(
                f"group {group} has {live} on the target now and would be left alone: stop it, give it a new name with "
                "--map-group, or restore no group with --no-groups"
            )
    for group, why in sorted(unknown.items()):
        warnings.append(f"group {group}: its members are not known: {why}")
    return warnings


def check_segments(store: Store, partitions: Iterable[Sequence[Segment]]) -> None:
    """Raise `RefusedError` naming every records object that is not there in its size. Folders are listed side by
    side."""
    folders: defaultdict[str, list[Sequence[Segment]]] = defaultdict(list)
    for segments in partitions:
        ((key,),) = rows_of((segments.checked() if isinstance(segments, Segments) else segments)[:1], "key")
        folders[key.rpartition("/")[0] + "/"].append(segments)

    def check(folder: str) -> tuple[dict[str, int], dict[str, int]]:
        listed = (entry for entry in store.list(folder) if not entry.key.endswith("_index"))
        return unpaired(listed, expected_in_order(folders[folder], indexes=False))

    findings = PreflightFindings()
    for others, lacking in in_threads(check, sorted(folders)):
        for key, size in lacking.items():
            if key not in others:
                findings.refuse(f"file {key} is missing", "restore it from a bucket version or a copy")
            else:
                findings.refuse(
                    f"file {key} has {others[key]} bytes, not {size}", "it was changed after it was written"
                )
    findings.raise_problems()


_ANOTHER = "give another --restore-id to restore it again"


def check_still_there(cluster: Cluster, journal: RestoreJournal, plan: RestorePlan) -> None:
    """Raise `MismatchError` if a topic of a finished restore, or one of its records, is no longer in the target."""
    there = cluster.topics(t.target for t in plan.topics)
    for topic in plan.topics:
        existing = there.get(topic.target)
        if existing is None or len(existing.partitions) < topic.partitions:
            problem = "is not in the target" if existing is None else "has fewer partitions than it had"
            raise MismatchError(f"topic {topic.target} of finished restore {plan.restore_id} {problem}", _ANOTHER)
    _, offsets = journal.finished()
    runs = runs_by_partition(offsets)
    starts, ends = cluster.log_starts(runs), cluster.log_ends(runs, "read_uncommitted")
    for tp, (_, target, count) in runs.items():
        first, end = int(target.min()), int(np.max(target + count))
        if starts[tp] > first or ends[tp] < end:
            raise MismatchError(
                f"finished restore {plan.restore_id} put records at offsets {first} to {end} (exclusive) of {tp}, "
                f"which has {starts[tp]} to {ends[tp]} now",
                _ANOTHER,
            )
