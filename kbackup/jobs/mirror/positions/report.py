"""Report from which offsets a group of the source continues in the target: by Java's `RemoteClusterUtils`, and
exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kbackup.archive.models import GroupOffset
from kbackup.archive.query.content import group_offsets
from kbackup.archive.reader import Archive
from kbackup.archive.restores.flow_map import FlowMap, open_map
from kbackup.archive.restores.flow_map.slots import slot_of
from kbackup.errors import ClusterError, RefusedError, UsageError, suggest_name
from kbackup.jobs.mirror.apply.missing import Recovery
from kbackup.jobs.mirror.apply.positions import heads_of, read_positions
from kbackup.jobs.mirror.flow import AppliedPosition, Flow
from kbackup.jobs.mirror.positions.translation import exact_translation
from kbackup.jobs.mirror.topics import reason_to_skip
from kbackup.kafka.admin.cluster import Cluster
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
    because the target has forgotten their applied position, and why the offset map does not tell it."""

    flow: str
    group: str
    restore_point: int
    captured_at: str
    offsets: tuple[Translated, ...]
    forgotten: Mapping[str, str] = field(default_factory=dict)


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
    applied = _applied(flow, committed, state, cluster)
    incarnations = {s.name: s.incarnation for s in point.topics}
    translate = exact_translation(remote, incarnations, applied.positions, applied.map)
    exact = {tp: translate(TopicPartition(o.topic, o.partition), o.offset) for tp, o in committed.items()}
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
        applied.forgotten(committed, incarnations),
    )


@dataclass
class _Applied:
    """Positions that a flow has applied. `doubt` is the reason why positions that the target has expired were not
    read back."""

    map: FlowMap
    positions: Mapping[TopicPartition, AppliedPosition]
    doubt: str = "the target holds other records than the map says"

    def forgotten(
        self, committed: Mapping[TopicPartition, GroupOffset], incarnations: Mapping[str, int]
    ) -> dict[str, str]:
        return {
            str(tp): self.doubt
            for tp, o in sorted(committed.items())
            if tp not in self.positions and len(self.map.partition(tp, incarnations[o.topic]).source)
        }


def _applied(flow: Flow, partitions: Iterable[TopicPartition], state: Store, cluster: Cluster) -> _Applied:
    """Return the applied positions. Positions of `partitions` that the target has expired are read back from the
    offset map, where the target's log agrees."""
    names = (flow.source, flow.target)
    noted = read_positions(cluster, *names)
    applied = _Applied(open_map(state, *names), {tp: each.position for tp, each in noted.items()})
    missing = [tp for tp in partitions if tp not in noted]
    if not applied.map.slots:
        return applied
    applied.map.heads = heads_of(noted, applied.map.slots)
    slots = [applied.map.slot(n) for n in {slot_of(tp, applied.map.slots) for tp in missing}]
    recovery = Recovery(cluster, cluster.connection.properties, names, {tp.topic for tp in missing})
    try:
        recovered = recovery.positions(slots, noted)
    except ClusterError as error:
        applied.doubt = error.message
    else:
        applied.positions = {tp: each.position for tp, each in (recovered | noted).items()}
    return applied


def _checkpoints(flow: Flow, group: str, cluster: Cluster) -> dict[TopicPartition, int]:
    """Return the last checkpoint of each of the group's partitions, as Java's clients read them."""
    topic = flow.policy.checkpoints_topic(flow.source)
    if not cluster.topics([topic]):
        return {}
    records = read_records(flow.client("target"), "target", topic, Checkpoint.decode)
    return {c.tp: c.offset for c in records if c.group == group}
