"""Plan a backup: the offsets to read, from the archived state and the captured cluster. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from kbackup.archive.last_record import FEW, OffsetDigest, spread
from kbackup.archive.models import (
    EpochEnd,
    Group,
    Groups,
    LastRecord,
    Loss,
    Manifest,
    Metadata,
    PartitionState,
    TopicState,
    UsedSchemas,
)
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
    """Read [`start`, `end`) apart from `held`, and what earlier restore points `owe`: ranges below `start`. `before` is
    what the archive has of this partition, None for one that is new to it."""

    partition: int
    start: int
    end: int
    live: Live
    before: PartitionState | None
    held: Offsets = ()
    owed: Offsets = ()

    @property
    def first(self) -> int:
        return self.owed[0][0] if self.owed else self.start

    @property
    def skips(self) -> Offsets:
        """What is not read of [`first`, `end`)."""
        wanted = (*self.owed, *without(((self.start, self.end),), self.held))
        return without(((self.first, self.end),), wanted)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    name: str
    id: str
    incarnation: int
    partitions: tuple[PartitionPlan, ...]
    offline: tuple[PartitionState, ...] = ()  # of partitions without a leader, as archived
    schemas: tuple[UsedSchemas, ...] = ()  # of the `counted` records that are archived
    counted: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    topics: tuple[TopicPlan, ...]
    carried: tuple[TopicState, ...]
    losses: tuple[Loss, ...]
    warnings: tuple[str, ...]

    @property
    def ranges(self) -> list[OffsetRange]:
        return [OffsetRange(t.name, p.partition, p.first, p.end) for t in self.topics for p in t.partitions]

    @property
    def skips(self) -> dict[TopicPartition, Offsets]:
        """The offsets of `ranges` that are not read."""
        apart = ((t.name, p) for t in self.topics for p in t.partitions if p.held or p.owed)
        return {TopicPartition(name, p.partition): p.skips for name, p in apart}


NextIncarnation = Callable[[str, str], int]
"""The number of a new incarnation of a topic, by its name and id."""


_WITH_TOPIC = ", or some of them, were deleted with the topic"


def make_plan(
    head: Manifest | None,
    selected: Sequence[LiveTopic],
    existing: Iterable[str],
    next_incarnation: NextIncarnation,
    diverged: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> Plan:
    """Plan the topics to capture, the topics to carry over, and the losses. `existing` are the names of all topics of
    the cluster. `diverged` are partitions whose log has another history than the archive, with an offset at which they
    differ."""
    known = {t.name: t for t in head.topics} if head is not None else {}
    names = {t.name for t in selected}
    on_source = set(existing)
    topics: list[TopicPlan] = []
    losses: list[Loss] = []
    warnings: list[str] = []
    if not names:
        warnings.append("no topic of the source is selected: this restore point captures none; correct backup.topics")
    for topic in selected:
        plan, lost, warned = _plan_topic(topic, known.get(topic.name), next_incarnation, diverged)
        topics.append(plan)
        losses += lost
        warnings += warned
    if offline := offline_partitions(selected):
        warnings.append(f"nothing new is archived of partitions without a leader: {join_names(offline, 5)}")
    carried: list[TopicState] = []
    for state in known.values():
        if state.name in names:
            continue
        if state.name in on_source:
            carried.append(msgspec.structs.replace(state, state="unselected"))
            continue
        if state.state != "deleted":
            warnings.append(f"topic {state.name} no longer exists at the source; what was archived of it is kept")
            # what the newest restore point left for a later one: held back, or behind an open transaction
            losses += [
                retention_loss(TopicPartition(state.name, p.partition), start, end, _WITH_TOPIC)
                for p in state.partitions
                for start, end in (*p.held, (p.end, p.log_end))
                if start < end
            ]
        carried.append(msgspec.structs.replace(state, state="deleted"))
    return Plan(tuple(topics), tuple(carried), tuple(losses), tuple(warnings))


_NOTHING = PartitionState(partition=0, start=0, end=0, log_start=0, log_end=0, records=0, bytes=0)


def _plan_topic(
    topic: LiveTopic,
    before: TopicState | None,
    next_incarnation: NextIncarnation,
    diverged: Mapping[TopicPartition, int],
) -> tuple[TopicPlan, list[Loss], list[str]]:
    losses: list[Loss] = []
    warnings: list[str] = []
    archived: dict[int, PartitionState] = {}
    incarnation: int | None = None
    if before is not None and topic.id and before.id and topic.id != before.id:
        incarnation = next_incarnation(topic.name, topic.id)
        message = f"topic {topic.name} was deleted and created again (incarnation {incarnation})"
        if before.state == "deleted":
            warnings.append(message)
        else:
            message += "; what the old one got after the last restore point is lost"
            losses.append(Loss(kind="recreated", topic=topic.name, message=message))
    elif before is not None:
        archived = {p.partition: p for p in before.partitions}
        losses += _cut_logs(topic, archived, diverged)
        if losses:
            archived = {}  # new records take the offsets of those that were cut: they can't share a folder with them
        else:
            incarnation = before.incarnation
    if incarnation is None:
        incarnation = next_incarnation(topic.name, topic.id)
    partitions: list[PartitionPlan] = []
    for number, live in sorted(topic.partitions.items()):
        old = archived.get(number)
        start = live.start if old is None else max(old.end, live.start)
        owed = old.held if old is not None else ()
        if old is not None and live.start > old.end:
            owed = (*owed, (old.end, live.start))
        gone = [(low, min(high, live.start)) for low, high in owed if low < live.start]
        losses += [retention_loss(TopicPartition(topic.name, number), low, high) for low, high in gone]
        end = max(start, live.end)
        rest = without(live.held, [(0, start), (end, MOST)])
        partitions.append(PartitionPlan(number, start, end, live, old, rest, without(owed, gone)))
    offline = tuple(
        archived.get(number, msgspec.structs.replace(_NOTHING, partition=number)) for number in topic.offline
    )
    known = before if before is not None and before.incarnation == incarnation else None
    schemas = (known.schemas, known.counted) if known is not None else ((), 0)
    return TopicPlan(topic.name, topic.id, incarnation, tuple(partitions), offline, *schemas), losses, warnings


def _cut_logs(
    topic: LiveTopic, archived: Mapping[int, PartitionState], diverged: Mapping[TopicPartition, int]
) -> list[Loss]:
    """Return a loss for each log that was cut: its end lies before the archive's, or it has other records."""
    losses: list[Loss] = []
    for number, live in topic.partitions.items():
        tp, state = TopicPartition(topic.name, number), archived.get(number)
        if state is None:
            continue
        if live.high < state.end:
            start, words = live.high, f"ends at {live.high}, but was archived up to {state.end}"
        elif tp in diverged:
            start, words = (None, f"was cut and has grown again: it differs from the archive at offset {diverged[tp]}")
        else:
            continue
        message = f"the log of {tp} {words}"
        losses.append(
            Loss(kind="truncated", topic=tp.topic, partition=number, start=start, end=state.end, message=message)
        )
    return losses


