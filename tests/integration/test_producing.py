"""Both ways of producing put the same records into a topic, and tell where each one went."""

from __future__ import annotations

import os
import random
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from kbackup.errors import ClusterError, FencedError, UnreachableError
from kbackup.kafka.client import Connection
from kbackup.kafka.consume import RangeReader
from kbackup.kafka.produce import BlockProducer, RefusedTopicError
from kbackup.kafka.record_clients import open_sink
from kbackup.native.contract import UNKNOWN, CommittedProgress, RecordSink, Runs
from kbackup.types import OffsetRange, RecordBlock, TopicPartition
from scripts.dev.kafka import Broker
from tests.integration.conftest import Choose
from tests.integration.topics import ANY_FUTURE, FAR_FUTURE
from tests.support.plain_records import Plain, block_of, encoded
from tests.support.truth import log_ends

STAMP = 1_700_000_000_000
HOSTILE = [
    Plain(b"", b""),
    Plain(None, b"v"),
    Plain(b"k", None),
    Plain(None, None),
    Plain(b"k", b"again", 0, STAMP - 1),
    Plain(b"k", b"again", 0, STAMP - 1),
    Plain(b"k", b"stamped by its broker", 1, STAMP),
    Plain(b"k", b"of no time", -1),
    Plain(b"k", b"of no create time", -2),
    Plain(b"k", b"of the first moment", 0, 0),
    Plain(b"k", b"of the last year", 0, FAR_FUTURE),
    Plain(b"k", b"v", headers=((b"h", None), (b"h", b""), (b"", b"x"), (b"h", bytes(range(256))), (b"h", None))),
    Plain("schlüssel".encode(), "🎉".encode(), headers=(("键".encode(), b"\0\xff"),)),
    Plain(bytes(range(256)), bytes(range(256)) * 9, headers=tuple((b"h%d" % n, bytes(n)) for n in range(60))),
]
ODD_NAMES = [
    Plain(b"k", b"v", headers=tuple((name, value) for value in (None, b"\0x")))
    for name in (b"a\0b", b"\0", b"a\0", b"\xff\xfe", b"plain", b"")
]


@pytest.fixture(params=["native", "python"])
def way(request: pytest.FixtureRequest, choose: Choose) -> str:
    choose(request.param)
    return str(request.param)


