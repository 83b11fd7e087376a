"""The shop whose cluster is backed up: what its topics hold and where its consumer groups stand.

It has what backups get wrong: null keys, tombstones, headers of all kinds, offsets that compaction or aborted
transactions left empty, a log that ends in a transaction marker, partitions without a record, and groups that
stand on, between and past records.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kbackup.kafka.control.cluster import Cluster
from kbackup.types import CommittedOffset, TopicPartition
from scripts.demo.state import ends, read_all
from scripts.dev.kafka import Nodes

TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "orders": (4, {"retention.ms": "31536000000"}),
    "customers": (2, {"cleanup.policy": "compact", "segment.ms": "600000"}),
    "payments": (2, {"min.insync.replicas": "1"}),
    "clicks": (3, {"compression.type": "lz4"}),
}
"""Name: partitions and configs."""

GROUPS = {
    "shipping": ("orders", 0.7),  # on a record
    "crm": ("customers", 0.3),  # on an offset that compaction emptied
    "billing": ("payments", 0.25),  # within an aborted transaction
    "dashboard": ("clicks", 1.0),  # past the last record
}
"""Name: the topic that it reads, and the share of its offsets that it has passed in the end."""

_HOUR = 3_600_000
_CUSTOMERS = 600
_WAIT = 60.0
Header = tuple[str, str | bytes | None]


class Shop:
    """The events of the shop; the same `seed` makes the same events."""

    def __init__(self, broker: Nodes, seed: int = 7) -> None:
        self._broker = broker
        self._random = random.Random(seed)
        self._now = int(time.time() * 1000)
        self._admin = AdminClient(broker.client(log_level=3))
        self._groups = Cluster(broker.client(log_level=3), "source").groups
        self._orders = self._payments = 0

    def open(self) -> None:
        """Topics, the first records, groups in the middle of them."""
        for name, (partitions, config) in TOPICS.items():
            self._broker.create_topic(name, partitions, config=config)
        self._take_orders(8_000)
        self._register(rounds=4, until=self._now - _HOUR)
        self._await_compaction()
        self._click(12_000)
        self._pay("committed", "aborted", "committed")
        self._stand(0.5)

    def go_on(self) -> None:
        """A day later: more of everything, and the groups have moved on."""
        self._take_orders(3_000)
        self._register(rounds=1, until=self._now)
        self._click(4_000)
        self._pay("committed", "aborted")
        self._stand(1.0)

    def wipe(self) -> None:
        """Delete every group and topic, and wait until they are gone."""
        _wait_all(self._admin.delete_consumer_groups(list(GROUPS)))
        _wait_all(self._admin.delete_topics(list(TOPICS)))
        _until(lambda: not set(TOPICS) & set(self._admin.list_topics(timeout=10).topics), "topics to go")

    def _take_orders(self, count: int) -> None:
        """Nobody orders from the region of partition 3 yet."""
        with _sending(self._broker) as send:
            for _ in range(count):
                self._orders += 1
                who = self._random.randrange(_CUSTOMERS)
                headers: list[Header] = [("trace", self._random.randbytes(8))]
                if who % 5 == 0:
                    headers += [("promo", b"SPRING"), ("promo", b"FRIEND"), ("comment", None)]
                order = f'{{"order":{self._orders},"customer":{who},"cents":{self._random.randrange(100, 90_000)}}}'
                send("orders", who % 3, f"order-{self._orders}", order, self._time(), headers)

    def _register(self, rounds: int, until: int) -> None:
        """Every customer, changed in each round; some leave in the last one (a tombstone).

        Rounds lie further apart than `segment.ms` and are batches of their own, so that all but the last are open
        to compaction.
        """
        for number in range(rounds):
            at = until - (rounds - 1 - number) * _HOUR // 4
            with _sending(self._broker) as send:
                for who in range(_CUSTOMERS):
                    leaves = number == rounds - 1 and self._random.random() < 0.05
                    value = None if leaves else f'{{"name":"Customer {who}","round":{number}}}'
                    send("customers", who % 2, f"customer-{who}", value, at)

    def _click(self, count: int) -> None:
        """Without keys, binary, some empty (not null); the third page is not online yet."""
        with _sending(self._broker) as send:
            for number in range(count):
                value = b"" if number % 50 == 0 else self._random.randbytes(60)
                send("clicks", self._random.randrange(2), None, value, self._time())

    def _pay(self, *transactions: str) -> None:
        """Transactions one after the other, each over both partitions."""
        producer = Producer(self._broker.client(**{"transactional.id": "shop-payments", "log_level": 3}))
        producer.init_transactions(_WAIT)
        for outcome in transactions:
            producer.begin_transaction()
            for _ in range(800):
                self._payments += 1
                producer.produce(
                    "payments",
                    f"{outcome} payment {self._payments}".encode(),
                    f"payment-{self._payments}".encode(),
                    partition=self._payments % 2,
                    timestamp=self._time(),
                )
            producer.flush(_WAIT)
            if outcome == "committed":
                producer.commit_transaction(_WAIT)
            else:
                producer.abort_transaction(_WAIT)

    def _stand(self, part: float) -> None:
        """Commit each group's offsets: `part` of the way to where it stands in the end."""
        for group, (topic, share) in GROUPS.items():
            log_ends = ends(self._broker.client(), {topic: TOPICS[topic][0]})
            offsets = [
                CommittedOffset(TopicPartition(topic, p), int(end * share * part), None, f"{group} of {topic}-{p}")
                for (_, p), end in log_ends.items()
            ]
            if problem := self._groups.commit(group, offsets):
                raise RuntimeError(f"cannot commit offsets of {group}: {problem}")

    def _await_compaction(self) -> None:
        """Wait for the first holes, then stop the cleaner: what it took later would look like our loss."""
        client = self._broker.client()
        sent = ends(client, {"customers": 2})
        _until(
            lambda: all(len(some) < sent[tp] for tp, some in read_all(client, {"customers": 2}).items()), "compaction"
        )
        stop = ConfigEntry("min.compaction.lag.ms", str(7 * 24 * _HOUR), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, "customers", incremental_configs=[stop])
        _wait_all(self._admin.incremental_alter_configs([resource]))

    def _time(self) -> int:
        self._now += self._random.randrange(3)
        return self._now


@contextmanager
def _sending(broker: Nodes) -> Iterator[Callable[..., None]]:
    """A producer, whose records are all delivered at the end."""
    producer = Producer(broker.client(**{"linger.ms": 20, "acks": "all"}))
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    def send(
        topic: str, partition: int, key: str | None, value: str | bytes | None, at: int, headers: Sequence[Header] = ()
    ) -> None:
        producer.produce(topic, value, key, partition, on_delivery=delivered, timestamp=at, headers=list(headers))
        producer.poll(0)

    yield send
    if (left := producer.flush(_WAIT)) or failed:
        raise TimeoutError(f"{left} records not delivered: {failed[:1]}")


def _wait_all(futures: dict[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result(_WAIT)


def _until(reached: Callable[[], bool], condition: str) -> None:
    end = time.monotonic() + _WAIT
    while not reached():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {_WAIT:.0f} s for {condition}")
        time.sleep(0.2)
