"""Count what the source has and a restore point lacks, before anybody deletes a topic to restore it.

A restore whose target is the source, and a comparison with the source, look at records of the restore point alone. The
newest records of the source are in no restore point. Whoever deletes the topic loses them, so a warning comes first.

Offsets are counted first. Some of them have no record: markers of transactions, aborted records, and what compaction
has deleted. Where there are few offsets, they are read, and the count is exact. Elsewhere it is an upper bound.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kbackup.archive import layout
from kbackup.archive.catalog.documents import IsolationLevel
from kbackup.archive.models import Manifest, Member, PartitionState, TopicState
from kbackup.archive.reader import Archive
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.offset_map import runs_by_partition
from kbackup.archive.restores.target_topics import TopicRestore, created_again, find_restores
from kbackup.archive.segments.window import common, without
from kbackup.errors import KbackupError, RefusedError
from kbackup.store.base import Store
from kbackup.types import OffsetRange, Offsets, TopicPartition
from kbackup.util.text import join_names, plural

if TYPE_CHECKING:
    from kbackup.kafka.client import Properties
    from kbackup.kafka.control.cluster import Cluster  # 'status' reads reports without a client of Kafka's
    from kbackup.kafka.control.topics import Topic

log = logging.getLogger(__name__)

_NAMED = 20  # topics of which a text is shown
_NAMED_PARTITIONS = 8
_READ_OFFSETS = 10_000
"""Offsets that are read at most to count records exactly."""
_READ_BYTES = 32 << 20
"""Bytes that are read at most for that, about a second's worth."""
_USUAL_RECORD = 1024
"""Bytes of a record of a topic of which nothing is archived."""
_SILENCE = 10.0  # s without anything from the cluster, after which the count stays an upper bound


class UnarchivedPartition(Member, frozen=True, kw_only=True):
    """A partition of the source with `records` that are in no restore point."""

    partition: int
    records: int


class NewerRecords(Member, frozen=True, kw_only=True):
    """A topic of the source with `records` that are not in the restore point. `in_later_points` of them are in later
    restore points, the others in none: `unarchived` has those by partition. Unless they are `exact`, all these are
    upper bounds: offsets are counted, of which some may have no record.

    `recreated`: the source's topic is another one than the archived one, and all its records count. But if it was
    `restored_by` a restore of this archive that is finished, the records that came back don't count."""

    topic: str
    records: int
    in_later_points: int = 0
    recreated: bool = False
    unarchived: tuple[UnarchivedPartition, ...] = ()
    exact: bool = False
    restored_by: TopicRestore | None = None


@dataclass(frozen=True)
class LiveCluster:
    """A cluster that may be the source of an archive, with its id. Its records are read with the client properties."""

    cluster: Cluster
    id: str
    properties: Properties = field(repr=False)

    def offsets_of_records(
        self, ranges: Sequence[OffsetRange], isolation: IsolationLevel
    ) -> dict[TopicPartition, list[int]]:
        """Read `ranges`, at most one of a partition, and return the offsets that have records."""
        # They need librdkafka, which 'status' does without.
        from kbackup.kafka.consume import RangeReader
        from kbackup.kafka.record_clients import open_message_source

        group = layout.reader_group("verify", "newer")
        reader = RangeReader(
            self.properties,
            isolation,
            group,
            _SILENCE,
            len(ranges),
            self.cluster.connection.role,
            source=open_message_source,
        )
        offsets: dict[TopicPartition, list[int]] = {requested.tp: [] for requested in ranges}
        with closing(reader):
            for tp, block in reader.read(ranges):
                offsets[tp] += block.offsets.tolist()
        return offsets


class _Behind(NamedTuple):
    """Offsets of a partition of the source: those that the restore point lacks, and which of them no restore point
    has."""

    newer: Offsets
    unarchived: Offsets

    @property
    def span(self) -> tuple[int, int]:
        return self.newer[0][0], self.newer[-1][1]


