"""Groups and logins of `kbackup serve` with real clients: librdkafka, Java's consumer, and Kafka's tools."""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kafka
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kbackup.archive.query.selection import Selection
from kbackup.config.models import Serve
from kbackup.errors import KbackupError
from kbackup.serve.logs import Choosing
from kbackup.serve.service import ArchiveServer, Listening, Serving, serving_in_thread
from kbackup.serve.users import write_user
from scripts.dev import cache, classes
from scripts.dev.jars import kafka_jars, old_jars, zookeeper_jars
from scripts.dev.kafka import QUIET, SMALL, Broker
from scripts.dev.process import HANG, Process
from scripts.dev.secured import Authority
from tests.integration.conftest import Archive, Kbackup
from tests.support.java import Java, KafkaTools, compiled
from tests.support.truth import Position, commit

CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
OLD_GROUPS = "kafka.admin.ConsumerGroupCommand"
OLD_CONSOLE = "kafka.tools.ConsoleConsumer"
RELEASES = {"2.8": old_jars, "3.9.1": zookeeper_jars, "4.x": kafka_jars}
NEWER_RELEASES = ["3.9.1", "4.x"]
PATIENT = ("--timeout", str(int(HANG * 1000)))
"""An option of the tool for groups. By itself it gives up after 5 seconds, says so, and ends with exit code 0."""

PARTITIONS = 6
RECORDS = 50
"""Of each partition."""
PROTOCOLS = ["classic", "consumer"]
PASSWORD = "correct horse, battery=staple"
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@dataclass(frozen=True)
class Orders:
    """An archive of a topic, where a group has committed offset 5 of partition 0, 10 of partition 1, and so on."""

    archive: Archive
    topic: str
    group: str


@pytest.fixture(scope="module")
def orders(broker: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive]) -> Orders:
    name = f"orders-{secrets.token_hex(4)}"
    broker.create_topic(name, partitions=PARTITIONS)
    producer = Producer(broker.client(log_level=0))
    for number in range(PARTITIONS * RECORDS):
        producer.produce(name, f"order {number}", str(number), number % PARTITIONS)
    assert producer.flush(60) == 0
    group = f"{name}-billing"
    offsets = archived_offsets().items()
    commit(broker.bootstrap, group, {(name, partition): Position(offset, "") for partition, offset in offsets})
    archive = new_archive()
    kbackup.backup(archive, "--topic", name, "--group", group)
    return Orders(archive, name, group)


def archived_offsets() -> dict[int, int]:
    return {partition: 5 * (partition + 1) for partition in range(PARTITIONS)}


@contextlib.contextmanager
def serve(archive: Archive, *, refuses_commits: bool = False, **options: str) -> Iterator[Serving]:
    """Serve an archive on a free port, with these keys of [serve]."""
    choosing = Choosing(Selection.of((), ()), "latest", None, False)
    listening = Listening.of(Serve(listen="127.0.0.1:0", **options))  # type: ignore[arg-type]  # all of them are text
    server = ArchiveServer(archive.store, choosing, listening, refuses_commits=refuses_commits)
    with serving_in_thread(server) as serving:
        yield serving


@pytest.fixture(scope="module")
def served(orders: Orders) -> Iterator[Serving]:
    with serve(orders.archive) as serving:
        yield serving


class Member:
    """A consumer of librdkafka in a group, with the records that it has read."""

    def __init__(self, bootstrap: str, topic: str, group: str, **config: Any) -> None:
        properties = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            **config,
        }
        self.consumer = Consumer(properties)
        self.consumer.subscribe([topic])
        self.read: list[tuple[int, int]] = []

    def poll(self) -> None:
        for message in self.consumer.consume(500, 0.1):
            error = message.error()
            if error is not None and error.fatal():
                raise KafkaException(error)
            partition, offset = message.partition(), message.offset()
            if error is None and partition is not None and offset is not None:
                self.read.append((partition, offset))

    def close(self) -> None:
        """Leave the group. librdkafka has no bound for that, and a group that does not answer would hold it up."""
        closing = threading.Thread(target=self.consumer.close, daemon=True)
        closing.start()
        closing.join(HANG)
        assert not closing.is_alive(), f"the consumer has not left its group within {HANG:.0f} s"

    def partitions(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}


