"""The apply half of a mirror: every archived record is in the target once, whatever came in between."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from kbackup.archive import layout
from kbackup.archive.models import dump
from kbackup.archive.reader import Archive, open_archive
from kbackup.errors import FencedError, MismatchError
from kbackup.jobs.backup.job import backup
from kbackup.jobs.common import RETRIED
from kbackup.kafka.control.cluster import Cluster
from kbackup.mirror.apply import applier as applier_module
from kbackup.mirror.flow_map import read_flow
from kbackup.store import S3Options, open_store
from kbackup.types import TopicPartition
from scripts.dev.kafka import Broker
from scripts.dev.s3 import Minio
from tests.faults.conftest import BackUp, Counting, Take, options
from tests.faults.dying import When, Wish
from tests.faults.mirrored import Mirror, dying_commits
from tests.faults.mortal import die
from tests.faults.shop import Shop, open_shop, sell
from tests.support.faulty_store import Crash
from tests.support.truth import in_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_rounds_apply_what_came_in_one_process_or_in_another(mirror: Mirror, shop: Shop, back_up: BackUp) -> None:
    """In one process, in a new one, and with nothing to do."""
    with mirror.applier() as applier:
        mirror.check(mirror.round(applier))
        sell(shop, 60)
        back_up(mirror.store)
        second = mirror.round(applier)
        assert second.records > 60
        mirror.check(second)
        quiet = mirror.round(applier)
        assert (quiet.records, len(quiet.runs)) == (0, 0)
        mirror.check(quiet)
    sell(shop, 40)
    back_up(mirror.store)
    mirror.check(mirror.apply())


def test_large_rounds_go_through_spark(
    mirror: Mirror, broker: Broker, shop: Shop, back_up: BackUp, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mirror.applier(lambda: spark) as applier:
        monkeypatch.setattr(applier_module, "SMALL_BYTES", 0)
        mirror.check(mirror.round(applier))
        sell(shop, 60)
        back_up(mirror.store)
        mirror.check(mirror.round(applier))
        monkeypatch.undo()
        sell(shop, 60)
        back_up(mirror.store)
        mirror.check(mirror.round(applier))


@pytest.mark.parametrize(
    "wish",
    [
        Wish("kill job", "before", "write mirrors/*/flow.json"),
        Wish("kill job", "before", "write mirrors/*/map/*", 2),
        Wish("kill job", "after", "write mirrors/*/map/*", 4),
    ],
    ids=lambda wish: wish.name,
)
def test_killed_and_applied_again(wish: Wish, mirror: Mirror, tmp_path: Path) -> None:
    archive = open_archive(mirror.store)
    topics = mirror.topics(archive)

    def work(mortal: Any) -> None:
        with mirror.applier(state=mortal) as applier:
            mirror.round(applier, archive, topics)

    die(mirror.store, wish, tmp_path / "dead", work)
    mirror.check(mirror.apply())


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_a_topic_is_held_back(when: When, mirror: Mirror, tmp_path: Path) -> None:
    """The others are applied once, and so is the held back one when it is mended."""
    archive = open_archive(mirror.store)
    topics = mirror.topics(archive)
    records = Counter(tp.topic for tp, rows in in_archive(mirror.store).items() for _ in rows)
    refusing = mirror.remote(TopicPartition(records.most_common(1)[0][0], 0)).topic
    admin = Cluster(mirror.client, "target").topic_admin
    assert admin.alter_configs({refusing: {"message.timestamp.before.max.ms": "1"}}) == {}

    def work(mortal: Any) -> None:
        with mirror.applier(state=mortal) as applier:
            mirror.round(applier, archive, topics)

    die(mirror.store, Wish("kill job", when, "write mirrors/*/map/*", 1), tmp_path / "dead", work)
    held_back = mirror.apply()
    assert list(held_back.refused) == [refusing]
    assert admin.alter_configs({refusing: {"message.timestamp.before.max.ms": None}}) == {}
    mended = mirror.apply()
    assert mended.refused == {}
    mirror.check(mended)


@pytest.mark.parametrize("when", ["before", "after"])
def test_applier_goes_on_after_a_commit_of_unknown_outcome(when: When, mirror: Mirror, broker: Broker) -> None:
    """The map gets the part that was committed, whoever hears of it."""
    with mirror.applier() as applier:
        with dying_commits(when, 3), pytest.raises(Crash):
            mirror.round(applier)
        mirror.check(mirror.round(applier))


def test_of_two_processes_the_older_ends(mirror: Mirror, shop: Shop, back_up: BackUp) -> None:
    with mirror.applier() as older, mirror.applier() as newer:
        mirror.check(mirror.round(older))
        sell(shop, 60)
        back_up(mirror.store)
        mirror.check(mirror.round(newer))
        sell(shop, 60)
        back_up(mirror.store)
        with pytest.raises(FencedError, match=f"another process applies the flow {mirror.flow.source}->B now"):
            mirror.round(older)
        mirror.check(mirror.round(newer))


def test_positions_that_the_target_forgot(mirror: Mirror, shop: Shop, back_up: BackUp) -> None:
    """All of them, as after `offsets.retention.minutes`; then those of one partition alone."""
    group = layout.mirror_group(mirror.flow.source, mirror.flow.target)
    cluster = Cluster(mirror.client, "target")
    applied = mirror.apply()
    cluster.groups.delete([group])
    sell(shop, 60)
    back_up(mirror.store)
    mirror.check(mirror.apply())
    committed, _ = cluster.groups.committed([group])
    assert {c.tp for c in committed[group]} == applied.positions.keys()
    quiet = [c for c in committed[group] if c.tp.topic.endswith("orders") and c.tp.partition == 1]
    assert cluster.groups.remove({group: quiet}) == {group: ""}
    mirror.check(mirror.apply())
    cluster.groups.delete([group])
    with mirror.applier() as applier:
        archive = open_archive(mirror.store)
        mirror.round(applier, archive, [t for t in mirror.topics(archive) if t.source == shop.events])
        mirror.check(mirror.round(applier))


@pytest.mark.parametrize("when", ["before", "after"])
def test_positions_are_read_back_though_the_last_transaction_is_in_doubt(
    when: When, mirror: Mirror, shop: Shop, back_up: BackUp
) -> None:
    """The target's log says whether a part was committed that nothing follows."""
    mirror.apply()
    sell(shop, 60)
    back_up(mirror.store)
    with mirror.applier() as applier, dying_commits(when, 6), pytest.raises(Crash):
        mirror.round(applier)
    Cluster(mirror.client, "target").groups.delete([layout.mirror_group(mirror.flow.source, mirror.flow.target)])
    mirror.check(mirror.apply())


