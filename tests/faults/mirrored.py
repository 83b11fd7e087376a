"""A flow from the shop's archive to remote topics of a broker, applied round by round and compared."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kbackup.archive.reader import Archive, open_archive
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.produce import BlockProducer
from kbackup.mirror.apply.applier import Applier
from kbackup.mirror.apply.pending import Applied, heads_of, read_positions
from kbackup.mirror.flow import Flow, RemoteTopic
from kbackup.mirror.flow_map import SLOTS, FlowMap, open_map
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from scripts.dev.kafka import Broker
from tests.faults.conftest import Counting
from tests.faults.dying import When
from tests.support.faulty_store import Crash
from tests.support.flow_maps import flow_of
from tests.support.truth import PartitionRecords, in_archive, in_cluster, without_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _no_spark() -> SparkSession:
    raise AssertionError("a small round needs no Spark")


class Mirror:
    """A flow of its own alias from the archive in `store` to the cluster at `bootstrap`."""

    def __init__(self, store: Store, bootstrap: str, alias: str | None = None) -> None:
        self.store, self.bootstrap = store, bootstrap
        self.client: dict[str, Any] = {"bootstrap.servers": bootstrap}
        self.flow = dataclasses.replace(flow_of(), source=alias or f"A{secrets.token_hex(4)}")

    @property
    def names(self) -> tuple[str, str]:
        return self.flow.source, self.flow.target

    def topics(self, archive: Archive) -> list[RemoteTopic]:
        """Return the remote topics of the newest restore point; missing ones are created in the target."""
        existing = Cluster(self.client, "target").topics()
        topics = []
        for topic in archive.restore_point("latest").topics:
            remote = RemoteTopic(topic.name, f"{self.flow.source}.{topic.name}", len(topic.partitions))
            topics.append(remote)
            if remote.remote not in existing:
                self._create(remote)
        return topics

    def _create(self, topic: RemoteTopic) -> None:
        admin = AdminClient(self.client)
        made = admin.create_topics([NewTopic(topic.remote, topic.partitions, 1)])
        made[topic.remote].result(30)

    def applier(
        self, spark: Callable[[], SparkSession] = _no_spark, flow: Flow | None = None, state: Store | None = None
    ) -> Applier:
        return Applier(flow or self.flow, self.client, state or self.store, spark, Counting(), transaction_bytes=20_000)

    def round(
        self, applier: Applier, archive: Archive | None = None, topics: Sequence[RemoteTopic] | None = None
    ) -> Applied:
        archive = archive or open_archive(self.store)
        return applier.apply(archive, archive.restore_point("latest"), topics or self.topics(archive))

    def apply(self) -> Applied:
        """One round of an applier of its own."""
        with self.applier() as applier:
            return self.round(applier)

    def map(self) -> FlowMap:
        heads = heads_of(read_positions(Cluster(self.client, "target"), *self.names), SLOTS)
        return open_map(self.store, *self.names, heads)

    def held(self) -> PartitionRecords:
        """Return the records of the archive, by remote partition."""
        return {self.remote(tp): rows for tp, rows in in_archive(self.store).items()}

    def remote(self, tp: TopicPartition) -> TopicPartition:
        return TopicPartition(f"{self.flow.source}.{tp.topic}", tp.partition)

    def check(self, applied: Applied) -> None:
        """Compare records, positions and offset map with the archive and the target."""
        archived = self.held()
        existing = in_cluster(self.bootstrap, sorted({tp.topic for tp in archived}))
        assert without_offsets(existing) == without_offsets(archived)
        assert {tp: p.next for tp, p in applied.positions.items()} == {
            tp: rows[-1].offset + 1 for tp, rows in archived.items() if rows
        }
        flow_map = self.map()
        for tp, rows in archived.items():
            due = dict(zip([r.offset for r in rows], [r.offset for r in existing[tp]], strict=True))
            assert expanded(flow_map, tp) == due, f"the offset map of {tp}"


def expanded(flow_map: FlowMap, tp: TopicPartition, incarnation: int = 1) -> dict[int, int]:
    """Return the target offset of every record in the map, by source offset."""
    entries = flow_map.partition(tp, incarnation)
    runs = zip(entries.source.tolist(), entries.target.tolist(), entries.count.tolist(), strict=True)
    pairs = [(s + i, t + i) for s, t, n in runs for i in range(n)]
    assert len(dict(pairs)) == len(pairs), "a record that is in the map twice"
    return dict(pairs)


@contextmanager
def dying_commits(when: When, nth: int) -> Iterator[list[int]]:
    """The `nth` commit of a transaction ends everything, before or after it took effect."""
    plain = BlockProducer.commit
    done: list[int] = []

    def commit(self: BlockProducer, *arguments: Any) -> None:
        done.append(1)
        if len(done) >= nth and when == "before":
            raise Crash
        plain(self, *arguments)
        if len(done) >= nth:
            raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockProducer, "commit", commit)
        yield done


def recreate(broker: Broker, topic: str, partitions: int = 3) -> None:
    """Delete a topic of the source and create it again."""
    admin = AdminClient(broker.client())
    admin.delete_topics([topic])[topic].result(30)
    while topic in Cluster(broker.client(), "source").topic_names():
        pass
    broker.create_topic(topic, partitions)
