"""Check that consumer groups have committed the offsets that follow from a restore's offset map."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kbackup.archive.restores.plan import RestorePlan
from kbackup.archive.restores.remap import How
from kbackup.jobs.compare.report import GroupOffsetCheck
from kbackup.jobs.compare.result import TargetOffsets
from kbackup.kafka.admin.cluster import Cluster
from kbackup.types import TopicPartition

NO_OFFSETS = TargetOffsets(*(np.empty(0, np.int64) for _ in range(3)))


def check_groups(
    cluster: Cluster,
    plan: RestorePlan,
    target_offsets: Mapping[TopicPartition, TargetOffsets],
    ends: Mapping[TopicPartition, int],
) -> tuple[tuple[GroupOffsetCheck, ...], list[str]]:
    """Compare every planned offset with the committed offset on the target.

    Returns the checks, and a finding for each group that can't be read. `target_offsets` and `ends` (log ends, as
    consumers see them) are by target partition.
    """
    names = {t.source: t.target for t in plan.topics}
    committed, failed = cluster.groups.committed([g.target for g in plan.groups])
    checks: list[GroupOffsetCheck] = []
    for group in plan.groups:
        if group.target in failed:
            continue
        positions = {c.tp: c.offset for c in committed.get(group.target, [])}
        for offset in group.offsets:
            tp = TopicPartition(names[offset.topic], offset.partition)
            due, how = due_offset(target_offsets.get(tp, NO_OFFSETS), offset.offset)
            position = positions.get(tp)
            checks.append(
                GroupOffsetCheck(
                    group=group.target,
                    source_group=group.source,
                    topic=tp.topic,
                    partition=tp.partition,
                    committed=offset.offset,
                    due=due,
                    found=position,
                    how=how,
                    ok=position is not None and _is_right_position(position, due, how, ends.get(tp, 0)),
                )
            )
    return tuple(checks), [f"group {group} can't be read: {why}" for group, why in sorted(failed.items())]


def due_offset(target_offsets: TargetOffsets, committed: int) -> tuple[int, How]:
    """Return the target offset of the first restored record at or after source offset `committed`.

    After the last restored record: the offset that follows the last record.
    """
    if not len(target_offsets.source):
        return 0, "empty"
    at = int(np.searchsorted(target_offsets.source, committed, side="right")) - 1
    if at < 0:
        return int(target_offsets.target[0]), "log start"
    into = committed - int(target_offsets.source[at])
    if into < target_offsets.count[at]:
        return int(target_offsets.target[at]) + into, "exact"
    if at + 1 < len(target_offsets.source):
        return int(target_offsets.target[at + 1]), "next record"
    return int(target_offsets.target[at] + target_offsets.count[at]), "log end"


def _is_right_position(position: int, due: int, how: How, end: int) -> bool:
    """Compare a position with the due one; past the last record any offset up to the log end is right.

    Transaction markers lie between the last record and the log end.
    """
    return due <= position <= end if how in ("log end", "empty") else position == due