def retention_loss(tp: TopicPartition, start: int, end: int, how: str = " were deleted at the source") -> Loss:
    """Return the loss of records that were deleted at the source before they were archived."""
    message = f"offsets {start} to {end - 1} of {tp}{how} before they were archived"
    return Loss(kind="retention", topic=tp.topic, partition=tp.partition, start=start, end=end, message=message)


def vanished_losses(plan: Plan, vanished: Iterable[Vanished]) -> list[Loss]:
    """Return the losses of records that were deleted while they were read, without what is not of this run."""
    skips = plan.skips
    return [
        retention_loss(v.tp, start, end)
        for v in vanished
        for start, end in without(((v.start, v.end),), skips.get(v.tp, ()))
    ]


# Which partitions wait for more records before a segment is made of them. Pure.
#
# 10,000 partitions with a record a minute each would make 10,000 segments a minute. A partition that is held back is
# left where the archive has it: its `end` stays, the log's end is what it is, so the restore point is true. So are
# group offsets, though they may lie past that `end`: a restore of this point puts such a group behind the last
# record, and one by time, whose records come from later runs as well, at its own.


TYPICAL_RECORD = 1024  # bytes; of a partition of which nothing is archived yet


class BatchingPolicy(NamedTuple):
    """A partition with fewer than `small_bytes` of new records is small and waits, for `max_age` seconds at most. Of
    the small ones, the longest waiting first, `small_segments` or the `share` go with each restore point all the same:
    with a share of a round in `max_age`, those that began to wait together don't come of age together."""

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
    """Return partitions that have something new to read."""
    return {(t.name, t.incarnation, p.partition): p for t in plan.topics for p in t.partitions if p.live.end > p.start}


