"""What a backup knows before it reads records: the source cluster, and the restore point that it goes on from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

from kbackup.archive import layout
from kbackup.archive.catalog.documents import IsolationLevel
from kbackup.archive.models import SHARE, Deletions, Group, Groups, Manifest, Metadata, Schemas
from kbackup.archive.query.selection import Selection, check_selection, is_internal
from kbackup.archive.reader import Archive
from kbackup.archive.run import WritingRun
from kbackup.config.models import Backup
from kbackup.jobs.groups.documents import as_stored
from kbackup.kafka.client import Properties
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.errors import REQUEST_SECONDS
from kbackup.kafka.control.topics import Topic
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.metadata.entities import (
    SCRAM_SECRETS,
    MetadataPartName,
    NotCarried,
    Reading,
    TopicMetadata,
    not_carried_entry,
)
from kbackup.metadata.sources import Sources
from kbackup.types import Offsets, TopicPartition
from kbackup.util.system import attempts
from kbackup.util.times import now


@dataclass(frozen=True)
class SourceCluster:
    """The cluster that a backup reads, connected; the sources of its metadata; and how its records are read.

    `whole_within` are the seconds that open transactions get to end. If it is None, transactions are not awaited: each
    partition ends by itself.
    """

    cluster: Cluster
    id: str
    brokers: int
    sources: Sources
    isolation_level: IsolationLevel
    poll_timeout: float
    whole_within: float | None = None

    @property
    def properties(self) -> Properties:
        """The properties of a Kafka client, for consumers beside `cluster`."""
        return self.sources.kafka


def connect(properties: Properties, options: Backup) -> SourceCluster:
    """Connect to the source of a backup with `options`."""
    cluster = Cluster(properties, "source")
    cluster_id, brokers = cluster.connect()
    sources = Sources.of(properties)
    whole_within = options.transaction_wait_seconds if options.transactions == "whole" else None
    return SourceCluster(
        cluster=cluster,
        id=cluster_id,
        brokers=brokers,
        sources=sources,
        isolation_level=options.isolation_level,
        poll_timeout=options.poll_timeout_seconds,
        whole_within=whole_within,
    )


@dataclass
class BackupSession:
    """What a backup continues from: its run, and the newest restore point (`head`) with its groups, settings and
    schemas. They are None if the archive has no restore point. A commit moves them to the new restore point.

    `compared` has the leader epochs under which logs were compared with the archive: a leader appends to its log and
    never cuts it. `given_up` has the last stable offsets at which a restore point stopped waiting for transactions.
    `looks` has the times at which the archive had all of a compacted partition. `rechecked` are the partitions whose
    whole log was compared with the archive, or whose comparison failed. `deletions` are the records that a restore of
    the newest restore point leaves out.
    """

    run: WritingRun
    head: Manifest | None = None
    groups: Groups | None = None
    settings: Metadata | None = None
    schemas: Schemas | None = None
    compared: dict[TopicPartition, int] = field(default_factory=dict)
    given_up: dict[TopicPartition, int] = field(default_factory=dict)
    looks: dict[TopicPartition, str] = field(default_factory=dict)
    rechecked: set[TopicPartition] = field(default_factory=set)
    deletions: Deletions | None = None

    @property
    def archive(self) -> Archive:
        return self.run.archive

    @property
    def group(self) -> str:
        """The consumer group of all readers of the run."""
        return layout.reader_group("backup", self.run.run)


@dataclass(frozen=True, slots=True)
class Live:
    """A partition as the cluster shows it.

    `start` is the log start, `end` the log end to archive (the last stable offset, or the high watermark), `high` the
    high watermark, `epoch` the leader epoch, None if it is unknown. `held` are offsets below `end` that are left to
    the next restore point.
    """

    start: int
    end: int
    high: int
    epoch: int | None = None
    held: Offsets = ()


@dataclass(frozen=True, slots=True)
class LiveTopic:
    name: str
    id: str
    partitions: Mapping[int, Live]
    offline: tuple[int, ...] = ()  # partitions without a leader


def offline_partitions(selected: Sequence[LiveTopic]) -> tuple[str, ...]:
    """Return the partitions without a leader, such as orders-0."""
    offline: list[str] = []
    for topic in selected:
        offline += [str(TopicPartition(topic.name, number)) for number in topic.offline]
    return tuple(offline)


# Capture a cluster's settings for a restore point.
#
# Settings are ACLs, SCRAM users, dynamic configs, client quotas, delegation tokens, client metrics, features and
# registrations. Settings that can't be read don't end a backup: the restore point names them, with the reason.

T = TypeVar("T")

NEVER = (NotCarried(part="scram_users", what=SCRAM_SECRETS, reason="not supported", why="brokers never tell them"),)
"""Entries that brokers never return, of metadata that brokers return otherwise."""
_STRANGE = "the client library does not know this kind of ACL"


def capture_settings(cluster: Cluster, groups: Iterable[str], cluster_id: str = "") -> Reading:
    """Read all settings from the brokers, with the secrets that they return."""
    not_carried: list[NotCarried] = []

    def carried(part: MetadataPartName, answer: Iterable[T] | Unavailable) -> tuple[T, ...] | None:
        """Return the entries of a part, None if they can't be known; the reason is then in `not_carried`."""
        if not isinstance(answer, Unavailable):
            return tuple(answer)
        not_carried.append(not_carried_entry(part, answer.reason, answer.why))
        return () if answer.reason == "not there" else None

    # The parts are read in this order: the restore point names those that it does not carry in the same order.
    listed = cluster.security.acls()
    rules, strange = (listed, []) if isinstance(listed, Unavailable) else listed
    acls = carried("acls", rules)
    users = carried("scram_users", cluster.security.users())
    broker_configs = carried("broker_configs", cluster.dynamic_configs.of_brokers())
    group_configs = carried("group_configs", cluster.dynamic_configs.of_groups(groups))
    quotas = carried("client_quotas", cluster.security.client_quotas())
    tokens = carried("delegation_tokens", cluster.security.delegation_tokens())
    metrics = carried("client_metrics", cluster.dynamic_configs.of_client_metrics())
    features = carried("features", cluster.members.features())
    registrations = carried("registrations", cluster.members.registrations())
    for acl in strange:
        not_carried.append(NotCarried(part="acls", what=f"ACL: {acl}", reason="not supported", why=_STRANGE))
    return Reading(
        source="brokers",
        cluster_id=cluster_id,
        acls=acls,
        scram_users=users,
        broker_configs=broker_configs,
        group_configs=group_configs,
        client_quotas=quotas,
        delegation_tokens=tokens,
        client_metrics=metrics,
        features=features,
        registrations=registrations,
        not_carried=tuple(not_carried),
    )


