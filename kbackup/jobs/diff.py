"""Compare a restore point with another one or with a cluster as it is: topics, offsets, groups and settings.

Entries are sorted by name. Parts that one side does not know are reported as not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from operator import attrgetter
from typing import Any, Literal

from msgspec.structs import replace

from kbackup.archive.models import Groups, Manifest, Metadata, Schemas, TopicState
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.archive.reader import Archive
from kbackup.archive.secrets import without_secrets
from kbackup.errors import ClusterError
from kbackup.jobs import capture
from kbackup.jobs.metadata import merge
from kbackup.jobs.schemas.plan import content_digest
from kbackup.jobs.settings.plan import entity_words
from kbackup.kafka.client import Properties
from kbackup.kafka.control.cluster import Cluster
from kbackup.metadata.differences import (
    ChangeKind,
    broker_config_values,
    changed_values,
    client_metrics_values,
    group_config_values,
    pairs,
    quota_values,
)
from kbackup.metadata.entities import (
    LABELS,
    Acl,
    BrokerConfig,
    ClientMetrics,
    ClientQuota,
    DelegationToken,
    Feature,
    GroupConfig,
    MetadataPartName,
    ScramUser,
    TopicMetadata,
    reason_for,
)
from kbackup.schemas.base import context_of
from kbackup.util.text import join_names
from kbackup.util.times import now, time_text

Values = Mapping[tuple[str, str], str | None]  # values by owner and name; None for a sensitive one.


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic of one side. `id` is empty if the broker has none, and `incarnation` is None for a live topic.
    `partitions` has the start and the end of each log; in a restore point, the end is where the archive ends. `configs`
    and `replication_factor` are None if they are unknown."""

    id: str
    incarnation: int | None
    partitions: Mapping[int, tuple[int, int]]
    replication_factor: int | None
    configs: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class DiffView:
    """One side of a comparison: a restore point, or a cluster as it is.

    `groups` is group -> (topic, partition) -> committed offset. `settings` has each part of `Diff` that consists of
    values, by owner and name. A part is None if it is unknown; the reason is in `unknown`. `all_topics` and
    `all_groups` are the names that there are, whatever is selected of them.
    """

    name: str
    cluster_id: str
    topics: Mapping[str, TopicView]
    groups: Mapping[str, Mapping[tuple[str, int], int]]
    acls: frozenset[Acl] | None = None
    settings: Mapping[str, Values | None] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    all_topics: frozenset[str] = frozenset()
    all_groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Value:
    """A value that differs. `before` and `after` are None if the value is not set, or is sensitive: `change` tells
    which."""

    owner: str
    name: str
    change: ChangeKind
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class TopicDiff:
    """A topic that differs. `recreated` means another topic under the same name: its offsets are not compared. Numbers
    of partitions and replicas are None if the topic isn't there, or if they are unknown."""

    topic: str
    change: Literal["appeared", "gone", "recreated", "changed"]
    partitions: tuple[int | None, int | None]
    replication: tuple[int | None, int | None]
    configs: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class OffsetDiff:
    """A partition whose log moved: its start and end, each before and after. `added` offsets are new; a negative number
    means that the log was cut. A partition that appeared was empty before."""

    topic: str
    partition: int
    start: tuple[int, int]
    end: tuple[int, int]
    added: int


