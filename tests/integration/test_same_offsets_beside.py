"""A restore with the same offsets beside the other features of a restore."""

from __future__ import annotations

import secrets

import pytest

from kbackup.errors import ClusterError
from kbackup.jobs.restore import job
from kbackup.jobs.restore.same_offsets.task import FILLER
from kbackup.kafka.batches import repeated
from kbackup.kafka.control.append import append
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.markers import EmptyTransactions
from kbackup.store.crypt.kek import generate_key
from kbackup.types import CommittedOffset, TopicPartition
from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.integration.held_back import back_up_with_a_transaction_held_back
from tests.support.secrets import know
from tests.support.truth import log_ends, log_starts, read_topic

KEY = "SAME_OFFSETS_ARCHIVE_KEY"


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic without gaps, whose first log does not begin at 0."""
    name = f"beside-{secrets.token_hex(4)}"
    broker.create_topic(name, 2)
    topics.produce(broker, name, 0, topics.numbered(300), key=b"k")
    topics.produce(broker, name, 1, topics.numbered(40))
    topics.delete_records(broker, name, {0: 120})
    return name


@pytest.fixture
def gapped(broker: Broker) -> str:
    """A topic with markers of transactions between its records."""
    name = f"gapped-{secrets.token_hex(4)}"
    broker.create_topic(name, 1)
    topics.committed(broker, name, 0, topics.numbered(10))
    topics.aborted(broker, name, 0, topics.numbered(4))
    topics.committed(broker, name, 0, topics.numbered(10, "more"))
    return name


def _assert_same(broker: Broker, source: str, target: str) -> None:
    """Compare the records, the starts and the ends of the logs of two topics."""
    for isolation in ("read_committed", "read_uncommitted"):
        expected = read_topic(broker.bootstrap, source, "read_committed")
        assert read_topic(broker.bootstrap, target, isolation) == expected, isolation
    assert log_starts(broker.bootstrap, target) == log_starts(broker.bootstrap, source)
    assert log_ends(broker.bootstrap, target) == log_ends(broker.bootstrap, source)


def test_an_encrypted_archive_is_restored_with_its_offsets(
    topic: str, broker: Broker, kbackup: Kbackup, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, know("an archive's key", generate_key()))
    encrypted = ("--encryption-key", f"env:{KEY}")
    kbackup.backup(archive, *encrypted, "-t", topic)
    target = f"{topic}-restored"
    restored = kbackup.restore(archive, "--same-offsets", *encrypted, "--map", f"{topic}={target}", "--no-groups")
    assert restored["missing"] == []
    _assert_same(broker, topic, target)


def test_share_groups_get_the_offsets_that_they_had(
    topic: str, broker: Broker, kbackup: Kbackup, archive: Archive
) -> None:
    groups, share = Cluster(broker.client(), "target").groups, f"sharing-{topic}"
    start = CommittedOffset(TopicPartition(topic, 0), 170, None, "")
    assert groups.commit_all({share: [start]}, {share}) == {share: ""}
    kbackup.backup(archive, "-t", topic, "-g", share)
    target = f"{topic}-restored"
    restored = kbackup.restore(archive, "--same-offsets", "--map", f"{topic}={target}")
    assert [(group["status"], group["offsets"][0]["how"]) for group in restored["groups"]] == [("applied", "exact")]
    found, refused = groups.committed([share], {share})
    assert refused == {}
    positions = {each.tp: each.offset for each in found[share]}
    assert positions == {TopicPartition(topic, 0): 170, TopicPartition(target, 0): 170}


def test_a_transaction_that_was_held_back_is_a_gap_until_a_restore_point_has_it(
    broker: Broker, kbackup: Kbackup, archive: Archive
) -> None:
    topic = f"held-{secrets.token_hex(4)}"
    back_up_with_a_transaction_held_back(broker, kbackup, archive, topic)
    kbackup.backup(archive, "-t", topic)

    of_first, of_second = f"{topic}-first", f"{topic}-second"
    for point, target in ((1, of_first), (2, of_second)):
        names = ("--map", f"{topic}={target}", "--no-groups")
        kbackup.restore(archive, "--same-offsets", "--restore-point", str(point), *names)
    source = read_topic(broker.bootstrap, topic)
    assert [record.value for record in source[0]] == [b"slow", b"quick"]
    first = read_topic(broker.bootstrap, of_first, "read_uncommitted")
    assert first == {0: [record for record in source[0] if record.value == b"quick"], 1: []}
    _assert_same(broker, topic, of_second)


def test_without_transactions_topics_with_gaps_are_held_back_by_name(
    topic: str, gapped: str, broker: Broker, kbackup: Kbackup, archive: Archive
) -> None:
    kbackup.backup(archive, "-t", topic, "-t", gapped)
    options = ("--same-offsets", "--no-transactions", "--map-regex", r"^=plain.", "--no-groups")
    planned = kbackup.restore(archive, *options, "--dry-run", code=3)
    assert [each["source"] for each in planned["failed"]] == [gapped]
    assert "--no-transactions" in planned["failed"][0]["reason"]
    restored = kbackup.restore(archive, *options, code=3)
    assert [each["source"] for each in restored["failed"]] == [gapped]
    _assert_same(broker, topic, f"plain.{topic}")


def _abort_a_million(broker: Broker, tp: TopicPartition) -> None:
    """Make a gap for which markers take longer than ten minutes on the fastest machine."""
    cluster = Cluster(broker.client(), "source")
    transaction = EmptyTransactions(cluster.router, [tp.topic], ("fenced", "hint"))
    transaction.begin()
    transaction.add([tp], transaction.ids)
    batch = repeated(FILLER, 1_000_000).batch(transaction.producers[tp.topic], 0, transactional=True)
    assert append(cluster.router, {tp: batch}, tp.topic) == ({tp: 0}, {})
    transaction.end(transaction.ids, commit=False)


def test_a_topic_that_was_held_back_stays_so_when_the_restore_is_run_again(
    topic: str, broker: Broker, kbackup: Kbackup, archive: Archive
) -> None:
    sparse = f"sparse-{secrets.token_hex(4)}"
    broker.create_topic(sparse, 1)
    _abort_a_million(broker, TopicPartition(sparse, 0))
    topics.produce(broker, sparse, 0, [b"the only one"])
    # In one range: each of many would read the batch of a million once more.
    kbackup.backup(archive, "-t", topic, "-t", sparse, "--set", "backup.split_records=10000000")
    options = ("--same-offsets", "--map-regex", r"^=again.", "--no-groups", "--restore-id", f"again-{sparse}")
    for _ in range(2):
        restored = kbackup.restore(archive, *options, code=3)
        assert [each["source"] for each in restored["failed"]] == [sparse]
        assert "--fill aborted" in restored["failed"][0]["hint"]
    _assert_same(broker, topic, f"again.{topic}")
    done = kbackup.restore(archive, *options, "--exclude-topic", sparse)
    assert done["status"] == "restored"


def test_an_undo_puts_the_configs_right_that_an_abandoned_restore_has_left(
    broker: Broker, kbackup: Kbackup, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"abandoned-{secrets.token_hex(4)}"
    broker.create_topic(topic, 1, config={"cleanup.policy": "compact,delete"})
    topics.produce(broker, topic, 0, topics.numbered(20), key=b"k")
    topics.delete_records(broker, topic, {0: 5})
    topics.set_config(broker, topic, "cleanup.policy", "compact")
    kbackup.backup(archive, "-t", topic)
    target, cluster = f"{topic}-restored", Cluster(broker.client(), "target")
    named = ("--restore-id", topic)

    def end(*_: object) -> None:
        raise ClusterError("the restore ends here", "leave it")

    with monkeypatch.context() as patch:
        patch.setattr(job, "replay", end)
        kbackup.restore(archive, "--same-offsets", "--map", f"{topic}={target}", *named, code=ClusterError.exit_code)
    assert cluster.topic_configs([target])[target] == {
        "cleanup.policy": "compact,delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
    }
    planned = kbackup.restore(archive, "--undo", *named)
    changed = {change["name"]: change["after"] for change in planned["changes"]["configs"]}
    assert changed == {"cleanup.policy": "compact", "retention.ms": None, "retention.bytes": None}
    assert cluster.topic_configs([target])[target]["cleanup.policy"] == "compact,delete", "a plan changes nothing"
    kbackup.restore(archive, "--undo", *named, "--confirm", "--accept-unproven")
    assert cluster.topic_configs([target])[target] == {"cleanup.policy": "compact"}
    assert kbackup.restore(archive, "--undo", *named)["changes"]["configs"] == []
