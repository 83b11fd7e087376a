"""Plan a backup run: the offsets to read, from the archived state and the captured cluster. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from msgspec.structs import replace

from kbackup.archive.models import Loss, Manifest, PartitionState, TopicState
from kbackup.jobs.capture.live import Live, LiveTopic
from kbackup.types import OffsetRange, TopicPartition


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
    """Plan the topics to capture, the topics to carry over, and the losses.

    `existing` are the names of all topics of the cluster. `diverged` are partitions whose log has another history than
    the archive, with an offset at which they differ.
    """
    known = {t.name: t for t in head.topics} if head is not None else {}
    names = {t.name for t in selected}
    on_source = set(existing)
    topics: list[TopicPlan] = []
    losses: list[Loss] = []
    warnings = (
        []
        if names
        else ["no topic of the source is selected: this restore point captures none; correct backup.topics"]
    )
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
        if state.name in on_source:
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
    """Return the losses of records that the newest restore point left for a later one.

    They were held back, or behind an open transaction.
    """
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
    """Return a loss for each log that was cut: its end lies before the archive's, or it has other records."""
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
                f"was cut and has grown again: it differs from the archive at offset {diverged[tp]}",
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
    """Return the loss of records that were deleted at the source before they were archived."""
    return Loss(
        kind="retention",
        topic=tp.topic,
        partition=tp.partition,
        start=start,
        end=end,
        message=f"offsets {start} to {end - 1} of {tp} were deleted at the source before they were archived",
    )
