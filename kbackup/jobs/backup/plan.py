"""What a backup run has to read, from what is archived and what the cluster shows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from msgspec.structs import replace

from kbackup.archive.models import Loss, Manifest, PartitionState, TopicState
from kbackup.jobs.capture.live import Live, LiveTopic
from kbackup.types import OffsetRange, TopicPartition

PACK_PARTITIONS = 256  # partitions that share a task and its consumer, at most


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """Read [`start`, `end`); `before` is what the archive has of this partition, None for one that is new to
    it."""

    partition: int
    start: int
    end: int
    live: Live
    before: PartitionState | None


@dataclass(frozen=True, slots=True)
class TopicPlan:
    name: str
    id: str
    incarnation: int
    partitions: tuple[PartitionPlan, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    topics: tuple[TopicPlan, ...]
    carried: tuple[TopicState, ...]
    losses: tuple[Loss, ...]
    warnings: tuple[str, ...]

    @property
    def ranges(self) -> list[OffsetRange]:
        return [OffsetRange(t.name, p.partition, p.start, p.end) for t in self.topics for p in t.partitions]


NextIncarnation = Callable[[str, str], int]
"""The number of a new incarnation of a topic, by its name and id."""


def make_plan(
    head: Manifest | None,
    selected: Sequence[LiveTopic],
    existing: Iterable[str],
    next_incarnation: NextIncarnation,
    diverged: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> Plan:
    """`selected` are the topics to capture, `existing` the names of all that the cluster has. `diverged` are partitions
    whose log holds another record than the archive at the offset of the last archived one, and that offset."""
    known = {t.name: t for t in head.topics} if head is not None else {}
    names = {t.name for t in selected}
    there = set(existing)
    topics: list[TopicPlan] = []
    losses: list[Loss] = []
    warnings = [] if names else ["no topic of the source is selected: this restore point captures none"]
    for topic in selected:
        before = known.get(topic.name)
        plan, lost, warned = _plan_topic(topic, before, next_incarnation, diverged)
        topics.append(plan)
        losses += lost
        warnings += warned
    carried: list[TopicState] = []
    for state in known.values():
        if state.name in names:
            continue
        if state.name in there:
            carried.append(replace(state, state="unselected"))
            continue
        if state.state != "deleted":
            warnings.append(
                f"topic {state.name} no longer exists at the source; what was archived of it is kept"
            )
            losses += _lost_with_topic(state)
        carried.append(replace(state, state="deleted"))
    return Plan(tuple(topics), tuple(carried), tuple(losses), tuple(warnings))


def _lost_with_topic(state: TopicState) -> list[Loss]:
    """What the newest restore point knew of and left for a later one: held back, or behind an open transaction."""
    return [
        Loss(
            kind="retention",
            topic=state.name,
            partition=p.partition,
            start=p.end,
            end=p.log_end,
            message=f"offsets {p.end} to {p.log_end - 1} of {state.name}-{p.partition}, or some of them, "
            "were deleted with the topic before they were archived",
        )
        for p in state.partitions
        if p.end < p.log_end
    ]


def _plan_topic(
    topic: LiveTopic,
    before: TopicState | None,
    next_incarnation: NextIncarnation,
    diverged: Mapping[TopicPartition, int],
) -> tuple[TopicPlan, list[Loss], list[str]]:
    if before is None:
        return _anew(topic, next_incarnation(topic.name, topic.id)), [], []
    if topic.id and before.id and topic.id != before.id:
        return _plan_recreated(topic, before, next_incarnation)
    archived = {p.partition: p for p in before.partitions}
    cut = _cut_logs(topic, archived, diverged)
    if cut:
        # new records take the offsets of those that were cut: they can't share a folder with them
        return _anew(topic, next_incarnation(topic.name, topic.id)), cut, []
    partitions: list[PartitionPlan] = []
    losses: list[Loss] = []
    for number, live in sorted(topic.partitions.items()):
        old = archived.get(number)
        start = live.start if old is None else max(old.end, live.start)
        if old is not None and live.start > old.end:
            losses.append(retention_loss(TopicPartition(topic.name, number), old.end, live.start))
        partitions.append(PartitionPlan(number, start, max(start, live.end), live, old))
    return TopicPlan(topic.name, topic.id, before.incarnation, tuple(partitions)), losses, []


def _cut_logs(
    topic: LiveTopic, archived: Mapping[int, PartitionState], diverged: Mapping[TopicPartition, int]
) -> list[Loss]:
    """A loss for each log that was cut: it ends before the archive does, or has grown again with other records."""
    losses: list[Loss] = []
    for number, live in topic.partitions.items():
        tp, state = TopicPartition(topic.name, number), archived.get(number)
        if state is None:
            continue
        if live.high < state.end:
            start, words = live.high, f"ends at {live.high}, but was archived up to {state.end}"
        elif tp in diverged:
            start, words = (
                None,
                f"was cut and has grown again: offset {diverged[tp]} is not the archived record",
            )
        else:
            continue
        message = f"the log of {tp} {words}"
        losses.append(
            Loss(
                kind="truncated",
                topic=tp.topic,
                partition=number,
                start=start,
                end=state.end,
                message=message,
            )
        )
    return losses


def _plan_recreated(
    topic: LiveTopic, before: TopicState, next_incarnation: NextIncarnation
) -> tuple[TopicPlan, list[Loss], list[str]]:
    plan = _anew(topic, next_incarnation(topic.name, topic.id))
    message = f"topic {topic.name} was deleted and created again (incarnation {plan.incarnation})"
    if before.state == "deleted":
        return plan, [], [message]
    message += "; what the old one got after the last restore point is lost"
    return plan, [Loss(kind="recreated", topic=topic.name, message=message)], []


def _anew(topic: LiveTopic, incarnation: int) -> TopicPlan:
    partitions = tuple(
        PartitionPlan(number, live.start, max(live.start, live.end), live, None)
        for number, live in sorted(topic.partitions.items())
    )
    return TopicPlan(topic.name, topic.id, incarnation, partitions)


def retention_loss(tp: TopicPartition, start: int, end: int) -> Loss:
    """Records that were deleted at the source before they were archived."""
    return Loss(
        kind="retention",
        topic=tp.topic,
        partition=tp.partition,
        start=start,
        end=end,
        message=f"offsets {start} to {end - 1} of {tp} were deleted at the source before they were archived",
    )


def without(
    ranges: Iterable[OffsetRange], taken: Mapping[TopicPartition, Sequence[tuple[int, int]]]
) -> list[OffsetRange]:
    """`ranges` less the intervals (first, last), both inclusive and disjoint, that are `taken`."""
    left: list[OffsetRange] = []
    for wanted in ranges:
        at = wanted.start
        for first, last in sorted(taken.get(wanted.tp, ())):
            if first > at:
                left.append(wanted._replace(start=at, end=min(first, wanted.end)))
            at = max(at, last + 1)
        left.append(wanted._replace(start=min(at, wanted.end)))
    return [r for r in left if r.start < r.end]


def make_tasks(
    ranges: Iterable[OffsetRange], split_records: int, pack_records: int
) -> list[list[OffsetRange]]:
    """Ranges as tasks: those of more than `split_records` offsets are cut, those of fewer than `pack_records`
    share a task. `ranges` of one partition stand together; no task has two of them: its consumer reads a
    partition in one place.

    Offsets count, since nobody knows the records of a range before reading it. Big tasks come first, so that no
    long one is left for the end.
    """
    alone: list[list[OffsetRange]] = []
    packs: list[list[OffsetRange]] = []
    room = 0
    for wanted in ranges:
        size = wanted.end - wanted.start
        if size >= pack_records:
            alone += [[piece] for piece in _cut(wanted, split_records)]
        elif size > 0:
            if not packs or size > room or len(packs[-1]) == PACK_PARTITIONS or packs[-1][-1].tp == wanted.tp:
                packs.append([])
                room = pack_records
            packs[-1].append(wanted)
            room -= size
    return sorted(alone + packs, key=lambda task: -sum(r.end - r.start for r in task))


def _cut(wanted: OffsetRange, split_records: int) -> list[OffsetRange]:
    size = wanted.end - wanted.start
    pieces = -(-size // split_records)
    marks = [wanted.start + size * i // pieces for i in range(pieces + 1)]
    return [wanted._replace(start=a, end=b) for a, b in pairwise(marks)]
