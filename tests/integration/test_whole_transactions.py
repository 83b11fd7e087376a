"""Each restore point has transactions whole, on a real broker: of two that overlap, one is in, and the other comes
with the next restore point."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kbackup.archive.models import Transactions
from kbackup.archive.reader import open_archive
from kbackup.config.models import Backup, Follow
from kbackup.kafka import transactions
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.unavailable import Unavailable, UnavailableError
from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.support.following import Following
from tests.support.truth import archive_records, log_ends

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2


class Application:
    """A producer of transactions, whose group is `group`."""

    def __init__(self, broker: Broker, topic: str, group: str, linger_ms: int = 5) -> None:
        self.topic = topic
        self.producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "transactional.id": f"{topic}-{group}", "linger.ms": linger_ms}
        )
        self.consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
        self.producer.init_transactions(30)

    def begin(self, *partitions: int, value: str) -> None:
        """Begin a transaction with a record in each of `partitions`."""
        self.producer.begin_transaction()
        for partition in partitions:
            self.producer.produce(self.topic, value.encode(), partition=partition)
        self.producer.flush(30)

    def commit(self, position: int) -> None:
        self.send_position(position)
        self.producer.commit_transaction(30)

    def send_position(self, position: int) -> None:
        at = [TopicPartition(self.topic, 0, position)]
        self.producer.send_offsets_to_transaction(at, self.consumer.consumer_group_metadata(), 30)

    def close(self) -> None:
        self.consumer.close()


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"transactions-{secrets.token_hex(4)}"
    broker.create_topic(name, partitions=PARTITIONS)
    return name


@pytest.fixture
def slow(broker: Broker, topic: str) -> Iterator[Application]:
    with closing(Application(broker, topic, f"slow-{topic}")) as made:
        yield made


@pytest.fixture
def quick(broker: Broker, topic: str) -> Iterator[Application]:
    with closing(Application(broker, topic, f"quick-{topic}")) as made:
        yield made


def values(archive: Archive, topic: str, number: int) -> list[list[bytes | None]]:
    records = archive_records(archive.store, topic, open_archive(archive.store).restore_point(number))
    return [[record.value for record in records.get(partition, [])] for partition in range(PARTITIONS)]


def positions(archive: Archive, number: int) -> dict[str, int]:
    opened = open_archive(archive.store)
    return {g.group.partition("-")[0]: g.offsets[0].offset for g in opened.groups(number).groups}


def test_a_transaction_that_ends_while_the_backup_waits_comes_with_the_next_one(
    kbackup: Kbackup,
    archive: Archive,
    topic: str,
    slow: Application,
    quick: Application,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow.begin(0, 1, value="before")
    slow.commit(1)
    slow.begin(0, value="slow")  # still open when the backup looks at its coordinator
    quick.begin(0, 1, value="quick")
    quick.commit(7)

    waits, options = transactions._wait, ("-t", topic, "--group", f"/.*{topic}/")

    def go_on(*arguments: Any) -> Any:
        slow.producer.produce(topic, b"slow", partition=1)
        slow.commit(2)
        return waits(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(transactions, "_wait", go_on)
        report = kbackup.backup(archive, *options)
    assert report["transactions"]["whole"], report["transactions"]
    assert values(archive, topic, 1) == [[b"before", b"quick"], [b"before", b"quick"]]
    assert positions(archive, 1) == {"slow": 1, "quick": 7}
    (state,) = open_archive(archive.store).restore_point(1).topics
    assert state.partitions[0].held, "it lies between the others' records"
    assert kbackup.run("verify", "--against", "source", archive.url, "-t", topic)["findings"] == []

    assert kbackup.backup(archive, *options)["transactions"]["whole"]
    assert values(archive, topic, 2) == [[b"before", b"slow", b"quick"], [b"before", b"quick", b"slow"]]
    assert values(archive, topic, 1) == [[b"before", b"quick"], [b"before", b"quick"]]
    assert positions(archive, 2) == {"slow": 2, "quick": 7}
    assert kbackup.run("verify", archive.url)["findings"] == []


def test_a_transaction_that_does_not_end_is_named(
    kbackup: Kbackup, archive: Archive, topic: str, slow: Application, quick: Application
) -> None:
    slow.begin(0, value="slow")
    quick.begin(0, 1, value="quick")
    quick.commit(7)
    wait = ("--set", "backup.transaction_wait_seconds=1")
    outcome = kbackup("backup", "--archive", archive.url, "-t", topic, *wait)
    told = outcome.document["transactions"]
    assert (outcome.code, told["whole"]) == (3, False)
    assert [(each["topic"], each["partition"], each["start"]) for each in told["open"]] == [(topic, 0, 0)]
    assert f"abort --topic {topic} --partition 0 --start-offset 0" in outcome.err
    assert values(archive, topic, 1) == [[], [b"quick"]], "which is why it is not whole"
    slow.commit(1)
    assert kbackup.backup(archive, "-t", topic, "--transactions", "partition")["transactions"]["why"].endswith(
        "backup.transactions is partition"
    )
    assert values(archive, topic, 2) == [[b"slow", b"quick"], [b"quick"]]


NO_WAIT = ("--set", "backup.transaction_wait_seconds=0")


def end_before_open_ones_are_listed(monkeypatch: pytest.MonkeyPatch, end: Callable[[], None]) -> None:
    """Have a transaction `end` after the backup's last look at last stable offsets, before it lists open ones."""
    list_producers, waiting = transactions._transactional, [end]

    def listed(cluster: Cluster, partitions: Any) -> Any:
        while waiting:
            waiting.pop()()
            # producers return before all markers are written
            topics.wait_until(lambda: stable(cluster, partitions))
        return list_producers(cluster, partitions)

    def stable(cluster: Cluster, partitions: Any) -> bool:
        return cluster.log_ends(partitions, "read_committed") == cluster.log_ends(partitions, "read_uncommitted")

    monkeypatch.setattr(transactions, "_transactional", listed)


