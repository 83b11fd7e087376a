"""Find everything that can be known to go wrong with a restore, before its first record."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from msgspec import structs

from kbackup.archive.models import SHARE
from kbackup.archive.query.content import span
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.offset_map import runs_by_partition
from kbackup.archive.restores.plan import PlannedGroup, PlannedTopic, RestorePlan, UnitRange
from kbackup.archive.segments.table import Segment, Segments, bounds, expected_in_order, rows_of, sum_of, unpaired
from kbackup.errors import KbackupError, MismatchError, RefusedError
from kbackup.jobs.restore.configs import settle_configs, whole_number
from kbackup.jobs.restore.contents import TargetReading, foreign_topics, only_aborted
from kbackup.jobs.restore.demands import Demands, TimeLimit, UnfitRecords, codecs_of
from kbackup.jobs.restore.plan import free_name
from kbackup.kafka.client import Properties
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.topics import Topic, TopicToCreate
from kbackup.metadata.entities import INTERNAL_TOPICS
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.system import in_threads
from kbackup.util.text import kafka_command, kbackup_command, plural, shell_line
from kbackup.util.times import time_text

_DAY = 86_400_000
_NAMED = 10  # topics of a hint
_RETENTION = (("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000))
NO_LIMIT = (1 << 63) - 1
_BATCH_LIMITS = {"max.message.bytes": 1_048_588, "segment.bytes": 1 << 30}
"""Configs that bound a batch, with Kafka's defaults. A batch that is larger than a log segment is refused as well."""
_ROOM = 4096  # bytes that max.message.bytes should have above a record's size
_LOG_CONFIGS = (
    "retention.ms",
    "retention.bytes",
    "cleanup.policy",
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms",
)
"""Configs of topics whose broker's default has their name after 'log.'."""


@dataclass
class PreflightFindings:
    """The findings before the first record. `problems` forbid the whole restore, `held_back` are problems of one topic
    alone, by its name on the target; each problem has its hint. `advice` says what could be done in place of a restore
    that is refused. `warnings` are shown with the plan.

    `create` are the topics to make and `configs` the configs that each is made with, `alter` the configs to set on
    topics that an earlier run of this restore has made. `demands` are the demands of the topics whose records are to be
    examined, and `limits` how many bytes a batch of each topic may have.
    """

    problems: list[tuple[str, str]] = field(default_factory=list)
    held_back: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    advice: list[str] = field(default_factory=list)
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
        every = list(self.problems)
        for problems in self.held_back.values():
            every += problems
        listed = "".join(f"\n  - {problem} ({hint})" for problem, hint in every)
        advice = "; or ".join(["fix these problems and run the restore again", *self.advice])
        raise RefusedError(f"the restore can't begin, nothing was written:{listed}", advice)


@dataclass(frozen=True)
class TargetCheck:
    """A `plan` to check against the target, and the topic configs that were `given` by option. `resumed`: an earlier
    run has begun the plan, so that its topics hold records of ours. `into_source`: the target is the cluster that was
    backed up. `named_groups` are the groups that the request names."""

    cluster: Cluster
    brokers: int
    properties: Properties
    plan: RestorePlan
    given: Mapping[str, str]
    resumed: bool = False
    into_source: bool = False
    named_groups: Sequence[str] = ()

    @property
    def reading(self) -> TargetReading:
        return TargetReading(self.cluster, self.properties, self.plan.restore_id)


