"""A very large record, and more partitions than a task takes."""

from __future__ import annotations

import os
from collections.abc import Callable

from scripts.dev.kafka import Broker
from tests.integration.conftest import Archive, Kbackup
from tests.integration.topics import MIB, produce
from tests.support.truth import read_topic

PARTITIONS = 300
"""A pack has 256 of them."""


def test_a_record_of_20_megabytes(
    broker: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive], topic_name: str
) -> None:
    value = os.urandom(20_000_000)
    broker.create_topic(topic_name, 1, config={"max.message.bytes": str(24 * MIB)})
    produce(broker, topic_name, 0, [b"before", value, b"after"])
    archive = new_archive()
    assert kbackup.backup(archive, "--topic", topic_name)["totals"]["records"] == 3
    kbackup.restore(archive, "--topic", topic_name, "--map", f"{topic_name}={topic_name}.back")
    found = [r.value for r in read_topic(broker.bootstrap, f"{topic_name}.back")[0]]
    assert found == [b"before", value, b"after"]


def test_300_partitions(broker: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive], topic_name: str) -> None:
    broker.create_topic(topic_name, PARTITIONS)
    for partition in range(0, PARTITIONS, 30):
        produce(broker, topic_name, partition, [b"%d" % partition])
    archive = new_archive()
    report = kbackup.backup(archive, "--topic", topic_name)
    assert (report["totals"]["partitions"], report["totals"]["records"]) == (PARTITIONS, 10)
    kbackup.restore(archive, "--topic", topic_name, "--map", f"{topic_name}={topic_name}.back")
    found = read_topic(broker.bootstrap, f"{topic_name}.back")
    assert {p: [r.value for r in records] for p, records in found.items() if records} == {
        p: [b"%d" % p] for p in range(0, PARTITIONS, 30)
    }