def poll_until(ready: Callable[[], bool], *members: Member) -> None:
    """Let members go on until something is so."""
    end = time.monotonic() + HANG
    while not ready():
        assert time.monotonic() < end, [sorted(member.partitions()) for member in members]
        for member in members:
            member.poll()


def share_all(*members: Member) -> bool:
    """Return whether each of the members has partitions, and together they have all of them, each once."""
    assigned = [member.partitions() for member in members]
    return all(assigned) and sorted(number for own in assigned for number in own) == list(range(PARTITIONS))


@contextlib.contextmanager
def console(serving: Serving, orders: Orders, group: str, folder: Path, **properties: str) -> Iterator[Process]:
    """Java's console consumer, which prints the values that it reads into its log."""
    lines = [f"--command-property={name}={value}" for name, value in properties.items()]
    argv = [
        *(*classes.java(kafka_jars()), "-Xmx128m", *SMALL, QUIET, CONSOLE),
        *("--bootstrap-server", serving.bootstrap, "--topic", orders.topic, "--group", group, "--from-beginning"),
        *lines,
    ]
    process = Process(argv, folder / "console")
    try:
        yield process
    finally:
        process.kill()


@pytest.fixture(scope="module")
def tools() -> Iterator[Mapping[str, KafkaTools]]:
    """Kafka's own tools, by release."""
    with contextlib.ExitStack() as stack:
        java = stack.enter_context(compiled("Tools.java", jars=()))
        yield {name: stack.enter_context(KafkaTools(Java(java.folder, [jars]))) for name, jars in RELEASES.items()}


