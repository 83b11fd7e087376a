"""`sync.group.offsets`: translated positions, written to the target's groups of the same names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.groups.admin import Committed
from kbackup.kafka.mirror_records import Checkpoint
from kbackup.util.text import plural


@dataclass(frozen=True)
class GroupSync:
    """`written` counts the offsets set by group; `held_back` says by group why nothing was set."""

    written: dict[str, int] = field(default_factory=dict)
    held_back: dict[str, str] = field(default_factory=dict)


def sync_group_offsets(checkpoints: Iterable[Checkpoint], cluster: Cluster) -> GroupSync:
    """Set the offsets of `checkpoints` in the target's groups of the same names, as MirrorMaker 2 does: in groups that
    are empty or absent, and only forward. A group with members is held back, also one that gets a member meanwhile.
    """
    by_group: dict[str, list[Checkpoint]] = {}
    for checkpoint in checkpoints:
        by_group.setdefault(checkpoint.group, []).append(checkpoint)
    members, held_back = cluster.groups.members(by_group)
    held_back |= {group: f"it has {plural(n, 'live member')}" for group, n in members.items() if n}
    committed, unread = cluster.groups.committed(group for group in by_group if group not in held_back)
    held_back |= unread
    due = {group: _forward(by_group[group], offsets) for group, offsets in committed.items()}
    refused = cluster.groups.commit_all({group: offsets for group, offsets in due.items() if offsets})
    held_back |= {group: why for group, why in refused.items() if why}
    return GroupSync({group: len(due[group]) for group, why in refused.items() if not why}, held_back)


def _forward(checkpoints: Iterable[Checkpoint], committed: Iterable[Committed]) -> list[Committed]:
    """Return the offsets that are beyond the group's own."""
    there = {c.tp: c.offset for c in committed}
    return [
        Committed(c.tp, c.offset, None, c.metadata) for c in checkpoints if there.get(c.tp, -1) < c.offset
    ]