@pytest.fixture(params=[True, False], ids=["transactional", "plain"])
def transactional(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def expanded(runs: Runs) -> dict[int, int]:
    """Source offset to target offset, of every record."""
    every = zip(runs.source.tolist(), runs.target.tolist(), runs.count.tolist(), strict=True)
    return {s + i: t + i for s, t, n in every for i in range(n)}


def held(broker: Broker, topic: str, isolation: str = "read_committed") -> dict[TopicPartition, dict[int, bytes]]:
    """Every record of the topic as it would be archived, by offset."""
    ends = log_ends(broker.bootstrap, topic, "read_uncommitted")
    records: dict[TopicPartition, dict[int, bytes]] = {TopicPartition(topic, p): {} for p in ends}
    with closing(RangeReader(broker.client(), isolation, "producing", 30.0, len(ends))) as reader:
        for tp, block in reader.read([OffsetRange(topic, p, 0, end) for p, end in ends.items()]):
            data = block.data.tobytes()
            for offset, at, size in zip(block.offsets, block.positions, block.lengths, strict=True):
                records[tp][int(offset)] = data[at : at + size]
    return records


def producer_of(
    broker: Broker,
    topic: str,
    transactional: bool = True,
    properties: Mapping[str, str] = MappingProxyType({}),
    sink: Callable[[Connection, Mapping[str, Any], str], RecordSink] = open_sink,
) -> BlockProducer:
    """Return a producer with an id of the topic's own, or without transactions."""
    client = broker.client(**properties)
    return BlockProducer(client, f"{topic}-id" if transactional else None, f"{topic}-progress", sink=sink)


def produced(
    broker: Broker, tp: TopicPartition, records: Sequence[Plain], properties: Mapping[str, str] = MappingProxyType({})
) -> dict[int, int]:
    """Send records without a transaction, and return where they went."""
    with closing(producer_of(broker, tp.topic, False, properties)) as producer:
        producer.send(tp, block_of(records))
        return expanded(producer.flush()[tp])


def check(
    broker: Broker,
    topic: str,
    sent: Mapping[TopicPartition, Sequence[tuple[int, Plain]]],
    maps: Mapping[TopicPartition, Mapping[int, int]],
) -> None:
    """The topic holds what was sent and nothing else, each record where the map says."""
    produced = held(broker, topic)
    counts = {tp: len(records) for tp, records in produced.items() if records}
    assert counts == {tp: len(records) for tp, records in sent.items()}
    for tp, records in sent.items():
        assert list(maps[tp]) == [source for source, _ in records]
        assert list(maps[tp].values()) == sorted(maps[tp].values())
        for source, record in records:
            target = maps[tp][source]
            assert produced[tp][target] == encoded(target, record.restored), f"{tp}: the record from {source}"


def many(count: int) -> list[Plain]:
    draw = random.Random(7)
    return [Plain(b"%d" % n, draw.randbytes(draw.randrange(60)), 0, STAMP + n) for n in range(count)]


def sources(records: Sequence[Plain], step: int) -> list[tuple[int, Plain]]:
    return [(100 + step * number, record) for number, record in enumerate(records)]


def cut(records: Sequence[tuple[int, Plain]], size: int) -> Iterator[RecordBlock]:
    for at in range(0, len(records), size):
        part = records[at : at + size]
        yield block_of([record for _, record in part], [source for source, _ in part])


def test_records_of_all_kinds(broker: Broker, topic_name: str, way: str, transactional: bool) -> None:
    """Several partitions in turns, in several transactions, with gaps in their source offsets."""
    broker.create_topic(topic_name, 4, config={**ANY_FUTURE, "max.message.bytes": str(2 << 20)})
    sent = {
        TopicPartition(topic_name, 0): sources(HOSTILE * 3, 1),
        TopicPartition(topic_name, 1): sources(many(20_000), 1),
        TopicPartition(topic_name, 3): sources([*HOSTILE, Plain(b"large", os.urandom(1 << 20)), *HOSTILE], 3),
    }
    maps: dict[TopicPartition, dict[int, int]] = {tp: {} for tp in sent}
    with closing(producer_of(broker, topic_name, transactional)) as producer:
        assert producer.start(list(sent)) == {}
        blocks = {tp: cut(records, 7 if len(records) < 1000 else 4000) for tp, records in sent.items()}
        while blocks:
            for tp in list(blocks):
                block = next(blocks[tp], None)
                if block is None:
                    del blocks[tp]
                else:
                    producer.send(tp, block)
            for tp, runs in producer.flush().items():
                maps[tp] |= expanded(runs)
            reached = {tp: list(went)[-1] + 1 for tp, went in maps.items() if went}
            producer.commit({tp: CommittedProgress(offset, f"nöte {tp}") for tp, offset in reached.items()})
    assert producer.moved == sum(r.kind >= 0 and r.timestamp == 0 for rs in sent.values() for _, r in rs) == 5
    check(broker, topic_name, sent, maps)
    if transactional:
        with closing(producer_of(broker, topic_name)) as after:
            found = after.start(list(sent))
        assert found == {tp: CommittedProgress(records[-1][0] + 1, f"nöte {tp}") for tp, records in sent.items()}


@pytest.mark.parametrize("way", ["native"], indirect=True)
def test_header_names_with_nul_bytes_or_no_utf8(broker: Broker, topic_name: str, way: str) -> None:
    broker.create_topic(topic_name, 1)
    tp = TopicPartition(topic_name, 0)
    went = produced(broker, tp, ODD_NAMES)
    check(broker, topic_name, {tp: list(enumerate(ODD_NAMES))}, {tp: went})


def test_a_queue_that_is_always_full(broker: Broker, topic_name: str, way: str) -> None:
    tiny = {"queue.buffering.max.messages": "11", "batch.size": "700", "linger.ms": "0"}
    broker.create_topic(topic_name, 1)
    tp, records = TopicPartition(topic_name, 0), many(3_000)
    check(broker, topic_name, {tp: list(enumerate(records))}, {tp: produced(broker, tp, records, tiny)})


def two_of_one_id(broker: Broker, topic: str) -> tuple[TopicPartition, BlockProducer, BlockProducer]:
    """The first has sent what it has not committed; the second has not begun."""
    broker.create_topic(topic, 1)
    tp, first = TopicPartition(topic, 0), producer_of(broker, topic)
    first.start([tp])
    first.send(tp, block_of(many(100)))
    first.flush()
    return tp, first, producer_of(broker, topic)


def test_a_second_producer_takes_over(broker: Broker, topic_name: str, way: str) -> None:
    tp, first, second = two_of_one_id(broker, topic_name)
    assert second.start([tp]) == {}
    second.send(tp, block_of(HOSTILE[:3]))
    went = expanded(second.flush()[tp])
    with pytest.raises(FencedError, match="taken over"):
        first.commit({tp: CommittedProgress(100, "first")})
    first.close()
    second.commit({tp: CommittedProgress(3, "second")})
    second.close()
    check(broker, topic_name, {tp: list(enumerate(HOSTILE[:3]))}, {tp: went})


def test_a_second_producer_takes_over_while_records_are_sent(broker: Broker, topic_name: str, way: str) -> None:
    tp, first, second = two_of_one_id(broker, topic_name)
    second.start([tp])

    def go_on() -> None:
        for _ in range(100):
            first.send(tp, block_of(many(100)))
            first.flush()

    with pytest.raises(FencedError, match="taken over"):
        go_on()
    first.close()
    second.close()
    assert held(broker, topic_name)[tp] == {}


def test_uncommitted_records_are_absent(broker: Broker, topic_name: str, way: str) -> None:
    """Closed with records on their way, some of them not even sent."""
    broker.create_topic(topic_name, 1)
    tp = TopicPartition(topic_name, 0)
    with closing(producer_of(broker, topic_name)) as producer:
        producer.start([tp])
        producer.send(tp, block_of(many(20_000)))
    assert held(broker, topic_name)[tp] == {}


def test_a_record_that_the_broker_refuses(broker: Broker, topic_name: str, way: str, transactional: bool) -> None:
    """The error names the refused record, and none of the others in its batch."""
    broker.create_topic(topic_name, 1, config={"cleanup.policy": "compact"})
    tp, records = TopicPartition(topic_name, 0), many(50)
    records[33] = Plain(None, b"without a key")
    producer = producer_of(broker, topic_name, transactional)
    producer.start([tp])

    def deliver() -> None:
        producer.send(tp, block_of(records, range(1000, 1050)))
        producer.flush()

    # confluent-kafka tells neither which record of the batch it was nor the broker's reason
    named = r"1033: .*compacted" if way == "native" else "10[0-4][0-9]"
    with pytest.raises(ClusterError, match=f"{topic_name}-0 from source offset {named}") as raised:
        deliver()
    assert "compacted" in raised.value.hint
    producer.close()


def test_brokers_that_restart_in_the_middle(topic_name: str, way: str) -> None:
    """Batches are sent again, and some of the reports may not say where to: the map tells the truth all the same."""
    with Broker() as broker:
        broker.create_topic(topic_name, 2)
        tps = [TopicPartition(topic_name, p) for p in range(2)]
        records = many(40_000)
        restarts = threading.Thread(target=broker.restart)
        for _ in range(9):
            try:
                maps = in_one_transaction(broker, tps, records, restarts)
                break
            except (ClusterError, UnreachableError):
                continue
        restarts.join()
        check(broker, topic_name, {tp: list(enumerate(records)) for tp in tps}, maps)


def in_one_transaction(
    broker: Broker, tps: Sequence[TopicPartition], records: Sequence[Plain], restarts: threading.Thread
) -> dict[TopicPartition, dict[int, int]]:
    size = 1_000
    with closing(producer_of(broker, "restarted")) as producer:
        assert producer.start(tps) == {}
        for at in range(0, len(records), size):
            for tp in tps:
                producer.send(tp, block_of(records[at : at + size], range(at, at + size)))
            if at == 5 * size and restarts.ident is None:
                restarts.start()
        maps = {tp: expanded(runs) for tp, runs in producer.flush().items()}
        producer.commit({tp: CommittedProgress(len(records), "done") for tp in tps})
    return maps


def test_progress_comes_back_as_it_was(broker: Broker, topic_name: str) -> None:
    """Notes of every length that names of parts have: confluent-kafka would read past the end of some."""
    broker.create_topic(topic_name, 2)
    tps = [TopicPartition(topic_name, p) for p in range(2)]
    expected: dict[TopicPartition, CommittedProgress] = {}
    for number in (None, 0, 10, 100, 1_000, 10_000, 100_000):
        producer = producer_of(broker, topic_name)
        assert producer.start(tps) == expected
        if number is not None:
            expected = {tp: CommittedProgress(number, f"{uuid.uuid4().hex}-{number}") for tp in tps}
            producer.send(tps[0], block_of(many(1)))
            producer.flush()
            producer.commit(expected)
        producer.close()


class Silenced:
    """A sink whose reports, once it is `silent`, tell that records were delivered, and not where to."""

    def __init__(self) -> None:
        self.silent = False
        self._sink: RecordSink

    def open(self, connection: Connection, tuning: Mapping[str, Any], group: str) -> RecordSink:
        self._sink = open_sink(connection, tuning, group)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def taken(self) -> dict[TopicPartition, Runs]:
        taken = self._sink.taken()
        if not self.silent:
            return taken
        return {tp: Runs(r.source, np.full_like(r.target, UNKNOWN), r.count) for tp, r in taken.items()}


def test_the_broker_is_asked_where_records_are(broker: Broker, topic_name: str) -> None:
    """In an open transaction, and after the marker that ended the one before."""
    broker.create_topic(topic_name, 1)
    tp, records = TopicPartition(topic_name, 0), many(30)
    reports = Silenced()
    producer = producer_of(broker, topic_name, sink=reports.open)
    producer.start([tp])
    maps: dict[int, int] = {}
    for at in (0, 10, 20):
        producer.send(tp, block_of(records[at : at + 10], range(at, at + 10)))
        maps |= expanded(producer.flush()[tp])
        if at == 0:
            reports.silent = True
        else:
            producer.commit({tp: CommittedProgress(at + 10, "")})
    producer.close()
    check(broker, topic_name, {tp: list(enumerate(records))}, {tp: maps})


def test_offsets_that_the_broker_does_not_report_are_not_guessed(broker: Broker, topic_name: str) -> None:
    """Somebody else writes to the partition; and where nothing is known of what was before."""
    broker.create_topic(topic_name, 1)
    tp = TopicPartition(topic_name, 0)
    unproven = f"did not report the offset of each record of {topic_name}-0"
    reports = Silenced()
    with closing(producer_of(broker, topic_name, False, sink=reports.open)) as producer:
        producer.send(tp, block_of(many(10)))
        producer.flush()
        reports.silent = True
        with closing(producer_of(broker, topic_name, False)) as rival:
            rival.send(tp, block_of(many(1)))
            rival.flush()
        producer.send(tp, block_of(many(10)))
        with pytest.raises(ClusterError, match=unproven):
            producer.flush()
    never_heard = Silenced()
    never_heard.silent = True
    with closing(producer_of(broker, topic_name, False, sink=never_heard.open)) as another:
        another.send(tp, block_of(many(1)))
        with pytest.raises(ClusterError, match=unproven):
            another.flush()


def test_batches_fit_a_topic_with_a_small_limit(way: str, broker: Broker, topic_name: str) -> None:
    """The records are random, so that compression makes no batch smaller."""
    limit = 20_000
    broker.create_topic(topic_name, config={"max.message.bytes": str(limit)})
    records = [Plain(b"k", random.Random(n).randbytes(4000)) for n in range(50)]
    tp = TopicPartition(topic_name, 0)
    with closing(BlockProducer(broker.client(), topic_name, "kbackup-restore-small", message_limit=limit)) as producer:
        producer.start([tp])
        producer.send(tp, block_of(records))
        producer.flush()
        producer.commit({tp: CommittedProgress(50, "")})
    assert len(held(broker, topic_name)[tp]) == 50


@pytest.mark.parametrize("refused", ["compacted", "small", "absent"])
def test_a_topic_that_takes_no_record_is_named(refused: str, way: str, broker: Broker, topic_name: str) -> None:
    configs = {"compacted": {"cleanup.policy": "compact"}, "small": {"max.message.bytes": "1000"}}
    broker.create_topic(topic_name)
    if refused in configs:
        broker.create_topic(f"{topic_name}-bad", config=configs[refused])
    good, bad = TopicPartition(topic_name, 0), TopicPartition(f"{topic_name}-bad", 0)
    # librdkafka takes a topic that a broker does not know for a new one, and would wait for it for 30 s.
    short = {"topic.metadata.propagation.max.ms": "3000"}
    with closing(producer_of(broker, topic_name, properties=short)) as producer:
        producer.start([good, bad])
        producer.send(good, block_of([Plain(b"k", b"v")] * 10))
        producer.send(bad, block_of([Plain(None, random.Random(1).randbytes(5000))]))
        with pytest.raises(RefusedTopicError) as raised:
            producer.flush()
    assert raised.value.topic == bad.topic
    assert not held(broker, topic_name)[good]