def hold_back(
    plan: Plan,
    batching: BatchingPolicy,
    since: Mapping[IncarnationPartition, float],
    now: float,
    never: Collection[TopicPartition] = (),
) -> Plan:
    """Return `plan` without the partitions that wait, but for those that `never` do. `since` has the time, in seconds
    like `now`, from which each partition has new records; a partition that it lacks has them from now on."""
    small = {
        place: since.get(place, now)
        for place, p in waiting(plan).items()
        if new_bytes(p.end - p.start, p.before) < batching.small_bytes
        and not p.owed
        and TopicPartition(place[0], place[2]) not in never
    }
    longest = sorted(small, key=lambda place: (small[place], place))
    of_age = sum(now - begun >= batching.max_age for begun in small.values())
    go = max(of_age, batching.small_segments, int(batching.share * len(small)))
    held = set(longest[go:])
    if not held:
        return plan
    topics = tuple(
        replace(
            t,
            partitions=tuple(
                # from after a loss, which is reported now and must not be reported twice
                replace(p, end=p.start, held=()) if (t.name, t.incarnation, p.partition) in held else p
                for p in t.partitions
            ),
        )
        for t in plan.topics
    )
    return replace(plan, topics=topics)


def held_back(plan: Plan) -> dict[IncarnationPartition, int]:
    """Return the archived end of each partition that waits."""
    return {
        (t.name, t.incarnation, p.partition): p.end for t in plan.topics for p in t.partitions if p.end < p.live.end
    }


def clamp(groups: Groups, plan: Plan) -> Groups:
    """Return `groups` with no position past the end of a partition that is held back."""
    ends = {(topic, partition): end for (topic, _, partition), end in held_back(plan).items()}
    if not ends:
        return groups

    def clamped(group: Group) -> Group:
        offsets = tuple(
            msgspec.structs.replace(o, offset=min(o.offset, ends.get((o.topic, o.partition), o.offset)))
            for o in group.offsets
        )
        return msgspec.structs.replace(group, offsets=offsets)

    return msgspec.structs.replace(groups, groups=tuple(map(clamped, groups.groups)))


# Compute the archive's next topic states from a run's plan and segments. Pure.


_EPOCHS = 8  # of a partition that a manifest remembers


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
    """Return the new vector of archived offsets: the captured partitions, and the others unchanged. `lasts` are the
    last records that this run read, and `earlier` some before them; `compacted` are the topics that remember more than
    one of the last ones. `schemas` are those that the records of `segments` name. Topics that are `forgetting` remember
    no earlier record of the runs before."""
    added: dict[TopicPartition, list[Segment]] = defaultdict(list)
    counted = Counter[str]()
    for segment in segments:
        added[TopicPartition(segment.topic, segment.partition)].append(segment)
        counted[segment.topic] += segment.count
    used: dict[str, list[SchemaUse]] = defaultdict(list)
    for use in schemas:
        used[use.topic].append(use)

    def states(topic: TopicPlan) -> Iterator[PartitionState]:
        few = FEW if topic.name in compacted else 1
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition)
            state = _partition(p, added[tp], lasts.get(tp, ()), few)
            before = p.before if topic.name not in forgetting else None
            yield msgspec.structs.replace(state, earlier=_earlier(state, before, added[tp], earlier.get(tp, ())))
        yield from topic.offline

    captured = [
        TopicState(
            name=topic.name,
            id=topic.id,
            incarnation=topic.incarnation,
            captured=number,
            state="present",
            partitions=tuple(sorted(states(topic), key=lambda p: p.partition)),
            schemas=_schemas(topic, used[topic.name]),
            counted=topic.counted + counted[topic.name],
        )
        for topic in plan.topics
    ]
    return tuple(sorted([*captured, *plan.carried], key=lambda t: t.name))


