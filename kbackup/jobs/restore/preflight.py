"""Everything that can be known to go wrong with a restore, before its first record."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from kbackup.archive import layout
from kbackup.archive.query.content import ArchivedTopic, Content
from kbackup.archive.restores.offset_map import runs_by_partition
from kbackup.archive.restores.plan import PlannedGroup, PlannedTopic, RestorePlan, UnitRange, finished_restore
from kbackup.archive.segments.table import Segment, Segments, bounds, due_in_order, rows_of, unpaired
from kbackup.errors import KbackupError, MismatchError, RefusedError
from kbackup.formats.record import Row, rows
from kbackup.jobs.replay import SILENCE, read_range
from kbackup.kafka.admin.cluster import Cluster, TopicToCreate
from kbackup.kafka.client import Properties
from kbackup.kafka.consume import RangeReader
from kbackup.store.base import Store
from kbackup.types import OffsetRange, TopicPartition
from kbackup.util.system import in_threads
from kbackup.util.text import kafka_command, plural

_BATCH_OVERHEAD = 100  # bytes that a record batch of one record takes beside the record
_DAY = 86_400_000
_RETENTION = (("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000))
_NO_LIMIT = (1 << 63) - 1
_LOG_CONFIGS = (
    *("retention.ms", "retention.bytes", "cleanup.policy", "message.timestamp.type"),
    *(f"message.timestamp.{limit}.max.ms" for limit in ("before", "after", "difference")),
)
"""Configs of topics whose broker's default has their name after 'log.'."""


@dataclass
class PreflightFindings:
    """`problems` forbid the restore, each with its hint; `warnings` are shown with the plan. `create` are the
    topics to make."""

    problems: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    create: list[str] = field(default_factory=list)

    def refuse(self, problem: str, hint: str) -> None:
        self.problems.append((problem, hint))

    def raise_problems(self) -> None:
        if not self.problems:
            return
        listed = "".join(f"\n  - {problem} ({hint})" for problem, hint in self.problems)
        raise RefusedError(
            f"the restore can't begin, nothing was written:{listed}", "fix these problems and run the restore again"
        )


def check_target(cluster: Cluster, brokers: int, plan: RestorePlan, content: Content) -> PreflightFindings:
    """Check existing topics, sizes, timestamps, retention, replication, and whether the broker would create what is
    missing. Raise `RefusedError` with every problem."""
    findings = PreflightFindings()
    existing = cluster.topics(set(cluster.topic_names()) & {t.target for t in plan.topics})
    defaults = cluster.broker_configs()
    archived = {t.name: t for t in content.topics}
    partitions = [TopicPartition(t.name, p) for t in existing.values() for p in t.partitions]
    ends, starts = cluster.log_ends(partitions, "read_uncommitted"), cluster.log_starts(partitions)
    held = {tp.topic for tp in partitions if ends[tp] > starts[tp]}
    own_configs = cluster.all_topic_configs(existing)
    missing = [topic_to_create(topic) for topic in plan.topics if topic.target not in existing]
    refused = cluster.topic_admin.create(missing, dry_run=True)
    for topic in plan.topics:
        there = existing.get(topic.target)
        if there is not None:
            holds = topic.target in held and not plan.into_existing
            _check_existing(findings, topic, cluster, len(there.partitions), holds)
            configs = own_configs[topic.target]
        else:
            findings.create.append(topic.target)
            _check_creation(findings, topic, brokers, refused.get(topic.target))
            configs = effective_configs(topic.configs, defaults)
        _check_sizes(findings, topic, archived[topic.source], configs)
        _check_times(findings, topic, archived[topic.source], configs)
    findings.warnings += content.warnings
    findings.raise_problems()
    return findings


def topic_to_create(topic: PlannedTopic) -> TopicToCreate:
    return TopicToCreate(topic.target, topic.partitions, topic.replication_factor, topic.configs)


