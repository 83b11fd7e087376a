"""Where a group of the source goes on in the target: as Java's `RemoteClusterUtils` says, and exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kbackup.archive.content import group_offsets
from kbackup.archive.flow_map import open_map
from kbackup.archive.models import GroupOffset, Manifest
from kbackup.archive.reader import Archive
from kbackup.errors import RefusedError, UsageError, suggest_name
from kbackup.jobs.mirror.apply.positions import Noted, heads_of, read_positions
from kbackup.jobs.mirror.flow import Flow
from kbackup.jobs.mirror.positions.translation import exact_translation
from kbackup.jobs.mirror.topics import reason_to_skip
from kbackup.kafka.admin import Cluster
from kbackup.kafka.mirror_records import Checkpoint
from kbackup.kafka.mirror_records.reader import read_records
from kbackup.store.base import Store
from kbackup.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Translated:
    """Positions of a group in one partition. `committed` is the group's offset in the source as of the restore point,
    `checkpoint` what `RemoteClusterUtils.translateOffsets` returns, `exact` the answer of the offset map. None: not
    known."""

    topic: str
    partition: int
    committed: int | None
    checkpoint: int | None
    exact: int | None


@dataclass(frozen=True, slots=True)
class Translation:
    """`offsets` are in order of remote topic and partition. `forgotten` are the partitions that have no exact answer
    because the target does not have their applied position any more."""

    flow: str
    group: str
    restore_point: int
    captured_at: str
    offsets: tuple[Translated, ...]
    forgotten: tuple[str, ...] = ()


def translate_group(flow: Flow, group: str, archive: Archive, state: Store, cluster: Cluster) -> Translation:
    """Translate the positions of a group as of the newest restore point. `state` is where the flow keeps its state,
    `cluster` the target's. `UsageError` for a group of which neither the archive nor the target knows a position."""
    point = archive.head
    if point is None:
        raise RefusedError(f"the archive of {flow.source} has no restore point", "run kbackup mirror first")
    states = [state for state in point.topics if reason_to_skip(flow, state.name) is None]
    groups, _ = group_offsets(archive, states)
    remote = {s.name: flow.policy.format_remote_topic(flow.source, s.name) for s in states}
    committed = {TopicPartition(remote[o.topic], o.partition): o for o in groups.get(group, ())}
    checkpoints = _checkpoints(flow, group, cluster)
    if not committed and not checkpoints:
        hint = suggest_name(group, groups, "'kbackup groups show' lists the groups of an archive")
        raise UsageError(f"flow {flow.name} knows no position of group {group}", hint)
    noted = read_positions(cluster, flow.source, flow.target)
    exact = _exact(flow, committed, point, remote, state, noted)
    return Translation(
        flow.name,
        group,
        point.number,
        archive.groups(point).captured_at,
        tuple(
            Translated(
                tp.topic,
                tp.partition,
                committed[tp].offset if tp in committed else None,
                checkpoints.get(tp),
                exact.get(tp),
            )
            for tp in sorted({*committed, *checkpoints})
        ),
        _forgotten(flow, committed, point, state, noted),
    )


def _forgotten(
    flow: Flow,
    committed: Mapping[TopicPartition, GroupOffset],
    point: Manifest,
    state: Store,
    noted: Mapping[TopicPartition, Noted],
) -> tuple[str, ...]:
    """The partitions without applied position in the target of which the flow's map knows records."""
    flow_map = open_map(state, flow.source, flow.target)
    incarnations = {s.name: s.incarnation for s in point.topics}
    return tuple(
        str(tp)
        for tp, o in sorted(committed.items())
        if tp not in noted and len(flow_map.partition(tp, incarnations[o.topic]).source)
    )


def _exact(
    flow: Flow,
    committed: Mapping[TopicPartition, GroupOffset],
    point: Manifest,
    remote: Mapping[str, str],
    state: Store,
    noted: Mapping[TopicPartition, Noted],
) -> dict[TopicPartition, int | None]:
    flow_map = open_map(state, flow.source, flow.target)
    if flow_map.slots:
        flow_map = open_map(state, flow.source, flow.target, heads_of(noted, flow_map.slots))
    incarnations = {s.name: s.incarnation for s in point.topics}
    positions = {tp: n.position for tp, n in noted.items()}
    translate = exact_translation(remote, incarnations, positions, flow_map)
    return {tp: translate(TopicPartition(o.topic, o.partition), o.offset) for tp, o in committed.items()}


def _checkpoints(flow: Flow, group: str, cluster: Cluster) -> dict[TopicPartition, int]:
    """Return the last checkpoint of each of the group's partitions, as Java's clients read them."""
    topic = flow.policy.checkpoints_topic(flow.source)
    if not cluster.topics([topic]):
        return {}
    records = read_records(cluster.connection.properties, "target", topic, Checkpoint.decode)
    return {c.tp: c.offset for c in records if c.group == group}
