"""A source's topic, applied to a target."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from kbackup.archive.run import open_or_create
from scripts.dev.kafka import Broker
from tests.interop.mirror.mirrored import Mirrored
from tests.support.java import Java, compiled
from tests.support.memory_store import MemoryStore


@pytest.fixture(scope="session")
def java() -> Iterator[Java]:
    with compiled("SyncStore.java", "RemoteClusters.java") as made:
        yield made


@pytest.fixture(scope="session")
def mirrored(broker: Broker) -> Callable[[Broker], Mirrored]:
    """Makes topics of two partitions: one as transactions leave it, one with a single record."""

    def make(target: Broker) -> Mirrored:
        topic = f"orders-{secrets.token_hex(4)}"
        broker.create_topic(topic, 2)
        fill(broker, topic)
        target.create_topic(f"A.{topic}", 2)
        made = Mirrored(broker, target, open_or_create(MemoryStore()), topic)
        made.apply()
        return made

    return make


def fill(broker: Broker, topic: str, transactions: int = 12, each: int = 50) -> None:
    """Produce transactions, each with its marker behind it; every third one is aborted."""
    producer = Producer(broker.client(**{"transactional.id": f"writer of {topic}"}))
    producer.init_transactions(30)
    for number in range(transactions):
        producer.begin_transaction()
        for n in range(each):
            producer.produce(topic, f"{number}-{n}".encode(), partition=0)
        if number == 0:
            producer.produce(topic, b"alone", partition=1)
        if number % 3 == 2:
            producer.flush()
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