def test_another_archive_or_another_target_is_refused(mirror: Mirror) -> None:
    mirror.apply()
    key = layout.mirror_key(mirror.flow.source, mirror.flow.target, "flow.json")
    flow = read_flow(mirror.store, mirror.flow.source, mirror.flow.target)
    assert flow is not None
    for changed in ({"archive_id": "x"}, {"target_cluster_id": "x"}):
        mirror.store.put(key, dump(msgspec.structs.replace(flow, **changed)))
        with pytest.raises(MismatchError, match=f"flow {mirror.flow.name} was begun "):
            mirror.apply()


def test_retention_at_the_source_overtakes_the_take_half(
    own: Mirror, own_shop: Shop, take: Take, broker: Broker
) -> None:
    take()
    own.apply()
    orders = TopicPartition(own_shop.orders, 0)
    start = in_archive(own.store)[orders][-1].offset + 1
    sell(own_shop, 150)
    admin = AdminClient(own.client)
    cut = KafkaTopicPartition(*orders, start + 25)
    admin.delete_records([cut])[cut].result(30)
    take()
    applied = own.apply()
    (lost,) = applied.too_late
    assert (lost.topic, lost.partition, lost.start, lost.end) == (*orders, start, start + 25)
    assert "were lost before they were archived" in lost.message
    assert applied.is_loss
    own.check(applied)
    assert own.apply().too_late == (), "it is reported once"


def test_new_topics_and_partitions(own: Mirror, own_shop: Shop, take: Take) -> None:
    take()
    with own.applier() as applier:
        archive = open_archive(own.store)
        events = [topic for topic in own.topics(archive) if topic.source == own_shop.events]
        first = own.round(applier, archive, events)
        assert {tp.topic for tp in first.positions} == {events[0].remote}
        own.check(own.round(applier))
        admin = AdminClient(own.client)
        for name in (own_shop.orders, f"{own.flow.source}.{own_shop.orders}"):
            admin.create_partitions([NewPartitions(name, 5)])[name].result(30)
        producer = Producer(own.client)
        for n in range(20):
            producer.produce(own_shop.orders, b"v%d" % n, b"k", 4)
        assert producer.flush(60) == 0
        take()
        own.check(own.round(applier))


def test_bucket_and_target_go_away_and_come_back(spark: SparkSession) -> None:
    """The round that meets it fails, or waits; the next one makes it good."""
    with Broker() as broker, Minio() as minio:
        minio.create_bucket("followed")
        shop = open_shop(broker, "shop")
        store = open_store("s3://followed/archive", {"s3": S3Options(**minio.options, max_attempts=2)})
        mirror = Mirror(store, broker.bootstrap)

        def take() -> Archive:
            sell(shop, 60)
            backup(options(shop), broker.client(), mirror.store, lambda: spark, Counting())
            return open_archive(mirror.store)

        archive = take()
        topics = mirror.topics(archive)
        with mirror.applier() as applier:
            mirror.check(mirror.round(applier, archive, topics))
            archive = take()
            minio.kill()
            with pytest.raises(RETRIED):
                mirror.round(applier, archive, topics)
            minio.start()
            mirror.check(mirror.round(applier, archive, topics))
            archive = take()
            broker.kill()
            back = threading.Timer(3, broker.start)
            back.start()
            try:
                applied = mirror.round(applier, archive, topics)
            except RETRIED:
                back.join()
                applied = mirror.round(applier, archive, topics)
            back.join()
            mirror.check(applied)
