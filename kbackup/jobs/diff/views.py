"""Restore points and live clusters as views that can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbackup.archive.models import Groups, Manifest, Metadata
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.archive.reader import Archive
from kbackup.archive.secrets import without_secrets
from kbackup.jobs.capture import cluster as capture
from kbackup.jobs.diff.types import TopicView, View
from kbackup.jobs.metadata.merge import merge
from kbackup.jobs.settings.changes import entity_words
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client.client import Properties
from kbackup.metadata.entities import DelegationToken, MetadataPartName, TopicMetadata
from kbackup.metadata.parts import LABELS, reason_for
from kbackup.util.times import now, time_text


def point_view(archive: Archive, point: Manifest, topics: Selection, groups: Selection) -> View:
    """A restore point. What its run did not look at is there as of the run that did."""
    wanted = set(topics.topics(t.name for t in point.topics if t.state != "deleted"))
    states = [t for t in point.topics if t.name in wanted]
    metadata = {seq: archive.metadata(seq) for seq in {point.number, *(t.captured for t in states)}}
    known = {seq: {t.name: t for t in found.topics} for seq, found in metadata.items()}
    stood: dict[str, dict[tuple[str, int], int]] = {}
    captured: dict[int, set[str]] = {point.number: set()} if groups.include else {}
    known_groups: set[str] = set()
    for t in states:
        captured.setdefault(t.captured, set()).add(t.name)
    for seq, of_run in captured.items():
        of_capture = archive.groups(seq)
        known_groups |= {g.group for g in of_capture.groups} | set(of_capture.not_carried)
        _add_groups(stood, of_capture, of_run, groups)
    views = {
        t.name: _topic_view(
            t.id,
            t.incarnation,
            {p.partition: (p.log_start, p.end) for p in t.partitions},
            known[t.captured].get(t.name),
        )
        for t in states
    }
    name = f"restore point {point.number}"
    known_topics = (t.name for t in point.topics if t.state != "deleted")
    return _view(name, metadata[point.number], views, stood, groups, (known_topics, known_groups))


def live_view(
    properties: Properties, role: str, topics: Selection, groups: Selection, isolation: str
) -> View:
    """The cluster as a backup would find it now."""
    cluster = Cluster(properties, role)
    cluster_id, brokers = cluster.connect()
    names = cluster.topic_names()
    selected = cluster.topics(topics.topics(names))
    captured = capture.groups(cluster, groups, set(selected), later=True)
    listed = [g.group for g in cluster.groups.listed()[0]] if groups.include else []
    live = capture.live_topics(cluster, selected, isolation)
    reading = capture.read_brokers(cluster, selected, cluster_id, (g.group for g in captured.groups))
    metadata = merge([reading], now(), brokers).metadata
    known = {t.name: t for t in metadata.topics}
    views = {
        t.name: _topic_view(
            t.id, None, {number: (p.start, p.end) for number, p in t.partitions.items()}, known[t.name]
        )
        for t in live
    }
    stood: dict[str, dict[tuple[str, int], int]] = {}
    _add_groups(stood, captured, set(selected), groups)
    return _view(f"{role} cluster {cluster_id}", metadata, views, stood, groups, (names, listed))


def check_selections(views: Sequence[View], topics: Selection, groups: Selection) -> None:
    """Raise `UsageError` for a selection that matches nothing in any of `views`."""
    where, hint = f"in {' or '.join(view.name for view in views)}", "see 'kbackup info'"
    check_selection(topics, "topic", {n for view in views for n in view.all_topics}, where, hint)
    check_selection(groups, "group", {n for view in views for n in view.all_groups}, where, hint)


def _topic_view(
    id: str, incarnation: int | None, partitions: dict[int, tuple[int, int]], known: TopicMetadata | None
) -> TopicView:
    if known is None:
        return TopicView(id, incarnation, partitions, None, None)
    return TopicView(id, incarnation, partitions, known.replication_factor, known.configs)


def _add_groups(
    offsets_by_group: dict[str, dict[tuple[str, int], int]],
    captured: Groups,
    topics: set[str],
    selection: Selection,
) -> None:
    for group in captured.groups:
        offsets = {(o.topic, o.partition): o.offset for o in group.offsets if o.topic in topics}
        if offsets and selection.matches(group.group):
            offsets_by_group.setdefault(group.group, {}).update(offsets)


def _view(
    name: str,
    metadata: Metadata,
    topics: dict[str, TopicView],
    groups: dict[str, dict[tuple[str, int], int]],
    selection: Selection,
    there: tuple[Iterable[str], Iterable[str]],
) -> View:
    metadata = without_secrets(metadata)
    users, brokers, configs = metadata.scram_users, metadata.broker_configs, metadata.group_configs
    quotas, tokens = metadata.client_quotas, metadata.delegation_tokens
    metrics, features = metadata.client_metrics, metadata.features
    return View(
        name=name,
        cluster_id=metadata.cluster_id,
        topics=topics,
        groups=groups,
        acls=None if metadata.acls is None else frozenset(metadata.acls),
        users=None if users is None else {(u.user, u.mechanism): u.iterations for u in users},
        broker_configs=None if brokers is None else {(_broker(c.broker), c.name): c.value for c in brokers},
        group_configs=None
        if configs is None
        else {(c.group, c.name): c.value for c in configs if selection.matches(c.group)},
        quotas=None
        if quotas is None
        else {
            (entity_words(q.entity), name): f"{value:.15g}"
            for q in quotas
            for name, value in q.quotas.items()
        },
        tokens=None if tokens is None else {(t.owner, t.id): _token_words(t) for t in tokens},
        client_metrics=None
        if metrics is None
        else {(m.name, name): value for m in metrics for name, value in m.configs.items()},
        features=None if features is None else {("cluster", f.name): str(f.level) for f in features},
        unknown=_unknown(metadata),
        all_topics=frozenset(there[0]),
        all_groups=frozenset(there[1]) | {c.group for c in configs or ()},
    )


def _token_words(token: DelegationToken) -> str:
    expires = time_text(token.expires_at)
    return f"expires {expires}, renewed by {', '.join(token.renewers) or token.owner}"


def _broker(number: int | None) -> str:
    return "all brokers" if number is None else f"broker {number}"


_COMPARED: tuple[MetadataPartName, ...] = (
    "acls",
    "scram_users",
    "broker_configs",
    "group_configs",
    "client_quotas",
    "delegation_tokens",
    "client_metrics",
    "features",
)


def _unknown(metadata: Metadata) -> dict[str, str]:
    """Why parts were not captured, by their labels."""
    return {
        LABELS[part]: reason_for(part, metadata.not_carried)
        or "an older version of kbackup did not capture them"
        for part in _COMPARED
        if getattr(metadata, part) is None
    }
