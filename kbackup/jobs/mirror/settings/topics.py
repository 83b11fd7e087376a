"""Create remote topics and add their partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kbackup.jobs.mirror.flow import Flow, RemoteTopic
from kbackup.jobs.mirror.settings.configs import replicated_configs
from kbackup.kafka.admin.cluster import Cluster, Topic
from kbackup.kafka.admin.topics import TopicToCreate
from kbackup.util.attempts import attempts

_VISIBLE_SECONDS = 30.0  # until every broker shows what the controller has agreed to
_PAUSE = 0.1  # s, before the brokers are asked again


@dataclass(frozen=True, slots=True)
class TopicsReport:
    """Remote topics by name. `grown` maps a topic to its new number of partitions, `refused` to the target's reason.

    Records of a refused topic wait: the topic, or the partition that a record belongs to, is missing."""

    created: tuple[str, ...]
    grown: Mapping[str, int]
    refused: Mapping[str, str]


def sync_topics(
    flow: Flow, topics: Sequence[RemoteTopic], cluster: Cluster, *, dry_run: bool = False
) -> TopicsReport:
    """Create the remote topics that the target lacks, with the source's configs and number of partitions, and add
    partitions to those that have fewer. `dry_run`: report the changes, and make none."""
    existing = existing_topics(topics, cluster)
    new = [topic for topic in topics if topic.remote not in existing]
    growing = {
        topic.remote: topic.partitions
        for topic in topics
        if topic.remote in existing and len(existing[topic.remote].partitions) < topic.partitions
    }
    refused: dict[str, str] = {}
    if not dry_run:
        refused |= cluster.topic_admin.create([_to_create(flow, topic) for topic in new])
        refused |= cluster.topic_admin.add_partitions(growing)
        totals = {topic.remote: topic.partitions for topic in new} | growing
        refused |= _await({remote: n for remote, n in totals.items() if remote not in refused}, cluster)
    return TopicsReport(
        created=tuple(sorted(topic.remote for topic in new if topic.remote not in refused)),
        grown={remote: total for remote, total in sorted(growing.items()) if remote not in refused},
        refused=refused,
    )


def _await(totals: Mapping[str, int], cluster: Cluster) -> dict[str, str]:
    """Wait until the brokers show the partitions that they have just agreed to; the topics of which they don't."""
    missing = dict(totals)
    for _ in attempts(_VISIBLE_SECONDS, _PAUSE):
        shown = cluster.topics(missing.keys() & {*cluster.topic_names()})
        missing = {
            remote: total
            for remote, total in missing.items()
            if remote not in shown or len(shown[remote].partitions) < total
        }
        if not missing:
            break
    where = cluster.connection.address
    return {remote: f"{where} does not show the new partitions of topic {remote} yet" for remote in missing}


def existing_topics(topics: Sequence[RemoteTopic], cluster: Cluster) -> dict[str, Topic]:
    """Return the remote topics that the target has. Names that are too long for Kafka are left out of the request,
    which would fail as a whole."""
    return cluster.topics({topic.remote for topic in topics} & {*cluster.topic_names()})


def _to_create(flow: Flow, topic: RemoteTopic) -> TopicToCreate:
    configs = replicated_configs(flow, topic.configs or {})
    return TopicToCreate(topic.remote, topic.partitions, flow.replication_factor, configs)
