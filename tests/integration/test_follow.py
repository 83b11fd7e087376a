"""Backing up all the time, against a real broker and S3 server: what it commits, and when it doesn't."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from pyspark.sql import SparkSession

from kbackup.archive import layout
from kbackup.archive.models import PartitionState
from kbackup.archive.reader import Archive as Opened
from kbackup.archive.reader import open_archive
from kbackup.config.models import Backup, Follow
from kbackup.formats.index import decode_group_offsets
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from scripts.dev.kafka import Broker
from tests.integration.backed_up import produce
from tests.integration.conftest import Archive, Kbackup
from tests.support.following import Following
from tests.support.truth import Position, commit, in_archive, in_cluster, log_ends, positions

QUICK = Follow(interval_seconds=0.3)
PATIENT = Follow(interval_seconds=0.3, small_bytes=1 << 20, small_segments=0, max_age_seconds=3600)


def partition(archive: Opened, topic: str, number: int) -> PartitionState:
    head = archive.restore_point("latest")
    (found,) = [p for t in head.topics if t.name == topic for p in t.partitions if p.partition == number]
    return found


def group_offsets(store: Store, topic: str) -> dict[str, int]:
    """Of partition 0, as the Java tool reads them."""
    key = layout.group_offsets_key(layout.topic_dir(topic), 0)
    return decode_group_offsets(store.get(key), key)


def test_every_round_adds_what_came_in_and_the_last_takes_the_rest(
    broker: Broker, spark: SparkSession, new_archive: Callable[[], Archive]
) -> None:
    name, store = f"followed-{secrets.token_hex(4)}", new_archive().store
    first, later = f"{name}-a", f"{name}-b"
    broker.create_topic(first, 2)
    produce(broker, first, 0, range(50))
    options = Backup(topics=(f"/{name}-.*/",), groups=(name,), segment_bytes=4000)
    with Following(options, QUICK, broker, store, spark) as following:
        following.until(lambda: len(following.commits) == 1)
        produce(broker, first, 1, range(30))
        following.until(lambda: sum(r.totals.records for r in following.commits) == 80)

        broker.create_topic(later, 1)
        following.until(lambda: later in {t.name for t in following.commits[-1].topics})
        produce(broker, later, 0, range(20))
        following.until(lambda: sum(r.totals.records for r in following.commits) == 100)

        commits = len(following.commits)
        following.pass_time(10)
        following.another_round(3)
        assert len(following.commits) == commits, "nothing new, no restore point"

        commit(broker.bootstrap, name, {TopicPartition(first, 0): Position(40)})
        following.until(lambda: len(following.commits) == commits + 1)
        assert following.commits[-1].totals.records == 0
        produce(broker, first, 0, range(50, 300))
    assert following.report is not None
    assert (following.report.records, following.report.losses) == (350, {})
    assert not following.errors
    assert in_archive(store) == in_cluster(broker.bootstrap, [first, later])
    archive = open_archive(store)
    assert [m.number for m in archive.restore_points] == list(range(1, len(following.commits) + 1))
    (group,) = archive.groups(archive.restore_point("latest")).groups
    assert [(o.topic, o.partition, o.offset) for o in group.offsets] == [(first, 0, 40)]


def test_small_partitions_wait_for_a_full_segment(
    broker: Broker, spark: SparkSession, archive: Archive, kbackup: Kbackup
) -> None:
    name, store = f"waiting-{secrets.token_hex(4)}", archive.store
    broker.create_topic(name, 2)
    produce(broker, name, 0, range(50))
    options = Backup(topics=(name,), groups=(name,))
    with Following(options, PATIENT, broker, store, spark) as following:
        following.until(lambda: len(following.commits) == 1)
        produce(broker, name, 0, range(50, 60))
        following.another_round(2)
        assert len(following.commits) == 1, "ten records wait for more"

        commit(broker.bootstrap, name, {TopicPartition(name, 0): Position(57)})
        following.until(lambda: len(following.commits) == 2)
        following.another_round()  # what follows from a commit is written after it
        held = following.commits[1]
        assert (held.totals.records, held.totals.segments, held.held_back) == (0, 0, 1)
        opened = open_archive(store)
        state = partition(opened, name, 0)
        assert (state.end, state.log_end, state.records) == (50, 60, 50)
        (group,) = opened.groups(opened.restore_point("latest")).groups
        assert [o.offset for o in group.offsets] == [57]
        assert group_offsets(store, name) == {name: 50}, "the Java tool finds no group ahead of what is archived"
        commit(broker.bootstrap, name, {TopicPartition(name, 0): Position(58)})
        following.pass_time(10)  # groups are captured again
        following.another_round(2)
        assert len(following.commits) == 2, "a group that moves on in what waits is no news"

        produce(broker, name, 1, range(12_000))
        following.until(lambda: following.commits[-1].totals.records >= 1024)  # a MiB of unknown size
        following.another_round(2)
        assert partition(open_archive(store), name, 0).end == 50
        assert following.commits[-1].held_back >= 1

        following.pass_time(3600)
        following.until(lambda: following.commits[-1].held_back == 0)
        following.another_round()
        opened = open_archive(store)
        assert partition(opened, name, 0).end == 60
        (group,) = opened.groups(opened.restore_point("latest")).groups
        assert [o.offset for o in group.offsets] == [58]
        assert group_offsets(store, name) == {name: 58}
        produce(broker, name, 0, range(60, 70))
        following.another_round()
        assert partition(open_archive(store), name, 0).end == 60
    assert following.commits[-1].totals.records == 10, "at the end nobody waits"
    assert in_archive(store) == in_cluster(broker.bootstrap, [name])
    names = f"--map={name}={name}-back", f"--map-group={name}={name}-back"
    report = kbackup.restore(archive, "--restore-point=2", *names)
    assert [o["how"] for g in report["groups"] for o in g["offsets"]] == ["log end"]
    back = f"{name}-back"
    assert positions(broker.bootstrap, back)[back, 0].offset == log_ends(broker.bootstrap, back)[0]


def test_a_whole_segment_does_not_wait_for_the_interval(
    broker: Broker, spark: SparkSession, new_archive: Callable[[], Archive]
) -> None:
    name, store = f"busy-{secrets.token_hex(4)}", new_archive().store
    broker.create_topic(name, 1)
    produce(broker, name, 0, range(10))
    options = Backup(topics=(name,), groups=(name,), segment_bytes=20_000)
    with Following(options, Follow(interval_seconds=3600), broker, store, spark) as following:
        following.until(lambda: len(following.commits) == 1)
        produce(broker, name, 0, range(10, 400))
        following.until(lambda: len(following.commits) == 2)
    assert following.commits[1].totals.records == 390
