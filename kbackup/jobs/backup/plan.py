"""Plan a backup: the offsets to read, from the archived state and the captured cluster. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from kbackup.archive.last_record import FEW, OffsetDigest, spread
from kbackup.archive.models import (
    EpochEnd,
    Group,
    GroupOffset,
    Groups,
    LastRecord,
    Loss,
    Manifest,
    Metadata,
    PartitionState,
    TopicState,
    UsedSchemas,
)
from kbackup.archive.restores.target_topics import TopicRestore, created_again, is_brought_back
from kbackup.archive.schemas import merged
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import MOST, without
from kbackup.formats.schema_ids import SchemaUse
from kbackup.jobs.capture import Live, LiveTopic, offline_partitions
from kbackup.kafka.consume import Vanished
from kbackup.metadata.entities import INTERNAL_TOPICS
from kbackup.types import IncarnationPartition, OffsetRange, Offsets, TopicPartition
from kbackup.util.text import join_names


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What one run reads of a partition: the offsets [`start`, `end`) without those in `held`, and the ranges `owed`.

    `held` are offsets of transactions that are still open: the next restore point has them. `owed` are ranges below
    `start` that earlier restore points held. `before` is the partition in the newest restore point, None for a
    partition that is new to the archive.
    """

    partition: int
    start: int
    end: int
    live: Live
    before: PartitionState | None
    held: Offsets = ()
    owed: Offsets = ()

    @property
    def first(self) -> int:
        """The lowest offset to read."""
        return self.owed[0][0] if self.owed else self.start

    @property
    def skips(self) -> Offsets:
        """The offsets between `first` and `end` that are not read."""
        new = without(((self.start, self.end),), self.held)
        to_read = self.owed + new
        return without(((self.first, self.end),), to_read)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What one run reads of a topic, and the folder (`incarnation`) that gets its segments."""

    name: str
    id: str
    incarnation: int
    partitions: tuple[PartitionPlan, ...]
    offline: tuple[PartitionState, ...] = ()  # of partitions without a leader, as archived
    schemas: tuple[UsedSchemas, ...] = ()  # of the `counted` records that are archived
    counted: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run reads. `carried` are topics of earlier restore points of which nothing is read: topics that are not
    selected any more, and deleted topics."""

    topics: tuple[TopicPlan, ...]
    carried: tuple[TopicState, ...]
    losses: tuple[Loss, ...]
    warnings: tuple[str, ...]

    @property
    def ranges(self) -> list[OffsetRange]:
        """One range per partition, empty ranges included. Offsets in `skips` are not read."""
        ranges: list[OffsetRange] = []
        for topic in self.topics:
            for partition in topic.partitions:
                ranges.append(OffsetRange(topic.name, partition.partition, partition.first, partition.end))
        return ranges

    @property
    def skips(self) -> dict[TopicPartition, Offsets]:
        """The offsets inside `ranges` that are not read. Most partitions have none, and no entry."""
        skips: dict[TopicPartition, Offsets] = {}
        for topic in self.topics:
            for partition in topic.partitions:
                if partition.held or partition.owed:
                    skips[TopicPartition(topic.name, partition.partition)] = partition.skips
        return skips


NextIncarnation = Callable[[str, str], int]
"""The number of a new incarnation of a topic, by its name and id."""


_WITH_TOPIC = ", or some of them, were deleted with the topic"


def make_plan(
    head: Manifest | None,
    selected: Sequence[LiveTopic],
    existing: Iterable[str],
    next_incarnation: NextIncarnation,
    diverged: Mapping[TopicPartition, int] = MappingProxyType({}),
    restores: Mapping[str, TopicRestore] = MappingProxyType({}),
) -> Plan:
    """Plan the topics to capture, the topics to carry over, and the losses. `existing` are the names of all topics of
    the cluster. `diverged` are partitions whose log has another history than the archive, with an offset at which they
    differ. `restores` are the restores that topics of the cluster come from, by the topics' ids."""
    known: dict[str, TopicState] = {}
    if head is not None:
        known = {topic.name: topic for topic in head.topics}
    names = {t.name for t in selected}
    on_source = set(existing)
    topics: list[TopicPlan] = []
    losses: list[Loss] = []
    warnings: list[str] = []
    if not names:
        warnings.append("no topic of the source is selected: this restore point captures none; correct backup.topics")
    for topic in selected:
        before = known.get(topic.name)
        restore = restores.get(topic.id)
        plan, lost, warned = _plan_topic(topic, before, next_incarnation, diverged, restore)
        topics.append(plan)
        losses += lost
        warnings += warned
    offline = offline_partitions(selected)
    if offline:
        warnings.append(f"nothing new is archived of partitions without a leader: {join_names(offline, 5)}")
    carried: list[TopicState] = []
    for state in known.values():
        if state.name in names:
            continue
        if state.name in on_source:
            # It is there and not selected any more, so nothing of it is lost.
            carried.append(msgspec.structs.replace(state, state="unselected"))
            continue
        if state.state != "deleted":
            warnings.append(f"topic {state.name} no longer exists at the source; what was archived of it is kept")
            losses += _losses_with_topic(state)
        carried.append(msgspec.structs.replace(state, state="deleted"))
    return Plan(tuple(topics), tuple(carried), tuple(losses), tuple(warnings))


