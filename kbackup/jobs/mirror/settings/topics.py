"""Create remote topics and add their partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kbackup.jobs.mirror.flow import Flow, RemoteTopic
from kbackup.kafka.admin import Cluster


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
    raise NotImplementedError