@dataclass(frozen=True)
class _Topic:
    """A topic of the source, as it compares with the archived one. `recreated`: it is another one; `restore` is the
    restore that it comes from, and `restored` are its offsets with records that came back, None if they are not known.
    """

    archived: TopicState
    live: Topic
    recreated: bool = False
    restore: TopicRestore | None = None
    restored: _Restored | None = None

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that have a leader: only a leader knows where its log ends."""
        offline = set(self.live.offline)
        return [TopicPartition(self.live.name, number) for number in self.live.partitions if number not in offline]

    @property
    def is_countable(self) -> bool:
        """Whether the records that came back are known, so that the others can be counted."""
        return self.restore is None or self.restored is not None


class _Restored(NamedTuple):
    """The offsets that a finished restore wrote, by partition, and whether it wrote transactions."""

    offsets: Mapping[int, Offsets]
    transactions: bool


@dataclass(frozen=True)
class _NewerOffsets:
    """The partitions of a topic with offsets that the restore point lacks."""

    topic: _Topic
    behind: Mapping[int, _Behind]

    @property
    def ranges(self) -> list[OffsetRange]:
        """The offsets to read of each partition, for an exact count."""
        name = self.topic.archived.name
        return [OffsetRange(name, number, *behind.span) for number, behind in sorted(self.behind.items())]

    @property
    def offsets(self) -> int:
        """How many offsets are to be read."""
        return sum(requested.end - requested.start for requested in self.ranges)

    @property
    def bytes(self) -> float:
        """The bytes to read, by the mean of the archived records."""
        partitions = self.topic.archived.partitions
        records = sum(partition.records for partition in partitions)
        if not records:
            return self.offsets * _USUAL_RECORD
        return self.offsets * sum(partition.bytes for partition in partitions) / records


def newer_in_source(
    source: LiveCluster, archive: Archive | None, point: int, names: Collection[str], journals: Store
) -> tuple[NewerRecords, ...]:
    """Return the topics among `names` (in the source) that have records which restore point `point` lacks, and those
    that a restore has created again. `journals` has the documents of restores. Return none if the restore point was
    taken of another cluster than `source`, or if that is unknown, as in an adopted folder."""
    if archive is None or not archive.state.restore_points:
        return ()
    manifest = archive.restore_point(point)
    if not manifest.cluster_id or manifest.cluster_id != source.id:
        return ()
    topics = _topics(source, archive, manifest, names, journals)
    newer = _newer_offsets(source.cluster, manifest, archive.restore_point("latest"), topics)
    read = _read_records(source, newer, manifest.isolation_level)
    found: list[NewerRecords] = []
    for of_topic in newer:
        counted = _counted(of_topic, read)
        if counted.records or counted.restored_by is not None:
            found.append(counted)
    return tuple(found)


# Find the offsets that are newer.


def _topics(
    source: LiveCluster, archive: Archive, manifest: Manifest, names: Collection[str], journals: Store
) -> list[_Topic]:
    """Return the topics among `names` that the source has, in order, and which restore each recreated one comes
    from."""
    archived = {topic.name: topic for topic in manifest.topics if topic.name in names}
    existing = set(source.cluster.topic_names())
    live = source.cluster.topics(existing & archived.keys())
    recreated = {name: topic.id for name, topic in live.items() if archived[name].is_other_than(topic.id)}
    restores = find_restores(journals, archive.info.id, source.id, recreated.values())
    for problem in restores.problems:
        log.info("which restores have created topics of the source is not known: %s", problem)
    topics: list[_Topic] = []
    for name, topic in sorted(live.items()):
        if name not in recreated:
            topics.append(_Topic(archived[name], topic))
            continue
        restore = restores.by_topic_id.get(topic.id)
        restored: _Restored | None = None
        if restore is not None and restore.outcome == "finished":
            restored = _restored(RestoreJournal(journals, restore.restore_id), name)
        topics.append(_Topic(archived[name], topic, True, restore, restored))
    return topics


def _restored(journal: RestoreJournal, target: str) -> _Restored | None:
    """Return the offsets of a topic that a restore has filled; None if its offset map can't be read."""
    try:
        plan, offsets = journal.finished()
    except KbackupError as error:
        # All records of the topic then count as newer, as those of a topic that somebody else has created.
        log.info("which records restore %s brought back is not known: %s", journal.restore_id, error.message)
        return None
    restored: dict[int, Offsets] = {}
    for tp, (_, targets, counts) in runs_by_partition(offsets).items():
        if tp.topic == target:
            order = np.argsort(targets)
            starts = targets[order].tolist()
            ends = (targets + counts)[order].tolist()
            restored[tp.partition] = tuple(zip(starts, ends, strict=True))
    return _Restored(restored, plan.transactions)


def _newer_offsets(
    cluster: Cluster, manifest: Manifest, newest: Manifest, topics: Sequence[_Topic]
) -> list[_NewerOffsets]:
    """Return the offsets of each topic that the restore point lacks, and which of them the newest one lacks, too."""
    partitions: list[TopicPartition] = []
    for topic in topics:
        partitions += topic.partitions
    starts = cluster.log_starts(partitions)
    ends = cluster.log_ends(partitions, "read_uncommitted")
    found: list[_NewerOffsets] = []
    for topic in topics:
        logs = {tp.partition: (starts[tp], ends[tp]) for tp in topic.partitions}
        behind = _behind(topic, manifest.number, _newest_partitions(newest, topic), logs)
        found.append(_NewerOffsets(topic, behind))
    return found