def _losses_with_topic(deleted: TopicState) -> list[Loss]:
    """Return the losses of records that the newest restore point left to a later one, and that were deleted with
    their topic: records of partitions that were held back, and records of transactions that were open."""
    losses: list[Loss] = []
    for partition in deleted.partitions:
        tp = TopicPartition(deleted.name, partition.partition)
        not_archived = [*partition.held, (partition.end, partition.log_end)]
        for start, end in not_archived:
            if start < end:
                losses.append(retention_loss(tp, start, end, _WITH_TOPIC))
    return losses


def recreated_topics(head: Manifest | None, selected: Iterable[LiveTopic]) -> dict[str, str]:
    """Return the ids of the topics that are not the archived ones of their names, by name."""
    if head is None:
        return {}
    known = {topic.name: topic for topic in head.topics}
    ids: dict[str, str] = {}
    for topic in selected:
        archived = known.get(topic.name)
        if archived is not None and archived.is_other_than(topic.id):
            ids[topic.name] = topic.id
    return ids


_NOTHING = PartitionState(partition=0, start=0, end=0, log_start=0, log_end=0, records=0, bytes=0)


def _plan_topic(
    topic: LiveTopic,
    before: TopicState | None,
    next_incarnation: NextIncarnation,
    diverged: Mapping[TopicPartition, int],
    restore: TopicRestore | None,
) -> tuple[TopicPlan, list[Loss], list[str]]:
    """Return the plan of one topic, its losses and warnings. A topic that was created again, or whose log was cut,
    begins a new incarnation. `restore` is the restore that the topic comes from, if it is known."""
    losses: list[Loss] = []
    warnings: list[str] = []
    archived: dict[int, PartitionState] = {}
    incarnation: int | None = None
    # Without an id on both sides the name alone counts, and the logs are compared (`check_identity`, `_cut_logs`).
    if before is not None and before.is_other_than(topic.id):
        incarnation = next_incarnation(topic.name, topic.id)
        message = f"{created_again(topic.name, restore)} (incarnation {incarnation})"
        if restore is not None:
            warnings.append(f"{message}; {_archived_anew(before, restore)}")
            if before.state != "deleted":
                # A deletion that no backup has seen: these records are known to be in no restore point.
                losses += _losses_with_topic(before)
        elif before.state == "deleted":
            # What was lost with the old topic was reported when it was found to be deleted.
            warnings.append(message)
        else:
            message += (
                f"; lost are at most the records that the former topic got after restore point {before.captured} and "
                "before its deletion"
            )
            losses.append(Loss(kind="recreated", topic=topic.name, message=message))
    elif before is not None:
        archived = {p.partition: p for p in before.partitions}
        losses += _cut_logs(topic, archived, diverged)
        if losses:
            # New records take the offsets of those that were cut: they can't share a folder with them.
            archived = {}
        else:
            incarnation = before.incarnation
    if incarnation is None:
        incarnation = next_incarnation(topic.name, topic.id)
    partitions, deleted_losses = _plan_partitions(topic, archived)
    losses += deleted_losses
    offline: list[PartitionState] = []
    for number in topic.offline:
        nothing = msgspec.structs.replace(_NOTHING, partition=number)
        offline.append(archived.get(number, nothing))
    # The counts of schemas go on with the incarnation: its records are in the same folder.
    schemas: tuple[UsedSchemas, ...] = ()
    counted = 0
    if before is not None and before.incarnation == incarnation:
        schemas, counted = before.schemas, before.counted
    planned = TopicPlan(
        name=topic.name,
        id=topic.id,
        incarnation=incarnation,
        partitions=tuple(partitions),
        offline=tuple(offline),
        schemas=schemas,
        counted=counted,
    )
    return planned, losses, warnings


