"""Deletions that compaction removed between two backups: found by comparing the log with the archive."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.support.truth import read_topic

EAGER = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "delete.retention.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
}
"""Compaction that removes a deletion as soon as it comes by."""


def keys_in(broker: Broker, topic: str) -> list[str]:
    return [(record.key or b"").decode() for record in read_topic(broker.bootstrap, topic)[0]]


def write(broker: Broker, topic: str, keys: Iterable[str], value: bytes | None = b"address") -> None:
    for key in keys:
        now = int(time.time() * 1000)  # log segments end by the times of their records
        topics.produce(broker, topic, 0, [value], key=key.encode(), timestamp=now)


def delete_and_compact(broker: Broker, topic: str, key: str) -> None:
    """Delete a key, and wait until compaction has removed its deletion."""
    write(broker, topic, [key], None)

    def is_gone() -> bool:
        write(broker, topic, ["other"])  # compaction leaves the active log segment alone
        return key not in keys_in(broker, topic)

    topics.wait_until(is_gone)


@pytest.fixture
def customers(broker: Broker, topic_name: str) -> str:
    broker.create_topic(topic_name, 1, config=EAGER)
    write(broker, topic_name, ["anna", "bert", "carl"])
    return topic_name


def restored_keys(broker: Broker, kbackup: Kbackup, archive: Archive, topic: str, name: str, *options: str) -> set[str]:
    kbackup.restore(archive, "--topic", topic, "--map", f"{topic}={name}", "--no-groups", *options)
    return set(keys_in(broker, name))


def test_a_key_whose_deletion_no_backup_saw_stays_deleted(
    broker: Broker, kbackup: Kbackup, archive: Archive, customers: str
) -> None:
    kbackup.backup(archive, "--topic", customers)
    delete_and_compact(broker, customers, "anna")
    report = kbackup.backup(archive, "--topic", customers)
    assert (report["deleted_records"], report["unseen_deletions"]) == (1, 0)
    assert "their keys were deleted at the source" in report["note"]
    assert restored_keys(broker, kbackup, archive, customers, f"{customers}-now") == {"bert", "carl", "other"}
    earlier = restored_keys(broker, kbackup, archive, customers, f"{customers}-then", "--restore-point", "1")
    assert earlier == {"anna", "bert", "carl"}

    write(broker, customers, ["anna"], b"new address")  # she is back
    report = kbackup.backup(archive, "--topic", customers, "--recheck-compacted")
    assert report["deleted_records"] == 0, "the old value was found before"
    again = restored_keys(broker, kbackup, archive, customers, f"{customers}-again")
    assert again == {"anna", "bert", "carl", "other"}


def test_the_source_has_all_that_a_restore_point_has_without_deleted_keys(
    broker: Broker, kbackup: Kbackup, archive: Archive, customers: str
) -> None:
    kbackup.backup(archive, "--topic", customers)
    delete_and_compact(broker, customers, "bert")
    kbackup.backup(archive, "--topic", customers)
    deleted = open_archive(archive.store).deletions(2)
    assert deleted is not None
    ((offset, _),) = deleted.partitions[0].offsets
    # compaction may have taken other records meanwhile
    report = kbackup("verify", archive.url, "--against", "source", "--topic", customers).document
    differences = [each for partition in report["partitions"] for each in partition["differences"]]
    assert offset not in [each["source"] for each in differences]


def test_what_is_not_rechecked_stays_in_doubt_until_it_is(
    broker: Broker, kbackup: Kbackup, archive: Archive, customers: str
) -> None:
    kbackup.backup(archive, "--topic", customers)
    delete_and_compact(broker, customers, "carl")
    never = ("--topic", customers, "--recheck-bytes", "0")
    report = kbackup.backup(archive, *never, code=3)
    assert report["unseen_deletions"] > 0
    (warning,) = report["warnings"]
    assert warning.startswith(f"topic {customers}: deletions may have been compacted away unseen: ")
    assert f"offsets of {customers}-0, since 2" in warning
    status = kbackup.run("status", archive.url, code=3)
    assert [finding["subject"] for finding in status["findings"]] == ["deletions"]

    kbackup.backup(archive, *never, code=3)  # nothing new: the doubt stays
    assert "carl" in restored_keys(broker, kbackup, archive, customers, f"{customers}-doubtful")

    report = kbackup.backup(archive, *never, "--recheck-compacted")
    assert (report["deleted_records"], report["unseen_deletions"]) == (1, 0)
    assert kbackup.run("status", archive.url)["findings"] == []
    assert "carl" not in restored_keys(broker, kbackup, archive, customers, f"{customers}-clear")


def test_keys_that_retention_took_are_restored(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    """cleanup.policy=compact,delete: what lies before the start of the log says nothing of deletions."""
    broker.create_topic(topic_name, 1, config=EAGER | {"cleanup.policy": "compact,delete"})
    write(broker, topic_name, ["old"])
    kbackup.backup(archive, "--topic", topic_name)
    topics.delete_records(broker, topic_name, {0: 1})
    delete_and_compact(broker, topic_name, "new")
    report = kbackup.backup(archive, "--topic", topic_name, "--recheck-compacted")
    assert report["deleted_records"] == 0
    assert open_archive(archive.store).restore_point(2).deletions is None
    assert not [e for e in archive.store.list(layout.POINTS) if e.key.endswith(layout.DELETIONS)]


def test_markers_of_transactions_alone_are_no_doubt(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    never = {"min.compaction.lag.ms": "9000000000000"}  # compaction would leave gaps of its own
    broker.create_topic(topic_name, 1, config=EAGER | never)
    for number in range(3):
        topics.committed(broker, topic_name, 0, topics.numbered(4, f"round {number}"))
        topics.aborted(broker, topic_name, 0, topics.numbered(2, f"round {number}"))
        report = kbackup.backup(archive, "--topic", topic_name, "--recheck-bytes", "0")
        assert report["unseen_deletions"] == 0
