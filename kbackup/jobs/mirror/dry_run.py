"""What a flow would do, without doing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kbackup.archive.reader import open_archive
from kbackup.errors import NoArchiveError
from kbackup.jobs.mirror.flow import Flow, RemoteTopic
from kbackup.jobs.mirror.settings import sync_acls, sync_configs, sync_topics
from kbackup.jobs.mirror.topics import (
    SkippedTopic,
    SourceTopic,
    plan_topics,
    replicated,
    topics_of_cluster,
    topics_of_point,
)
from kbackup.kafka.admin import Cluster
from kbackup.metadata.entities import Acl
from kbackup.store.base import Store


@dataclass(frozen=True)
class DryRun:
    """`restore_point` is the one that was looked into; None where the source itself was asked. `created`, `grown`,
    `configs` and `acls` are the changes of the target."""

    flow: str
    archive: str
    restore_point: int | None
    topics: tuple[RemoteTopic, ...]
    skipped: tuple[SkippedTopic, ...]
    created: tuple[str, ...]
    grown: Mapping[str, int]
    configs: Mapping[str, Mapping[str, str | None]]
    acls: tuple[str, ...]


def dry_run(flow: Flow, store: Store, target: Cluster) -> DryRun:
    """Return what a round of the flow would do now. `NoArchiveError` where the archive has no restore point and the
    source can't be asked."""
    point, topics, acls = _source_of(flow, store)
    plan = plan_topics(flow, topics, target.topic_names())
    made = sync_topics(flow, plan.topics, target, dry_run=True)
    there = [topic for topic in plan.topics if topic.remote not in made.created]
    configs = (
        sync_configs(flow, there, target, dry_run=True).changed if flow.sync_topic_configs.enabled else {}
    )
    report = (
        sync_acls(flow, acls, replicated(flow), target, dry_run=True)
        if flow.sync_topic_acls.enabled
        else None
    )
    return DryRun(
        flow=flow.name,
        archive=store.url,
        restore_point=point,
        topics=plan.topics,
        skipped=plan.skipped,
        created=made.created,
        grown=made.grown,
        configs=configs,
        acls=report.created if report is not None else (),
    )


def _source_of(flow: Flow, store: Store) -> tuple[int | None, list[SourceTopic], tuple[Acl, ...] | None]:
    """(restore point, topics, ACLs), from the archive, else from the source."""
    try:
        archive = open_archive(store)
        point = archive.restore_point("latest")
    except NoArchiveError:
        if flow.source_properties is None:
            raise
        cluster = Cluster(flow.source_properties, "source")
        cluster.connect()
        return None, topics_of_cluster(cluster), None
    metadata = archive.metadata(point)
    return point.number, topics_of_point(point, metadata), metadata.acls