# Groups.


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_librdkafka_and_java_share_a_group_and_take_over_from_who_leaves_and_who_is_killed(
    orders: Orders, served: Serving, tmp_path: Path, protocol: str
) -> None:
    group = f"shared-{protocol}"
    one = {"group.protocol": protocol}
    # A silent member of the new protocol is removed when the server says so, a classic one when it says so itself.
    session = {"session.timeout.ms": "6000"} if protocol == "classic" else {}
    first = Member(served.bootstrap, orders.topic, group, **one)
    poll_until(lambda: share_all(first), first)
    second = Member(served.bootstrap, orders.topic, group, **one)
    poll_until(lambda: share_all(first, second), first, second)

    with console(served, orders, group, tmp_path, **one, **session) as java:
        poll_until(lambda: members_of(served, group) == 3, first, second)

        def java_has_its_share() -> bool:
            return len(first.partitions()) == len(second.partitions()) == PARTITIONS // 3

        poll_until(java_has_its_share, first, second)
        assert not first.partitions() & second.partitions()

        second.close()
        poll_until(lambda: len(first.partitions()) == PARTITIONS // 2, first)

        java.kill()
        poll_until(lambda: share_all(first), first)
    first.close()
    every = {(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS)}
    printed = {int(number) for number in re.findall(r"^order (\d+)$", java.log.read_text(), re.MULTILINE)}
    read = {*first.read, *second.read} | {(number % PARTITIONS, number // PARTITIONS) for number in printed}
    assert read == every


def members_of(serving: Serving, group: str) -> int:
    admin = AdminClient({"bootstrap.servers": serving.bootstrap, "log_level": 0})
    described = admin.describe_consumer_groups([group])[group].result(30)
    return len(described.members)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_archived_group_begins_at_its_offsets(orders: Orders, protocol: str) -> None:
    with serve(orders.archive) as serving:
        member = Member(serving.bootstrap, orders.topic, orders.group, **{"group.protocol": protocol})
        expected = [(p, offset) for p, start in archived_offsets().items() for offset in range(start, RECORDS)]
        poll_until(lambda: len(member.read) >= len(expected), member)
        member.close()
    assert sorted(member.read) == expected


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_java_begins_at_the_offsets_of_an_archived_group(orders: Orders, tmp_path: Path, protocol: str) -> None:
    expected = sum(RECORDS - start for start in archived_offsets().values())
    with (
        serve(orders.archive) as serving,
        console(serving, orders, orders.group, tmp_path, **{"group.protocol": protocol}) as java,
    ):
        java.wait_ready(lambda: java.log.read_text().count("order ") >= expected, "the console consumer", HANG)
    assert java.log.read_text().count("order ") == expected


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_next_consumer_goes_on_after_a_commit_and_the_archive_stays_as_it_is(orders: Orders, protocol: str) -> None:
    before = orders.archive.objects()
    with serve(orders.archive) as serving:
        first = Member(serving.bootstrap, orders.topic, "next", **{"group.protocol": protocol})
        poll_until(lambda: len(first.read) == PARTITIONS * RECORDS, first)
        offsets = [TopicPartition(orders.topic, partition, 40 + partition) for partition in range(PARTITIONS)]
        first.consumer.commit(offsets=offsets, asynchronous=False)
        first.close()
        second = Member(serving.bootstrap, orders.topic, "next", **{"group.protocol": protocol})
        expected = [(p, offset) for p in range(PARTITIONS) for offset in range(40 + p, RECORDS)]
        poll_until(lambda: len(second.read) >= len(expected), second)
        second.close()
    assert sorted(second.read) == expected
    assert orders.archive.objects() == before


def test_commits_are_refused_where_that_is_asked_for(orders: Orders) -> None:
    with serve(orders.archive, refuses_commits=True) as serving:
        member = Member(serving.bootstrap, orders.topic, "refused")
        poll_until(lambda: len(member.read) == PARTITIONS * RECORDS, member)
        with pytest.raises(KafkaException) as error:
            member.consumer.commit(asynchronous=False)
        member.close()
    assert error.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED


@pytest.mark.parametrize("release", RELEASES)
def test_kafkas_tool_shows_the_lag_of_archived_groups(
    orders: Orders, served: Serving, tools: Mapping[str, KafkaTools], release: str
) -> None:
    program = OLD_GROUPS if release == "2.8" else GROUPS
    at = (program, "--bootstrap-server", served.bootstrap, *PATIENT)
    described = tools[release].run(*at, "--describe", "--all-groups")
    rows = [line.split() for line in described.splitlines() if line.startswith(f"{orders.group} ")]
    shown = {int(row[2]): (int(row[3]), int(row[4]), int(row[5])) for row in rows}
    assert shown == {p: (offset, RECORDS, RECORDS - offset) for p, offset in archived_offsets().items()}

    state = tools[release].run(*at, "--describe", "--state", "--group", orders.group)
    assert re.search(rf"{orders.group}\s.*Empty", state)
    assert orders.group in tools[release].run(*at, "--list").split()


def test_a_consumer_of_kafka_2_8_reads_in_a_group_and_commits(orders: Orders, tools: Mapping[str, KafkaTools]) -> None:
    expected = sum(RECORDS - start for start in archived_offsets().values())
    with serve(orders.archive) as serving:
        argv = [
            *(*classes.java(old_jars()), "-Xmx128m", *SMALL, QUIET, OLD_CONSOLE),
            *("--bootstrap-server", serving.bootstrap, "--topic", orders.topic, "--group", orders.group),
            *("--max-messages", str(expected)),
        ]
        printed = cache.run(argv, "the console consumer of 2.8", "read its output", seconds=HANG)
        lines = [line for line in printed.splitlines() if line.startswith("order ")]
        assert len(set(lines)) == expected
        at = ("--bootstrap-server", serving.bootstrap, *PATIENT)
        described = tools["2.8"].run(OLD_GROUPS, *at, "--describe", "--all-groups")
    lags = [int(line.split()[5]) for line in described.splitlines() if line.startswith(f"{orders.group} ")]
    assert lags == [0] * PARTITIONS, "it has committed what it has read"


def test_kafka_python_reads_in_a_group_and_commits(orders: Orders) -> None:
    with serve(orders.archive) as serving:
        consumer = kafka.KafkaConsumer(
            orders.topic,
            bootstrap_servers=serving.bootstrap,
            group_id=orders.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        expected = [(p, offset) for p, start in archived_offsets().items() for offset in range(start, RECORDS)]
        read: list[tuple[int, int]] = []
        end = time.monotonic() + HANG
        while len(read) < len(expected) and time.monotonic() < end:
            for records in consumer.poll(500).values():
                read += [(record.partition, record.offset) for record in records]
        consumer.commit(timeout_ms=HANG * 1000)
        consumer.close()
        assert sorted(read) == expected
        assert committed_offsets(serving, orders.group) == dict.fromkeys(range(PARTITIONS), RECORDS)


def committed_offsets(serving: Serving, group: str) -> dict[int, int]:
    """Return what a group has committed, by partition."""
    admin = AdminClient({"bootstrap.servers": serving.bootstrap, "log_level": 0})
    listed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
    return {each.partition: each.offset for each in listed.topic_partitions}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_regular_expression_selects_topics(orders: Orders, served: Serving, protocol: str) -> None:
    pattern = f"^{orders.topic[:-2]}.*"
    member = Member(served.bootstrap, pattern, f"regex-{protocol}", **{"group.protocol": protocol})
    poll_until(lambda: len(member.read) >= PARTITIONS * RECORDS, member)
    member.close()
    assert len(set(member.read)) == PARTITIONS * RECORDS


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_static_member_comes_back_to_its_partitions(orders: Orders, served: Serving, protocol: str) -> None:
    group = f"static-{protocol}"
    first = Member(served.bootstrap, orders.topic, group, **{"group.protocol": protocol, "group.instance.id": "one"})
    poll_until(lambda: share_all(first), first)
    other = Member(served.bootstrap, orders.topic, group, **{"group.protocol": protocol, "group.instance.id": "two"})
    poll_until(lambda: share_all(first, other), first, other)
    before, others = first.partitions(), other.partitions()
    first.close()
    again = Member(served.bootstrap, orders.topic, group, **{"group.protocol": protocol, "group.instance.id": "one"})
    poll_until(lambda: bool(again.partitions()), again, other)
    assert again.partitions() == before
    assert other.partitions() == others, "the other one goes on without a rebalance"
    again.close()
    other.close()


@pytest.mark.parametrize("release", NEWER_RELEASES)
def test_kafkas_tool_resets_offsets_in_memory_and_deletes_no_group(
    orders: Orders, tools: Mapping[str, KafkaTools], release: str
) -> None:
    with serve(orders.archive) as serving:
        at = (GROUPS, "--bootstrap-server", serving.bootstrap, *PATIENT)
        group = ("--group", orders.group)
        tools[release].run(*at, *group, "--reset-offsets", "--to-earliest", "--topic", orders.topic, "--execute")
        described = tools[release].run(*at, *group, "--describe")
        lags = [int(line.split()[5]) for line in described.splitlines() if line.startswith(f"{orders.group} ")]
        assert lags == [RECORDS] * PARTITIONS
        assert "Group authorization failed" in tools[release].run(*at, *group, "--delete")
        assert orders.group in tools[release].run(*at, "--list").split()


# Logins.


@dataclass(frozen=True)
class Guarded:
    """Servers of one archive that ask for a login, without and with TLS."""

    plain: Serving
    encrypted: Serving
    authority: Authority

    def client(self, protocol: str) -> dict[str, str]:
        """Return what a client of librdkafka needs to connect, but for its login."""
        serving = self.plain if protocol == "SASL_PLAINTEXT" else self.encrypted
        properties = {"bootstrap.servers": serving.bootstrap, "security.protocol": protocol}
        if protocol == "SASL_SSL":
            properties["ssl.ca.pem"] = self.authority.certificate
        return properties


@pytest.fixture(scope="module")
def guarded(orders: Orders, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    users = folder / "users"
    write_user(users, "anna", PASSWORD)
    authority = Authority()
    issued = authority.issue("serve")
    certificate, key = folder / "serve.crt", folder / "serve.key"
    certificate.write_text(issued.certificate)
    key.write_text(issued.key)
    with (
        serve(orders.archive, users=str(users)) as plain,
        serve(orders.archive, users=str(users), tls_certificate=str(certificate), tls_key=str(key)) as encrypted,
    ):
        yield Guarded(plain, encrypted, authority)


def login(mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    return {"sasl.mechanism": mechanism, "sasl.username": "anna", "sasl.password": password}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_librdkafka_logs_in_and_reads(orders: Orders, guarded: Guarded, protocol: str, mechanism: str) -> None:
    properties = {**guarded.client(protocol), **login(mechanism)}
    bootstrap = properties.pop("bootstrap.servers")
    member = Member(bootstrap, orders.topic, f"{protocol}-{mechanism}", **properties)
    poll_until(lambda: len(member.read) >= PARTITIONS * RECORDS, member)
    member.close()
    assert len(set(member.read)) == PARTITIONS * RECORDS


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_librdkafka_hears_that_a_password_is_wrong(guarded: Guarded, protocol: str, mechanism: str) -> None:
    properties = {**guarded.client(protocol), **login(mechanism, "wrong")}
    assert KafkaError._AUTHENTICATION in errors_without_topics(properties, KafkaError._AUTHENTICATION)


def errors_without_topics(properties: Mapping[str, str], last: int) -> list[int]:
    """Ask for topics, which a client must not get, until it has heard the error `last`. Return the errors that it has
    heard."""
    heard: list[int] = []

    def hear(error: KafkaError) -> None:
        heard.append(error.code())

    of_client: dict[str, Any] = {**properties, "log_level": 0, "error_cb": hear}
    admin = AdminClient(of_client)
    end = time.monotonic() + HANG
    while last not in heard and time.monotonic() < end:
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=0.5)
        admin.poll(0)
    return heard


def test_who_does_not_log_in_learns_nothing(guarded: Guarded) -> None:
    for serving, protocol in ((guarded.plain, "PLAINTEXT"), (guarded.encrypted, "SSL")):
        properties = {"bootstrap.servers": serving.bootstrap, "security.protocol": protocol}
        if protocol == "SSL":
            properties["ssl.ca.pem"] = guarded.authority.certificate
        # The server closes the connection of who asks for more than the requests that there are.
        assert KafkaError._ALL_BROKERS_DOWN in errors_without_topics(properties, KafkaError._ALL_BROKERS_DOWN)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("release", NEWER_RELEASES)
def test_javas_tools_log_in(
    orders: Orders,
    guarded: Guarded,
    tools: Mapping[str, KafkaTools],
    tmp_path: Path,
    release: str,
    protocol: str,
    mechanism: str,
) -> None:
    config = _java_config(tmp_path, guarded.client(protocol), mechanism, PASSWORD)
    at = ("--bootstrap-server", guarded.client(protocol)["bootstrap.servers"], "--command-config", str(config))
    assert orders.group in tools[release].run(GROUPS, *at, *PATIENT, "--list").split()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_javas_tool_hears_that_a_password_is_wrong(
    guarded: Guarded, tools: Mapping[str, KafkaTools], tmp_path: Path, mechanism: str
) -> None:
    config = _java_config(tmp_path, guarded.client("SASL_SSL"), mechanism, "wrong")
    at = ("--bootstrap-server", guarded.encrypted.bootstrap, "--command-config", str(config))
    with pytest.raises(KbackupError, match=f"invalid credentials with SASL mechanism {mechanism}"):
        tools["4.x"].run(TOPICS, *at, "--list")


def _java_config(folder: Path, client: Mapping[str, str], mechanism: str, password: str) -> Path:
    """Write the properties of a client as Java's take them."""
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    lines = {
        "security.protocol": client["security.protocol"],
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": (
            f'org.apache.kafka.common.security.{module} required username="anna" password="{password}";'
        ),
    }
    if "ssl.ca.pem" in client:
        lines["ssl.truststore.type"] = "PEM"
        lines["ssl.truststore.certificates"] = client["ssl.ca.pem"].replace("\n", "\\n")
    path = folder / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path
