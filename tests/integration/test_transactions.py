"""Transactions as a broker has them: the batches of its logs, and where a restore point of whole transactions ends."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kbackup.kafka import transactions
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.logs import LogBatch, log_batches
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.kafka.transactions import CutBegun, OpenTransaction, TransactionCut, begin_cut
from kbackup.types import TopicPartition
from scripts.dev.kafka import Broker
from scripts.dev.secured import SecuredBroker
from tests.integration import topics
from tests.integration.backed_up import commit
from tests.integration.secured import password


def test_the_batch_at_an_offset_shows_markers_and_aborted_records(broker: Broker, topic_name: str) -> None:
    broker.create_topic(topic_name)
    topics.committed(broker, topic_name, 0, topics.numbered(3))  # and a marker at 3
    topics.aborted(broker, topic_name, 0, topics.numbered(2))  # 4 and 5, and a marker at 6
    topics.produce(broker, topic_name, 0, [b"x" * 100_000])  # more than the answer has room for
    router = Cluster(broker.client(), "source").router
    tp = TopicPartition(topic_name, 0)
    seen: dict[int, LogBatch] = {}
    for offset in range(8):
        batches = log_batches(router, {tp: offset, TopicPartition("no-such-topic", 0): 0})
        assert isinstance(batches, dict), batches
        assert list(batches) == [tp], "a topic that is not there gives no answer"
        seen[offset] = batches[tp]
    assert all(b.first <= offset <= b.last for offset, b in seen.items())
    assert [offset for offset, b in seen.items() if b.control] == [3, 6]
    assert [offset for offset, b in seen.items() if b.aborted and not b.control] == [4, 5]
    assert {b.leader_epoch for b in seen.values()} == {0}


def marked(broker: Broker, topic: str, end: int, partition: int = 0) -> None:
    """Wait until a partition ends there: producers return before all markers are written."""
    cluster, tp = Cluster(broker.client(), "source"), TopicPartition(topic, partition)
    topics.wait_until(lambda: cluster.log_ends([tp], "read_uncommitted") == {tp: end})


def close(
    broker: Broker, partitions: list[TopicPartition], wait: float = 30, meanwhile: Callable[[], object] = lambda: None
) -> TransactionCut:
    """A cut; `meanwhile` is called when ends are settled, before transactions are waited for."""
    cluster = Cluster(broker.client(), "source")
    begun = begin_cut(cluster)
    assert isinstance(begun, CutBegun), begun
    waits = transactions._wait

    def then(*arguments: Any) -> set[TopicPartition]:
        meanwhile()
        return waits(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactions, "_wait", then)
        cut = begun.close(cluster.log_ends(partitions, "read_committed"), wait)
    assert isinstance(cut, TransactionCut), cut
    topic = {tp.topic for tp in partitions}
    return replace(cut, commits=[commit for commit in cut.commits if commit.tp.topic in topic])


def test_a_transaction_that_is_committed_behind_the_cut_is_held(broker: Broker, topic_name: str) -> None:
    broker.create_topic(topic_name, 3)
    first, second, third = (TopicPartition(topic_name, p) for p in range(3))
    topics.committed(broker, topic_name, 0, topics.numbered(2))  # 0 and 1, a marker at 2
    marked(broker, topic_name, 3)
    later = topics.begin(broker, topic_name, 0, topics.numbered(2))  # 3 and 4
    later.produce(topic_name, b"at the end", partition=1)
    assert later.flush(60) == 0
    topics.aborted(broker, topic_name, 0, topics.numbered(1))  # 5, a marker at 6
    marked(broker, topic_name, 7)
    later.produce(topic_name, b"once more", partition=0)  # 7
    assert later.flush(60) == 0
    topics.produce(broker, topic_name, 0, [b"plain"])  # 8
    topics.produce(broker, topic_name, 2, [b"plain"])

    cut = close(broker, [first, second, third], meanwhile=lambda: later.commit_transaction(60))
    assert cut == TransactionCut(
        {first: 9, second: 0, third: 1}, {first: ((3, 8),)}, [], (), frozenset({first, second})
    )

    marked(broker, topic_name, 10)
    cut = close(broker, [first, second, third])
    assert cut == TransactionCut({first: 10, second: 2, third: 1}, {}, [], (), frozenset({first, second})), (
        "now it is in"
    )


def test_positions_are_those_of_the_transactions_that_are_in(broker: Broker, topic_name: str) -> None:
    broker.create_topic(topic_name)
    tp, group = TopicPartition(topic_name, 0), f"group of {topic_name}"
    topics.produce(broker, topic_name, 0, topics.numbered(9))
    owner = Consumer(broker.client(**{"group.id": group}))

    def send(producer: Producer, offset: int) -> Producer:
        place = KafkaTopicPartition(topic_name, 0, offset, metadata=f"at {offset}")
        producer.send_offsets_to_transaction([place], owner.consumer_group_metadata(), 60)
        return producer

    commit(broker, group, topic_name, {0: 1})
    send(topics.begin(broker, topic_name, 0, [b"a"]), 2).commit_transaction(60)
    marked(broker, topic_name, 11)
    send(topics.begin(broker, topic_name, 0, [b"b"]), 3).abort_transaction(60)
    marked(broker, topic_name, 13)
    later = send(topics.begin(broker, topic_name, 0, [b"c"]), 4)

    def commits(cut: TransactionCut) -> list[tuple[TopicPartition, int | None, str]]:
        own = [c for c in cut.commits if c.group == group]
        return [
            (c.tp, c.offset.offset if c.offset else None, c.offset.metadata.rstrip("\0") if c.offset else "")
            for c in own
        ]

    first = close(broker, [tp], meanwhile=lambda: later.commit_transaction(60))
    assert (first.ends, first.held) == ({tp: 13}, {}), "the last transaction is cut off: 9, 11 and 13 have data"
    assert commits(first) == [(tp, 1, ""), (tp, 2, "at 2")]
    owner.close()
    second = close(broker, [tp])
    assert (second.ends, second.held) == ({tp: 15}, {})
    assert commits(second) == [*commits(first), (tp, 4, "at 4")]


def test_an_open_transaction_is_named(broker: Broker, topic_name: str) -> None:
    broker.create_topic(topic_name, 2)
    hung, done = (TopicPartition(topic_name, p) for p in range(2))
    topics.committed(broker, topic_name, 0, topics.numbered(2))
    marked(broker, topic_name, 3)
    topics.committed(broker, topic_name, 1, topics.numbered(2))
    marked(broker, topic_name, 3, partition=1)
    producer = topics.begin(broker, topic_name, 0, topics.numbered(2))
    cut = close(broker, [hung, done], wait=0)
    (named,) = cut.open
    assert named == OpenTransaction(hung, named.producer_id, 3, 1_700_000_000_000)
    assert (cut.ends, cut.held) == ({hung: 3, done: 3}, {})
    producer.abort_transaction(60)
    assert close(broker, [hung, done]).open == ()


def test_a_user_without_read_on_internal_topics_is_told(secured_broker: SecuredBroker) -> None:
    Producer(secured_broker.client(**{"transactional.id": "makes __transaction_state"})).init_transactions(60)
    name, word = f"reader-{secrets.token_hex(3)}", password()
    secured_broker.add_user(name, word)
    cluster = Cluster(secured_broker.scram(name, word), "source")
    for operation in ("describe", "read"):
        begun = begin_cut(cluster)
        assert isinstance(begun, Unavailable), operation
        assert (begun.reason, "Read on the topic" in begun.why) == ("denied", True), begun
        secured_broker.allow(name, operation, "topic", "__", prefixed=True)
    topics.wait_until(lambda: isinstance(begin_cut(cluster), CutBegun))
