"""A backup that holds a transaction back: it ends while the backup waits for it."""

from __future__ import annotations

from typing import Any
from unittest import mock

from kbackup.kafka import transactions
from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup


def back_up_with_a_transaction_held_back(broker: Broker, kbackup: Kbackup, archive: Archive, topic: str) -> None:
    """Create a topic of two partitions, and back it up while a transaction in both is open."""
    broker.create_topic(topic, 2)
    slow = topics.begin(broker, topic, 0, [b"slow"])
    topics.committed(broker, topic, 0, [b"quick"])
    waits = transactions._wait

    def go_on(*arguments: Any) -> Any:
        # It ends while the backup waits, with a record in a partition whose end was read: so the next backup has it.
        slow.produce(topic, b"slow", b"k", 1)
        slow.commit_transaction(30)
        return waits(*arguments)

    with mock.patch.object(transactions, "_wait", go_on):
        kbackup.backup(archive, "-t", topic)