def _schemas(topic: TopicPlan, uses: Iterable[SchemaUse]) -> tuple[UsedSchemas, ...]:
    """Return what all records of a topic name. Keys and values without a frame have no entry; once there is one, the
    earlier records count as fields, null or not."""
    if topic.name in INTERNAL_TOPICS:  # what looks like frames there are versions and lengths of Kafka's own
        return ()
    known = {used.part for used in topic.schemas}
    added = [
        UsedSchemas(
            part=use.part,
            fields=use.fields + (0 if use.part in known else topic.counted),
            framed=use.framed,
            sure=use.sure,
            ids={str(each): count for each, count in use.ids.items()},
            unlisted=use.unlisted,
            odd=use.odd if use.unlisted else 0,
            apicurio=use.apicurio,
        )
        for use in uses
        if use.framed or use.apicurio or use.part in known
    ]
    return merged(topic.schemas, added)


def _partition(plan: PartitionPlan, added: Sequence[Segment], read: Sequence[LastRecord], few: int) -> PartitionState:
    before = plan.before
    known: tuple[LastRecord, ...] = ()
    if before is not None and before.last is not None:  # without a gap between them, where the log had more records
        behind = plan.owed[-1][1] if plan.owed else 0
        known = (*(record for record in before.tail if record.offset >= behind), before.last)
    epochs = before.epochs if before is not None else ()
    above = known[-1].offset + 1 if known else plan.start  # what was owed may lie below
    new = [s for s in added if s.last >= above]
    read = [record for record in read if record.offset >= above]
    if not new and (known or not added):
        records = known
    elif not read or read[-1].offset != max(s.last for s in new):
        records = ()  # the last segment was taken over, not read
    else:
        records = (*known, *read) if sum(s.count for s in new) == len(read) else tuple(read)
    last = records[-1] if records else None
    epoch = known[-1].leader_epoch if known else None
    if epoch is not None and (last is None or last.leader_epoch != epoch):
        epochs = (*epochs, EpochEnd(leader_epoch=epoch, offset=known[-1].offset))[-_EPOCHS:]
    return PartitionState(
        partition=plan.partition,
        start=before.start if before is not None else plan.start,
        end=plan.end,
        log_start=plan.live.start,
        log_end=plan.live.high,
        records=sum(s.count for s in added) + (before.records if before is not None else 0),
        bytes=sum(s.bytes for s in added) + (before.bytes if before is not None else 0),
        last=last,
        tail=records[-few:-1],
        epochs=epochs,
        held=plan.held,
        unseen=before.unseen if before is not None else None,
    )


def _earlier(
    state: PartitionState, before: PartitionState | None, added: Sequence[Segment], read: Sequence[OffsetDigest]
) -> dict[int, str]:
    """Return the records before the last one that the partition `state` remembers: of the restore point `before`, and
    those that were `read`."""
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
    # The last record of a segment that was taken over is read from the archive by the next run, which needs no
    # earlier one for it.
    return spread(known, max(ends)) if ends else {}


def says_more(plan: Plan, parent: Manifest | None) -> bool:
    """Return whether a restore point of `plan` differs from `parent` in topics, records or losses."""
    if parent is None or plan.losses:
        return True

    def vector(topics: Sequence[TopicState]) -> list[tuple[object, ...]]:
        return [
            (t.name, t.id, t.incarnation, t.state, [(p.partition, p.start, p.end, p.held) for p in t.partitions])
            for t in topics
        ]

    return vector(next_states(parent.number, plan, ())) != vector(parent.topics)


def same_groups(one: Groups, other: Groups) -> bool:
    """Return whether both captures have the same groups with the same committed offsets, whatever their time."""

    def stand(groups: Groups) -> tuple[object, ...]:
        return {g.group: (g.type, g.offsets) for g in groups.groups}, set(groups.not_carried)

    return stand(one) == stand(other)


def same_settings(one: Metadata, other: Metadata) -> bool:
    """Return whether both captures are equal but for their time and the next producer id, which each new producer
    raises."""

    def timeless(metadata: Metadata) -> Metadata:
        return msgspec.structs.replace(metadata, captured_at="", checksum="", next_producer_id=None)

    return timeless(one) == timeless(other)
