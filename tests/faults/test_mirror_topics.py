"""Topics that are deleted and created again, at the source and in the target, under the apply half of a mirror."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kbackup.archive.reader import open_archive
from kbackup.kafka.control.cluster import Cluster
from kbackup.mirror.apply.pending import Applied, read_positions
from kbackup.types import TopicPartition
from scripts.dev.kafka import Broker
from tests.faults.conftest import Take
from tests.faults.dying import Wish
from tests.faults.mirrored import Mirror, dying_commits, expanded, recreate
from tests.faults.process import Kbackup
from tests.faults.shop import Shop, sell
from tests.support.faulty_store import Crash
from tests.support.truth import PartitionRecords, in_archive, in_cluster, without_offsets


def delete_remote(mirror: Mirror, topic: str) -> None:
    """Delete the remote topic of a topic; returns when the broker has forgotten its applied positions."""
    name = mirror.remote(TopicPartition(topic, 0)).topic
    admin = AdminClient(mirror.client)  # kept until its future is done: that fails when it goes
    admin.delete_topics([name])[name].result(30)
    while any(tp.topic == name for tp in read_positions(Cluster(mirror.client, "target"), *mirror.names)):
        pass


def test_a_remote_topic_that_was_deleted_is_applied_anew(mirror: Mirror, shop: Shop) -> None:
    mirror.apply()
    delete_remote(mirror, shop.orders)
    mirror.check(mirror.apply())


@pytest.mark.parametrize("partitions", [0, 1, 3], ids=["gone", "smaller", "alike"])
def test_a_remote_topic_that_is_deleted_between_two_rounds_is_applied_anew(
    partitions: int, own: Mirror, own_shop: Shop, take: Take
) -> None:
    """The process goes on with its knowledge of the first topic."""
    own.flow = dataclasses.replace(own.flow, replication_factor=1)
    take()
    remote = own.remote(TopicPartition(own_shop.orders, 0)).topic
    with own.applier() as applier:
        own.check(own.round(applier))
        topics = own.topics(open_archive(own.store))
        admin = AdminClient(own.client)
        admin.delete_topics([remote])[remote].result(30)
        while partitions and remote in Cluster(own.client, "target").topic_names():
            pass
        if partitions:
            admin.create_topics([NewTopic(remote, partitions, 1)])[remote].result(30)
        sell(own_shop, 7)
        take()
        applied = own.round(applier, topics=topics)
        assert [each.remote for each in applied.deleted] == [remote]
        own.check(applied)
        again = own.round(applier, topics=topics)
        assert (again.records, again.deleted) == (0, ())
    assert own.apply().deleted == ()


def test_a_flow_that_starts_at_the_end_leaves_out_what_was_there(own: Mirror, own_shop: Shop, take: Take) -> None:
    """Also in the next process. A topic that comes later begins with the round that finds it."""
    own.flow = dataclasses.replace(own.flow, starts_at_end=True)
    take()
    before = own.held()
    first = own.apply()
    assert (first.records, first.too_late) == (0, ())
    sell(own_shop, 30)
    take()
    assert own.apply().records > 0
    sell(own_shop, 9)
    take()
    own.apply()
    after = own.held()
    due = {tp: rows[len(before[tp]) :] for tp, rows in without_offsets(after).items()}
    assert without_offsets(in_cluster(own.bootstrap, sorted({tp.topic for tp in after}))) == due
    assert own.apply().records == 0


def test_a_process_that_applies_a_deleted_topic_anew_is_killed(mirror: Mirror, shop: Shop, tmp_path: Path) -> None:
    """Before or after one of its partitions is committed. The first transaction of each process commits the positions
    of the other topic."""
    remote = mirror.remote(TopicPartition(shop.orders, 0)).topic
    whole = sum(len(rows) for tp, rows in mirror.held().items() if tp.topic == remote)
    arguments = [mirror.store.url, mirror.bootstrap, mirror.flow.source]
    mirror.apply()
    for when in ("before", "after"):
        delete_remote(mirror, shop.orders)
        wish = Wish("kill job", when, "transaction", 3)
        with Kbackup(tmp_path / when, arguments, wish, module="tests.faults.applying") as process:
            assert process.wait().code == -9, process.err
        there = sum(map(len, in_cluster(mirror.bootstrap, [remote]).values()))
        assert there < whole if when == "before" else there > 0
        mirror.check(mirror.apply())


def test_a_recreated_topic_goes_on_in_its_remote_topic(own: Mirror, own_shop: Shop, take: Take, broker: Broker) -> None:
    """Records of the old incarnation are applied first, although the new one already existed at that round."""
    take()
    own.apply()
    sell(own_shop, 60)
    take()
    name = own_shop.orders
    remote = f"{own.flow.source}.{name}"
    before = in_archive(own.store)
    recreate(broker, name)
    sell(own_shop, 30)
    take()
    with own.applier(flow=dataclasses.replace(own.flow, on_recreate="stop")) as applier:
        stopped = own.round(applier)
    assert [(r.remote, r.incarnation, r.held_back) for r in stopped.held_back] == [(remote, 2, True)]
    old = {own.remote(tp): rows for tp, rows in before.items() if tp.topic == name}
    assert without_offsets(in_cluster(broker.bootstrap, [remote])) == without_offsets(old)
    applied = own.apply()
    assert [(r.incarnation, r.held_back) for r in applied.recreated] == [(2, False)]
    existing = in_cluster(broker.bootstrap, [remote])
    new = {own.remote(tp): rows for tp, rows in in_archive(own.store).items() if tp.topic == name}
    assert without_offsets(existing) == {
        tp: without_offsets(old)[tp] + rows for tp, rows in without_offsets(new).items()
    }
    flow_map = own.map()
    for tp, rows in new.items():
        at = len(old[tp])
        due = dict(zip([r.offset for r in rows], [r.offset for r in existing[tp][at:]], strict=True))
        assert expanded(flow_map, tp, 2) == due
        assert applied.positions[tp] == (2, rows[-1].offset + 1)
    assert own.apply().recreated == ()


def produce(shop: Shop, partitions: int, note: str) -> None:
    producer = Producer(shop.broker.client())
    for n in range(40):
        producer.produce(shop.orders, f"{note} {n}".encode(), b"k", n % partitions)
    assert producer.flush(60) == 0


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
def test_a_topic_is_created_again_with_fewer_partitions_and_then_with_more(
    killed: bool, own: Mirror, own_shop: Shop, take: Take, broker: Broker
) -> None:
    """The remaining records of the old incarnation are applied, also to partitions that the new one lacks."""
    remote = own.remote(TopicPartition(own_shop.orders, 0)).topic
    take()
    own.apply()
    sell(own_shop, 60)
    take()
    due = without_offsets(of_topic(own, own_shop.orders))
    for partitions in (1, 3):
        recreate(broker, own_shop.orders, partitions)
        produce(own_shop, partitions, f"of {partitions}")
        take()
        new = without_offsets(of_topic(own, own_shop.orders))
        assert {tp.partition for tp, rows in new.items() if rows} == {*range(partitions)}
        due = {tp: rows + new.get(tp, []) for tp, rows in due.items()}
        applied = apply(own, killed=killed)
        assert without_offsets(in_cluster(broker.bootstrap, [remote])) == due
        if not killed:
            assert [(r.remote, r.kind, r.held_back) for r in applied.recreated] == [(remote, "recreated", False)]
        assert applied.too_late == ()
        again = own.apply()
        assert (again.records, again.recreated, again.too_late) == (0, (), ())


def apply(mirror: Mirror, *, killed: bool) -> Applied:
    if killed:
        with mirror.applier() as applier, dying_commits("after", 2), pytest.raises(Crash):
            mirror.round(applier)
    return mirror.apply()


def of_topic(mirror: Mirror, topic: str) -> PartitionRecords:
    """Return the archived records of a topic's newest incarnation, by remote partition."""
    return {mirror.remote(tp): rows for tp, rows in in_archive(mirror.store).items() if tp.topic == topic}
