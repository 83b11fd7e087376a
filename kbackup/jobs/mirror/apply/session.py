"""State of an `Applier` between two rounds: positions, offset map and status of its flow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.models import dump
from kbackup.archive.reader import Archive
from kbackup.archive.restores.flow_map.reader import FlowMap
from kbackup.archive.restores.flow_map.slots import DOCUMENT, SLOTS, FlowState, read_flow, slot_of
from kbackup.errors import AlreadyExistsError, MismatchError
from kbackup.jobs.mirror.apply.missing import Recovery
from kbackup.jobs.mirror.apply.positions import Noted, heads_of, read_positions
from kbackup.jobs.mirror.apply.slots import SlotResult
from kbackup.jobs.mirror.flow import AppliedPosition, Flow, RemoteTopic
from kbackup.jobs.mirror.status.document import FlowStatus, read_flow_status
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client.client import Properties
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.times import now

_THREADS = 8


@dataclass
class Session:
    """The state of a flow, its offset map, and its applied positions (`noted`). `refreshed` is when all positions were
    committed last; None: they are due."""

    cluster: Cluster
    flow: FlowState
    noted: dict[TopicPartition, Noted]
    map: FlowMap
    refreshed: float | None = None
    applied: dict[str, int] = field(default_factory=dict)
    """By topic of the source, the restore point up to which everything is applied."""
    recovered: set[str] = field(default_factory=set)
    """Remote topics whose forgotten positions were read back."""
    uncommitted: dict[TopicPartition, Noted] = field(default_factory=dict)
    """Positions that were read back, and are not in the target yet."""
    status: FlowStatus | None = None
    """The flow's last status, until a round is done: the next round reports the losses of a round that failed."""

    @property
    def positions(self) -> dict[TopicPartition, AppliedPosition]:
        return {tp: noted.position for tp, noted in self.noted.items()}

    def partitions(
        self, topics: Sequence[RemoteTopic], more: Collection[TopicPartition] = ()
    ) -> dict[int, list[TopicPartition]]:
        """Return all known remote partitions of the flow by slot, in order. `more` are partitions of earlier
        incarnations, which may have had more partitions."""
        known = {tp for topic in topics for tp in topic.remote_partitions} | {*more}
        by_slot: dict[int, list[TopicPartition]] = {}
        for tp in sorted(known | self.noted.keys()):
            by_slot.setdefault(slot_of(tp, self.flow.slots), []).append(tp)
        return by_slot

    def recover(self, target: Properties, topics: Sequence[RemoteTopic]) -> None:
        """Read positions back that the target has forgotten, of topics that come for the first time."""
        remotes = {topic.remote for topic in topics} - self.recovered
        if not remotes:
            return
        slots = [self.map.slot(number) for number in range(self.flow.slots)]
        names = (self.flow.source, self.flow.target)
        recovered = Recovery(self.cluster, target, names, remotes).positions(slots, self.noted)
        self.recovered |= remotes
        if recovered:
            self.noted |= recovered
            self.uncommitted |= recovered
            self.refreshed = None

    def add(self, result: SlotResult) -> list[pa.Table]:
        """Add what a slot has committed to the positions and the map. Returns the runs that came to the map."""
        self.noted |= result.positions
        slot = self.map.slot(result.slot)
        added: list[pa.Table] = []
        for part in result.map_parts:
            if not slot.add(part.name, part.previous, part.runs):
                added.append(slot.load(part.name))  # an attempt before this one committed the parts between
            else:
                added.append(part.runs)
        added += self.catch_up(result.positions)
        if slot.merge_due:
            slot.merge_map_parts()
        return added

    def catch_up(self, positions: Mapping[TopicPartition, Noted]) -> list[pa.Table]:
        """Add the parts of the map that committed positions name and that this process did not load: an earlier
        attempt has committed them, or another process before it was fenced. Returns their runs."""
        added: list[pa.Table] = []
        for number, part in heads_of(positions, self.flow.slots).items():
            slot = self.map.slot(number)
            if slot.head is None or part > slot.head:
                added.append(slot.load(part))
        return added


def open_session(flow: Flow, target: Properties, state: Store, archive: Archive) -> Session:
    """Look at the target and at the flow's state. `MismatchError` where the flow was begun from another archive, or
    onto another cluster."""
    cluster = Cluster(target, "target")
    cluster_id, _ = cluster.connect()
    names = (flow.source, flow.target)
    begun = read_flow(state, *names) or _begin(names, state, archive, cluster_id)
    _check(begun, archive, cluster_id)
    noted = read_positions(cluster, *names)
    flow_map = FlowMap(state, *names, begun.slots, heads_of(noted, begun.slots))
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(flow_map.slot, range(begun.slots)))
    return Session(cluster, begun, noted, flow_map, status=read_flow_status(state, *names))


def _begin(names: tuple[str, str], state: Store, archive: Archive, cluster_id: str) -> FlowState:
    source, target = names
    flow = FlowState(
        source=source,
        target=target,
        archive_id=archive.info.id,
        target_cluster_id=cluster_id,
        slots=SLOTS,
        created_at=now(),
    )
    try:
        state.put_new(layout.mirror_key(*names, DOCUMENT), dump(flow))
    except AlreadyExistsError:
        return read_flow(state, *names) or flow
    return flow


def _check(flow: FlowState, archive: Archive, cluster_id: str) -> None:
    name = f"flow {flow.source}->{flow.target}"
    if flow.archive_id != archive.info.id:
        raise MismatchError(
            f"{name} was begun from archive {flow.archive_id}; {archive.store.url} is archive {archive.info.id}",
            "name the archive that it was begun from, or give the source another alias",
        )
    if flow.target_cluster_id != cluster_id:
        raise MismatchError(
            f"{name} was begun onto cluster {flow.target_cluster_id}; the target is cluster {cluster_id}",
            "give the new target another alias",
        )
