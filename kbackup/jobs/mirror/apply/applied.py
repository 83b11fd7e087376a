"""The result of a round of the apply half."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import pyarrow as pa

from kbackup.archive.restores.flow_map.tables import SCHEMA
from kbackup.jobs.mirror.flow import AppliedPosition
from kbackup.types import TopicPartition


class PartitionApplied(NamedTuple):
    """Records that a round committed in one remote partition. Timestamps in ms; None where no record has one."""

    records: int
    bytes: int
    oldest: int | None
    newest: int | None


class Recreated(NamedTuple):
    """The source's topic was deleted and created again, or a log of it was cut (`kind`): `incarnation` continues in
    the remote topic, or is held back."""

    topic: str
    remote: str
    incarnation: int
    held_back: bool
    kind: Literal["recreated", "truncated"] = "recreated"

    @property
    def message(self) -> str:
        then = (
            "is held back (kbackup.on.recreate = stop)"
            if self.held_back
            else "goes on in the same remote topic"
        )
        if self.kind == "recreated":
            return (
                f"topic {self.topic} was deleted and created again: its incarnation {self.incarnation} {then}"
            )
        if not self.held_back:
            then += "; what the source still has is there twice"
        return f"a log of topic {self.topic} was cut: its incarnation {self.incarnation} {then}"


class DeletedRemote(NamedTuple):
    """A remote topic that was deleted in the target: it was created again, and `topic` is applied anew."""

    topic: str
    remote: str

    @property
    def message(self) -> str:
        return (
            f"remote topic {self.remote} was deleted in the target: every record of {self.topic} that the archive has "
            "is applied anew"
        )


class Lost(NamedTuple):
    """Records [`start`, `end`) of a partition of the source that the flow never applies. None: not known."""

    topic: str
    incarnation: int
    partition: int | None
    remote: str
    start: int | None
    end: int | None
    message: str


@dataclass(frozen=True)
class Applied:
    """Everything up to restore point `point` is committed in the target, but for what is held back.

    `positions` are those of all remote partitions of the flow, not of this round alone. `runs` are what the round
    added to the offset map (`archive.flow_map.SCHEMA`), `partitions` the counts of partitions with new records.
    `recreated` are the new incarnations that were noticed, `held_back` all of those that wait. `refused` says by remote
    topic why the target has no room for its records: they wait.
    """

    point: int
    records: int = 0
    bytes: int = 0
    positions: Mapping[TopicPartition, AppliedPosition] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, PartitionApplied] = field(default_factory=dict)
    runs: pa.Table = field(default_factory=SCHEMA.empty_table)
    recreated: tuple[Recreated, ...] = ()
    held_back: tuple[Recreated, ...] = ()
    too_late: tuple[Lost, ...] = ()
    deleted: tuple[DeletedRemote, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def is_loss(self) -> bool:
        """Return whether the process ends with exit code 3 for this round."""
        return bool(self.recreated or self.held_back or self.too_late)
