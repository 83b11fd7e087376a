"""Applied positions: how far the records of each remote partition are committed in the target.

They are offsets of a consumer group on the target, committed in the transaction that carries the records. Nothing else
says what comes next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kbackup.archive import layout
from kbackup.archive.restores.flow_map.slots import read_flow, slot_of
from kbackup.archive.restores.flow_map.tables import MapPartName
from kbackup.errors import ClusterError
from kbackup.jobs.mirror.flow import AppliedPosition
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.produce.produce import Progress
from kbackup.store.base import Store
from kbackup.types import TopicPartition


class Note(NamedTuple):
    """The metadata of an applied position: `map_part` is the part of the slot's offset map that was committed with it,
    `point` the restore point that was applied then. `topic_id` is the id of the remote topic, '' where it is not
    known."""

    incarnation: int
    map_part: MapPartName
    point: int
    topic_id: str = ""

    def __str__(self) -> str:
        return "/".join(map(str, self if self.topic_id else self[:3]))

    @classmethod
    def parse(cls, text: str) -> Note | None:
        incarnation, name, point, topic_id = (*text.split("/", 3), "", "", "")[:4]
        part = MapPartName.parse(name)
        return (
            cls(int(incarnation), part, int(point), topic_id)
            if part and incarnation.isdecimal() and point.isdecimal()
            else None
        )

    def is_of(self, topic_id: str) -> bool:
        """Return whether the remote topic is the one that the position was committed for, as far as that is known."""
        return topic_id in ("", self.topic_id) or not self.topic_id


class Noted(NamedTuple):
    """A committed position with its note."""

    position: AppliedPosition
    note: Note

    @classmethod
    def of(cls, tp: TopicPartition, progress: Progress) -> Noted:
        """Parse a committed position; `ClusterError` where another program committed it."""
        note = Note.parse(progress.note)
        if note is None:
            raise ClusterError(
                f"the applied position of {tp} on the target has no note of a mirror: {progress.note!r}",
                "reset that partition's offset: another program has committed to the flow's consumer group",
            )
        return cls(AppliedPosition(note.incarnation, progress.next), note)


def read_positions(cluster: Cluster, source: str, target: str) -> dict[TopicPartition, Noted]:
    """Return every applied position of a flow, as the target's consumer group has it."""
    group = layout.mirror_group(source, target)
    committed, refused = cluster.groups.committed([group])
    if refused:
        raise ClusterError(
            f"the applied positions can't be read: {refused[group]}", "let this user describe that group"
        )
    # a note is written with the NUL byte behind it that confluent-kafka wants
    return {
        c.tp: Noted.of(c.tp, Progress(c.offset, c.metadata.rstrip("\0"))) for c in committed.get(group, [])
    }


def read_heads(cluster: Cluster, store: Store, source: str, target: str) -> dict[int, MapPartName]:
    """Return the last committed part of the offset map of each slot, for `archive.flow_map.open_map`. `store` is where
    the flow keeps its state."""
    flow = read_flow(store, source, target)
    return heads_of(read_positions(cluster, source, target), flow.slots) if flow is not None else {}


def heads_of(positions: Mapping[TopicPartition, Noted], slots: int) -> dict[int, MapPartName]:
    """Return the last committed part of the offset map of each slot that has a position."""
    heads: dict[int, MapPartName] = {}
    for tp, noted in positions.items():
        slot = slot_of(tp, slots)
        heads[slot] = max(noted.note.map_part, heads.get(slot, noted.note.map_part))
    return heads
