"""A shop on a cluster: its topics and its group, how they fill, and what an archive of them must hold."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import Producer

from kbackup.archive import layout
from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive, open_archive
from kbackup.formats.index import decode_partition_index
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from scripts.dev.kafka import Broker
from tests.support.confluent_registry import ConfluentRegistry, Version
from tests.support.truth import Position, commit, in_archive, in_cluster


class Shop(NamedTuple):
    """`orders` has three partitions, `events` transactions, the last of them aborted; `committed` is where
    the group stands."""

    broker: Broker
    orders: str
    events: str
    group: str
    committed: dict[TopicPartition, int]
    registries: tuple[ConfluentRegistry, ConfluentRegistry] | None = None
    """Those of the source and of a target. The values of `orders` then name schemas of the first."""

    @property
    def schema_flags(self) -> list[str]:
        """Return the flags of a restore that maps the schemas of the records."""
        return (
            [] if self.registries is None else ["--schemas=map", f"--target-schema-registry={self.registries[1].url}"]
        )

    def mapped(self, value: bytes | None) -> bytes | None:
        """Return a value of `orders` as it is in the target."""
        if self.registries is None or value is None:
            return value
        ours, theirs = ({v.content["schema"]: v.id for v in _versions(each)} for each in self.registries)
        text = next(text for text, schema_id in ours.items() if schema_id == int.from_bytes(value[1:5]))
        return value[:1] + theirs[text].to_bytes(4) + value[5:]

    @property
    def topics(self) -> list[str]:
        return [self.orders, self.events]


def _versions(registry: ConfluentRegistry) -> list[Version]:
    return [version for versions in registry.subjects.values() for version in versions.values()]


def with_schemas(shop: Shop, source: ConfluentRegistry, target: ConfluentRegistry) -> Shop:
    """Return the shop whose orders name schemas of `source`; `target` has others under their ids."""
    for number in range(4):
        target.register(f"theirs-{number}", {"schema": f'"theirs {number}"'})
        source.register(f"{shop.orders}-value", {"schema": f'"orders {number}"'})
    return shop._replace(registries=(source, target))


def open_shop(broker: Broker, name: str) -> Shop:
    """Empty topics, and a group that will stand in them."""
    orders, events = f"{name}-orders", f"{name}-events"
    broker.create_topic(orders, 3)
    broker.create_topic(events, 1)
    committed = {TopicPartition(orders, 0): 17, TopicPartition(orders, 1): 60, TopicPartition(events, 0): 50}
    return Shop(broker, orders, events, f"{name}-group", committed)


def sell(shop: Shop, records: int) -> None:
    """Fill the topics (further): records of all kinds, and transactions of which every other is aborted. The group
    moves on a little."""
    producer = Producer(shop.broker.client())
    for i in range(records):
        headers: list[tuple[str, str | bytes | None]] = [("n", str(i)), ("n", None)] if i % 7 == 0 else []
        frame = b"" if shop.registries is None else b"\0" + (1 + i % 4).to_bytes(4)
        value = None if i % 11 == 0 else frame + bytes([i % 251]) * (50 + i % 90)
        key = f"key-{i}".encode() if i % 5 else None
        producer.produce(shop.orders, value, key, i % 3, headers=headers, timestamp=10**12 + i)
        producer.poll(0)
    assert producer.flush(60) == 0
    transactions = Producer(shop.broker.client(**{"transactional.id": shop.events}))
    transactions.init_transactions(60)
    for begun, size in enumerate((40, 30, 50, 20)):
        transactions.begin_transaction()
        for i in range(size):
            transactions.produce(shop.events, f"event-{begun}-{i}".encode() * 9, b"k", 0)
        transactions.flush(60)
        if begun % 2:
            transactions.abort_transaction(60)
        else:
            transactions.commit_transaction(60)
    for tp in shop.committed:
        shop.committed[tp] += 1
    commit(shop.broker.bootstrap, shop.group, {tp: Position(at) for tp, at in shop.committed.items()})


def check_archive(store: Store, shop: Shop) -> Archive:
    """Compare the archive with the shop, as it must be after every run that succeeded."""
    archive = open_archive(store)
    head = archive.restore_point("latest")
    source = in_cluster(shop.broker.bootstrap, shop.topics)
    archived = in_archive(store)
    assert archived == source
    segments = archive.added(0, head.number)
    promised = {s.key for s in segments} | {layout.index_key_of(s.key) for s in segments}
    there = {e.key for e in store.list(layout.TOPICS) if _is_segment(e.key)}
    assert there == promised, f"leftovers {sorted(there - promised)}, missing {sorted(promised - there)}"
    for tp, rows in archived.items():
        state = next(p for t in head.topics if t.name == tp.topic for p in t.partitions if p.partition == tp.partition)
        assert state.records == len(rows)
    offsets = {TopicPartition(o.topic, o.partition): o.offset for g in archive.groups(head).groups for o in g.offsets}
    assert offsets == shop.committed
    _check_derived(archive, head)
    return archive


def _check_derived(archive: Archive, head: Manifest) -> None:
    for topic in head.topics:
        for partition in topic.partitions:
            key = layout.partition_index_key(layout.topic_dir(topic.name, topic.incarnation), partition.partition)
            starts = [entry.start_offset for entry in decode_partition_index(archive.store.get(key), key)]
            own = [s for s in archive.segments(head, [topic]) if s.partition == partition.partition]
            assert starts == [s.first for s in own]


def _is_segment(key: str) -> bool:
    return layout.parse_segment(key.rpartition("/")[2]) is not None
