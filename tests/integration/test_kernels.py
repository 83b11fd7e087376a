"""Both ways of reading give the same bytes, whatever is in the topic."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbackup.errors import ClusterError, UnreachableError, UsageError
from kbackup.kafka.consume import RangeReader
from kbackup.native import kernel
from kbackup.types import OffsetRange, RecordBlock, TopicPartition
from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import Choose
from tests.support.kafka_raw import NO_TIMESTAMP, Record, raw_produce
from tests.support.truth import log_ends


class Held(NamedTuple):
    """All that was read of one partition."""

    data: bytes
    offsets: list[int]
    lengths: list[int]
    low: int | None
    high: int | None
    largest: int
    epoch: int


@pytest.fixture(params=["native", "python"])
def each_kernel(choose: Choose, request: pytest.FixtureRequest) -> None:
    choose(request.param)


def read(broker: Broker, ranges: list[OffsetRange], isolation: str = "read_committed") -> dict[TopicPartition, Held]:
    blocks: dict[TopicPartition, list[RecordBlock]] = {}
    with closing(RangeReader(broker.client(), isolation, "kernels", 20.0, len(ranges))) as reader:
        for tp, block in reader.read(ranges):
            assert block.positions.tolist() == np.concatenate([[0], np.cumsum(block.lengths)])[:-1].tolist()
            blocks.setdefault(tp, []).append(block)
    assert reader.vanished == []
    return {
        tp: Held(
            b"".join(p.data.tobytes() for p in parts),
            [o for p in parts for o in p.offsets.tolist()],
            [n for p in parts for n in p.lengths.tolist()],
            min((p.min_timestamp for p in parts if p.min_timestamp is not None), default=None),
            max((p.max_timestamp for p in parts if p.max_timestamp is not None), default=None),
            max(p.largest for p in parts),
            reader.epochs[tp],
        )
        for tp, parts in blocks.items()
    }


def whole(broker: Broker, *names: str) -> list[OffsetRange]:
    return [OffsetRange(name, p, 0, end) for name in names for p, end in log_ends(broker.bootstrap, name).items()]


def both(
    broker: Broker, choose: Choose, ranges: list[OffsetRange], isolation: str = "read_committed"
) -> dict[TopicPartition, Held]:
    choose("python")
    expected = read(broker, ranges, isolation)
    choose("native")
    found = read(broker, ranges, isolation)
    assert found == expected
    return found


def test_every_odd_topic_in_one_task(broker: Broker, topic_name: str, choose: Choose) -> None:
    makers = [topics.make_odd, topics.make_stamped, topics.make_ledger, topics.make_big, topics.make_long]
    names = [f"{topic_name}-{number}" for number in range(len(makers))]
    for make, name in zip(makers, names, strict=True):
        make(broker, name)
    found = both(broker, choose, whole(broker, *names))
    assert {tp.topic for tp in found} == set(names)
    assert min(held.epoch for held in found.values()) >= 0, "every range was read to its end"


def test_kernels_read_aborted_transactions_alike(broker: Broker, topic_name: str, choose: Choose) -> None:
    topics.make_ledger(broker, topic_name)
    assert both(broker, choose, whole(broker, topic_name), "read_uncommitted")


def test_ranges_within_a_partition(broker: Broker, topic_name: str, choose: Choose) -> None:
    broker.create_topic(topic_name, 1)
    topics.produce(broker, topic_name, 0, topics.numbered(5_000))
    for start, end in [(0, 1), (4_999, 5_000), (17, 18), (1_000, 4_001), (3, 3)]:
        found = both(broker, choose, [OffsetRange(topic_name, 0, start, end)])
        assert [o for held in found.values() for o in held.offsets] == list(range(start, end))


def test_records_larger_than_a_buffer(broker: Broker, topic_name: str, choose: Choose) -> None:
    size = 20_000_000
    broker.create_topic(topic_name, 1, config={"max.message.bytes": str(24 << 20)})
    sizes = (5, size, size, 5, 1_000_000, size)
    topics.produce(broker, topic_name, 0, map(os.urandom, sizes))
    held = both(broker, choose, whole(broker, topic_name))[TopicPartition(topic_name, 0)]
    assert held.largest > size
    assert len(held.offsets) == 6


def test_many_small_records_fill_the_index_first(broker: Broker, topic_name: str, choose: Choose) -> None:
    broker.create_topic(topic_name, 2)
    for partition in range(2):
        topics.produce(broker, topic_name, partition, [b""] * 300_000)
    assert sum(len(h.offsets) for h in both(broker, choose, whole(broker, topic_name)).values()) == 600_000


def test_header_names_with_nul_bytes_or_no_utf8_stay_whole(broker: Broker, topic_name: str, choose: Choose) -> None:
    broker.create_topic(topic_name, 1)
    names = [b"a\0b", b"\0", b"a\0", b"\xff\xfe", b"plain", b""]
    raw_produce(broker.bootstrap, topic_name, 0, [(b"k", b"v", 5, [(n, None), (n, b"\0x")]) for n in names])
    choose("native")
    held = read(broker, whole(broker, topic_name))[TopicPartition(topic_name, 0)]
    at = 0
    for name, length in zip(names, held.lengths, strict=True):
        record = held.data[at : at + length]
        at += length
        prefix = len(name).to_bytes(4, "big") + name
        assert record.endswith(
            (2).to_bytes(4, "big") + prefix + b"\xff\xff\xff\xff" + prefix + (2).to_bytes(4, "big") + b"\0x"
        )


names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9)
records: st.SearchStrategy[Record] = st.tuples(
    st.none() | st.binary(max_size=40),
    st.none() | st.binary(max_size=400),
    st.sampled_from([NO_TIMESTAMP, 0, 1]) | st.integers(0, 10**12),
    st.lists(st.tuples(names.map(str.encode), st.none() | st.binary(max_size=20)), max_size=5),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.lists(records, min_size=1, max_size=30), min_size=1, max_size=4))
def test_kernels_read_any_records_alike(
    broker: Broker, property_topic: str, choose: Choose, batches: list[list[Record]]
) -> None:
    start = log_ends(broker.bootstrap, property_topic)[0]
    for batch in batches:
        raw_produce(broker.bootstrap, property_topic, 0, batch)
    end = log_ends(broker.bootstrap, property_topic)[0]
    found = both(broker, choose, [OffsetRange(property_topic, 0, start, end)])
    assert found[TopicPartition(property_topic, 0)].offsets == list(range(start, end))


@pytest.fixture
def property_topic(broker: Broker, topic_name: str) -> str:
    broker.create_topic(topic_name, 1, config=topics.ANY_FUTURE)
    return topic_name


def test_a_topic_that_is_not_there(broker: Broker, topic_name: str, each_kernel: None) -> None:
    with pytest.raises(ClusterError, match=topic_name):
        read(broker, [OffsetRange(topic_name, 0, 0, 10)])


def test_records_that_retention_took(broker: Broker, topic_name: str, each_kernel: None) -> None:
    broker.create_topic(topic_name, 1)
    topics.produce(broker, topic_name, 0, topics.numbered(100))
    topics.delete_records(broker, topic_name, {0: 60})
    reader = RangeReader(broker.client(), "read_committed", "kernels", 20.0)
    blocks = [block for _, block in reader.read([OffsetRange(topic_name, 0, 10, 90)])]
    reader.close()
    assert [o for b in blocks for o in b.offsets.tolist()] == list(range(60, 90))
    assert reader.vanished == [(TopicPartition(topic_name, 0), 10, 60)]


def test_a_broker_that_is_not_there(topic_name: str, each_kernel: None) -> None:
    reader = RangeReader({"bootstrap.servers": "127.0.0.1:1"}, "read_committed", "kernels", 1.0)
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
        list(reader.read([OffsetRange(topic_name, 0, 0, 10)]))
    reader.close()


def test_a_property_that_does_not_exist(each_kernel: None) -> None:
    properties = {"bootstrap.servers": "127.0.0.1:1", "no.such.property": "secret"}
    with pytest.raises(UsageError, match=r"no\.such\.property") as raised:
        RangeReader(properties, "read_committed", "kernels", 1.0)
    assert "secret" not in str(raised.value)


def test_requested_kernel_is_logged_without_warning(choose: Choose, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "kbackup.native.kernel"):
        choose("python")
        kernel.log_kernels([kernel.selected_kernel(), kernel.selected_kernel()])
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ("INFO", "records passed through the python kernel: KBACKUP_KERNEL says so")
    ]


def test_an_unknown_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernel.VARIABLE, "rust")
    kernel.selected_kernel.cache_clear()
    with pytest.raises(UsageError, match="rust"):
        kernel.selected_kernel()
    kernel.selected_kernel.cache_clear()
