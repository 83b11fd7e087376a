"""A restore point of what was found: which topics and partitions, from where to where. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kbackup.archive import layout
from kbackup.archive.expired import gone_with, log_starts
from kbackup.archive.models import ExpiredPartition, Groups, Loss, PartitionState, TopicState
from kbackup.archive.repair.beside import Topic
from kbackup.archive.repair.choose import Chosen
from kbackup.archive.repair.left import MOST_PARTITIONS, Left, place_of
from kbackup.archive.segments import Segment


@dataclass(frozen=True)
class Known:
    """Of a topic's incarnation: its id ('' where nothing tells), how restore points had it last, and the numbers of
    partitions that anything speaks of."""

    id: str
    state: TopicState | None
    partitions: frozenset[int]


def known_topics(left: Left, chosen: Chosen) -> dict[Topic, Known]:
    """Every incarnation of a topic that has segments, files under topics/ or a place in a restore point."""
    states: dict[Topic, TopicState] = {}
    for manifest in left.manifests:
        states |= {(t.name, t.incarnation): t for t in manifest.topics}
    partitions: dict[Topic, set[int]] = {topic: set() for topic in states}
    for topic, state in states.items():
        partitions[topic] |= {p.partition for p in state.partitions}
    for name, incarnation, partition in chosen.segments:
        partitions.setdefault((name, incarnation), set()).add(partition)
    for topic, partition in _files(left):
        partitions.setdefault(topic, set()).add(partition)
    newest = {name: max(i for n, i in partitions if n == name) for name, _ in partitions}
    for metadata in left.metadata.values():
        for t in metadata.topics:
            if t.name in newest and (t.name, newest[t.name]) not in states:
                partitions[t.name, newest[t.name]] |= set(range(t.partitions))
    return {
        topic: Known(_id(left, topic, states.get(topic), newest), states.get(topic), frozenset(numbers))
        for topic, numbers in sorted(partitions.items())
    }


def _files(left: Left) -> Iterator[tuple[Topic, int]]:
    """Partitions that derived files under topics/ are of: also those that hold no record."""
    for key in left.sizes:
        place = place_of(key) if key.startswith(layout.TOPICS) else None
        if place is not None:
            number = layout.parse_partition_index(place[2])
            number = layout.parse_group_offsets(place[2]) if number is None else number
            if number is not None and number < MOST_PARTITIONS:
                yield (place[0], place[1]), number


def _id(left: Left, topic: Topic, state: TopicState | None, newest: Mapping[str, int]) -> str:
    """Kafka's id, where everything that tells of this incarnation says the same."""
    said = {state.id} if state is not None else set()
    said |= {
        t.id for intent in left.intents.values() for t in intent.topics if (t.name, t.incarnation) == topic
    }
    if not said and newest[topic[0]] == topic[1]:
        said = {t.id for m in left.metadata.values() for t in m.topics if t.name == topic[0]}
    return said.pop() if len(said) == 1 else ""


def layers(chosen: Chosen, known: Iterable[Topic]) -> list[list[Topic]]:
    """The topics of each restore point that is needed, oldest first: one has no topic in two incarnations. Older ones
    that a restore point which stays has all of are left to that."""
    new = {
        place[:2] for place, some in chosen.segments.items() if any(s.key not in chosen.tabled for s in some)
    }
    there = {(t.name, t.incarnation) for m in chosen.kept for t in m.topics} - new
    incarnations: dict[str, list[int]] = {}
    for name, incarnation in sorted(known):
        incarnations.setdefault(name, []).append(incarnation)
    older = {
        name: [i for i in numbers[:-1] if (name, i) not in there] for name, numbers in incarnations.items()
    }
    depth = max(map(len, older.values()), default=0)
    found: list[list[Topic]] = []
    for at in range(depth):
        found.append([(n, o[at - depth]) for n, o in sorted(older.items()) if len(o) >= depth - at])
    return [*found, [(name, numbers[-1]) for name, numbers in sorted(incarnations.items())]]


def topic_state(
    seq: int, topic: Topic, known: Known, left: Left, chosen: Chosen, groups: Groups
) -> TopicState:
    states = {p.partition: p for p in known.state.partitions} if known.state is not None else {}
    highest: dict[int, int] = {}
    for group in groups.groups:
        for o in group.offsets:
            if o.topic == topic[0]:
                highest[o.partition] = max(o.offset, highest.get(o.partition, 0))
    partitions = []
    starts = log_starts(left.points.expired)
    for number in range(max(known.partitions, default=-1) + 1):
        segments = chosen.segments.get((*topic, number), [])
        cut = (*topic, number) in chosen.cut
        state = _partition(number, segments, states.get(number), cut, highest.get(number, 0))
        if left.expirations:  # it starts where there is something left
            state = _after(starts.get((*topic, number)), state, segments)
        partitions.append(state)
    said = known.state.state if known.state is not None else "present"
    return TopicState(
        name=topic[0],
        id=known.id,
        incarnation=topic[1],
        captured=seq,
        state="present" if said == "unselected" else said,
        partitions=tuple(partitions),
    )


def _partition(
    number: int, segments: Sequence[Segment], before: PartitionState | None, cut: bool, group: int
) -> PartitionState:
    """`cut`: the last segments are not whole, so that what was archived of it ends earlier than `before` says."""
    first = segments[0].first if segments else 0
    start = before.start if before is not None else first
    end = segments[-1].last + 1 if segments else start
    if before is not None and not cut:
        end = max(end, before.end)
    return PartitionState(
        partition=number,
        start=min(start, first) if segments else start,
        end=end,
        log_start=before.log_start if before is not None else start,
        log_end=max(end, before.log_end if before is not None else 0, group),
        records=sum(s.count for s in segments),
        bytes=sum(s.bytes for s in segments),
    )


def _after(
    went: ExpiredPartition | None, state: PartitionState, segments: Sequence[Segment]
) -> PartitionState:
    """`state` where restore points expired, and `went` of its records: it counts those, too."""
    end = max(state.end, went.start if went is not None else 0)
    return msgspec.structs.replace(
        state,
        start=segments[0].first if segments else end,
        end=end,
        log_end=max(end, state.log_end),
        records=state.records + (went.records if went is not None else 0),
        bytes=state.bytes + (went.bytes if went is not None else 0),
    )


def losses_of(left: Left, chosen: Chosen) -> tuple[Loss, ...]:
    """What the restore points that are given up had found lost, and what is lost now."""
    since = chosen.kept[-1].seq if chosen.kept else 0
    # what expired has them in its expiration
    past = {seq: p for seq, p in left.past.items() if gone_with(left.points.gone, seq) is None}
    told = {seq: point.losses for seq, point in past.items() if seq > since}
    told |= {m.seq: m.losses for m in left.manifests if m.seq > since}
    every = (*(loss for _, losses in sorted(told.items()) for loss in losses), *chosen.losses)
    return tuple(dict.fromkeys(every))  # a repair that was cut off has told them already
