"""Logs are filled so that each record gets its offset, whoever else writes there, and however often it is tried."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import Producer as KafkaProducer

from kbackup.errors import FencedError
from kbackup.jobs.restore.same_offsets.task import FILLER
from kbackup.kafka.batches import SEQUENCES, Producer, bodies, repeated
from kbackup.kafka.control.append import append, appended_records, new_producer
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.markers import EmptyTransactions
from kbackup.types import TopicPartition
from kbackup.util.system import attempts
from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.support import made_segments
from tests.support.same_offsets import MadeLog, MadeUnit
from tests.support.truth import log_ends, log_starts, read_topic

Make = Callable[..., MadeUnit]


@pytest.fixture
def cluster(broker: Broker) -> Cluster:
    return Cluster({"bootstrap.servers": broker.bootstrap}, "target")


@pytest.fixture
def make(broker: Broker, cluster: Cluster, tmp_path: Path) -> Make:
    def unit(*logs: MadeLog, config: dict[str, str] | None = None, **more: Any) -> MadeUnit:
        target = f"same-{secrets.token_hex(4)}"
        # The records are of 1970: the broker is to keep them.
        broker.create_topic(target, len(logs), config={"retention.ms": "-1", **(config or {})})
        producer = new_producer(cluster.router)
        return MadeUnit(str(tmp_path), broker.bootstrap, target, logs, producer.id, producer.epoch, **more)

    return unit


def _assert_filled(unit: MadeUnit, isolation: str = "read_uncommitted") -> None:
    """Assert that a consumer of this isolation level gets the records, all of them and no others, and that the logs
    begin and end where they are to."""
    found = read_topic(unit.bootstrap, unit.target, isolation)
    starts, ends = log_starts(unit.bootstrap, unit.target), log_ends(unit.bootstrap, unit.target, "read_uncommitted")
    for number, log in enumerate(unit.logs):
        assert found[number] == unit.records(number), f"records of partition {number}"
        assert (starts[number], ends[number]) == (log.start, log.end), f"bounds of partition {number}"


SHAPES = {
    "from 0": MadeLog(range(50), 0, 50),
    "with a head": MadeLog(range(1000, 1040), 1000, 1040),
    "with a head of many batches": MadeLog(range(3_200_000, 3_200_005), 3_200_000, 3_200_005),
    "gaps of one": MadeLog([*range(10), *range(11, 20), 21], 0, 22),
    "gaps of many": MadeLog([2, 3, 4, 30, 31, 60], 2, 61),
    "a gap before the first record": MadeLog([5, 6], 1, 7),
    "markers at the end": MadeLog(range(20), 0, 29),
    "one record": MadeLog([77], 77, 78),
    "empty": MadeLog([], 500, 500),
    "markers alone": MadeLog([], 3, 9),
}


def test_logs_of_every_shape_are_filled_side_by_side(make: Make) -> None:
    unit = make(*SHAPES.values())
    assert unit.run().failed == ()
    _assert_filled(unit)
    _assert_filled(unit, "read_committed")


@pytest.mark.parametrize("log", [MadeLog([], 0, 4), MadeLog([], 3, 9)], ids=["from 0", "with a head"])
def test_a_log_of_markers_alone_is_filled_without_others_beside_it(log: MadeLog, make: Make) -> None:
    unit = make(log)
    assert unit.run().failed == ()
    _assert_filled(unit)


def test_a_marker_that_came_twice_takes_a_place_in_its_gap(make: Make, cluster: Cluster) -> None:
    unit = make(MadeLog([0, 30], 0, 31))
    tp = TopicPartition(unit.target, 0)
    double = EmptyTransactions(cluster.router, [f"double-{unit.target}"], ("fenced", "hint"))
    double.begin()
    mark = EmptyTransactions.mark

    def twice(markers: EmptyTransactions, partitions: Collection[TopicPartition], count: int = 1) -> None:
        mark(markers, partitions, count)
        end = cluster.log_ends([tp], "read_uncommitted")[tp]
        if end < 20:
            mark(double, [tp])
            # A broker answers before it has written the marker: later, it would not come in the gap but behind it.
            assert any(cluster.log_ends([tp], "read_uncommitted")[tp] > end for _ in attempts(300, 0.1))

    with mock.patch.object(EmptyTransactions, "mark", twice):
        assert unit.run().failed == ()
    _assert_filled(unit)


def test_a_marker_too_many_is_named(make: Make, cluster: Cluster) -> None:
    unit = make(MadeLog([0, 3], 0, 4))
    tp = TopicPartition(unit.target, 0)
    double = EmptyTransactions(cluster.router, [f"double-{unit.target}"], ("fenced", "hint"))
    double.begin()
    mark = EmptyTransactions.mark

    def twice(markers: EmptyTransactions, partitions: Collection[TopicPartition], count: int = 1) -> None:
        mark(double, [tp])
        topics.wait_until(lambda: cluster.log_ends([tp], "read_uncommitted")[tp] == 2)
        mark(markers, partitions, count)
        topics.wait_until(lambda: cluster.log_ends([tp], "read_uncommitted")[tp] == 4)

    with mock.patch.object(EmptyTransactions, "mark", twice):
        (failed,) = unit.run().failed
    assert "have written a marker twice" in failed.reason


def test_a_second_try_finds_everything_there(make: Make) -> None:
    unit = make(*SHAPES.values())
    unit.run()
    assert unit.run().failed == ()
    _assert_filled(unit)


def test_the_offset_map_of_a_try_that_goes_on_has_every_record(make: Make) -> None:
    unit = make(SHAPES["gaps of many"])
    first, second = unit.run(), unit.run()
    assert first.parts != second.parts
    assert (len(first.parts), len(second.parts)) == (1, 1)


def test_a_batch_of_a_dead_try_that_comes_late_changes_nothing(make: Make, cluster: Cluster) -> None:
    unit = make(MadeLog(range(100), 0, 100))
    tp = TopicPartition(unit.target, 0)
    producer = Producer(unit.producer_id, unit.producer_epoch)
    (early,) = bodies(made_segments.block(range(30)), 1 << 20)
    late = early.batch(producer, 0)
    unit.run()
    offsets, refused = append(cluster.router, {tp: late})
    # The broker knows the sequence: it either says where the batch is, or refuses it.
    assert offsets == {tp: 0} or refused[tp].kind == "moved"
    _assert_filled(unit)


def test_a_batch_of_a_dead_try_that_comes_in_between_is_taken_over(make: Make, cluster: Cluster) -> None:
    unit = make(MadeLog(range(100), 0, 100))
    producer = Producer(unit.producer_id, unit.producer_epoch)
    (early,) = bodies(made_segments.block(range(30)), 1 << 20)
    append(cluster.router, {TopicPartition(unit.target, 0): early.batch(producer, 0)})
    assert unit.run().failed == ()
    _assert_filled(unit)


def test_a_gap_that_a_dead_try_left_open_gets_no_marker_too_many(make: Make, cluster: Cluster) -> None:
    unit = make(MadeLog([0, 1, 5], 0, 6))
    tp = TopicPartition(unit.target, 0)
    (head,) = bodies(made_segments.block(range(2)), 1 << 20)
    append(cluster.router, {tp: head.batch(Producer(unit.producer_id, unit.producer_epoch), 0)})
    dead = EmptyTransactions(cluster.router, [f"kbackup-{unit.target}-0-markers-0"], ("fenced", "hint"))
    dead.begin()
    dead.add([tp], dead.ids)
    assert unit.run().failed == ()
    _assert_filled(unit)
    with pytest.raises(FencedError):
        dead.end(dead.ids, commit=True)


@pytest.mark.parametrize("written", [20, 60])
def test_records_of_another_program_end_the_topic_by_name(written: int, make: Make, broker: Broker) -> None:
    unit = make(MadeLog(range(50), 0, 50))
    producer = KafkaProducer(broker.client())
    for number in range(written):
        producer.produce(unit.target, b"foreign %d" % number, partition=0)
    assert producer.flush(30) == 0
    result = unit.run()
    assert [failed.target for failed in result.failed] == [unit.target]
    assert "another program has written to it" in result.failed[0].reason


@pytest.mark.parametrize("fill", ["markers", "aborted"])
@pytest.mark.parametrize("log", [MadeLog([40, 41], 0, 42), MadeLog([], 0, 30)], ids=["a leading gap", "markers alone"])
def test_records_of_another_program_in_a_gap_that_is_begun_are_told_from_markers(
    fill: str, log: MadeLog, make: Make, cluster: Cluster, broker: Broker
) -> None:
    unit = make(log, fill=fill)
    tp = TopicPartition(unit.target, 0)
    dead = EmptyTransactions(cluster.router, [f"kbackup-{unit.target}-0-markers-0"], ("fenced", "hint"))
    dead.begin()
    for _ in range(6):
        dead.mark([tp])
    topics.wait_until(lambda: cluster.log_ends([tp], "read_uncommitted")[tp] == 6)
    topics.produce(broker, unit.target, 0, [b"foreign"])
    result = unit.run()
    assert "holds a record at offset 6, where the archive has none" in result.failed[0].reason


def test_aborted_fillers_are_hidden_from_readers_of_committed_records(make: Make) -> None:
    unit = make(MadeLog([0, 1, 500], 0, 501), MadeLog([0, 9], 0, 10), fill="aborted")
    assert unit.run().failed == ()
    _assert_filled(unit, "read_committed")
    shown = read_topic(unit.bootstrap, unit.target, "read_uncommitted")
    assert len(shown[0]) == 3 + 497
    assert unit.run().failed == ()
    _assert_filled(unit, "read_committed")


def test_tombstones_of_one_key_fill_a_compacted_topic(make: Make) -> None:
    unit = make(MadeLog([7, 8, 900], 7, 901), config={"cleanup.policy": "compact,delete"}, fill="tombstones")
    assert unit.run().failed == ()
    assert unit.run().failed == ()
    found = read_topic(unit.bootstrap, unit.target)[0]
    kept = [record for record in found if record.key != b"kbackup-filler"]
    assert kept == unit.records(0)
    assert {record.value for record in found if record.key == b"kbackup-filler"} == {None}


@pytest.mark.parametrize("codec", ["uncompressed", "gzip"])
def test_a_head_fits_a_topic_that_packs_batches_in_its_own_way(codec: str, make: Make) -> None:
    config = {"compression.type": codec, "max.message.bytes": "100000", "cleanup.policy": "compact,delete"}
    unit = make(MadeLog(range(400_000, 400_010), 400_000, 400_010), config=config)
    assert unit.run().failed == ()
    _assert_filled(unit)


def _bytes_on_disk(broker: Broker, topic: str) -> int:
    """Return the bytes of the log of partition 0, on the only node."""
    size = 0
    for path in broker.home(0).glob(f"data/{topic}-0*/*.log*"):
        with suppress(FileNotFoundError):  # brokers delete segments meanwhile
            size += path.stat().st_size
    return size


def test_what_filled_a_head_is_gone_from_the_disk(make: Make, broker: Broker) -> None:
    unit = make(MadeLog([4_000_000], 4_000_000, 4_000_001), config={"segment.bytes": "1048576"})
    assert unit.run().failed == ()
    assert _bytes_on_disk(broker, unit.target) > 0
    # The segment that the record is in stays.
    topics.wait_until(lambda: _bytes_on_disk(broker, unit.target) < 1 << 20)


def test_sequences_begin_again_behind_the_greatest(make: Make, cluster: Cluster) -> None:
    unit = make(MadeLog([], 0, 0))
    tp, producer = TopicPartition(unit.target, 0), Producer(unit.producer_id, unit.producer_epoch)
    body = repeated(FILLER, 1000)
    # A broker that knows nothing of a producer takes any first sequence.
    for number, sequence in enumerate((SEQUENCES - 500, SEQUENCES + 500)):
        offsets, refused = append(cluster.router, {tp: body.batch(producer, sequence)})
        assert refused == {}
        assert offsets == {tp: number * 1000}
    assert appended_records(cluster.router, [tp], producer) == {tp: 1500}


@pytest.mark.soak
def test_a_log_that_begins_at_three_billion_takes_little_room_on_the_way(make: Make, broker: Broker) -> None:
    start = 3_000_000_000
    unit = make(MadeLog(range(start, start + 50), start, start + 50), config={"segment.bytes": str(64 << 20)})
    most = 0
    with ThreadPoolExecutor() as pool:
        filling = pool.submit(unit.run)
        while not filling.done():
            most = max(most, _bytes_on_disk(broker, unit.target))
            time.sleep(0.5)
    assert filling.result().failed == ()
    _assert_filled(unit)
    # The fillers are 2.4 GB in all. They are deleted every 256 MB, and these brokers look for them every second.
    assert 200 << 20 < most < 600 << 20
