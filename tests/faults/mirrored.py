"""A flow from the shop's archive to remote topics on the same broker, applied round by round and compared."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbackup.archive.flow_map import FlowMap, open_map
from kbackup.archive.reader import open_archive
from kbackup.jobs.mirror.apply import Applied, Applier, read_heads
from kbackup.jobs.mirror.flow import Flow, RemoteTopic
from kbackup.kafka.admin import Cluster
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from scripts.dev.kafka import Broker
from tests.faults.conftest import Counting
from tests.faults.shop import Shop
from tests.support.mirrors import flow_of
from tests.support.truth import PartitionRecords, in_archive, in_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Mirror:
    """A flow of its own alias. `small` False: every round goes through Spark."""

    def __init__(self, shop: Shop, store: Store, broker: Broker | None = None) -> None:
        self.shop, self.store, self.broker = shop, store, broker or shop.broker
        self.flow = dataclasses.replace(flow_of(), source=f"A{secrets.token_hex(4)}")

    def topics(self) -> list[RemoteTopic]:
        """Those of the newest restore point, created in the target where they are missing."""
        archive = open_archive(self.store)
        there = Cluster(self.broker.client(), "target").topics()
        topics = []
        for topic in archive.restore_point("latest").topics:
            remote = RemoteTopic(topic.name, f"{self.flow.source}.{topic.name}", len(topic.partitions))
            topics.append(remote)
            if remote.remote not in there:
                self.broker.create_topic(remote.remote, remote.partitions)
        return topics

    def applier(self, spark: SparkSession | None = None, flow: Flow | None = None) -> Applier:
        def session() -> SparkSession:
            assert spark is not None, "a small round needs no Spark"
            return spark

        return Applier(
            flow or self.flow,
            self.broker.client(),
            self.store,
            session,
            Counting(),
            transaction_bytes=20_000,
        )

    def round(self, applier: Applier, topics: Sequence[RemoteTopic] | None = None) -> Applied:
        archive = open_archive(self.store)
        return applier.apply(archive, archive.restore_point("latest"), topics or self.topics())

    def apply(self, spark: SparkSession | None = None) -> Applied:
        """One round of an applier of its own."""
        with self.applier(spark) as applier:
            return self.round(applier)

    def held(self) -> PartitionRecords:
        """What the archive has, by remote partition."""
        return {self.remote(tp): rows for tp, rows in in_archive(self.store).items()}

    def remote(self, tp: TopicPartition) -> TopicPartition:
        return TopicPartition(f"{self.flow.source}.{tp.topic}", tp.partition)

    def check(self, applied: Applied) -> None:
        """Records, positions and offset map against the archive and the target itself."""
        held = self.held()
        there = in_cluster(self.broker.bootstrap, sorted({tp.topic for tp in held}))
        assert {tp: [r[1:] for r in rows] for tp, rows in there.items()} == {
            tp: [r[1:] for r in rows] for tp, rows in held.items()
        }
        assert {tp: p.next for tp, p in applied.positions.items()} == {
            tp: rows[-1].offset + 1 for tp, rows in held.items() if rows
        }
        names = self.flow.source, self.flow.target
        heads = read_heads(Cluster(self.broker.client(), "target"), self.store, *names)
        flow_map = open_map(self.store, *names, heads)
        for tp, rows in held.items():
            due = dict(zip([r.offset for r in rows], [r.offset for r in there[tp]], strict=True))
            assert expanded(flow_map, tp) == due, f"the offset map of {tp}"


def expanded(flow_map: FlowMap, tp: TopicPartition, incarnation: int = 1) -> dict[int, int]:
    """Source offset to target offset of every record in the map."""
    found = flow_map.partition(tp, incarnation)
    runs = zip(found.source.tolist(), found.target.tolist(), found.count.tolist(), strict=True)
    pairs = [(s + i, t + i) for s, t, n in runs for i in range(n)]
    assert len(dict(pairs)) == len(pairs), "a record that is in the map twice"
    return dict(pairs)