def _archived_anew(before: TopicState, restore: TopicRestore) -> str:
    """Return what a restore point has of a topic that a restore has created again. `before` is the former topic."""
    last = before.captured
    if is_brought_back(restore):
        parts = [
            "its records are archived anew, so the archive has them twice until restore point "
            f"{last} and those before it expire"
        ]
    else:
        parts = [f"what it has is archived anew, and restore point {last} is the last with the former topic"]
    if restore.outcome == "unfinished":
        parts.append(f"to finish the restore, run it again with --restore-id {restore.restore_id}")
    parts.append(f"records that the former topic got after restore point {last} are in no restore point")
    return "; ".join(parts)


def _plan_partitions(
    topic: LiveTopic, archived: Mapping[int, PartitionState]
) -> tuple[list[PartitionPlan], list[Loss]]:
    """Return the plans of a topic's partitions, and the losses of records that were deleted before they were archived.
    `archived` has the partitions that the plans continue."""
    partitions: list[PartitionPlan] = []
    losses: list[Loss] = []
    for number, live in sorted(topic.partitions.items()):
        plan, deleted = _plan_partition(number, live, archived.get(number))
        partitions.append(plan)
        tp = TopicPartition(topic.name, number)
        losses += [retention_loss(tp, low, high) for low, high in deleted]
    return partitions, losses


def _plan_partition(number: int, live: Live, old: PartitionState | None) -> tuple[PartitionPlan, list[tuple[int, int]]]:
    """Return what to read of a partition, and the ranges that were deleted at the source before they were archived.
    `old` is the partition in the newest restore point."""
    if old is None:
        start = live.start
        owed: Offsets = ()
    else:
        start = max(old.end, live.start)
        owed = old.held
        if live.start > old.end:
            owed = (*owed, (old.end, live.start))
    # Of what earlier restore points left to this one, the part below the log's start can never be read any more.
    deleted: list[tuple[int, int]] = []
    for low, high in owed:
        if low < live.start:
            deleted.append((low, min(high, live.start)))
    # A last stable offset may lie behind the archived end; the archive keeps what it has.
    end = max(start, live.end)
    held = without(live.held, [(0, start), (end, MOST)])
    still_owed = without(owed, deleted)
    plan = PartitionPlan(partition=number, start=start, end=end, live=live, before=old, held=held, owed=still_owed)
    return plan, deleted


def _cut_logs(
    topic: LiveTopic, archived: Mapping[int, PartitionState], diverged: Mapping[TopicPartition, int]
) -> list[Loss]:
    """Return a loss for each log that was cut: its end lies before the archive's, or it has other records."""
    losses: list[Loss] = []
    for number, live in topic.partitions.items():
        tp = TopicPartition(topic.name, number)
        state = archived.get(number)
        if state is None:
            continue
        # The high watermark, not the last stable offset: the latter may fall behind what earlier runs archived.
        if live.high < state.end:
            start: int | None = live.high
            message = f"the log of {tp} ends at {live.high}, but was archived up to {state.end}"
        elif tp in diverged:
            start = None
            differs = f"it differs from the archive at offset {diverged[tp]}"
            message = f"the log of {tp} was cut and has grown again: {differs}"
        else:
            continue
        loss = Loss(kind="truncated", topic=tp.topic, partition=number, start=start, end=state.end, message=message)
        losses.append(loss)
    return losses


def retention_loss(tp: TopicPartition, start: int, end: int, how: str = " were deleted at the source") -> Loss:
    """Return the loss of records that were deleted at the source before they were archived."""
    message = f"offsets {start} to {end - 1} of {tp}{how} before they were archived"
    return Loss(kind="retention", topic=tp.topic, partition=tp.partition, start=start, end=end, message=message)


def vanished_losses(plan: Plan, vanished: Iterable[Vanished]) -> list[Loss]:
    """Return the losses of records that were deleted while they were read. Offsets that `plan` skips are no loss: they
    are archived already, or left to the next restore point."""
    skips = plan.skips
    losses: list[Loss] = []
    for deleted in vanished:
        skipped = skips.get(deleted.tp, ())
        lost = without(((deleted.start, deleted.end),), skipped)
        losses += [retention_loss(deleted.tp, start, end) for start, end in lost]
    return losses


# Which partitions wait for more records before a segment is made of them. Pure.
#
# 10,000 partitions with a record a minute each would make 10,000 segments a minute. A partition that is held back is
# left where the archive has it: its `end` stays, the log's end is what it is, so the restore point is true. So are
# group offsets, though they may lie past that `end`: a restore of this point puts such a group behind the last
# record, and one by time, whose records come from later runs as well, at its own.


