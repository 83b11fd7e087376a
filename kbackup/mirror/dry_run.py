"""Plan a round of a flow, without changing anything."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive, open_archive
from kbackup.errors import NoArchiveError
from kbackup.kafka.client import Properties
from kbackup.kafka.control.cluster import Cluster
from kbackup.metadata.entities import Acl
from kbackup.mirror.apply.pending import check_origin, read_positions
from kbackup.mirror.flow import AppliedPosition, Flow, RemoteTopic, read_flow_status
from kbackup.mirror.flow_map import read_flow
from kbackup.mirror.forecast import Forecast
from kbackup.mirror.internal import InternalNames, InternalTopic, InternalTopics, refused_internal_topics
from kbackup.mirror.settings import ConfigsReport, sync_acls, sync_configs, sync_topics
from kbackup.mirror.topics import SkippedTopic, SourceTopic, plan_topics, topics_of_cluster, topics_of_point
from kbackup.spark.tasks import Spark
from kbackup.store.base import Store
from kbackup.types import TopicPartition


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
    `grown`, `configs` and `acls` are the changes of the target; None if the target was not read. `held_back` says by
    remote topic why the round would hold its records back, `problems` what would end it."""

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
    held_back: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def dry_run(
    flow: Flow, store: Store, state: Store, target: Cluster, heartbeats: Iterable[Flow], spark: Spark
) -> DryRun:
    """Plan a round of the flow, and ask the target what the round would ask. `state` is where the flow keeps its state.
    `spark` is called where many records must be read to know whether the target takes them.
    `heartbeats` are the pairs of clusters whose heartbeats the take half writes to the flow's source. `NoArchiveError`
    if the archive has no restore point and the source can't be reached, `MismatchError` if the flow was begun from
    another archive or onto another cluster."""
    seen = _source_of(flow, store)
    existing = set(target.topic_names())
    plan = plan_topics(flow, seen.topics, existing)
    made = sync_topics(flow, plan.topics, target, dry_run=True)
    held_back = dict(made.refused)
    if seen.archive is not None and seen.point is not None:
        positions = _applied_positions(flow, seen.archive, state, target)
        forecast = Forecast(flow, seen.archive, seen.point, target, positions, spark)
        served = [topic for topic in plan.topics if topic.remote not in made.refused]
        held_back |= forecast.refusals(served, existing)
    # Only of topics that are there: a new one is created with its configs.
    there = [topic for topic in plan.topics if topic.remote in existing]
    configs = ConfigsReport({}, {})
    if flow.sync_topic_configs.enabled:
        configs = sync_configs(flow, there, target, dry_run=True)
    acls = seen.acls if flow.sync_topic_acls.enabled else None
    rules = sync_acls(flow, acls, target, dry_run=True)
    internal = InternalTopics(flow, target)
    internal_to_create: list[InternalTopic] = []
    for topic in internal.names.written():
        if not topic.in_source and topic.name not in existing:
            internal_to_create.append(topic)
    remote_to_create: list[InternalTopic] = []
    for planned in plan.topics:
        if planned.remote not in existing:
            remote_to_create.append(InternalTopic(planned.remote, flow.replication_factor))
    _, brokers = target.connect()
    warnings = list(internal.warnings)
    warnings += factor_warnings(flow.target, brokers, remote_to_create + internal_to_create)
    for remote, why in configs.refused.items():
        warnings.append(f"configs of {remote} would be refused: {why}")
    warnings += _held_back_before(flow, state, held_back)
    restore_point = seen.point.number if seen.point is not None else None
    return DryRun(
        flow=flow.name,
        archive=store.url,
        restore_point=restore_point,
        topics=plan.topics,
        skipped=plan.skipped,
        internal=_internal(flow, internal.names, heartbeats, target),
        created=made.created,
        grown=made.grown,
        configs=configs.changed,
        acls=rules.created,
        held_back=held_back,
        problems=refused_internal_topics(target, internal_to_create),
        warnings=tuple(warnings),
    )