@dataclass(frozen=True, slots=True)
class Move:
    """A committed offset that is another one now. `before` or `after` is None if the group had none in the
    partition."""

    topic: str
    partition: int
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True)
class GroupDiff:
    """`moved` are the partitions whose committed offset is another one now."""

    group: str
    change: ChangeKind
    moved: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class AclDiff:
    change: Literal["appeared", "gone"]
    acl: Acl


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences from `a` to `b`. `same` is true if nothing that was compared is different. `not_compared` has the
    parts that were left out, each with the reason."""

    a: str
    b: str
    same: bool
    topics: tuple[TopicDiff, ...]
    offsets: tuple[OffsetDiff, ...]
    groups: tuple[GroupDiff, ...]
    acls: tuple[AclDiff, ...]
    users: tuple[Value, ...]
    broker_configs: tuple[Value, ...]
    group_configs: tuple[Value, ...]
    quotas: tuple[Value, ...]
    tokens: tuple[Value, ...]
    client_metrics: tuple[Value, ...]
    features: tuple[Value, ...]
    schemas: tuple[Value, ...]
    not_compared: dict[str, str]


# Restore points and live clusters as views that can be compared.


def point_view(archive: Archive, point: Manifest, topics: Selection, groups: Selection) -> DiffView:
    """Return the view of a restore point. Topics that its run did not capture are shown as of the run that captured
    them last."""
    existing = [topic.name for topic in point.topics if topic.state != "deleted"]
    selected = set(topics.topics(existing))
    states = [topic for topic in point.topics if topic.name in selected]
    metadata = {point.number: archive.metadata(point.number)}
    # The captures that groups are taken from, each with the topics whose offsets are. Groups that are asked for are
    # looked for in the restore point's own capture, even if it has none of the topics.
    captured: dict[int, set[str]] = {point.number: set()} if groups.include else {}
    for state in states:
        captured.setdefault(state.captured, set()).add(state.name)
        if state.captured not in metadata:
            metadata[state.captured] = archive.metadata(state.captured)
    schemas = archive.schemas(point)
    views = _topic_views(states, metadata)
    names_of_groups: set[str] = set()
    captures: list[tuple[Groups, set[str]]] = []
    for number, names in captured.items():
        document = archive.groups(number)
        captures.append((document, names))
        names_of_groups.update(group.group for group in document.groups)
        names_of_groups.update(document.not_carried)
    view = _view(
        name=f"restore point {point.number}",
        metadata=metadata[point.number],
        topics=views,
        captured=captures,
        selection=groups,
        all_topics=existing,
        all_groups=names_of_groups,
    )
    of_schemas = _schema_values(schemas) if schemas is not None else None
    return replace_fields(view, settings={**view.settings, "schemas": of_schemas})


def _topic_views(states: Sequence[TopicState], metadata: Mapping[int, Metadata]) -> dict[str, TopicView]:
    """Return topics of a restore point by name, with the configs of the capture that each topic is of."""
    known: dict[int, dict[str, TopicMetadata]] = {}
    for number, document in metadata.items():
        known[number] = {topic.name: topic for topic in document.topics}
    views: dict[str, TopicView] = {}
    for state in states:
        partitions = {p.partition: (p.log_start, p.end) for p in state.partitions}
        view = TopicView(state.id, state.incarnation, partitions, replication_factor=None, configs=None)
        # A folder of the Java tool, or a repair without documents, has topics without settings.
        captured_as = known[state.captured].get(state.name)
        if captured_as is not None:
            replication_factor = captured_as.replication_factor
            view = replace_fields(view, replication_factor=replication_factor, configs=captured_as.configs)
        views[state.name] = view
    return views


def _schema_values(schemas: Schemas, kept: Container[str] | None = None) -> Values:
    """Return the versions that the registry had, and what was set there. With `kept`, leave out all other subjects;
    what is set for a whole context stays."""
    values: dict[tuple[str, str], str | None] = {}
    for version in schemas.versions:
        if version.state == "gone" or (kept is not None and version.subject not in kept):
            continue
        text = content_digest(version)[:8]
        key = (version.subject, f"version {version.version}")
        values[key] = f"id {version.id}, {version.type}, {version.state}, text {text}"
    for each in schemas.settings:
        is_of_context = each.subject == context_of(each.subject)
        if kept is not None and not is_of_context and each.subject not in kept:
            continue
        owner = each.subject or "all subjects"
        named = {**(each.config or {}), "mode": each.mode}
        for name, value in named.items():
            if value is not None:
                values[owner, name] = str(value)
    return values


def live_view(properties: Properties, role: str, topics: Selection, groups: Selection, isolation: str) -> DiffView:
    """Return the cluster as a backup would find it now."""
    cluster = Cluster(properties, role)
    cluster_id, brokers = cluster.connect()
    name = f"{role} cluster {cluster_id}"
    names = cluster.topic_names()
    selected = capture.topics_with_leaders(cluster, topics.topics(names))
    captured = capture.groups(cluster, groups, set(selected), later=True)
    all_groups: list[str] = []
    if groups.include:
        listed, _ = cluster.groups.listed()
        all_groups = [group.group for group in listed]
    live = capture.live_topics(cluster, selected, isolation)
    offline = capture.offline_partitions(live)
    if offline:
        # Their ends are unknown: a comparison without them would show topics as the same that are not.
        raise ClusterError(f"{name} has partitions without a leader: {join_names(offline, 5)}", "start their brokers")
    names_of_captured = [group.group for group in captured.groups]
    reading = capture.read_brokers(cluster, selected, cluster_id, names_of_captured)
    metadata = merge([reading], now(), brokers).metadata
    known = {topic.name: topic for topic in metadata.topics}
    views: dict[str, TopicView] = {}
    for topic in live:
        ends = {number: (p.start, p.end) for number, p in topic.partitions.items()}
        captured_as = known[topic.name]
        views[topic.name] = TopicView(topic.id, None, ends, captured_as.replication_factor, captured_as.configs)
    return _view(
        name=name,
        metadata=metadata,
        topics=views,
        captured=[(captured, set(selected))],
        selection=groups,
        all_topics=names,
        all_groups=all_groups,
    )


def check_selections(views: Sequence[DiffView], topics: Selection, groups: Selection) -> None:
    """Raise `UsageError` for a selection that matches nothing in any of `views`."""
    names = [view.name for view in views]
    where = f"in {' or '.join(names)}"
    hint = "see 'kbackup info'"
    all_topics = frozenset[str]().union(*(view.all_topics for view in views))
    all_groups = frozenset[str]().union(*(view.all_groups for view in views))
    check_selection(topics, "topic", all_topics, where, hint)
    check_selection(groups, "group", all_groups, where, hint)


def _view(
    name: str,
    metadata: Metadata,
    topics: dict[str, TopicView],
    captured: Iterable[tuple[Groups, set[str]]],
    selection: Selection,
    all_topics: Iterable[str],
    all_groups: Iterable[str],
) -> DiffView:
    """Return the view of a side. `captured` are captures of groups, each with the topics whose offsets are taken from
    it."""
    groups: dict[str, dict[tuple[str, int], int]] = {}
    for document, names in captured:
        for group in document.groups:
            offsets = {(o.topic, o.partition): o.offset for o in group.offsets if o.topic in names}
            if offsets and selection.matches(group.group):
                groups.setdefault(group.group, {}).update(offsets)
    metadata = without_secrets(metadata)
    configs = metadata.group_configs
    if configs is not None:
        selected = [config for config in configs if selection.matches(config.group)]
        metadata = replace(metadata, group_configs=tuple(selected))
    settings: dict[str, Values | None] = {}
    for of_diff, (part, values) in _SETTINGS.items():
        entities = getattr(metadata, part)
        settings[of_diff] = None if entities is None else values(entities)
    unknown: dict[str, str] = {}
    for part in _COMPARED:
        if getattr(metadata, part) is None:
            reason = reason_for(part, metadata.not_carried)
            unknown[LABELS[part]] = reason or "an older version of kbackup did not capture them"
    # a group that has configs may have no offsets
    with_configs = {config.group for config in configs or ()}
    return DiffView(
        name=name,
        cluster_id=metadata.cluster_id,
        topics=topics,
        groups=groups,
        acls=None if metadata.acls is None else frozenset(metadata.acls),
        settings=settings,
        unknown=unknown,
        all_topics=frozenset(all_topics),
        all_groups=frozenset(all_groups) | with_configs,
    )


# Each part of `Diff` that consists of values, by words for what they are set on.


def _users(users: Iterable[ScramUser]) -> Values:
    return {(user.user, user.mechanism): f"{user.iterations} iterations" for user in users}


def _broker_configs(configs: Iterable[BrokerConfig]) -> Values:
    named: dict[tuple[str, str], str | None] = {}
    for (broker, name), value in broker_config_values(configs).items():
        owner = "all brokers" if broker is None else f"broker {broker}"
        named[owner, name] = value
    return named


def _group_configs(configs: Iterable[GroupConfig]) -> Values:
    return group_config_values(configs)


def _quotas(quotas: Iterable[ClientQuota]) -> Values:
    named: dict[tuple[str, str], str | None] = {}
    for (entity, name), value in quota_values(quotas).items():
        named[entity_words(dict(entity)), name] = f"{value:.15g}"
    return named


def _tokens(tokens: Iterable[DelegationToken]) -> Values:
    named: dict[tuple[str, str], str | None] = {}
    for token in tokens:
        renewers = ", ".join(token.renewers) or token.owner
        named[token.owner, token.id] = f"expires {time_text(token.expires_at)}, renewed by {renewers}"
    return named


def _client_metrics(subscriptions: Iterable[ClientMetrics]) -> Values:
    return client_metrics_values(subscriptions)


def _features(features: Iterable[Feature]) -> Values:
    return {("cluster", feature.name): str(feature.level) for feature in features}


_SETTINGS: dict[str, tuple[MetadataPartName, Callable[[Any], Values]]] = {
    "users": ("scram_users", _users),
    "broker_configs": ("broker_configs", _broker_configs),
    "group_configs": ("group_configs", _group_configs),
    "quotas": ("client_quotas", _quotas),
    "tokens": ("delegation_tokens", _tokens),
    "client_metrics": ("client_metrics", _client_metrics),
    "features": ("features", _features),
}
"""By part of `Diff`: the part of the metadata, and the values of its entities."""

_COMPARED: tuple[MetadataPartName, ...] = ("acls", *(part for part, _ in _SETTINGS.values()))


# Compute the differences. Pure.


@dataclass(frozen=True, slots=True)
class SchemasDiff:
    """The differences from `a` to `b`. `other_subjects` counts the subjects that are not compared: a restore point that
    kept only what its records used may have left them out."""

    a: str
    b: str
    same: bool
    schemas: tuple[Value, ...]
    other_subjects: int


def diff_schemas(a: str, b: str, old: Schemas, new: Schemas) -> SchemasDiff:
    """Compare the schemas of two restore points, or of a restore point and a registry as it is."""
    subjects: set[str] = set()
    used: set[str] = set()
    for side in (old, new):
        own = {version.subject for version in side.versions}
        subjects |= own
        if side.kept == "used":
            used |= own
    is_partial = "used" in (old.kept, new.kept)
    kept = used if is_partial else subjects
    changed = _values(_schema_values(old, kept), _schema_values(new, kept))
    return SchemasDiff(a, b, not changed, changed, len(subjects - kept))


def diff(a: DiffView, b: DiffView) -> Diff:
    """Compare two views."""
    one_cluster = a.cluster_id == b.cluster_id
    made_anew: set[str] = set()
    for name, old, new in pairs(a.topics, b.topics):
        if old is not None and new is not None and _recreated(old, new, one_cluster):
            made_anew.add(name)
    unknown: dict[str, str] = {}
    for view in (a, b):
        for what, why in view.unknown.items():
            unknown[what] = f"{view.name}: {why}"
    if not one_cluster:
        unknown["topic ids"] = "these are two clusters"
    without = [view.name for view in (a, b) if view.settings.get("schemas") is None]
    if len(without) == 1:
        unknown["schemas"] = f"{without[0]} has none; a live registry: kbackup schemas diff"
    topics = _topics(a, b, made_anew, unknown)
    offsets = _offsets(a, b, made_anew)
    groups = _groups(a, b)
    changes: dict[str, Any] = {"topics": tuple(topics), "offsets": tuple(offsets), "groups": tuple(groups)}
    changes["acls"] = _acls(a.acls, b.acls)
    for name in (*_SETTINGS, "schemas"):
        changes[name] = _values(a.settings.get(name), b.settings.get(name))
    same = not any(changes.values())
    return Diff(a=a.name, b=b.name, same=same, not_compared=unknown, **changes)


def _recreated(old: TopicView, new: TopicView, one_cluster: bool) -> bool:
    """Return whether the topic is another one under the same name. Ids are compared within one cluster only."""
    if one_cluster and old.id and new.id and old.id != new.id:
        return True
    return None not in (old.incarnation, new.incarnation) and old.incarnation != new.incarnation


def _topics(a: DiffView, b: DiffView, made_anew: set[str], unknown: dict[str, str]) -> Iterator[TopicDiff]:
    """Yield the topics that differ. Topics whose configs are unknown on one side are added to `unknown`."""
    for name, old, new in pairs(a.topics, b.topics):
        partitions = (_partitions_of(old), _partitions_of(new))
        replication = (_replication_of(old), _replication_of(new))
        if old is None or new is None:
            yield TopicDiff(name, "appeared" if old is None else "gone", partitions, replication, ())
            continue
        configs: tuple[Value, ...] = ()
        if old.configs is None or new.configs is None:
            unknown[f"configs of topic {name}"] = "one side does not know them"
        else:
            changed = changed_values(old.configs, new.configs)
            configs = tuple(Value(name, each.key, each.kind, each.before, each.after) for each in changed)
        changed_replication = None not in replication and replication[0] != replication[1]
        if name in made_anew:
            yield TopicDiff(name, "recreated", partitions, replication, configs)
        elif configs or partitions[0] != partitions[1] or changed_replication:
            yield TopicDiff(name, "changed", partitions, replication, configs)


def _offsets(a: DiffView, b: DiffView, made_anew: set[str]) -> Iterator[OffsetDiff]:
    """Yield the partitions whose log moved. A topic that came or went, or that is another one, has no offsets that
    could have moved."""
    for topic in changed_values(a.topics, b.topics):
        old, new = topic.before, topic.after
        if old is None or new is None or topic.key in made_anew:
            continue
        for moved in changed_values(old.partitions, new.partitions):
            now = moved.after
            if now is None:
                continue  # a topic can't lose partitions: that shows as another topic
            was = moved.before or (now[0], now[0])  # a partition that appeared was empty before
            if was != now:
                start = (was[0], now[0])
                end = (was[1], now[1])
                yield OffsetDiff(topic.key, moved.key, start, end, now[1] - was[1])


def _groups(a: DiffView, b: DiffView) -> Iterator[GroupDiff]:
    for group in changed_values(a.groups, b.groups):
        offsets = changed_values(group.before or {}, group.after or {})
        moved = tuple(Move(*offset.key, offset.before, offset.after) for offset in offsets)
        yield GroupDiff(group.key, group.kind, moved)


def _acls(old: frozenset[Acl] | None, new: frozenset[Acl] | None) -> tuple[AclDiff, ...]:
    """Return the ACLs that only one side has: an ACL has no value that could change."""
    if old is None or new is None:
        return ()
    diffs: list[AclDiff] = []
    for each in changed_values(dict.fromkeys(old), dict.fromkeys(new), _acl_order):
        kind: Literal["appeared", "gone"] = "appeared" if each.kind == "appeared" else "gone"
        diffs.append(AclDiff(kind, each.key))
    return tuple(diffs)


_acl_order = attrgetter("resource", "name", "pattern", "principal", "host", "permission", "operation")


def _values(old: Values | None, new: Values | None) -> tuple[Value, ...]:
    """Return the values that differ; none if one side is unknown."""
    if old is None or new is None:
        return ()
    changed = changed_values(old, new)
    return tuple(Value(*each.key, each.kind, each.before, each.after) for each in changed)


def _partitions_of(topic: TopicView | None) -> int | None:
    return len(topic.partitions) if topic is not None else None


def _replication_of(topic: TopicView | None) -> int | None:
    return topic.replication_factor if topic is not None else None