def test_a_transaction_that_ends_after_the_last_look_tears_no_other_one(
    kbackup: Kbackup,
    archive: Archive,
    topic: str,
    slow: Application,
    quick: Application,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow.begin(0, value="slow")
    quick.begin(0, 1, value="quick")
    quick.commit(7)
    end_before_open_ones_are_listed(monkeypatch, lambda: slow.commit(1))
    report = kbackup.backup(archive, "-t", topic, "--group", f"/.*{topic}/", *NO_WAIT)
    assert report["transactions"] == {"whole": True, "why": "", "open": []}
    assert values(archive, topic, 1) == [[b"quick"], [b"quick"]], "the slow one was prepared after the listing"
    assert positions(archive, 1) == {"quick": 7}


def test_positions_that_are_decided_after_the_last_look_are_those_of_the_records(
    kbackup: Kbackup,
    archive: Archive,
    topic: str,
    slow: Application,
    quick: Application,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The late partition is one of `__consumer_offsets` alone."""
    slow.begin(value="nothing")
    slow.send_position(1)
    quick.begin(0, 1, value="quick")
    quick.commit(7)
    end_before_open_ones_are_listed(monkeypatch, lambda: slow.producer.commit_transaction(30))
    report = kbackup.backup(archive, "-t", topic, "--group", f"/.*{topic}/", *NO_WAIT)
    assert report["transactions"]["whole"], report["transactions"]
    assert values(archive, topic, 1) == [[b"quick"], [b"quick"]]
    assert positions(archive, 1) == {"quick": 7}


def test_transactions_that_were_aborted_before_their_records_were_sent_leave_others_whole(
    kbackup: Kbackup, archive: Archive, broker: Broker, topic: str, slow: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of their markers follows another one of the producer, without records between."""
    waits, options = transactions._wait, ("-t", topic)
    with closing(Application(broker, topic, f"lingering-{topic}", linger_ms=10_000)) as lingering:

        def abort_early() -> None:
            lingering.producer.begin_transaction()
            for partition in range(PARTITIONS):
                lingering.producer.produce(topic, b"never sent", partition=partition)
            time.sleep(1)  # the partitions are added to the transaction, while the records linger
            lingering.producer.abort_transaction(30)

        def go_on(*arguments: Any) -> Any:
            for value in ("third", "fourth"):
                lingering.begin(0, 1, value=value)
                lingering.producer.commit_transaction(30)
                abort_early()
            slow.commit(1)
            return waits(*arguments)

        slow.begin(0, 1, value="slow")
        for value in ("first", "second"):
            lingering.begin(0, 1, value=value)
            lingering.producer.commit_transaction(30)
            abort_early()
        with monkeypatch.context() as patch:
            patch.setattr(transactions, "_wait", go_on)
            report = kbackup.backup(archive, *options)
    assert report["transactions"]["whole"], report["transactions"]
    assert values(archive, topic, 1) == [[b"first", b"second"]] * PARTITIONS
    assert kbackup.backup(archive, *options)["transactions"]["whole"]
    assert values(archive, topic, 2) == [[b"slow", b"first", b"second", b"third", b"fourth"]] * PARTITIONS
    raw = log_ends(broker.bootstrap, topic, "read_uncommitted")
    assert raw[0] == 5 + 4 + 1 + 4, "records, commit markers, and a marker of each abort"


def test_the_first_backup_of_a_cluster_without_groups_is_whole(kbackup: Kbackup, archive: Archive) -> None:
    """The backup's own look for coordinators of groups has the broker create `__consumer_offsets`."""
    with Broker() as fresh:
        fresh.create_topic("orders", PARTITIONS)
        producer = Producer({"bootstrap.servers": fresh.bootstrap, "transactional.id": "orders"})
        producer.init_transactions(60)
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce("orders", b"1", partition=partition)
        producer.commit_transaction(60)
        created = AdminClient({"bootstrap.servers": fresh.bootstrap}).list_topics(timeout=30).topics
        assert "__consumer_offsets" not in created
        source = ("--bootstrap-server", fresh.bootstrap, "-t", "orders")
        outcome = kbackup("backup", "--archive", archive.url, *source)
    assert (outcome.code, outcome.document["transactions"]["whole"]) == (0, True), outcome.err
    assert values(archive, "orders", 1) == [[b"1"], [b"1"]]


def test_a_restore_point_that_is_not_whole_for_want_of_a_right_ends_with_exit_code_3(
    kbackup: Kbackup, archive: Archive, topic: str, quick: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick.begin(0, 1, value="quick")
    quick.commit(7)

    def refuse(cluster: Cluster) -> Any:
        raise UnavailableError(Unavailable("denied", "not authorized for reading __transaction_state"))

    monkeypatch.setattr(transactions, "_internal_topics", refuse)
    outcome = kbackup("backup", "--archive", archive.url, "-t", topic)
    assert (outcome.code, outcome.document["transactions"]["whole"]) == (3, False)
    assert "set backup.transactions to partition" in outcome.err
    accepted = kbackup("backup", "--archive", archive.url, "-t", topic, "--transactions", "partition")
    assert (accepted.code, accepted.document["transactions"]["whole"]) == (0, False)


def test_the_report_of_a_follower_has_the_transactions_of_its_last_restore_point(
    broker: Broker, archive: Archive, spark: SparkSession, topic: str, slow: Application, quick: Application
) -> None:
    slow.begin(0, value="slow")
    quick.begin(0, 1, value="quick")
    quick.commit(7)
    options = Backup(topics=(topic,), transaction_wait_seconds=0)
    with Following(options, Follow(interval_seconds=0.5), broker, archive.store, spark) as following:
        following.until(lambda: bool(following.commits))
        assert following.commits[0].transactions is not None
        assert not following.commits[0].transactions.whole
        slow.commit(1)
    assert following.report is not None
    assert following.report.transactions == Transactions(whole=True)
    assert values(archive, topic, following.report.restore_point or 0) == [[b"slow", b"quick"], [b"quick"]]
