"""Room in remote topics for incarnations that had more partitions than the newest one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kbackup.jobs.mirror.apply.pending import Pending
from kbackup.jobs.mirror.flow import Flow, RemoteTopic
from kbackup.jobs.mirror.settings import sync_topics
from kbackup.kafka.admin.cluster import Cluster


def make_room(
    flow: Flow, cluster: Cluster, topics: Sequence[RemoteTopic], pending: Pending
) -> Mapping[str, str]:
    """Add the partitions that pending records need beyond the source's count. Returns why by remote topic, where the
    target refuses: the records of these topics must wait."""
    needed: dict[str, int] = {}
    for tp in pending.ranges:
        needed[tp.topic] = max(tp.partition + 1, needed.get(tp.topic, 0))
    short = [
        replace(topic, partitions=needed[topic.remote])
        for topic in topics
        if needed.get(topic.remote, 0) > topic.partitions
    ]
    refused = sync_topics(flow, short, cluster).refused if short else {}
    return {
        remote: f"an earlier incarnation needs {needed[remote]} partitions; add them, or allow it to the mirror: {why}"
        for remote, why in refused.items()
    }
