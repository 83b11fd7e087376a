"""Archives with a past: runs that captured, left out, or found topics made anew, made by the archive's own writers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

import pyarrow as pa

from kbackup.archive.models import Loss, TopicState
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.formats.record import encode
from kbackup.store.base import Store
from kbackup.types import RECORDS
from tests.support.archives import commit_point, group_at, partition_state, topic_of, write_block

Did = int | Literal["out", "anew"]
"""The number of records in each partition of a topic at a run; or that the topic was left out, or created anew."""

START = datetime(2026, 1, 1, tzinfo=UTC)
PARTITIONS = 2


def day(number: int) -> datetime:
    return START + timedelta(days=number)


def written(store: Store, target: SegmentTarget, first: int, count: int, at: datetime) -> list[Segment]:
    """Segments of two records or so, all written `at`."""
    rows = [
        {
            "offset": offset,
            "timestamp_type": 0,
            "timestamp": int(at.timestamp() * 1000),
            "key": b"k",
            "value": b"%d of %s" % (offset, target.topic.encode()),
            "headers": [],
        }
        for offset in range(first, first + count)
    ]
    return write_block(store, target, encode(pa.RecordBatch.from_pylist(rows, schema=RECORDS)))


@dataclass
class History:
    """Run n is of day n. `configs` are those of topics."""

    store: Store
    configs: Mapping[str, dict[str, str]] = field(default_factory=dict)
    topics: dict[str, TopicState] = field(default_factory=dict)

    @property
    def archive(self) -> Archive:
        return open_archive(self.store)

    def run(self, seq: int, did: Mapping[str, Did], losses: Iterable[Loss] = ()) -> None:
        archive = open_or_create(self.store)
        segments: list[Segment] = []
        for name, change in did.items():
            before = self.topics.get(name)
            if change == "out" and before is not None:
                self.topics[name] = _left_out(before)
            elif change != "out":
                anew = change == "anew" or before is None
                made, added = self._captured(name, seq, None if anew else before, 2 if change == "anew" else change)
                self.topics[name] = made
                segments += added
        self._commit(archive, seq, segments, tuple(losses))

    def _captured(self, name: str, seq: int, before: TopicState | None, count: int) -> tuple[TopicState, list[Segment]]:
        known = self.topics.get(name)
        incarnation = known.incarnation if known is not None and before is not None else 1
        if known is not None and before is None:
            incarnation = known.incarnation + 1
        partitions, segments = [], list[Segment]()
        for number in range(PARTITIONS):
            old = before.partitions[number] if before is not None else None
            end = old.end if old is not None else 0
            target = SegmentTarget(name, incarnation, number, 60, "none")
            added = written(self.store, target, end, count, day(seq)) if count else []
            segments += added
            partitions.append(
                partition_state(
                    number,
                    0,
                    end + count + 1,  # a transaction's marker
                    sum(s.count for s in added) + (old.records if old is not None else 0),
                    sum(s.bytes for s in added) + (old.bytes if old is not None else 0),
                )
            )
        state = topic_of(name, seq, partitions, incarnation, f"{name} {incarnation}")
        return state, segments

    def _commit(self, archive: Archive, number: int, segments: Sequence[Segment], losses: tuple[Loss, ...]) -> None:
        topics = tuple(self.topics[name] for name in sorted(self.topics))
        captured = [t for t in topics if t.captured == number]
        group = group_at("g", *((t.name, p.partition, p.end // 2) for t in captured for p in t.partitions))
        commit_point(
            archive,
            number,
            topics,
            segments,
            [group],
            losses,
            at=day(number).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            cluster_id="c",
            configs={name: self.configs.get(name, {}) for name in self.topics},
        )


def _left_out(state: TopicState) -> TopicState:
    fields = {name: getattr(state, name) for name in state.__struct_fields__}
    return TopicState(**fields | {"state": "unselected"})
