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
from kbackup.util.text import join_names, plural

if TYPE_CHECKING:
    from kbackup.kafka.control.cluster import Cluster  # 'status' reads reports without a client of Kafka's
    from kbackup.kafka.control.topics import Topic

_NAMED = 20  # topics of which a text is shown
_NAMED_PARTITIONS = 8


class UnarchivedPartition(Member, frozen=True, kw_only=True):
    """A partition of the source with `records` that are in no restore point."""

    partition: int
    records: int


class NewerRecords(Member, frozen=True, kw_only=True):
    """A topic of the source with `records` that are not in the restore point. They are counted by offsets, so markers
    of transactions count as records. `in_later_points` of them are in later restore points, the others in none:
    `unarchived` has those by partition. `recreated`: the source's topic is another one than the archived one, and all
    its records count."""

    topic: str
    records: int
    in_later_points: int = 0
    recreated: bool = False
    unarchived: tuple[UnarchivedPartition, ...] = ()


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
        counted = _count(archived[name], topic, logs, _newest_partitions(newest, archived[name], topic))
        if counted.records:
            found.append(counted)
    return tuple(found)


def _is_recreated(archived: TopicState, live: Topic) -> bool:
    # Brokers before 2.8 give topics no ids: nobody can tell one topic from the next of its name there.
    return bool(archived.id and live.id and archived.id != live.id)


def _newest_partitions(newest: Manifest, archived: TopicState, live: Topic) -> dict[int, PartitionState]:
    """Return the partitions of the source's topic in the newest restore point, if that has this very topic."""
    recreated = _is_recreated(archived, live)
    for topic in newest.topics:
        same = topic.id == live.id if recreated else topic.incarnation == archived.incarnation
        if topic.name == archived.name and same:
            return {partition.partition: partition for partition in topic.partitions}
    return {}


def _count(
    archived: TopicState, live: Topic, logs: dict[int, tuple[int, int]], newest: dict[int, PartitionState]
) -> NewerRecords:
    """Count the records of a topic. `logs` has start and end of each log, `newest` the partitions of this topic in the
    newest restore point."""
    recreated = _is_recreated(archived, live)
    known: dict[int, PartitionState] = {}
    if not recreated:
        known = {partition.partition: partition for partition in archived.partitions}
    records = 0
    unarchived: list[UnarchivedPartition] = []
    for number, log in logs.items():
        in_partition = _behind(known.get(number), log)
        records += in_partition
        in_none = min(in_partition, _behind(newest.get(number), log))
        if in_none:
            unarchived.append(UnarchivedPartition(partition=number, records=in_none))
    in_later_points = records - sum(partition.records for partition in unarchived)
    return NewerRecords(
        topic=archived.name,
        records=records,
        in_later_points=in_later_points,
        recreated=recreated,
        unarchived=tuple(unarchived),
    )


def _behind(archived: PartitionState | None, log: tuple[int, int]) -> int:
    """Count the offsets of a log that its partition in a restore point lacks; None if it lacks the partition."""
    start, end = log
    if archived is None:
        return end - start
    records = max(0, end - max(start, archived.end))
    # Transactions that were open at the restore point: it ends behind them, and lacks their records.
    for low, high in archived.held:
        records += max(0, high - max(low, start))
    return records


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


def backup_first(newer: Sequence[NewerRecords]) -> list[str]:
    """Return the advice to take a backup before anything is deleted; none if every record is in a restore point."""
    records = unarchived_records(newer)
    if not records:
        return []
    are = "is" if records == 1 else "are"
    return [
        f"{plural(records, 'record')} of the source {are} in no restore point: run 'kbackup backup' first, before "
        "anything is deleted or overwritten there"
    ]


def unarchived_records(newer: Sequence[NewerRecords]) -> int:
    """Return how many records of the source are in no restore point."""
    return sum(partition.records for topic in newer for partition in topic.unarchived)


def _sentence(newer: NewerRecords, point: int) -> str:
    count = plural(newer.records, "record")
    if newer.recreated:
        text = (
            f"topic {newer.topic} was created again in the source: it is not the topic of restore point {point}, which "
            f"lacks all its {count}"
        )
    else:
        be = "is" if newer.records == 1 else "are"
        text = f"topic {newer.topic}: {count} in the source {be} newer than restore point {point}"
    if newer.in_later_points:
        text += f"; {newer.in_later_points:,} of them are in later restore points"
    if newer.unarchived:
        text += f"; in no restore point: {_by_partition(newer)}"
    return text


def _by_partition(newer: NewerRecords) -> str:
    counts = [f"{each.records:,} of partition {each.partition}" for each in newer.unarchived]
    return join_names(counts, _NAMED_PARTITIONS)