def _applied_positions(
    flow: Flow, archive: Archive, state: Store, target: Cluster
) -> Mapping[TopicPartition, AppliedPosition]:
    """Return how far the flow is. `MismatchError` if a round would refuse the archive or the target."""
    names = (flow.source, flow.target)
    positions = read_positions(target, *names)
    cluster_id, _ = target.connect()
    check_origin(flow, read_flow(state, *names), archive.info.id, cluster_id, positions, state)
    return {tp: noted.position for tp, noted in positions.items()}


def _held_back_before(flow: Flow, state: Store, known: Collection[str]) -> list[str]:
    """Return a warning for each topic that the flow's last round held back, unless its reason is `known` anyway."""
    status = read_flow_status(state, flow.source, flow.target)
    warnings: list[str] = []
    for topic in status.topics if status is not None else ():
        if topic.held_back and topic.remote not in known:
            warnings.append(f"topic {topic.remote} was held back in the last round: {topic.held_back}")
    return warnings


def factor_warnings(cluster: str, brokers: int, topics: Iterable[InternalTopic]) -> list[str]:
    """Return a warning for each key that asks for more replicas of `topics` than the cluster has brokers."""
    warnings: list[str] = []
    for topic in topics:
        key, factor = topic.factor_key, topic.replication_factor
        warning = f"{key} is {factor}, and cluster {cluster} has fewer brokers: set {key} to {brokers} or less"
        if factor > brokers and warning not in warnings:  # several topics have one key
            warnings.append(warning)
    return warnings


def dry_run_of_take(flow: Flow, store: Store, heartbeats: Iterable[Flow]) -> DryRun:
    """Plan the take half of the flow. Reads the source, and not the target."""
    source = _connected(flow.client("source"))
    plan = plan_topics(flow, topics_of_cluster(source))
    has_syncs_in_source = flow.emit_offset_syncs and flow.offset_syncs_location == "source"
    names = InternalNames(flow, has_syncs_in_source)
    internal = _internal(flow, names, heartbeats, None)
    return DryRun(flow.name, store.url, None, plan.topics, plan.skipped, internal)


def _internal(
    flow: Flow, names: InternalNames, heartbeats: Iterable[Flow], target: Cluster | None
) -> tuple[PlannedInternalTopic, ...]:
    """Return the internal topics of the apply half, and the internal topics that the take half writes."""
    planned: list[tuple[Literal["take", "apply"], InternalTopic]] = [("apply", topic) for topic in names.written()]
    for pair in heartbeats:
        for topic in InternalNames(pair, False).written():
            planned.append(("take", replace(topic, in_source=True)))
    in_source: set[str] | None = None
    if any(topic.in_source for _, topic in planned):
        source = _connected(flow.client("source"))
        in_source = set(source.topic_names())
    in_target: set[str] | None = None
    if target is not None:
        in_target = set(target.topic_names())
    topics: list[PlannedInternalTopic] = []
    # Several pairs write to one topic of heartbeats: it is shown once.
    for half, topic in dict.fromkeys(planned):
        existing = in_source if topic.in_source else in_target
        exists = topic.name in existing if existing is not None else None
        cluster = flow.source if topic.in_source else flow.target
        topics.append(PlannedInternalTopic(topic.name, cluster, half, exists))
    return tuple(topics)


@dataclass(frozen=True)
class _Seen:
    """The topics and ACLs of the source, as its archive has them; where that has no restore point (`archive` None), as
    they are now."""

    archive: Archive | None
    point: Manifest | None
    topics: list[SourceTopic]
    acls: tuple[Acl, ...] | None


def _source_of(flow: Flow, store: Store) -> _Seen:
    """Return what a round would mirror, from the archive, else from the source."""
    try:
        archive = open_archive(store)
        point = archive.restore_point("latest")
    except NoArchiveError as error:
        if flow.source_properties is None:
            raise NoArchiveError(
                error.message, f"set {flow.source}.bootstrap.servers to plan from the source, or back it up first"
            ) from error
        source = _connected(flow.source_properties)
        return _Seen(None, None, topics_of_cluster(source), None)
    metadata = archive.metadata(point)
    return _Seen(archive, point, topics_of_point(point, metadata), metadata.acls)


def _connected(properties: Properties) -> Cluster:
    cluster = Cluster(properties, "source")
    cluster.connect()
    return cluster
