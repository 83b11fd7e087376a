"""Go on with topics that have another id: those whose logs hold the archived records, at the archived offsets.

A restore with the same offsets makes such logs, in another cluster as a rule, and Kafka gives the topics new ids. So
the ids say nothing here: a topic goes on if each of its logs ends where the archive does or later, and has the last
archived record. Where that can't be shown, the topic counts as created again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing

import msgspec

from kbackup.archive.models import Manifest, PartitionState, TopicState
from kbackup.jobs.backup.log_check import BATCH, TUNING, compare, expectations, with_last_records
from kbackup.jobs.capture import BackupSession, LiveTopic, SourceCluster
from kbackup.kafka.consume import RangeReader
from kbackup.types import TopicPartition
from kbackup.util.text import join_names, plural


def adopt(source: SourceCluster, session: BackupSession, live: Sequence[LiveTopic]) -> list[str]:
    """Give the topics of the newest restore point, `session.head`, the ids that they have now, where they go on under
    another id. Return what is to be told about it."""
    head = session.head
    if head is None:
        return []
    told: list[str] = []
    if head.cluster_id and source.id and head.cluster_id != source.id:
        told.append(f"the source is cluster {source.id}, restore point {head.number} is of cluster {head.cluster_id}")
    going_on = _going_on(source, session, head, live)
    if not going_on:
        return told
    ids = {topic.name: topic.id for topic in live if topic.name in going_on}
    topics: list[TopicState] = []
    for topic in head.topics:
        if topic.name in ids:
            topic = _with_id(topic, ids[topic.name])
        topics.append(topic)
    session.head = msgspec.structs.replace(head, topics=tuple(topics))
    told.append(
        f"{plural(len(ids), 'topic')} with another id hold the archived records at the same offsets, and go on where "
        f"the archive ends: {join_names(sorted(ids), 10)}"
    )
    return told


def _with_id(topic: TopicState, topic_id: str) -> TopicState:
    """Return the topic as another cluster has it. Its leader epochs are of the old cluster: nothing is compared with
    them."""
    partitions: list[PartitionState] = []
    for partition in topic.partitions:
        last = partition.last
        if last is not None:
            last = msgspec.structs.replace(last, leader_epoch=None)
        partitions.append(msgspec.structs.replace(partition, last=last, epochs=()))
    return msgspec.structs.replace(topic, id=topic_id, partitions=tuple(partitions))


def _going_on(
    source: SourceCluster, session: BackupSession, head: Manifest, live: Sequence[LiveTopic]
) -> Collection[str]:
    """Return the topics of another id, and of the same name, whose logs hold the last archived records."""
    archived = {topic.name: topic for topic in head.topics if topic.state != "deleted"}
    candidates: dict[str, LiveTopic] = {}
    for topic in live:
        before = archived.get(topic.name)
        if before is not None and before.id and topic.id and before.id != topic.id and _may_go_on(before, topic):
            candidates[topic.name] = topic
    if not candidates:
        return ()
    as_there = [_with_id(archived[name], topic.id) for name, topic in candidates.items()]
    assumed = msgspec.structs.replace(head, topics=tuple(as_there))
    live_candidates = list(candidates.values())
    assumed, _ = with_last_records(session.archive, assumed, live_candidates)
    expected = expectations(assumed, live_candidates, exact=False)
    shown = {each.range.tp for each in expected if each.archived}
    reader = RangeReader(
        source.properties, source.isolation_level, session.group, source.poll_timeout, BATCH, tuning=TUNING
    )
    with closing(reader):
        diverged, unseen = compare(reader, expected, exact=False)
    shown -= diverged.keys()
    shown -= {each.tp for each in unseen}
    going_on = set(candidates)
    for state in assumed.topics:
        for partition in state.partitions:
            # A log without a record in the archive can't be compared: its offsets alone must fit.
            if partition.records and TopicPartition(state.name, partition.partition) not in shown:
                going_on.discard(state.name)
    return going_on


def _may_go_on(before: TopicState, topic: LiveTopic) -> bool:
    """Return whether the offsets of a topic's logs allow that they go on where the archive ends."""
    for partition in before.partitions:
        live = topic.partitions.get(partition.partition)
        if live is None or not live.start <= partition.end <= live.high:
            return False
    return True
