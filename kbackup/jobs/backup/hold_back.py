"""Which partitions wait for more records before a segment is made of them. Pure.

10,000 partitions with a record a minute each would make 10,000 segments a minute. A partition that is held back is
left where the archive has it: its `end` stays, the log's end is what it is, so the restore point is true. So are group
offsets, though they may lie past that `end`: a restore of this point puts such a group behind the last record, and one
by time, whose records come from later runs as well, at its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import msgspec

from kbackup.archive.models import Group, Groups, PartitionState
from kbackup.jobs.backup.plan import PartitionPlan, Plan
from kbackup.types import IncarnationPartition

TYPICAL_RECORD = 1024  # bytes; of a partition of which nothing is archived yet


class Patience(NamedTuple):
    """A partition with fewer than `small_bytes` of new records is small and waits, for `max_age` seconds at most. Of
    the small ones, the longest waiting first, `small_segments` or the `share` go with each restore point all the
    same: with a share of a round in `max_age`, those that began to wait together don't come of age together.
    """

    small_bytes: int
    max_age: float
    small_segments: int
    share: float = 0.0


NO_PATIENCE = Patience(0, 0.0, 0)


def new_bytes(offsets: int, before: PartitionState | None) -> float:
    """Estimate the bytes of `offsets` new offsets by the mean of the archived records."""
    if before is None or not before.records:
        return offsets * float(TYPICAL_RECORD)
    return offsets * before.bytes / before.records


def waiting(plan: Plan) -> dict[IncarnationPartition, PartitionPlan]:
    """Partitions that have something new to read."""
    return {
        (t.name, t.incarnation, p.partition): p
        for t in plan.topics
        for p in t.partitions
        if p.live.end > p.start
    }


def hold_back(
    plan: Plan, patience: Patience, since: Mapping[IncarnationPartition, float], now: float
) -> Plan:
    """Return `plan` without the partitions that wait. `since` has the time, in seconds like `now`, from which each
    partition has new records; a partition that it lacks has them from now on."""
    small = {
        place: since.get(place, now)
        for place, p in waiting(plan).items()
        if new_bytes(p.end - p.start, p.before) < patience.small_bytes
    }
    longest = sorted(small, key=lambda place: (small[place], place))
    of_age = sum(now - begun >= patience.max_age for begun in small.values())
    go = max(of_age, patience.small_segments, int(patience.share * len(small)))
    return hold_partitions(plan, set(longest[go:]))


def hold_partitions(plan: Plan, held: set[IncarnationPartition]) -> Plan:
    if not held:
        return plan
    topics = tuple(
        replace(
            t,
            partitions=tuple(
                # from after a loss, which is reported now and must not be reported twice
                replace(p, end=p.start) if (t.name, t.incarnation, p.partition) in held else p
                for p in t.partitions
            ),
        )
        for t in plan.topics
    )
    return replace(plan, topics=topics)


def held_back(plan: Plan) -> dict[IncarnationPartition, int]:
    """Return the archived end of each partition that waits."""
    return {
        (t.name, t.incarnation, p.partition): p.end
        for t in plan.topics
        for p in t.partitions
        if p.end < p.live.end
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
