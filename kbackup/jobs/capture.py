"""What a backup knows before it reads records: the source cluster, and the restore point that it goes on from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from kbackup.archive import layout
from kbackup.archive.catalog.documents import IsolationLevel
from kbackup.archive.models import SHARE, Deletions, Group, Groups, Manifest, Metadata, Schemas
from kbackup.archive.query.selection import Selection, check_selection, is_internal
from kbackup.archive.reader import Archive
from kbackup.archive.run import WritingRun
from kbackup.config.models import Backup
from kbackup.jobs.groups.job import as_stored
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
    `whole_within` are the seconds that open transactions get to end; None: each partition ends by itself."""

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
    return SourceCluster(
        cluster,
        cluster_id,
        brokers,
        Sources.of(properties),
        options.isolation_level,
        options.poll_timeout_seconds,
        options.transaction_wait_seconds if options.transactions == "whole" else None,
    )


@dataclass
class BackupSession:
    """What a backup goes on from: its run, and the newest restore point with its groups, settings and schemas, None
    without one. A commit moves it on. `compared` has the leader epochs under which logs were compared with the archive:
    a leader appends to its log and never cuts it; `given_up` the last stable offsets at which a restore point stopped
    waiting for transactions; `looks` the times at which the archive had all of a compacted partition; `rechecked` the
    partitions whose whole log was compared with the archive, or that failed; `deletions` the records that a restore of
    the newest restore point leaves out."""

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
    """A partition as the cluster shows it: log start, log end to archive (last stable offset or high
    watermark), the high watermark, and the leader epoch (None: unknown). `held` below the end is left to the next
    restore point."""

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
    return tuple(str(TopicPartition(topic.name, number)) for topic in selected for number in topic.offline)


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
        """Return what a part has, None if that can't be known; the reason is then among `not_carried`."""
        if not isinstance(answer, Unavailable):
            return tuple(answer)
        not_carried.append(not_carried_entry(part, answer.reason, answer.why))
        return () if answer.reason == "not there" else None

    listed = cluster.security.acls()
    rules, strange = (listed, []) if isinstance(listed, Unavailable) else listed
    # In this order are the parts that are not carried in the restore point.
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
    """Return warnings of settings that were denied or failed; a cluster without authorizer is no reason to warn."""
    failed: dict[str, list[str]] = {}
    for n in metadata.not_carried:
        if n.reason == "failed":
            failed.setdefault(n.why, []).append(n.what)
    warnings = [f"{', '.join(names)} are not in this restore point: {why}" for why, names in failed.items()]
    if denied := ", ".join(n.what for n in metadata.not_carried if n.reason == "denied"):
        warnings.append(
            f"not in this restore point, since its user may not describe them: {denied}; "
            "to see which rights it lacks: kbackup check"
        )
    return warnings


# Asking the source cluster what a restore point needs to know of it.

Offline = Collection[TopicPartition]
ABSENT = "the source cluster has no such group"
_SYNTAX = "check the name; regular expressions go between slashes"


def discover(
    cluster: Cluster, selection: Selection, parent: Manifest | None, later: bool = False, offline: Offline = ()
) -> tuple[dict[str, Topic], list[str]]:
    """Return the selected topics by name, and the names of all there are. `UsageError` for a selection that matches
    neither a topic of the cluster nor one of the archive: a typing error would otherwise be a backup that holds
    nothing. `later`: topics that regular expressions match may come later. `offline`: as in `topics_with_leaders`."""
    existing = cluster.topic_names()
    known = {*existing, *(t.name for t in parent.topics)} if parent is not None else set(existing)
    asked = selection.only_names if later else selection
    check_selection(asked, "topic", known, "in the source cluster", _SYNTAX)
    return topics_with_leaders(cluster, selection.topics(existing), offline), existing


