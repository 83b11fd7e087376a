"""Count what the source has and a restore point lacks, before anybody deletes a topic to restore it.

A restore whose target is the source, and a comparison with the source, look at records of the restore point alone. The
newest records of the source are in no restore point. Whoever deletes the topic loses them, so a warning comes first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from kbackup.archive.models import Manifest, Member, PartitionState, TopicState
from kbackup.archive.reader import Archive
from kbackup.errors import RefusedError
from kbackup.types import TopicPartition

if TYPE_CHECKING:
    from kbackup.kafka.control.cluster import Cluster  # 'status' reads reports without a client of Kafka's
    from kbackup.kafka.control.topics import Topic

_NAMED = 20  # topics of which a text is shown


class NewerRecords(Member, frozen=True, kw_only=True):
    """A topic of the source with `records` that are not in the restore point. They are counted by offsets, so markers
    of transactions count as records. `in_later_points` of them are in later restore points. `recreated`: the source's
    topic is another one than the archived one, and all its records count."""

    topic: str
    records: int
    in_later_points: int = 0
    recreated: bool = False


def newer_in_source(
    cluster: Cluster, cluster_id: str, archive: Archive | None, point: int, names: Collection[str]
) -> tuple[NewerRecords, ...]:
    """Return the topics among `names` (in the source) that have records which restore point `point` lacks. Return none
    if the restore point was taken of another cluster than `cluster`, or if that is unknown, as in an adopted folder."""
    if archive is None or not archive.state.restore_points:
        return ()
    manifest = archive.restore_point(point)
    newest = archive.restore_point("latest")
    if not manifest.cluster_id or manifest.cluster_id != cluster_id:
        return ()
    archived = {topic.name: topic for topic in manifest.topics if topic.name in names}
    existing = set(cluster.topic_names())
    live = cluster.topics(existing & archived.keys())
    partitions: list[TopicPartition] = []
    for topic in live.values():
        for number in topic.partitions:
            if number not in topic.offline:  # only a leader knows where its log ends
                partitions.append(TopicPartition(topic.name, number))
    starts = cluster.log_starts(partitions)
    ends = cluster.log_ends(partitions, "read_uncommitted")
    found: list[NewerRecords] = []
    for name, topic in sorted(live.items()):
        logs = {tp.partition: (starts[tp], ends[tp]) for tp in partitions if tp.topic == name}
        counted = _count(archived[name], topic, logs, _later(newest, archived[name]))
        if counted.records:
            found.append(counted)
    return tuple(found)


def _later(newest: Manifest, topic: TopicState) -> dict[int, PartitionState]:
    """Return the partitions of the topic in the newest restore point, if it has the same incarnation."""
    same = newest.incarnations().get((topic.name, topic.incarnation))
    if same is None:
        return {}
    return {partition.partition: partition for partition in same.partitions}


def _count(
    archived: TopicState, live: Topic, logs: dict[int, tuple[int, int]], later: dict[int, PartitionState]
) -> NewerRecords:
    """Count the records of a topic. `logs` has start and end of each log."""
    if archived.id and live.id and archived.id != live.id:
        every = sum(end - start for start, end in logs.values())
        return NewerRecords(topic=archived.name, records=every, recreated=True)
    known = {partition.partition: partition for partition in archived.partitions}
    records = in_later_points = 0
    for number, (start, end) in logs.items():
        partition = known.get(number)
        archived_end = partition.end if partition is not None else start
        first = max(start, archived_end)
        records += max(0, end - first)
        newest = later.get(number)
        if newest is not None:
            in_later_points += max(0, min(end, newest.end) - first)
        # transactions that were open at the restore point: it ends behind them, and lacks their records
        for low, high in partition.held if partition is not None else ():
            records += max(0, high - max(low, start))
    return NewerRecords(topic=archived.name, records=records, in_later_points=in_later_points)


def newer_sentences(newer: Sequence[NewerRecords], point: int) -> list[str]:
    """Return a sentence for each topic, the first ones by name."""
    sentences = [_sentence(each, point) for each in newer[:_NAMED]]
    more = newer[_NAMED:]
    if more:
        records = sum(each.records for each in more)
        sentences.append(f"{len(more)} more topics: {records:,} records in the source are newer than that, see --json")
    return sentences


def refused_with(error: RefusedError, sentences: Sequence[str]) -> RefusedError:
    """Return the error with `sentences` in front: its hints may make somebody delete a topic."""
    if not sentences:
        return error
    items = "".join(f"\n  - {sentence}" for sentence in sentences)
    return RefusedError(f"the target is the source of this archive:{items}\n{error.message}", error.hint)


def _sentence(newer: NewerRecords, point: int) -> str:
    count = f"{newer.records:,} {'record' if newer.records == 1 else 'records'}"
    if newer.recreated:
        return (
            f"topic {newer.topic} was created again in the source: it is not the topic of restore point {point}, which "
            f"lacks all its {count}"
        )
    be = "is" if newer.records == 1 else "are"
    text = f"topic {newer.topic}: {count} in the source {be} newer than restore point {point}"
    if newer.in_later_points:
        text += f"; {newer.in_later_points:,} of them are in later restore points"
    return text
