"""The batches of a log as a broker gives them: markers and aborted records, which clients skip."""

from __future__ import annotations

from kbackup.kafka.admin_protocol.connection import LogBatch
from kbackup.kafka.admin_protocol.session import log_batches
from kbackup.kafka.client import Connection
from kbackup.types import TopicPartition
from scripts.dev.kafka import Broker
from tests.integration import topics


def test_the_batch_at_an_offset_shows_markers_and_aborted_records(broker: Broker, topic_name: str) -> None:
    broker.create_topic(topic_name)
    topics.committed(broker, topic_name, 0, topics.numbered(3))  # and a marker at 3
    topics.aborted(broker, topic_name, 0, topics.numbered(2))  # 4 and 5, and a marker at 6
    topics.produce(broker, topic_name, 0, [b"x" * 100_000])  # more than the answer has room for
    connection = Connection(broker.client(), "source")
    tp = TopicPartition(topic_name, 0)
    seen: dict[int, LogBatch] = {}
    for offset in range(8):
        batches = log_batches(connection, {tp: offset, TopicPartition("no-such-topic", 0): 0})
        assert isinstance(batches, dict), batches
        assert list(batches) == [tp], "a topic that is not there gives no answer"
        seen[offset] = batches[tp]
    assert all(b.first <= offset <= b.last for offset, b in seen.items())
    assert [offset for offset, b in seen.items() if b.control] == [3, 6]
    assert [offset for offset, b in seen.items() if b.aborted and not b.control] == [4, 5]
    assert {b.leader_epoch for b in seen.values()} == {0}