def check_target(check: TargetCheck, ranges: Iterable[UnitRange], left_out: Container[str] = ()) -> PreflightFindings:
    """Check existing topics and our rights to them, sizes, timestamps, retention, replication, and whether the broker
    would create the missing topics. `ranges` are the ranges of the plan, with their timestamps. Topics that are
    `left_out` (by their names on the target) are not looked at."""
    findings = PreflightFindings()
    cluster, plan = check.cluster, check.plan
    topics: list[PlannedTopic] = []
    for topic in plan.topics:
        if topic.target not in left_out and not _is_kafkas_own(findings, topic):
            topics.append(topic)
    targets = {topic.target for topic in topics}
    names = set(cluster.topic_names())
    existing = cluster.topics(targets & names)
    defaults = cluster.broker_configs()
    contents = _contents_of_existing(findings, check, existing)
    own_configs = cluster.all_topic_configs(existing)
    denied = cluster.missing_rights(existing, rights_to_write(plan.transactions, plan.keeps_offsets))
    missing_topics = [topic for topic in topics if topic.target not in existing]
    missing = [topic_to_create(topic) for topic in missing_topics]
    settled = settle_configs(cluster.topic_admin, missing, check.given)
    findings.warnings += settled.notes
    ranges_by_target: defaultdict[str, list[UnitRange]] = defaultdict(list)
    for range_ in ranges:
        ranges_by_target[range_.target].append(range_)
    if contents.in_the_way:
        _advise_on_filled(findings, check, missing_topics)
    for topic in topics:
        there = existing.get(topic.target)
        if there is not None:
            new_name = free_name(topic.source, names | targets)
            _check_existing(findings, check, topic, len(there.partitions), new_name)
            if topic.target in contents.in_the_way:
                _refuse_filled(findings, check, topic, new_name)
            if topic.target in contents.foreign:
                _refuse_foreign(findings, plan, topic)
            _check_rights(findings, topic, denied.get(topic.target, ()))
            configs = _configs_of_existing(findings, check, topic, own_configs[topic.target])
        else:
            made_with = settled.configs[topic.target]
            findings.create.append(topic.target)
            findings.configs[topic.target] = made_with
            as_made = structs.replace(topic, configs=made_with)
            _check_creation(findings, as_made, check.brokers, settled.refused.get(topic.target))
            configs = effective_configs(made_with, defaults)
        limit = _batch_limit(configs)
        findings.limits[topic.target] = limit
        # The records of a topic that an earlier run began to write were examined then.
        if topic.target not in contents.filled or not check.resumed:
            findings.demands[topic.target] = _demands(check, configs, limit)
        mend = Mending(cluster, topic, there is not None and not topic.created)
        _check_retention(findings, mend, ranges_by_target[topic.target], configs)
    return findings


def _batch_limit(configs: Mapping[str, str]) -> int:
    """Return how many bytes a batch of a topic with these configs may have."""
    limits = [whole_number(configs, name, usual) for name, usual in _BATCH_LIMITS.items()]
    return min(limits)


class _Contents(NamedTuple):
    """Topics by what they hold: `filled` have records of any kind, `in_the_way` have records that forbid the restore,
    and the records of `foreign` topics are not of the restore that is resumed."""

    filled: set[str]
    in_the_way: set[str]
    foreign: set[str]


def _contents_of_existing(findings: PreflightFindings, check: TargetCheck, existing: Mapping[str, Topic]) -> _Contents:
    """Look at the logs of the target topics that exist."""
    plan = check.plan
    partitions: list[TopicPartition] = []
    for topic in existing.values():
        partitions += [TopicPartition(topic.name, number) for number in topic.partitions]
    # Also what no committed transaction wrote: it has offsets, and a consumer of uncommitted records reads it.
    ends = check.cluster.log_ends(partitions, "read_uncommitted")
    starts = check.cluster.log_starts(partitions)
    filled = {tp.topic for tp in partitions if ends[tp] > starts[tp]}
    if plan.into_existing:
        return _Contents(filled, in_the_way=set(), foreign=set())
    if plan.keeps_offsets:
        # A log can only be filled from its end on: one that begins later, or holds anything, is in the way.
        used = {tp.topic for tp in partitions if ends[tp] > 0}
        in_the_way = set() if check.resumed else used
        return _Contents(filled, in_the_way, foreign=set())
    if check.resumed:
        foreign = foreign_topics(check.reading, plan, starts, ends)
        return _Contents(filled, set(), foreign)
    # A restore that was killed in its first transaction, and given up, leaves such a topic behind.
    empty = only_aborted(check.reading, starts, ends)
    for name in sorted(empty):
        findings.warnings.append(f"target topic {name} holds aborted records only: it counts as empty")
    return _Contents(filled, filled - empty, foreign=set())


_KAFKAS_OWN = (*INTERNAL_TOPICS, "__cluster_metadata")