def _behind(
    topic: _Topic, point: int, in_newest: Mapping[int, PartitionState], logs: Mapping[int, tuple[int, int]]
) -> dict[int, _Behind]:
    """Return the partitions with offsets that restore point `point` lacks. `in_newest` are the topic's partitions in
    the newest restore point, `logs` the start and the end of each log."""
    in_point: dict[int, PartitionState] = {}
    if not topic.recreated:
        in_point = {partition.partition: partition for partition in topic.archived.partitions}
    behind: dict[int, _Behind] = {}
    for number, log_offsets in logs.items():
        whole = (log_offsets,)
        not_restored = _not_restored(topic, number, whole)
        archived = _archived_offsets(in_point.get(number))
        newer = without(whole, archived)
        # A restore of a later restore point may have brought back what this one lacks.
        if topic.restore is not None and topic.restore.restore_point <= point:
            newer = common(newer, not_restored)
        archived_by_now = _archived_offsets(in_newest.get(number))
        unarchived = without(whole, archived_by_now)
        unarchived = common(unarchived, not_restored)
        if newer:
            behind[number] = _Behind(newer, common(newer, unarchived))
    return behind


def _newest_partitions(newest: Manifest, compared: _Topic) -> dict[int, PartitionState]:
    """Return the partitions of the source's topic in the newest restore point, if that has this very topic."""
    archived = compared.archived
    for topic in newest.topics:
        if topic.name != archived.name:
            continue
        is_same = topic.incarnation == archived.incarnation
        if compared.recreated:
            # Later runs archive a topic that was created again as another incarnation: its id tells whether it is this.
            is_same = topic.id == compared.live.id
        if is_same:
            return {partition.partition: partition for partition in topic.partitions}
    return {}


def _archived_offsets(archived: PartitionState | None) -> Offsets:
    """Return the offsets of which a restore point has all records, or () if it lacks the partition."""
    if archived is None:
        return ()
    # Transactions that were open at the restore point: it ends behind them, and lacks their records.
    return without(((0, archived.end),), archived.held)


def _not_restored(topic: _Topic, partition: int, whole: Offsets) -> Offsets:
    """Return the offsets of a log that no finished restore wrote."""
    if topic.restored is None:
        return whole
    offsets = topic.restored.offsets.get(partition, ())
    others = without(whole, offsets)
    if not topic.restored.transactions:
        return others
    # A transaction ends with a marker, which has one offset. A wider gap may hold records of others.
    markers = {(end, end + 1) for _, end in offsets}
    return tuple(gap for gap in others if gap not in markers)


# Count the records at these offsets.

_Read = Mapping[TopicPartition, Sequence[int]]
"""The offsets of records, by partition, as far as they were read."""


def _read_records(source: LiveCluster, newer: Sequence[_NewerOffsets], isolation: IsolationLevel) -> _Read:
    """Read the topics with the fewest newer offsets, as long as these are few in all, and return the offsets that have
    records. Topics that are not read are missing."""
    ranges: list[OffsetRange] = []
    offsets, size = 0, 0.0
    countable = [each for each in newer if each.behind and each.topic.is_countable]
    for each in sorted(countable, key=attrgetter("offsets")):
        offsets += each.offsets
        size += each.bytes
        if offsets > _READ_OFFSETS or size > _READ_BYTES:
            break
        ranges += each.ranges
    if not ranges:
        return {}
    partitions = [requested.tp for requested in ranges]
    try:
        stable = source.cluster.log_ends(partitions, isolation)
        # Records of open transactions may be committed or aborted: nobody can count them yet.
        open_topics = {requested.topic for requested in ranges if stable[requested.tp] < requested.end}
        countable_ranges = [requested for requested in ranges if requested.topic not in open_topics]
        if not countable_ranges:
            return {}
        return source.offsets_of_records(countable_ranges, isolation)
    except KbackupError as error:
        # The user may lack Read on the topics, which nothing else here needs. Upper bounds are true all the same.
        log.info("newer records of the source are not counted exactly: %s", error.message)
        return {}