def settings_warnings(metadata: Metadata) -> list[str]:
    """Return warnings of settings that were denied or failed. A cluster without an authorizer is no reason to warn."""
    failed: dict[str, list[str]] = {}
    denied: list[str] = []
    for entry in metadata.not_carried:
        if entry.reason == "failed":
            failed.setdefault(entry.why, []).append(entry.what)
        elif entry.reason == "denied":
            denied.append(entry.what)
    warnings: list[str] = []
    for why, names in failed.items():
        warnings.append(f"{', '.join(names)} are not in this restore point: {why}")
    if denied:
        warnings.append(
            f"not in this restore point, since its user may not describe them: {', '.join(denied)}; "
            "to see which rights it lacks: kbackup check"
        )
    return warnings


# Ask the source cluster for its topics, groups and logs.

Offline = Collection[TopicPartition]
ABSENT = "the source cluster has no such group"
_SYNTAX = "check the name; regular expressions go between slashes"


def discover(
    cluster: Cluster, selection: Selection, parent: Manifest | None, later: bool = False, offline: Offline = ()
) -> tuple[dict[str, Topic], list[str]]:
    """Return the selected topics by name, and the names of all topics of the cluster.

    Raises `UsageError` for a selection that matches neither a topic of the cluster nor a topic of the archive: with a
    typing error, the backup would otherwise hold nothing. With `later`, topics that regular expressions match may be
    created later. `offline` is as in `topics_with_leaders`.
    """
    existing = cluster.topic_names()
    known = set(existing)
    if parent is not None:
        known.update(topic.name for topic in parent.topics)
    to_check = selection.only_names if later else selection
    check_selection(to_check, "topic", known, "in the source cluster", _SYNTAX)
    selected = topics_with_leaders(cluster, selection.topics(existing), offline)
    return selected, existing


def topics_with_leaders(cluster: Cluster, names: Iterable[str], offline: Offline = ()) -> dict[str, Topic]:
    """Describe topics. Partitions without a leader get `REQUEST_SECONDS` for an election. Partitions in `offline` get
    no time: they had no leader before."""

    def awaits_leader(topic: Topic) -> bool:
        return any((topic.name, number) not in offline for number in topic.offline)

    topics = cluster.topics(names)
    for _ in attempts(REQUEST_SECONDS, 1.0):
        waiting = [topic.name for topic in topics.values() if awaits_leader(topic)]
        if not waiting:
            break
        topics |= cluster.topics(waiting)
    return topics


