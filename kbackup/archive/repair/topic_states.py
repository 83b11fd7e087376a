"""The topics of a restore point that is made of segments, or whose manifest is lost. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kbackup.archive import layout
from kbackup.archive.catalog.state import Point, State
from kbackup.archive.models import Groups, Manifest, Metadata, PartitionState, TopicState
from kbackup.archive.repair.base import Documents
from kbackup.archive.segments.table import Segment
from kbackup.metadata.entities import TopicMetadata
from kbackup.types import Incarnation, IncarnationPartition

Row = tuple[int, int, int, int, int, int]
"""Restore point, partition, first and last offset, records, bytes of a segment or of a loss."""
Captured = Mapping[str, Sequence[tuple[int, TopicMetadata]]]
"""By name: each topic as metadata.json of a restore point has it, with the number of the restore point, in order."""


def captured_topics(documents: Documents) -> Captured:
    """Return the topics of all whole metadata documents."""
    topics: dict[str, list[tuple[int, TopicMetadata]]] = defaultdict(list)
    for key, (document, _) in documents.items():
        parsed = layout.parse_point_key(key)
        if parsed is not None and isinstance(document, Metadata):
            for topic in document.topics:
                topics[topic.name].append((parsed[0], topic))
    for entries in topics.values():
        entries.sort(key=lambda entry: entry[0])
    return topics


def topic_at(captured: Captured, name: str, topic_id: str, number: int) -> TopicMetadata | None:
    """Return a topic as it was captured at restore point `number` or last before, else first after. A topic of unknown
    id is only returned where all documents mean the same one."""
    entries = captured.get(name, ())
    if not topic_id and len({topic.id for _, topic in entries}) > 1:
        return None
    entries = [entry for entry in entries if not topic_id or entry[1].id in ("", topic_id)]
    earlier = [topic for at, topic in entries if at <= number]
    return earlier[-1] if earlier else next((topic for _, topic in entries), None)


def topic_states(
    number: int,
    partitions: Iterable[IncarnationPartition],
    segments: Mapping[IncarnationPartition, Sequence[Segment]],
    ids: Mapping[Incarnation, str],
    before: Mapping[IncarnationPartition, PartitionState],
    groups: Groups,
) -> tuple[TopicState, ...]:
    """Topics of restore point `number`, with every one of `partitions`. A partition ends behind its last segment, or
    where it ended `before`; groups that stand further on tell that its log did not."""
    highest: dict[tuple[str, int], int] = {}
    for group in groups.groups:
        for o in group.offsets:
            highest[o.topic, o.partition] = max(o.offset, highest.get((o.topic, o.partition), 0))
    by_topic: dict[Incarnation, list[int]] = {}
    for topic, incarnation, partition in sorted(partitions):
        by_topic.setdefault((topic, incarnation), []).append(partition)
    return tuple(
        TopicState(
            name=topic,
            id=ids.get((topic, incarnation), ""),
            incarnation=incarnation,
            captured=number,
            state="present",
            partitions=tuple(
                _new_partition(
                    partition,
                    segments.get((topic, incarnation, partition), ()),
                    before.get((topic, incarnation, partition)),
                    highest.get((topic, partition), 0),
                )
                for partition in range(max(numbers) + 1)
            ),
        )
        for (topic, incarnation), numbers in by_topic.items()
    )


def _new_partition(
    number: int, segments: Sequence[Segment], before: PartitionState | None, group: int
) -> PartitionState:
    first = segments[0].first if segments else 0
    start = before.start if before is not None else first
    end = max(segments[-1].last + 1 if segments else start, before.end if before is not None else 0)
    return PartitionState(
        partition=number,
        start=start,
        end=end,
        log_start=before.log_start if before is not None else start,
        log_end=max(end, before.log_end if before is not None else 0, group),
        records=sum(s.count for s in segments) + (before.records if before is not None else 0),
        bytes=sum(s.bytes for s in segments) + (before.bytes if before is not None else 0),
    )


def rows_by_incarnation(state: State) -> dict[Incarnation, list[Row]]:
    rows: dict[Incarnation, list[Row]] = defaultdict(list)
    names = ("topic", "incarnation", "point", "partition", "first", "last", "count", "bytes")
    for topic, incarnation, *row in zip(*state.segments.columns(*names), strict=True):
        rows[topic, incarnation].append((row[0], row[1], row[2], row[3], row[4], row[5]))
    for loss in state.losses.dicts():
        if loss["partition"] is not None and loss["end"] is not None:
            key = (loss["topic"], loss["incarnation"])
            start = loss["start"] if loss["start"] is not None else loss["end"]
            rows[key].append((loss["point"], loss["partition"], start, loss["end"] - 1, 0, 0))
    return rows


def lost_topic(
    state: State,
    point: Point,
    key: Incarnation,
    rows: Sequence[Row],
    beside: tuple[Manifest | None, Manifest | None],
    captured: set[str] | None,
    count: int,
) -> TopicState:
    """A topic of a restore point whose manifest is lost. `count` is its number of partitions by a capture, 0 where no
    document has it: a partition that never had a record has no row."""
    before, after = (
        next((t for t in m.topics if (t.name, t.incarnation) == key), None) if m is not None else None
        for m in beside
    )
    if after is not None and after.captured <= point.number:  # it was captured then, and not since
        is_own = after.captured == point.number
        return msgspec.structs.replace(after, state="present") if is_own else after
    own = [row for row in rows if row[0] <= point.number]
    template = before if before is not None or count else after
    numbers = {p.partition for p in (template.partitions if template is not None else ())}
    numbers |= set(range(max([0 if numbers else 1, count, *(row[1] + 1 for row in own)])))
    number = point.number
    if before is not None and captured is not None and key[0] not in captured:
        number = before.captured
    is_carried = before is not None and number == before.captured
    return TopicState(
        name=key[0],
        id=state.lives[key].topic_id,
        incarnation=key[1],
        captured=number,
        state=before.state if before is not None and is_carried else "present",
        partitions=tuple(
            _lost_partition(state, (*key, n), [r for r in own if r[1] == n], before, after)
            for n in sorted(numbers)
        ),
    )


def _lost_partition(
    state: State,
    key: IncarnationPartition,
    rows: Iterable[Row],
    before: TopicState | None,
    after: TopicState | None,
) -> PartitionState:
    old, new = (
        next((p for p in topic.partitions if p.partition == key[2]), None) if topic is not None else None
        for topic in (before, after)
    )
    every = list(rows)
    log_start = state.starts.get(key)
    known = old or new
    start = known.start if known is not None else min((row[2] for row in every), default=0)
    end = max([start, old.end if old is not None else 0, *(row[3] + 1 for row in every)])
    if log_start is not None and (new is None or new.end >= log_start.start):
        end = max(end, log_start.start)
    had_more = log_start is not None and end >= log_start.start
    return PartitionState(
        partition=key[2],
        start=start,
        end=end,
        log_start=known.log_start if known is not None else start,
        log_end=max(end, old.log_end if old is not None else 0),
        records=sum(r[4] for r in every) + (log_start.records if log_start is not None and had_more else 0),
        bytes=sum(r[5] for r in every) + (log_start.bytes if log_start is not None and had_more else 0),
    )
