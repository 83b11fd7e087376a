"""Read applied positions back that the target has forgotten, though the flow's offset map knows of them.

A broker drops the offsets of a group without members after `offsets.retention.minutes`. The map says what was applied.
Whether a slot's last transaction was committed, whose note is gone too, the target's log tells.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.restores.flow_map.slot import SlotMap
from kbackup.archive.restores.flow_map.tables import MapPartName, Runs, by_incarnation
from kbackup.archive.restores.offset_map import runs_table
from kbackup.errors import ClusterError
from kbackup.jobs.mirror.apply.positions import Note, Noted
from kbackup.jobs.mirror.flow import AppliedPosition
from kbackup.jobs.replay.earlier_commits import committed_partitions, first_committed
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client.client import Properties
from kbackup.types import Int64Array, TopicPartition

_TAIL = 100
"""Records of a partition that are looked for in the target: its last ones, since compaction may take others."""

_THREADS = 8


@dataclass
class Recovery:
    """Read positions back from the offset map. `remotes` are the remote topics, which exist."""

    cluster: Cluster
    target: Properties = field(repr=False)
    names: tuple[str, str]
    remotes: Collection[str]

    def positions(
        self, slots: Collection[SlotMap], known: Mapping[TopicPartition, Noted]
    ) -> dict[TopicPartition, Noted]:
        """Return the positions that are not among the `known` ones. A remote topic that was recreated has none: its
        records are applied from the start. `slots` are all of the flow; each is loaded up to its last committed part,
        which may be one that no known position names."""
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda slot: self._go_on(slot, known), slots))
        restored: dict[TopicPartition, Noted] = {}
        last: dict[TopicPartition, Runs] = {}
        for slot in slots:
            for key in slot.incarnations:  # the newest comes last
                if key.remote in known or key.remote.topic not in self.remotes or slot.head is None:
                    continue
                source, target, count = slot.runs(key)
                position = AppliedPosition(key.incarnation, int(source[-1] + count[-1]))
                restored[key.remote] = Noted(position, Note(key.incarnation, slot.head, 0))
                last[key.remote] = _tail(source, target, count)
        complete = self._with_last_records(last)
        return {tp: noted for tp, noted in restored.items() if tp in complete}

    def _with_last_records(self, last: Mapping[TopicPartition, Runs]) -> set[TopicPartition]:
        """Return the partitions whose last records in the map the target has, or had before retention deleted them.
        A log of the same length may hold other records: those of a transaction that was aborted after the topic was
        recreated."""
        last = self._on_target(last)
        if not last:
            return set()
        ends = self.cluster.log_ends(last, "read_uncommitted")
        last = {tp: run for tp, run in last.items() if ends[tp] >= _end(run)}
        starts = self.cluster.log_starts(last)
        expired = {tp for tp, run in last.items() if starts[tp] >= _end(run)}
        remaining = runs_table({tp: run for tp, run in last.items() if tp not in expired})
        return expired | committed_partitions(self.target, layout.mirror_group(*self.names), remaining)

    def _go_on(self, slot: SlotMap, known: Collection[TopicPartition]) -> None:
        """Load the parts after the head that another part names, and the one after them if that was committed. A part
        with a partition whose position is known was given up: that position would name it."""
        slot.load(None)
        for name, runs in slot.followers():
            if not any(key.remote in known for key, _ in by_incarnation(runs)) and self._is_committed(
                name, runs
            ):
                slot.load(name)
                return

    def _is_committed(self, name: MapPartName, runs: pa.Table) -> bool:
        """Return whether the target holds the records of an offset map part. A transaction is complete or absent."""
        every = {key.remote: run for key, run in by_incarnation(runs)}
        rows = self._on_target(every)
        ends = self.cluster.log_ends(rows, "read_uncommitted")
        rows = {tp: run for tp, run in rows.items() if ends[tp] >= _end(run)}
        starts = self.cluster.log_starts(rows)
        whole = {tp: run for tp, run in rows.items() if starts[tp] <= int(run[1][0])}
        if not rows:
            return False
        if not whole:
            raise ClusterError(
                f"the applied positions of flow {'->'.join(self.names)} are gone from the target, and so are the "
                f"records of {min(rows)} by which to tell what part {name} of its offset map committed",
                "delete that remote topic: the next round applies it anew, from the archive's first record",
            )
        return first_committed(self.target, layout.mirror_group(*self.names), [runs_table(whole)]) is not None

    def _on_target(self, runs: Mapping[TopicPartition, Runs]) -> dict[TopicPartition, Runs]:
        """Return the runs of partitions that the target has. A recreated topic may have fewer."""
        topics = self.cluster.topics({tp.topic for tp in runs}) if runs else {}
        return {
            tp: run
            for tp, run in runs.items()
            if tp.topic in topics and tp.partition in topics[tp.topic].partitions
        }


def _tail(*runs: Int64Array) -> Runs:
    """The last records of the last run."""
    source, target, count = (column[-1:] for column in runs)
    skipped = np.maximum(count - _TAIL, 0)
    return source + skipped, target + skipped, count - skipped


def _end(runs: Runs) -> int:
    """The target offset after the last record."""
    return int(runs[1][-1] + runs[2][-1])
