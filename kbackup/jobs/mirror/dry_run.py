"""Plan a round of a flow, without changing anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from kbackup.archive.reader import open_archive
from kbackup.errors import NoArchiveError
from kbackup.jobs.mirror.flow import Flow, RemoteTopic
from kbackup.jobs.mirror.internal import InternalNames, InternalTopic, InternalTopics
from kbackup.jobs.mirror.settings import sync_acls, sync_configs, sync_topics
from kbackup.jobs.mirror.topics import (
    SkippedTopic,
    SourceTopic,
    plan_topics,
    replicated,
    topics_of_cluster,
    topics_of_point,
)
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client import Properties
from kbackup.metadata.entities import Acl
from kbackup.store.base import Store


@dataclass(frozen=True, slots=True)
class PlannedInternalTopic:
    """An internal topic, the alias of the cluster that it is in, and the half that writes it. `exists`: None where
    that cluster was not read."""

    topic: str
    cluster: str
    half: Literal["take", "apply"]
    exists: bool | None


@dataclass(frozen=True)
class DryRun:
    """The plan of a round. `restore_point` is the one that was read; None if the source was read itself. `created`,
    `grown`, `configs` and `acls` are the changes of the target; None if the target was not read."""

    flow: str
    archive: str
    restore_point: int | None
    topics: tuple[RemoteTopic, ...]
    skipped: tuple[SkippedTopic, ...]
    internal: tuple[PlannedInternalTopic, ...]
    created: tuple[str, ...] | None = None
    grown: Mapping[str, int] | None = None
    configs: Mapping[str, Mapping[str, str | None]] | None = None
    acls: tuple[str, ...] | None = None
    warnings: tuple[str, ...] = ()


def dry_run(flow: Flow, store: Store, target: Cluster, heartbeats: Iterable[Flow]) -> DryRun:
    """Plan a round of the flow. `heartbeats` are the pairs of clusters whose heartbeats the take
    half writes to the flow's source. `NoArchiveError` if the archive has no restore point and the source can't
    be reached."""
    point, topics, acls = _source_of(flow, store)
    plan = plan_topics(flow, topics, target.topic_names())
    made = sync_topics(flow, plan.topics, target, dry_run=True)
    there = [topic for topic in plan.topics if topic.remote not in made.created]
    configs = sync_configs(flow, there, target, dry_run=True).changed if flow.sync_topic_configs.enabled else {}
    rules = sync_acls(flow, acls if flow.sync_topic_acls.enabled else None, replicated(flow), target, dry_run=True)
    internal = InternalTopics(flow, target)
    existing = {*target.topic_names()}
    created = [InternalTopic(name, flow.replication_factor) for name in made.created]
    created += [t for t in internal.names.written() if not t.in_source and t.name not in existing]
    return DryRun(
        flow=flow.name,
        archive=store.url,
        restore_point=point,
        topics=plan.topics,
        skipped=plan.skipped,
        internal=_internal(flow, internal.names, heartbeats, target),
        created=made.created,
        grown=made.grown,
        configs=configs,
        acls=rules.created,
        warnings=(*internal.warnings, *factor_warnings(flow.target, target.connect()[1], created)),
    )


def factor_warnings(cluster: str, brokers: int, topics: Iterable[InternalTopic]) -> list[str]:
    """Return a warning for each key that asks for more replicas of `topics` than the cluster has brokers."""
    factors = dict.fromkeys((t.factor_key, t.replication_factor) for t in topics)
    return [
        f"{key} is {factor}, and cluster {cluster} has fewer brokers: set {key} to {brokers} or less"
        for key, factor in factors
        if factor > brokers
    ]


def dry_run_of_take(flow: Flow, store: Store, heartbeats: Iterable[Flow]) -> DryRun:
    """Plan the take half of the flow. Reads the source, and not the target."""
    plan = plan_topics(flow, topics_of_cluster(_connected(flow.client("source"))))
    names = InternalNames(flow, flow.emit_offset_syncs and flow.offset_syncs_location == "source")
    internal = _internal(flow, names, heartbeats, None)
    return DryRun(flow.name, store.url, None, plan.topics, plan.skipped, internal)


def _internal(
    flow: Flow, names: InternalNames, heartbeats: Iterable[Flow], target: Cluster | None
) -> tuple[PlannedInternalTopic, ...]:
    """Return the internal topics of the apply half, and those that the take half writes."""
    planned: list[tuple[Literal["take", "apply"], InternalTopic]] = [("apply", t) for t in names.written()]
    for pair in heartbeats:
        planned += [("take", replace(t, in_source=True)) for t in InternalNames(pair, False).written()]
    existing: dict[bool, set[str]] = {}
    if target is not None:
        existing[False] = {*target.topic_names()}
    if any(topic.in_source for _, topic in planned):
        existing[True] = {*_connected(flow.client("source")).topic_names()}
    return tuple(
        PlannedInternalTopic(
            topic.name,
            flow.source if topic.in_source else flow.target,
            half,
            topic.name in existing[topic.in_source] if topic.in_source in existing else None,
        )
        for half, topic in dict.fromkeys(planned)
    )


def _source_of(flow: Flow, store: Store) -> tuple[int | None, list[SourceTopic], tuple[Acl, ...] | None]:
    """Return (restore point, topics, ACLs), from the archive, else from the source."""
    try:
        archive = open_archive(store)
        point = archive.restore_point("latest")
    except NoArchiveError as error:
        if flow.source_properties is None:
            raise NoArchiveError(
                error.message, f"set {flow.source}.bootstrap.servers to plan from the source, or back it up first"
            ) from error
        return None, topics_of_cluster(_connected(flow.source_properties)), None
    metadata = archive.metadata(point)
    return point.number, topics_of_point(point, metadata), metadata.acls


def _connected(properties: Properties) -> Cluster:
    cluster = Cluster(properties, "source")
    cluster.connect()
    return cluster
