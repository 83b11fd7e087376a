"""Topics: their ids, partitions, replicas and configs. Those that wait for their deletion are not among them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kbackup.metadata.entities import TopicMetadata
from kbackup.zookeeper.collect import Collector
from kbackup.zookeeper.decode import configs, document, member, strange
from kbackup.zookeeper.tree import last

_INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")


def parse_deletions(collector: Collector) -> tuple[str, ...] | None:
    return collector.below("deletions", "/admin/delete_topics", lambda path, _: [last(path)])


def parse_topics(collector: Collector) -> tuple[TopicMetadata, ...] | None:
    """KRaft's copy leaves out what waits for its deletion, too."""
    leaving = {last(path) for path in collector.tree.below("/admin/delete_topics")}
    bodies = collector.below("topics", "/brokers/topics", lambda path, data: [(path, data)])
    own = collector.below("topics", "/config/topics", lambda path, data: [(last(path), configs(path, data))])
    if bodies is None or own is None:
        return None
    set_configs = dict(own)
    paths = [path for path, _ in bodies if last(path) not in leaving]
    return collector.each(
        "topics", paths, lambda path, data: [_topic(path, data, set_configs.get(last(path), {}))]
    )


def _topic(path: str, data: bytes, own: dict[str, str]) -> TopicMetadata:
    topic, name = document(path, data), last(path)
    if not _NAME.fullmatch(name):
        raise strange(path, "is not named as a topic can be")
    replicas = tuple(_replicas(path, member(path, topic, "partitions", dict)))
    return TopicMetadata(
        name=name,
        id=topic["topic_id"] if isinstance(topic.get("topic_id"), str) else "",  # none before Kafka 2.8
        partitions=len(replicas),
        replication_factor=max(map(len, replicas), default=0),
        internal=name in _INTERNAL,
        configs=own,
        replicas=replicas,
    )


def _replicas(path: str, partitions: dict[str, Any]) -> Iterator[tuple[int, ...]]:
    if partitions.keys() != set(map(str, range(len(partitions)))):
        raise strange(path, "has partitions that are not numbered from 0 without gaps")
    for number in range(len(partitions)):
        brokers = partitions[str(number)]
        if not isinstance(brokers, list) or not all(type(broker) is int for broker in brokers):
            raise strange(path, f"has replicas of partition {number} that are no ids of brokers")
        yield tuple(brokers)
