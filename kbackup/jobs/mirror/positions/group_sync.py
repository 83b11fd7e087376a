"""`sync.group.offsets`: translated positions, written to the target's groups of the same names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kbackup.kafka.admin import Cluster
from kbackup.kafka.mirror_records import Checkpoint


@dataclass(frozen=True)
class GroupSync:
    """`written` counts the offsets set by group; `held_back` says by group why nothing was set."""

    written: dict[str, int] = field(default_factory=dict)
    held_back: dict[str, str] = field(default_factory=dict)


def sync_group_offsets(checkpoints: Sequence[Checkpoint], cluster: Cluster) -> GroupSync:
    """Set the offsets of `checkpoints` in groups of the target that are empty or absent, and only forward."""
    raise NotImplementedError