def topics_with_leaders(cluster: Cluster, names: Iterable[str], offline: Offline = ()) -> dict[str, Topic]:
    """Describe topics. Partitions without a leader get `REQUEST_SECONDS` for an election, but for those of `offline`,
    which had none before."""
    topics = cluster.topics(names)
    for _ in attempts(REQUEST_SECONDS, 1.0):
        if not (due := [t.name for t in topics.values() if any((t.name, p) not in offline for p in t.offline)]):
            break
        topics |= cluster.topics(due)
    return topics


def is_captured(selection: Selection, group: str) -> bool:
    """Return whether a group is selected, and none of kbackup's own."""
    return selection.matches(group) and not layout.is_own_group(group)


def groups(
    cluster: Cluster, selection: Selection, topics: set[str], before: Groups | None = None, later: bool = False
) -> Groups:
    """Capture the selected groups' committed offsets of `topics`, and the reasons of groups that can't be read.
    `UsageError` for a selection that matches no group. A group may have been deleted since the capture `before`, and
    with `later` it may be created later: its name (or the regular expression) is then among the groups not carried."""

    selected = partial(is_captured, selection)
    listed, failed = cluster.groups.listed()
    names = {*(g.group for g in listed), *failed}
    unmatched = selection.unmatched("group", names)
    if unmatched and not later:
        known = {*names, *(g.group for g in before.groups)} if before is not None else names
        carried = set(before.not_carried) if before is not None else set()  # also entries of a selection
        new = Selection(tuple(e for e in selection.include if e not in carried), selection.exclude)
        check_selection(new, "group", known, "in the source cluster", _SYNTAX)
    absent = dict.fromkeys(unmatched, ABSENT)
    chosen = {g.group: g for g in listed if selected(g.group)}
    committed, refused = cluster.groups.committed(sorted(chosen), {g.group for g in listed if g.type == SHARE})
    not_carried = (
        {name: why for name, why in failed.items() if name.startswith("(") or selected(name)} | absent | refused
    )
    captured: list[Group] = []
    for name, offsets in sorted(committed.items()):
        if ours := as_stored(c for c in offsets if c.tp.topic in topics):
            kind = chosen[name]
            captured.append(Group(group=name, type=kind.type, state=kind.state, offsets=ours))
    return Groups(captured_at=now(), groups=tuple(captured), not_carried=not_carried)


def live_topics(cluster: Cluster, topics: Mapping[str, Topic], isolation: str) -> list[LiveTopic]:
    """Return the start and end of each partition that has a leader. The log starts are read last: records that
    retention deletes meanwhile then are a loss."""
    online = {t.name: [p for p in t.partitions if p not in t.offline] for t in topics.values()}
    every = [TopicPartition(name, p) for name, partitions in online.items() for p in partitions]
    ends = cluster.log_ends(every, isolation) if isolation == "read_committed" else None
    highs = cluster.high_watermarks(every)
    starts = cluster.log_starts(every)

    def live(tp: TopicPartition) -> Live:
        high, epoch = highs[tp]
        return Live(starts[tp], high if ends is None else ends[tp], high, epoch)

    return [
        LiveTopic(t.name, t.id, {p: live(TopicPartition(t.name, p)) for p in online[t.name]}, t.offline)
        for _, t in sorted(topics.items())
    ]


def read_brokers(cluster: Cluster, topics: Mapping[str, Topic], cluster_id: str, groups: Iterable[str] = ()) -> Reading:
    """Return the brokers' metadata of `topics` and of the cluster, and the configs of `groups`, with their secrets."""
    configs = cluster.topic_configs(topics)
    reading = capture_settings(cluster, groups, cluster_id)
    return replace(
        reading,
        topics=tuple(
            TopicMetadata(
                name=t.name,
                id=t.id,
                partitions=len(t.partitions),
                replication_factor=t.replication_factor,
                internal=t.internal or is_internal(t.name),
                configs=configs[t.name],
                replicas=t.replicas or None,
            )
            for _, t in sorted(topics.items())
        ),
        not_carried=(*reading.not_carried, *NEVER),
    )