def _check_existing(
    findings: PreflightFindings, topic: PlannedTopic, cluster: Cluster, partitions: int, in_the_way: bool
) -> None:
    """`partitions` is their number in the target; `in_the_way`: they have records."""
    if partitions < topic.partitions:
        findings.refuse(
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


def _topics_command(cluster: Cluster, topic: PlannedTopic, action: str, *options: str) -> str:
    servers = cluster.connection.properties["bootstrap.servers"]
    return kafka_command("kafka-topics", servers, action, "--topic", topic.target, *options)


def _check_creation(
    findings: PreflightFindings, topic: PlannedTopic, brokers: int, refused: KbackupError | None
) -> None:
    """`refused` is what the target says to the creation of the topic."""
    in_sync = int(topic.configs.get("min.insync.replicas", "1"))
    if topic.replication_factor > brokers:
        findings.refuse(
            f"topic {topic.target} wants replication factor {topic.replication_factor}, "
            f"the target has {plural(brokers, 'broker')}",
            f"give --replication-factor {brokers} or less",
        )
    elif in_sync > topic.replication_factor > 0:
        findings.refuse(
            f"topic {topic.target} wants min.insync.replicas={in_sync} with replication factor "
            f"{topic.replication_factor}: it would take no record",
            f"give --topic-config min.insync.replicas={topic.replication_factor}",
        )
    elif refused is not None:
        findings.refuse(f"topic {topic.target} can't be created: {refused.message}", refused.hint)


def effective_configs(configs: Mapping[str, str], broker: Mapping[str, str]) -> dict[str, str]:
    """Return topic configs as they would be, with the broker's names for the defaults that the preflight reads."""
    names = {"max.message.bytes": "message.max.bytes"} | {name: f"log.{name}" for name in _LOG_CONFIGS}
    effective = {name: broker[of_broker] for name, of_broker in names.items() if of_broker in broker}
    for of_broker, ms in _RETENTION:  # the finest one counts
        if "retention.ms" not in effective and of_broker in broker:
            effective["retention.ms"] = str(max(-1, int(broker[of_broker]) * ms))  # below 0: for ever
    return effective | dict(configs)


def _check_sizes(
    findings: PreflightFindings, topic: PlannedTopic, archived: ArchivedTopic, configs: Mapping[str, str]
) -> None:
    largest = max((bounds(p.segments, "largest", "largest")[1] or 0 for p in archived.partitions), default=0)
    limit = int(configs.get("max.message.bytes", "1048588"))
    if largest + _BATCH_OVERHEAD > limit:
        findings.refuse(
            f"topic {topic.target} takes records of up to {limit} bytes, the archive has one of {largest}",
            f"give --topic-config max.message.bytes={largest + 4096}",
        )
    keep = int(configs.get("retention.bytes", "-1"))
    most = max((p.bytes for p in archived.partitions), default=0)
    if 0 <= keep < most and "delete" in configs.get("cleanup.policy", "delete"):
        findings.warnings.append(
            f"topic {topic.target} keeps {keep} bytes a partition, less than the {most} to be restored: "
            "old records will be deleted again; give --topic-config retention.bytes=-1"
        )


def _check_times(
    findings: PreflightFindings, topic: PlannedTopic, archived: ArchivedTopic, configs: Mapping[str, str]
) -> None:
    if configs.get("message.timestamp.type", "CreateTime") == "LogAppendTime":
        findings.warnings.append(
            f"topic {topic.target} has message.timestamp.type=LogAppendTime: restored records will carry "
            "the time of the restore; give --topic-config message.timestamp.type=CreateTime to keep theirs"
        )
        return
    low, high = archived.timestamps
    if low is None or high is None:
        return
    now = int(time.time() * 1000)
    keep = int(configs.get("retention.ms", "-1"))
    if 0 <= keep < now - low and "delete" in configs.get("cleanup.policy", "delete"):
        findings.warnings.append(
            f"topic {topic.target} keeps records for {keep / _DAY:.1f} days, the oldest to be restored is "
            f"{(now - low) / _DAY:.1f} days old: it may be deleted again at once; give --topic-config retention.ms=-1"
        )
    for side, off, words in (("after", high - now, "ahead"), ("before", now - low, "old")):
        limit, name = time_limit(configs, side)
        if off > limit:
            findings.refuse(
                f"topic {topic.target} refuses timestamps more than {limit} ms {words}, the archive has {off} ms",
                f"give --topic-config {name}={_NO_LIMIT}",
            )


def time_limit(configs: Mapping[str, str], side: str) -> tuple[int, str]:
    """Return by how much (ms) a timestamp may differ from the broker's clock, and the name of that config. `side` is
    before or after. Brokers before 3.6 know one limit for both, which later ones take as a default."""
    own, both = f"message.timestamp.{side}.max.ms", "message.timestamp.difference.max.ms"
    limit = int(configs.get(own, _NO_LIMIT))
    if limit != _NO_LIMIT or both not in configs:
        return limit, own
    return int(configs[both]), own if own in configs else both


_COMPARED = 20  # records of a partition, and partitions of a topic, that are compared


def warn_of_existing(target: Properties, cluster: Cluster, store: Store, plan: RestorePlan) -> list[str]:
    """Warnings of what the target topics hold to which the restore would append: how much, and whether they begin with
    the records that are to be restored."""
    ranges: dict[str, list[UnitRange]] = defaultdict(list)
    for range_ in (range_ for unit in plan.units for range_ in unit):
        ranges[range_.target].append(range_)
    warnings = []
    topics = cluster.topics(set(cluster.topic_names()) & {t.target for t in plan.topics}).values()
    partitions = {t.name: [TopicPartition(t.name, p) for p in t.partitions] for t in topics}
    every = [tp for of_topic in partitions.values() for tp in of_topic]
    starts, ends = cluster.log_starts(every), cluster.log_ends(every, "read_committed")
    for topic, of_topic in partitions.items():
        held = sum(ends[tp] - starts[tp] for tp in of_topic)
        if not held:
            continue
        sampled = [r for r in ranges[topic] if ends[r.tp] > starts[r.tp]][:_COMPARED]
        logs = [OffsetRange(*r.tp, starts[r.tp], min(ends[r.tp], starts[r.tp] + _COMPARED)) for r in sampled]
        present: dict[TopicPartition, list[Row]] = defaultdict(list)
        group = layout.reader_group("verify", plan.restore_id)
        reader = RangeReader(target, "read_committed", group, SILENCE, max(1, len(logs)), role="target")
        with closing(reader):
            for tp, block in reader.read(logs):
                present[tp] += rows(block, str(tp))
        samples = [(r, present[r.tp]) for r in sampled if present[r.tp]]
        same = samples and all(_contents(each) == _contents(_first_rows(store, r, len(each))) for r, each in samples)
        doubled = ", and begins with the same records: they would be in it twice" if same else ""
        warnings.append(f"target topic {topic} holds up to {plural(held, 'record')} now{doubled}")
    return warnings


def _first_rows(store: Store, range_: UnitRange, count: int) -> list[Row]:
    blocks = (step.block for step in read_range(store, range_) if step.block is not None)
    return list(islice((row for block in blocks for row in rows(block, str(range_.source))), count))


def _contents(records: Sequence[Row]) -> list[tuple[object, ...]]:
    return [(row.key, row.value, row.headers) for row in records]


def warn_of_members(cluster: Cluster, groups: Sequence[PlannedGroup]) -> list[str]:
    """Warnings of groups on the target that have members now: a restore would leave these groups alone."""
    members, unknown = cluster.groups.members(g.target for g in groups)
    live = [
        f"group {group} has {live} on the target now and would be left alone: stop it, give it a new name with "
        "--map-group, or restore no group with --no-groups"
        for group, live in sorted(members.items())
        if live
    ]
    return live + [f"group {g}: its members are not known: {why}" for g, why in sorted(unknown.items())]


def check_segments(store: Store, partitions: Iterable[Sequence[Segment]]) -> None:
    """Raise `RefusedError` naming every records object that is not there in its size. Folders are listed side by
    side."""
    folders: defaultdict[str, list[Sequence[Segment]]] = defaultdict(list)
    for segments in partitions:
        ((key,),) = rows_of((segments.checked() if isinstance(segments, Segments) else segments)[:1], "key")
        folders[key.rpartition("/")[0] + "/"].append(segments)

    def check(folder: str) -> tuple[dict[str, int], dict[str, int]]:
        listed = (entry for entry in store.list(folder) if not entry.key.endswith("_index"))
        return unpaired(listed, due_in_order(folders[folder], indexes=False))

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


def check_still_there(cluster: Cluster, state: Store, plan: RestorePlan) -> None:
    """Raise `MismatchError` if a topic of a finished restore, or one of its records, is no longer in the target."""
    there = cluster.topics(t.target for t in plan.topics)
    for topic in plan.topics:
        existing = there.get(topic.target)
        if existing is None or len(existing.partitions) < topic.partitions:
            problem = "is not in the target" if existing is None else "has fewer partitions than it had"
            raise MismatchError(f"topic {topic.target} of finished restore {plan.restore_id} {problem}", _ANOTHER)
    runs = runs_by_partition(finished_restore(state, plan.restore_id)[1])
    starts, ends = cluster.log_starts(runs), cluster.log_ends(runs, "read_uncommitted")
    for tp, (_, target, count) in runs.items():
        first, end = int(target.min()), int(np.max(target + count))
        if starts[tp] > first or ends[tp] < end:
            raise MismatchError(
                f"finished restore {plan.restore_id} put records at offsets {first} to {end} (exclusive) of {tp}, "
                f"which has {starts[tp]} to {ends[tp]} now",
                _ANOTHER,
            )