TYPICAL_RECORD = 1024
"""Bytes that a record is taken to have in a partition of which nothing is archived yet."""


class BatchingPolicy(NamedTuple):
    """Which partitions wait for more records.

    A partition with fewer than `small_bytes` of new records is small and waits, for `max_age` seconds at most. Each
    restore point archives some small partitions all the same, the longest waiting first: `small_segments` of them, or
    a `share` of them if that is more. A share of a round's length in `max_age` keeps partitions that began to wait
    together from reaching `max_age` together.
    """

    small_bytes: int
    max_age: float
    small_segments: int
    share: float = 0.0


NO_PATIENCE = BatchingPolicy(0, 0.0, 0)


def new_bytes(offsets: int, before: PartitionState | None) -> float:
    """Estimate the bytes of `offsets` new offsets by the mean of the archived records."""
    if before is None or not before.records:
        return offsets * float(TYPICAL_RECORD)
    return offsets * before.bytes / before.records


def waiting(plan: Plan) -> dict[IncarnationPartition, PartitionPlan]:
    """Return the partitions whose log has offsets that are not archived."""
    found: dict[IncarnationPartition, PartitionPlan] = {}
    for topic in plan.topics:
        for partition in topic.partitions:
            if partition.live.end > partition.start:
                found[topic.name, topic.incarnation, partition.partition] = partition
    return found


def hold_back(
    plan: Plan,
    batching: BatchingPolicy,
    since: Mapping[IncarnationPartition, float],
    now: float,
    never: Collection[TopicPartition] = (),
) -> Plan:
    """Return `plan` with nothing to read of the partitions that wait for more records.

    `since` has the time, in seconds like `now`, from which each partition has new records; a partition without an
    entry has them from now on. Partitions in `never` don't wait.
    """
    small: dict[IncarnationPartition, float] = {}  # with the time from which each waits
    for place, partition in waiting(plan).items():
        topic, _, number = place
        is_small = new_bytes(partition.end - partition.start, partition.before) < batching.small_bytes
        # Records that an earlier restore point owes have waited for their transaction already. The partitions in
        # `never` have records of transactions, which a restore point has whole: no partition of one may stay behind.
        may_wait = not partition.owed and TopicPartition(topic, number) not in never
        if is_small and may_wait:
            small[place] = since.get(place, now)
    # The longest waiting come first, so that each has its turn however many there are.
    places_by_time = sorted((begun, place) for place, begun in small.items())
    too_old = sum(now - begun >= batching.max_age for begun in small.values())
    by_share = int(batching.share * len(small))
    number_to_read = max(too_old, batching.small_segments, by_share)
    held = {place for _, place in places_by_time[number_to_read:]}
    if not held:
        return plan
    topics = [_with_held_partitions(topic, held) for topic in plan.topics]
    return replace(plan, topics=tuple(topics))


def _with_held_partitions(topic: TopicPlan, held: Collection[IncarnationPartition]) -> TopicPlan:
    """Return the plan of a topic with nothing to read of the partitions in `held`."""
    partitions: list[PartitionPlan] = []
    for partition in topic.partitions:
        if (topic.name, topic.incarnation, partition.partition) in held:
            # The end moves to the start, not to the archived end: a loss between them is reported now and must not be
            # reported once more by the run that reads the partition.
            partition = replace(partition, end=partition.start, held=())
        partitions.append(partition)
    return replace(topic, partitions=tuple(partitions))


def held_back(plan: Plan) -> dict[IncarnationPartition, int]:
    """Return the partitions of which this run leaves offsets to later runs, and where the archive ends in each."""
    ends: dict[IncarnationPartition, int] = {}
    for topic in plan.topics:
        for partition in topic.partitions:
            if partition.end < partition.live.end:
                ends[topic.name, topic.incarnation, partition.partition] = partition.end
    return ends


def clamp(groups: Groups, plan: Plan) -> Groups:
    """Return `groups` with each offset that lies past the end of a held-back partition moved to that end."""
    ends = {(topic, partition): end for (topic, _, partition), end in held_back(plan).items()}
    if not ends:
        return groups
    clamped = [_clamp_group(group, ends) for group in groups.groups]
    return msgspec.structs.replace(groups, groups=tuple(clamped))


