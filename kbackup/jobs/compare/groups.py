"""Whether consumer groups stand where a restore's offset map says that they belong."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kbackup.archive.restores.plan import RestorePlan
from kbackup.archive.restores.remap import How
from kbackup.jobs.compare.report import GroupOffsetCheck
from kbackup.jobs.compare.result import Places
from kbackup.kafka.admin.cluster import Cluster
from kbackup.types import TopicPartition

NOWHERE = Places(*(np.empty(0, np.int64) for _ in range(3)))


def check_groups(
    cluster: Cluster,
    plan: RestorePlan,
    places: Mapping[TopicPartition, Places],
    ends: Mapping[TopicPartition, int],
) -> tuple[tuple[GroupOffsetCheck, ...], list[str]]:
    """Every planned offset against what the group has committed on the target, and the groups that can't be read.
    `places` and `ends` (of the logs, as consumers see them) are by target partition."""
    names = {t.source: t.target for t in plan.topics}
    committed, failed = cluster.groups.committed([g.target for g in plan.groups])
    checks: list[GroupOffsetCheck] = []
    for group in plan.groups:
        if group.target in failed:
            continue
        stands = {c.tp: c.offset for c in committed.get(group.target, [])}
        for offset in group.offsets:
            tp = TopicPartition(names[offset.topic], offset.partition)
            due, how = due_offset(places.get(tp, NOWHERE), offset.offset)
            found = stands.get(tp)
            checks.append(
                GroupOffsetCheck(
                    group=group.target,
                    source_group=group.source,
                    topic=tp.topic,
                    partition=tp.partition,
                    committed=offset.offset,
                    due=due,
                    found=found,
                    how=how,
                    ok=found is not None and _stands_well(found, due, how, ends.get(tp, 0)),
                )
            )
    return tuple(checks), [f"group {group} can't be read: {why}" for group, why in sorted(failed.items())]


def due_offset(places: Places, committed: int) -> tuple[int, How]:
    """Where the first restored record is whose source offset is at or after `committed`; else the least offset after
    the last one."""
    if not len(places.source):
        return 0, "empty"
    at = int(np.searchsorted(places.source, committed, side="right")) - 1
    if at < 0:
        return int(places.target[0]), "log start"
    into = committed - int(places.source[at])
    if into < places.count[at]:
        return int(places.target[at]) + into, "exact"
    if at + 1 < len(places.source):
        return int(places.target[at + 1]), "next record"
    return int(places.target[at] + places.count[at]), "log end"


def _stands_well(found: int, due: int, how: How, end: int) -> bool:
    """Past the last restored record, any offset up to the log's end will do: markers lie there."""
    return due <= found <= end if how in ("log end", "empty") else found == due