def _counted(newer: _NewerOffsets, read: _Read) -> NewerRecords:
    """Return the counts of a topic: of the records that were read, else of offsets."""
    topic = newer.topic
    name = topic.archived.name
    is_exact = topic.is_countable
    records = 0
    unarchived: list[UnarchivedPartition] = []
    for number, behind in sorted(newer.behind.items()):
        with_records = read.get(TopicPartition(name, number))
        is_exact = is_exact and with_records is not None
        records += _number_in(behind.newer, with_records)
        in_none = _number_in(behind.unarchived, with_records)
        if in_none:
            unarchived.append(UnarchivedPartition(partition=number, records=in_none))
    in_later_points = records - sum(partition.records for partition in unarchived)
    return NewerRecords(
        topic=name,
        records=records,
        in_later_points=in_later_points,
        recreated=topic.recreated,
        unarchived=tuple(unarchived),
        exact=is_exact,
        restored_by=topic.restore,
    )


def _number_in(ranges: Offsets, with_records: Sequence[int] | None) -> int:
    """Return how many of the offsets in `ranges` have records; if that is not known, how many offsets there are."""
    if with_records is None:
        return sum(end - start for start, end in ranges)
    number = 0
    for start, end in ranges:
        low, high = np.searchsorted(with_records, [start, end])
        number += int(high - low)
    return number


# Say it in words.


def newer_sentences(newer: Sequence[NewerRecords], point: int) -> list[str]:
    """Return a sentence for each topic, the first ones by name."""
    sentences = [_sentence(each, point) for each in newer[:_NAMED]]
    more = newer[_NAMED:]
    if more:
        records = sum(each.records for each in more)
        count = _count(records, exact=all(each.exact for each in more))
        sentences.append(f"{len(more)} more topics: {count} in the source are newer than that, see --json")
    return sentences


def refused_with(error: RefusedError, sentences: Sequence[str]) -> RefusedError:
    """Return the error with `sentences` in front: its hints may make somebody delete a topic."""
    if not sentences:
        return error
    items = "".join(f"\n  - {sentence}" for sentence in sentences)
    return RefusedError(f"the target is the source of this archive:{items}\n{error.message}", error.hint)


def backup_first(newer: Sequence[NewerRecords]) -> list[str]:
    """Return the advice to take a backup before anything is deleted; none if every record is in a restore point."""
    count = unarchived_count(newer)
    if not count:
        return []
    are = "is" if unarchived_records(newer) == 1 else "are"
    return [
        f"{count} of the source {are} in no restore point: run 'kbackup backup' first, before anything is deleted or "
        "overwritten there"
    ]


def unarchived_records(newer: Sequence[NewerRecords]) -> int:
    """Return how many records of the source are in no restore point. An upper bound, unless all topics are exact."""
    records = 0
    for topic in newer:
        records += sum(partition.records for partition in topic.unarchived)
    return records


def unarchived_count(newer: Sequence[NewerRecords]) -> str:
    """Return in words how many records of the source are in no restore point, such as "up to 12 records"; '' for
    none."""
    records = unarchived_records(newer)
    if not records:
        return ""
    is_exact = all(topic.exact for topic in newer if topic.unarchived)
    return _count(records, exact=is_exact)


def _count(records: int, *, exact: bool) -> str:
    return f"{_at_most(exact=exact)}{plural(records, 'record')}"


def _at_most(*, exact: bool) -> str:
    return "" if exact else "up to "


def _sentence(newer: NewerRecords, point: int) -> str:
    at_most = _at_most(exact=newer.exact)
    count = _count(newer.records, exact=newer.exact)
    be = "is" if newer.records == 1 else "are"
    restore = newer.restored_by
    if newer.recreated:
        text = f"in the source, {created_again(newer.topic, restore)}"
        if restore is None:
            text += f": it is not the topic of restore point {point}, which lacks all its records, {count}"
        elif restore.outcome != "finished":
            text += f": it has {count}, with those that came back"
        elif newer.records:
            text += f": {count} in it {be} newer than restore point {point}"
        else:
            text += ": every record in it is archived"
    else:
        text = f"topic {newer.topic}: {count} in the source {be} newer than restore point {point}"
    if newer.in_later_points and not newer.unarchived:
        text += "; all of them are in later restore points" if newer.records > 1 else "; it is in a later restore point"
    elif newer.in_later_points:
        text += f"; {at_most}{newer.in_later_points:,} of them are in later restore points"
    if newer.unarchived:
        text += f"; in no restore point: {at_most}{_by_partition(newer)}"
    return text


def _by_partition(newer: NewerRecords) -> str:
    counts = [f"{each.records:,} of partition {each.partition}" for each in newer.unarchived]
    return join_names(counts, _NAMED_PARTITIONS)