def _clamp_group(group: Group, ends: Mapping[tuple[str, int], int]) -> Group:
    offsets: list[GroupOffset] = []
    for committed in group.offsets:
        end = ends.get((committed.topic, committed.partition))
        if end is not None and end < committed.offset:
            committed = msgspec.structs.replace(committed, offset=end)
        offsets.append(committed)
    return msgspec.structs.replace(group, offsets=tuple(offsets))


# Compute the archive's next topic states from a run's plan and segments. Pure.


_EPOCHS = 8
"""Leader epochs of a partition that a manifest remembers."""


def next_states(
    number: int,
    plan: Plan,
    segments: Sequence[Segment],
    lasts: Mapping[TopicPartition, tuple[LastRecord, ...]] = MappingProxyType({}),
    compacted: Collection[str] = (),
    schemas: Iterable[SchemaUse] = (),
    earlier: Mapping[TopicPartition, Sequence[OffsetDigest]] = MappingProxyType({}),
    forgetting: Collection[str] = (),
) -> tuple[TopicState, ...]:
    """Return the topics of restore point `number`: those of the plan as they are after this run, and the carried ones.

    `segments` are what this run archived, `schemas` the schemas that their records name. `lasts` has the last records
    that this run read of each partition, `earlier` some records before them. Topics in `compacted` remember `FEW` last
    records of a partition, other topics one. Topics in `forgetting` forget the earlier records of former runs.
    """
    added: dict[TopicPartition, list[Segment]] = defaultdict(list)
    counted = Counter[str]()
    for segment in segments:
        added[TopicPartition(segment.topic, segment.partition)].append(segment)
        counted[segment.topic] += segment.count
    used: dict[str, list[SchemaUse]] = defaultdict(list)
    for use in schemas:
        used[use.topic].append(use)

    topics = list(plan.carried)
    for topic in plan.topics:
        # Of a compacted topic the last record may be gone by the next run: then one of the few before it is compared.
        few = FEW if topic.name in compacted else 1
        partitions = list(topic.offline)
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition)
            state = _next_partition(partition, added[tp], lasts.get(tp, ()), few)
            before = None if topic.name in forgetting else partition.before
            remembered = _earlier_records(state, before, added[tp], earlier.get(tp, ()))
            partitions.append(msgspec.structs.replace(state, earlier=remembered))
        partitions.sort(key=attrgetter("partition"))
        captured = TopicState(
            name=topic.name,
            id=topic.id,
            incarnation=topic.incarnation,
            captured=number,
            state="present",
            partitions=tuple(partitions),
            schemas=_next_schemas(topic, used[topic.name]),
            counted=topic.counted + counted[topic.name],
        )
        topics.append(captured)
    return tuple(sorted(topics, key=attrgetter("name")))


def _next_schemas(topic: TopicPlan, uses: Iterable[SchemaUse]) -> tuple[UsedSchemas, ...]:
    """Return the schemas that all archived records of a topic name. Keys, or values, that never had a frame have no
    entry. With the first frame, all earlier records count as fields, whether their key or value was null or not."""
    if topic.name in INTERNAL_TOPICS:
        # What looks like a frame there is a version or a length in a format of Kafka's own.
        return ()
    known = {used.part for used in topic.schemas}
    added: list[UsedSchemas] = []
    for use in uses:
        if not (use.framed or use.apicurio or use.part in known):
            continue
        earlier_fields = 0 if use.part in known else topic.counted
        odd = use.odd if use.unlisted else 0
        record_counts = {str(schema_id): count for schema_id, count in use.ids.items()}
        entry = UsedSchemas(
            part=use.part,
            fields=earlier_fields + use.fields,
            framed=use.framed,
            sure=use.sure,
            ids=record_counts,
            unlisted=use.unlisted,
            odd=odd,
            apicurio=use.apicurio,
        )
        added.append(entry)
    return merged(topic.schemas, added)