def _is_kafkas_own(findings: PreflightFindings, topic: PlannedTopic) -> bool:
    """Hold back a topic that no client may write to."""
    if topic.target not in _KAFKAS_OWN:
        return False
    new_name = f"{topic.source.strip('_')}-restored"
    findings.hold_back(
        topic,
        f"topic {topic.target} is Kafka's own: brokers take no records for it from clients",
        f"leave it out with --exclude-topic {topic.source}, or give it another name with "
        f"--map {topic.source}={new_name}",
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
        """Return what the user does to set a config of the topic."""
        if not self.foreign:
            return f"give --topic-config {name}={value}"
        servers = self.cluster.connection.properties["bootstrap.servers"]
        entity = ("--entity-type", "topics", "--entity-name", self.topic.target)
        command = kafka_command("kafka-configs", servers, "--alter", *entity, "--add-config", f"{name}={value}")
        return f"run: {command}"


def _check_existing(
    findings: PreflightFindings, check: TargetCheck, topic: PlannedTopic, partitions: int, new_name: str
) -> None:
    """`partitions` is the target's number of partitions, `new_name` a name that is free there."""
    sizes = f"target topic {topic.target} has {partitions} partitions, the archive {topic.partitions}"
    if partitions < topic.partitions:
        command = _topics_command(check.cluster, topic, "--alter", "--partitions", str(topic.partitions))
        findings.hold_back(
            topic, sizes, f"map it to another name (--map {topic.source}={new_name}), or add partitions: {command}"
        )
    elif partitions > topic.partitions:
        findings.warnings.append(
            f"{sizes}: new records with the same key may go to other partitions than restored ones"
        )


def _refuse_filled(findings: PreflightFindings, check: TargetCheck, topic: PlannedTopic, new_name: str) -> None:
    """Refuse a topic that has records on the target. `new_name` is free there."""
    beside = f"restore it beside under another name with --map {topic.source}={new_name}"
    leave_out = f"leave it out with --exclude-topic {topic.source}"
    if check.plan.keeps_offsets:
        findings.refuse(
            f"target topic {topic.target} has held records: their offsets are taken", f"{beside}, or {leave_out}"
        )
        return
    append = "append with --into-existing"
    if check.into_source:
        append += ", which writes every record of the archive once more beside those that are there"
    findings.refuse(f"target topic {topic.target} is not empty", f"{beside}, {leave_out}, or {append}")


def _advise_on_filled(findings: PreflightFindings, check: TargetCheck, missing: Sequence[PlannedTopic]) -> None:
    """Say what can be restored all the same, where topics have records on the target. `missing` are the topics that the
    target lacks."""
    if check.named_groups and check.into_source:
        findings.advice.append(f"to set the groups alone, without a record: {_groups_command(check)}")
    if missing:
        options = [f"--topic {shell_line(topic.source)}" for topic in missing[:_NAMED]]
        more = f" (and {len(missing) - _NAMED:,} more)" if len(missing) > _NAMED else ""
        findings.advice.append(f"to restore only what the target lacks: {' '.join(options)}{more}")


def _groups_command(check: TargetCheck) -> str:
    """Return the command that sets the named groups in the topics that were backed up."""
    plan = check.plan
    words = ["groups", "apply", "--same-offsets"]
    for group in check.named_groups:
        words += ["--group", group]
    if plan.choice is not None and plan.choice.to_time is not None:
        words += ["--to-time", time_text(plan.choice.to_time)]
    else:
        words += ["--restore-point", str(plan.restore_point)]
    return kbackup_command(*words)


def _refuse_foreign(findings: PreflightFindings, plan: RestorePlan, topic: PlannedTopic) -> None:
    """Refuse to go on with a restore into a topic whose records it can't have written."""
    findings.refuse(
        f"target topic {topic.target} holds records that are not in the progress of restore {plan.restore_id} on the "
        "target: others wrote them, or the progress is lost",
        f"leave it out with --exclude-topic {topic.source}, or begin another restore, under another id and into new "
        "topics",
    )


def _topics_command(cluster: Cluster, topic: PlannedTopic, action: str, *options: str) -> str:
    servers = cluster.connection.properties["bootstrap.servers"]
    return kafka_command("kafka-topics", servers, action, "--topic", topic.target, *options)


def rights_to_write(transactions: bool, keeps_offsets: bool = False) -> tuple[str, ...]:
    """Return the rights that a restore needs on its topics. Committing progress in a transaction takes Read as well,
    and so does asking what is there of a restore that goes on. To make a log begin later than at 0 takes Delete."""
    if keeps_offsets:
        return ("WRITE", "READ", "DELETE")
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
    """Return the configs that an existing topic will have. The configs of a topic that this restore has made are
    changed as options say; those of another topic are not, and a warning tells of it."""
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
    """`refused` is the target's error if it would not create the topic."""
    factor = topic.replication_factor
    in_sync = whole_number(topic.configs, "min.insync.replicas", 1)
    if factor > brokers:
        findings.hold_back(
            topic,
            f"topic {topic.target} wants replication factor {factor}, the target has {plural(brokers, 'broker')}",
            f"give --replication-factor {brokers} or less",
        )
    elif in_sync > factor > 0:  # -1 is the broker's default, which is not known here
        findings.hold_back(
            topic,
            f"topic {topic.target} wants min.insync.replicas={in_sync} with replication factor {factor}: it would take "
            "no record",
            f"give --topic-config min.insync.replicas={factor}",
        )
    elif refused is not None:
        findings.hold_back(topic, f"topic {topic.target} can't be created: {refused.message}", refused.hint)


def effective_configs(configs: Mapping[str, str], broker: Mapping[str, str]) -> dict[str, str]:
    """Return topic configs as they would be, with the broker's defaults for configs that the preflight reads."""
    names = {name: f"log.{name}" for name in _LOG_CONFIGS}
    names["max.message.bytes"] = "message.max.bytes"
    effective = {name: broker[of_broker] for name, of_broker in names.items() if of_broker in broker}
    # Of ms, minutes and hours, the finest one that is set counts.
    for of_broker, ms in _RETENTION:
        if "retention.ms" not in effective and of_broker in broker:
            retention = int(broker[of_broker]) * ms
            effective["retention.ms"] = str(max(-1, retention))  # below 0: for ever
    return effective | dict(configs)


def _check_retention(
    findings: PreflightFindings, mend: Mending, ranges: Sequence[UnitRange], configs: Mapping[str, str]
) -> None:
    """Warn where the target would delete restored records at once, or give them another time."""
    topic = mend.topic
    # A compacted topic ignores retention, unless its policy is both.
    deletes = "delete" in configs.get("cleanup.policy", "delete")
    keep_bytes = whole_number(configs, "retention.bytes", -1)
    sizes = [sum_of(range_.segments, "bytes") for range_ in ranges]
    most = max(sizes, default=0)
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
    if range_.window is None:
        return low, high
    return range_.window.clip(low, high)


def _demands(check: TargetCheck, configs: Mapping[str, str], limit: int) -> Demands:
    """Return the demands of a topic with these configs on records."""
    codecs = codecs_of(check.properties, configs.get("compression.type", "producer"))
    has_key = "compact" in configs.get("cleanup.policy", "delete")
    if configs.get("message.timestamp.type", "CreateTime") == "LogAppendTime":
        return Demands(has_key, limit, codecs)  # the broker replaces timestamps, so it takes any
    now = int(time.time() * 1000)
    before = _time_bound(configs, "before")
    after = _time_bound(configs, "after")
    return Demands(has_key, limit, codecs, now, before, after)


def _time_bound(configs: Mapping[str, str], side: str) -> TimeLimit | None:
    ms, config = time_limit(configs, side)
    return None if ms == NO_LIMIT else TimeLimit(ms, config)


def hold_back_unfit(
    findings: PreflightFindings, check: TargetCheck, unfit: Mapping[str, Sequence[UnfitRecords]]
) -> None:
    """Hold back the topics that would refuse some of their records; `unfit` is by the topic's name on the target."""
    for topic in check.plan.topics:
        foreign = topic.target not in findings.create and not topic.created
        mend = Mending(check.cluster, topic, foreign)
        for records in unfit.get(topic.target, ()):
            problem, hint = _unfit_problem(mend, records, findings.demands[topic.target])
            findings.hold_back(topic, problem, hint)


def _unfit_problem(mend: Mending, unfit: UnfitRecords, demands: Demands) -> tuple[str, str]:
    """Return why a topic refuses some of its records, and the hint."""
    target = mend.topic.target
    place = f"{unfit.source.topic}:{unfit.source.partition}:{unfit.first}"
    if unfit.records > 1:
        which = f"{unfit.records:,} records, the first is {place}"
        leave_out = f"leave them out, the first with --skip {place}"
    else:
        which = f"record {place}"
        leave_out = f"leave it out with --skip {place}"
    if unfit.kind == "no key":
        mended = mend.hint("cleanup.policy", "delete")
        return (
            f"topic {target} is compacted and takes no record without a key, which the archive has ({which})",
            f"{mended}, or {leave_out}",
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
        bound, difference, words = demands.after, unfit.worst - demands.now, "ahead"
    else:
        bound, difference, words = demands.before, demands.now - unfit.worst, "old"
    assert bound is not None  # noqa: S101 (without a bound, no timestamp is unfit)
    mended = mend.hint(bound.config, NO_LIMIT)
    return (
        f"topic {target} refuses timestamps more than {bound.ms} ms {words}, the archive has {difference} ms ({which})",
        f"{mended}, or {leave_out}",
    )


def time_limit(configs: Mapping[str, str], side: str) -> tuple[int, str]:
    """Return by how much (ms) a timestamp may differ from the broker's clock, and the name of that config. `side` is
    before or after."""
    own = f"message.timestamp.{side}.max.ms"
    both = "message.timestamp.difference.max.ms"
    limit = int(configs.get(own, NO_LIMIT))
    if limit != NO_LIMIT or both not in configs:
        return limit, own
    # Brokers before 3.6 have one limit for both sides; 3.6 to 3.9 take it as the default of the two.
    return int(configs[both]), own if own in configs else both


def warn_of_members(cluster: Cluster, groups: Sequence[PlannedGroup]) -> list[str]:
    """Return warnings of groups on the target that have members now: a restore would leave these groups alone."""
    members, unknown = cluster.groups.members(group.target for group in groups)
    warnings: list[str] = []
    for name, live in sorted(members.items()):
        if live:
            warnings.append(
                f"group {name} has {live} on the target now and would be left alone: stop it, give it a new name with "
                "--map-group, or restore no group with --no-groups"
            )
    for name, why in sorted(unknown.items()):
        warnings.append(f"group {name}: its members are not known: {why}")
    return warnings


def warn_of_share_groups(cluster: Cluster, groups: Sequence[PlannedGroup]) -> list[str]:
    """Return warnings of share groups that the target can't set: brokers may be too old for them."""
    share = {group.target for group in groups if group.type == SHARE}
    if not share:
        return []
    _, refused = cluster.groups.committed(share, share)
    return [f"share group {name} can't be set on the target: {why}" for name, why in sorted(refused.items())]


_LOST = "restore it from a bucket version or a copy; if nobody has it, 'kbackup repair' leaves its records out"


def check_segments(store: Store, partitions: Iterable[Sequence[Segment]]) -> None:
    """Raise `RefusedError` naming every records object that is not there in its size. Folders are listed side by
    side."""
    folders: defaultdict[str, list[Sequence[Segment]]] = defaultdict(list)
    for segments in partitions:
        folders[_folder_of(segments)].append(segments)

    def check(folder: str) -> tuple[dict[str, int], dict[str, int]]:
        listed = (entry for entry in store.list(folder) if not entry.key.endswith("_index"))
        return unpaired(listed, expected_in_order(folders[folder], indexes=False))

    findings = PreflightFindings()
    for others, lacking in in_threads(check, sorted(folders)):
        for key, size in lacking.items():
            if key not in others:
                findings.refuse(f"file {key} is missing", _LOST)
            else:
                found = others[key]
                findings.refuse(f"file {key} has {found} bytes, not {size}", "it was changed after it was written")
    findings.raise_problems()


def _folder_of(segments: Sequence[Segment]) -> str:
    """Return the folder of a partition's segments, by the key of the first one: all of them are in it."""
    table = segments.checked() if isinstance(segments, Segments) else segments
    ((key,),) = rows_of(table[:1], "key")
    folder: str = key.rpartition("/")[0]
    return f"{folder}/"


_ANOTHER = "give another --restore-id to restore it again"


def check_still_there(cluster: Cluster, journal: RestoreJournal, plan: RestorePlan) -> None:
    """Raise `MismatchError` if a topic of a finished restore, or one of its records, is no longer in the target."""
    existing = cluster.topics(topic.target for topic in plan.topics)
    for topic in plan.topics:
        name = f"topic {topic.target} of finished restore {plan.restore_id}"
        there = existing.get(topic.target)
        if there is None:
            raise MismatchError(f"{name} is not in the target", _ANOTHER)
        if len(there.partitions) < topic.partitions:
            raise MismatchError(f"{name} has fewer partitions than it had", _ANOTHER)
    _, offsets = journal.finished()
    runs = runs_by_partition(offsets)
    starts = cluster.log_starts(runs)
    ends = cluster.log_ends(runs, "read_uncommitted")
    for tp, (_, target, count) in runs.items():
        first = int(target.min())
        end = int(np.max(target + count))
        if starts[tp] > first or ends[tp] < end:
            raise MismatchError(
                f"finished restore {plan.restore_id} put records at offsets {first} to {end} (exclusive) of {tp}, "
                f"which has {starts[tp]} to {ends[tp]} now",
                _ANOTHER,
            )
