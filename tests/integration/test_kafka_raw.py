"""Read the records of the hand-made producer with a client, odd records among them."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, Message, Producer, TopicPartition

from scripts.dev.kafka import Broker
from tests.support.kafka_raw import NO_TIMESTAMP, Record, raw_produce


@pytest.fixture
def topic(broker: Broker, topic_name: str) -> str:
    broker.create_topic(topic_name)
    return topic_name


def _read(broker: Broker, topic: str, count: int) -> list[Message]:
    consumer = Consumer(broker.client(**{"group.id": topic, "enable.auto.commit": False}))
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(count, timeout=30)
    consumer.close()
    assert [message.error() for message in messages] == [None] * count
    return messages


def test_empty_and_null_keys_values_and_headers_stay_apart(broker: Broker, topic: str) -> None:
    headers = [(b"h", None), (b"", b""), (b"h", b"\0\xff")]
    base = raw_produce(broker.bootstrap, topic, 0, [(None, b"", 1, []), (b"", None, 2, headers)])
    first, second = _read(broker, topic, 2)
    assert base == 0
    assert (first.key(), first.value(), first.headers()) == (None, b"", None)
    assert (second.key(), second.value()) == (b"", None)
    assert second.headers() == [("h", None), ("", b""), ("h", b"\0\xff")]


def test_batches_follow_each_other(broker: Broker, topic: str) -> None:
    batches: list[list[Record]] = [[(b"k", b"v" * size, size, [])] * size for size in (1, 70, 900)]
    assert [raw_produce(broker.bootstrap, topic, 0, batch) for batch in batches] == [0, 1, 71]
    values = [len(message.value() or b"") for message in _read(broker, topic, 71)]
    assert values == [1] + [70] * 70


@pytest.mark.parametrize("timestamp", [0, NO_TIMESTAMP, 1, 1 << 40])
def test_client_reports_every_timestamp_as_create_time(broker: Broker, topic: str, timestamp: int) -> None:
    """librdkafka says "create time" and -1, not "not available", for a record without a timestamp."""
    raw_produce(broker.bootstrap, topic, 0, [(None, None, timestamp, []), (None, None, 7, [])])
    message, other = _read(broker, topic, 2)
    assert message.timestamp() == (TIMESTAMP_CREATE_TIME, timestamp)
    assert other.timestamp() == (TIMESTAMP_CREATE_TIME, 7)


def test_client_producer_turns_timestamp_0_into_now_and_keeps_minus_1(broker: Broker, topic: str) -> None:
    before = int(time.time() * 1000)
    producer = Producer(broker.client())
    for timestamp in (0, -1, 1):
        producer.produce(topic, b"v", timestamp=timestamp)
    assert producer.flush(30) == 0
    zero, none, one = (message.timestamp()[1] for message in _read(broker, topic, 3))
    assert before <= zero <= int(time.time() * 1000)
    assert (none, one) == (-1, 1)


def test_client_cuts_header_keys_at_nul_and_fails_on_other_encodings(broker: Broker, topic: str) -> None:
    raw_produce(broker.bootstrap, topic, 0, [(None, None, 1, [(b"a\0b", b"x")])])
    raw_produce(broker.bootstrap, topic, 0, [(None, None, 1, [(b"\xff", b"x")])])
    cut, other = _read(broker, topic, 2)
    assert cut.headers() == [("a", b"x")]
    with pytest.raises((UnicodeDecodeError, SystemError)):
        other.headers()


def test_refusal_is_an_error(broker: Broker, topic_name: str) -> None:
    broker.create_topic(topic_name, config={"message.timestamp.after.max.ms": "1000"})
    with pytest.raises(RuntimeError, match=f"{topic_name}-0: the broker refused the batch with error code 32"):
        raw_produce(broker.bootstrap, topic_name, 0, [(None, None, 1 << 45, [])])
