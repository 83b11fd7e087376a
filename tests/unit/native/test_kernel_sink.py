"""The compiled sink's own: how long it holds a block's memory, and what it reads of a broker's reason.

What it shares with the plain one is in `test_contract`.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator

import pytest

from kbackup.kafka.client import Connection
from kbackup.kafka.record_clients import open_kernel_sink
from kbackup.native.sink import KernelSink, words_of
from kbackup.types import RecordBlock, TopicPartition
from tests.support.plain_records import Plain, block_of
from tests.support.runs import rows

TP = TopicPartition("t", 0)


def open_sink(**settings: int) -> KernelSink:
    """Open a sink with librdkafka's own mock broker, which lives in the client."""
    connection = Connection({"bootstrap.servers": "mock:1"}, "target")
    own = {name.replace("_", "."): value for name, value in settings.items()}
    sink = open_kernel_sink(connection, {"enable.idempotence": True, "test.mock.num.brokers": 1, **own}, "group")
    assert isinstance(sink, KernelSink)
    return sink


@pytest.fixture
def sink() -> Iterator[KernelSink]:
    made = open_sink(linger_ms=1)
    yield made
    made.close()


@pytest.fixture
def sink_with_a_short_queue() -> Iterator[KernelSink]:
    made = open_sink(linger_ms=1, queue_buffering_max_messages=7)
    yield made
    made.close()


def block_of_size(count: int) -> RecordBlock:
    return block_of([Plain(b"k", b"v" * 100)] * count)


def test_memory_is_let_go_when_its_reports_are_in(sink: KernelSink) -> None:
    block = block_of_size(1000)
    seen = weakref.ref(block.data)
    sink.send(TP, block)
    del block
    gc.collect()
    assert seen() is not None, "librdkafka reads from it still"
    until = time.monotonic() + 30
    while seen() is not None:
        assert time.monotonic() < until
        sink.serve(0.1)
    assert rows(sink.taken()[TP]) == [(0, 0, 1000)]


def test_a_block_that_was_sent_through_a_short_queue_is_the_only_one_held(sink_with_a_short_queue: KernelSink) -> None:
    sink_with_a_short_queue.send(TP, block_of_size(500))
    assert len(sink_with_a_short_queue._on_the_way) <= 1


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (b"Timestamp 7 is out of range\0\0", "Timestamp 7 is out of range"),
        (b"\0Timestamp", ""),
        (b"-\xf0\x9cl\xe9\x07\0", ""),
        (b"-@\x7f\0", ""),
        (b"I\0", ""),
    ],
)
def test_a_reason_that_was_freed_is_not_told(memory: bytes, words: str) -> None:
    assert words_of(memory) == words