def is_captured(selection: Selection, group: str) -> bool:
    """Return whether a group is selected. Groups of kbackup itself never are."""
    return selection.matches(group) and not layout.is_own_group(group)


def groups(
    cluster: Cluster, selection: Selection, topics: set[str], before: Groups | None = None, later: bool = False
) -> Groups:
    """Capture the committed offsets that the selected groups have in `topics`, and why groups can't be read.

    Raises `UsageError` for a selection that matches no group. A group may have been deleted since the capture `before`.
    With `later`, it may also be created later. In both cases its name, or the regular expression, is among the groups
    that are not carried.
    """
    listed, failed = cluster.groups.listed()
    names = {group.group for group in listed}
    names.update(failed)
    unmatched = selection.unmatched("group", names)
    if unmatched and not later:
        _check_groups(selection, names, before)
    chosen = {group.group: group for group in listed if is_captured(selection, group.group)}
    share_groups = {group.group for group in listed if group.type == SHARE}
    committed, refused = cluster.groups.committed(sorted(chosen), share_groups)
    # Reasons of later steps replace those of earlier ones.
    not_carried: dict[str, str] = {}
    for name, why in failed.items():
        # What begins with "(" is no group, but a broker whose groups could not be listed.
        if name.startswith("(") or is_captured(selection, name):
            not_carried[name] = why
    not_carried.update(dict.fromkeys(unmatched, ABSENT))
    not_carried.update(refused)
    captured: list[Group] = []
    for name, offsets in sorted(committed.items()):
        stored = as_stored(offset for offset in offsets if offset.tp.topic in topics)
        if stored:
            kind = chosen[name]
            captured.append(Group(group=name, type=kind.type, state=kind.state, offsets=stored))
    return Groups(captured_at=now(), groups=tuple(captured), not_carried=not_carried)


def _check_groups(selection: Selection, names: set[str], before: Groups | None) -> None:
    """Raise `UsageError` for an entry of the selection that matches none of the groups `names`, nor any group of the
    capture `before`."""
    known = set(names)
    known_unmatched: Collection[str] = ()
    if before is not None:
        known.update(group.group for group in before.groups)
        # Entries that matched nothing before are in `not_carried` as they are written in the selection.
        known_unmatched = before.not_carried
    include = tuple(entry for entry in selection.include if entry not in known_unmatched)
    to_check = Selection(include, selection.exclude)
    check_selection(to_check, "group", known, "in the source cluster", _SYNTAX)


def live_topics(cluster: Cluster, topics: Mapping[str, Topic], isolation: str) -> list[LiveTopic]:
    """Return the start and end of each partition that has a leader, by topics in the order of their names."""
    online: dict[str, list[TopicPartition]] = {}
    for topic in topics.values():
        numbers = [number for number in topic.partitions if number not in topic.offline]
        online[topic.name] = [TopicPartition(topic.name, number) for number in numbers]
    every = list(chain.from_iterable(online.values()))
    # The log starts are read last: records that retention deletes in between are then reported as a loss.
    ends = cluster.log_ends(every, isolation) if isolation == "read_committed" else None
    highs = cluster.high_watermarks(every)
    starts = cluster.log_starts(every)
    found: list[LiveTopic] = []
    for name in sorted(topics):
        topic = topics[name]
        partitions: dict[int, Live] = {}
        for tp in online[topic.name]:
            high, epoch = highs[tp]
            end = high if ends is None else ends[tp]
            partitions[tp.partition] = Live(starts[tp], end, high, epoch)
        found.append(LiveTopic(topic.name, topic.id, partitions, topic.offline))
    return found


def read_brokers(cluster: Cluster, topics: Mapping[str, Topic], cluster_id: str, groups: Iterable[str] = ()) -> Reading:
    """Return the metadata that brokers have of `topics`, of the cluster, and of the configs of `groups`. Secrets are
    included, as far as brokers return them."""
    configs = cluster.topic_configs(topics)
    reading = capture_settings(cluster, groups, cluster_id)
    captured: list[TopicMetadata] = []
    for name in sorted(topics):
        topic = topics[name]
        internal = topic.internal or is_internal(topic.name)
        entry = TopicMetadata(
            name=topic.name,
            id=topic.id,
            partitions=len(topic.partitions),
            replication_factor=topic.replication_factor,
            internal=internal,
            configs=configs[topic.name],
            replicas=topic.replicas or None,
        )
        captured.append(entry)
    return replace(reading, topics=tuple(captured), not_carried=(*reading.not_carried, *NEVER))