def _next_partition(
    plan: PartitionPlan, added: Sequence[Segment], read: Sequence[LastRecord], few: int
) -> PartitionState:
    """Return a partition as it is archived after this run, which `added` segments and `read` the last records. The
    state remembers `few` last records."""
    before = plan.before
    known = _known_last_records(plan)
    records = _last_records(plan, known, added, read)
    last = records[-1] if records else None
    epochs = before.epochs if before is not None else ()
    # The end of each epoch is remembered when a later leader has written: where compaction has taken the last record,
    # the cluster can still say whether its log has that epoch up to there.
    epoch = known[-1].leader_epoch if known else None
    if epoch is not None and (last is None or last.leader_epoch != epoch):
        epoch_end = EpochEnd(leader_epoch=epoch, offset=known[-1].offset)
        epochs = (*epochs, epoch_end)[-_EPOCHS:]
    # Of all records since the partition's first one, also of those that have expired in the archive since.
    start, all_records, size, unseen = plan.start, 0, 0, None
    if before is not None:
        start, all_records, size, unseen = before.start, before.records, before.bytes, before.unseen
    for segment in added:
        all_records += segment.count
        size += segment.bytes
    return PartitionState(
        partition=plan.partition,
        start=start,
        end=plan.end,
        log_start=plan.live.start,
        log_end=plan.live.high,
        records=all_records,
        bytes=size,
        last=last,
        tail=records[-few:-1],
        epochs=epochs,
        held=plan.held,
        unseen=unseen,
    )


def _known_last_records(plan: PartitionPlan) -> tuple[LastRecord, ...]:
    """Return the last records that the newest restore point remembers of a partition, without those before the end of
    what it held.

    The log has records in the held ranges that the archive gets only now. With remembered records on both sides of
    such a range, the next backup would find records between them and take the log for another one.
    """
    before = plan.before
    if before is None or before.last is None:
        return ()
    held_end = plan.owed[-1][1] if plan.owed else 0
    tail = [record for record in before.tail if record.offset >= held_end]
    return (*tail, before.last)


def _last_records(
    plan: PartitionPlan, known: tuple[LastRecord, ...], added: Sequence[Segment], read: Sequence[LastRecord]
) -> tuple[LastRecord, ...]:
    """Return the last records of a partition after this run; empty if this run did not read the very last one."""
    # Segments of what was owed may lie below the last record that is known: they say nothing of the end.
    above = known[-1].offset + 1 if known else plan.start
    new = [segment for segment in added if segment.last >= above]
    read = [record for record in read if record.offset >= above]
    if not new and (known or not added):
        return known
    if not read or read[-1].offset != max(segment.last for segment in new):
        return ()  # the last segment was taken over, not read
    if sum(segment.count for segment in new) == len(read):
        return (*known, *read)  # nothing lies between the known records and those that were read
    return tuple(read)


def _earlier_records(
    state: PartitionState, before: PartitionState | None, added: Sequence[Segment], read: Sequence[OffsetDigest]
) -> dict[int, str]:
    """Return the records before the last one that the partition `state` is to remember. They are chosen among those
    that the restore point `before` remembers and those that were `read`."""
    known = list(read)
    if before is not None:
        known += before.earlier.items()
        if before.last is not None:
            known.append((before.last.offset, before.last.digest))
    ends = [segment.last for segment in added]
    if state.last is not None:
        ends.append(state.last.offset)
    elif before is not None and before.last is not None:
        ends.append(before.last.offset)
    if not ends:
        return {}
    # The last record of a segment that was taken over is read from the archive by the next run, which needs no
    # earlier one for it.
    return spread(known, max(ends))


def says_more(plan: Plan, parent: Manifest | None) -> bool:
    """Return whether a restore point of `plan` differs from `parent` in topics, records or losses."""
    if parent is None or plan.losses:
        return True

    next_topics = next_states(parent.number, plan, ())
    return _archived_ranges(next_topics) != _archived_ranges(parent.topics)


def _archived_ranges(topics: Sequence[TopicState]) -> list[tuple[object, ...]]:
    """Return what topics have of records, without counts and without anything of the cluster's logs."""
    rows: list[tuple[object, ...]] = []
    for topic in topics:
        partitions = [(p.partition, p.start, p.end, p.held) for p in topic.partitions]
        rows.append((topic.name, topic.id, topic.incarnation, topic.state, partitions))
    return rows


def same_groups(one: Groups, other: Groups) -> bool:
    """Return whether both captures have the same groups with the same committed offsets, whatever their time."""

    def offsets_by_group(groups: Groups) -> dict[str, tuple[object, ...]]:
        return {group.group: (group.type, group.offsets) for group in groups.groups}

    same_names_left_out = set(one.not_carried) == set(other.not_carried)
    return same_names_left_out and offsets_by_group(one) == offsets_by_group(other)


def same_settings(one: Metadata, other: Metadata) -> bool:
    """Return whether both captures are equal apart from their time and the next producer id, which every new producer
    raises."""

    def timeless(metadata: Metadata) -> Metadata:
        return msgspec.structs.replace(metadata, captured_at="", checksum="", next_producer_id=None)

    return timeless(one) == timeless(other)
