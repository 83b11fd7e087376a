"""`kbackup groups` on a real cluster: what is set is where the records are, and undo leaves no trace."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError

from kbackup.archive import layout
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.groups.calls import CommittedOffset
from kbackup.types import TopicPartition
from scripts.dev import tools
from scripts.dev.jars import kafka_jars
from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.support.group_requests import Stand, raw_positions
from tests.support.restored import expected_offset
from tests.support.truth import Records, log_ends, read_topic

FOREIGN_EPOCH = 5  # of a log that had six leaders; those of the tests have one
LONGEST_METADATA = "ü" * 2048  # 4 KiB is what brokers take (offset.metadata.max.bytes)
ODD_METADATA = ["", "AgAAAYvPpSGA", "line\nfeed\ttab \x1b[31m", 'a "quote" and \\', "你好 🎉", LONGEST_METADATA]


@dataclass(frozen=True)
class Made:
    """Topics with holes, shortened and empty partitions, groups all over them; backed up, and restored without
    groups."""

    broker: Broker
    kbackup: Kbackup
    archive: Archive
    name: str
    records: dict[str, Records]
    stood: dict[str, Stand]

    @property
    def restore_id(self) -> str:
        return f"{self.name}-restore"

    @property
    def cluster(self) -> Cluster:
        return Cluster({"bootstrap.servers": self.broker.bootstrap}, "target")

    def target(self, topic: str) -> str:
        return f"restored.{topic}"

    def groups(self, command: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        outcome = self.kbackup("groups", command, *arguments, "--archive", self.archive.url)
        assert outcome.code == code, f"{outcome.err}\n{outcome.document}"
        return outcome.document

    def apply(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        return self.groups("apply", "--restore-id", self.restore_id, *arguments, code=code)

    def undo(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        return self.groups("undo", "--restore-id", self.restore_id, *arguments, code=code)

    def stand(self, group: str) -> Stand:
        return raw_positions(self.broker.bootstrap, group)


def put(cluster: Cluster, group: str, stands: Stand) -> None:
    offsets = [CommittedOffset(TopicPartition(*place), *held) for place, held in stands.items()]
    assert cluster.groups.commit(group, offsets) == ""


@pytest.fixture(scope="module")
def made(broker: Broker, kbackup: Kbackup, new_archive: Any) -> Made:
    name = f"grouped-{secrets.token_hex(4)}"
    records = {}
    for kind, make in (("ledger", topics.make_ledger), ("trimmed", topics.make_trimmed)):
        make(broker, f"{name}-{kind}")
        records[f"{name}-{kind}"] = read_topic(broker.bootstrap, f"{name}-{kind}")
    made = Made(broker, kbackup, new_archive(), name, records, {})
    for at in range(0, 75, 3):
        group = f"{name}-at-{at:02}"
        metadata = ODD_METADATA[at // 3 % len(ODD_METADATA)]
        epoch = FOREIGN_EPOCH if at % 2 else None
        made.stood[group] = {(t, p): (at, epoch, metadata) for t, parts in records.items() for p in parts}
        put(made.cluster, group, made.stood[group])
    kbackup.backup(made.archive, "-t", f"/{name}-.*/", "-g", f"/{name}-.*/")
    kbackup.restore(made.archive, "--map-regex", "^=restored.", "--no-groups", "--restore-id", made.restore_id)
    return made


def _expected(made: Made) -> dict[str, Stand]:
    """Return the expected position of each group on the target, by the records of its partitions."""
    restored = {topic: read_topic(made.broker.bootstrap, made.target(topic)) for topic in made.records}
    ends = {topic: log_ends(made.broker.bootstrap, made.target(topic)) for topic in made.records}
    return {
        group: {
            (made.target(topic), p): (
                expected_offset(offset, made.records[topic][p], restored[topic][p], ends[topic][p]),
                None if epoch is None else 0,
                metadata,
            )
            for (topic, p), (offset, epoch, metadata) in stood.items()
        }
        for group, stood in made.stood.items()
    }


def test_archive_shows_what_groups_had(made: Made) -> None:
    shown = made.groups("show")
    assert {g["group"] for g in shown["groups"]} == set(made.stood)
    assert shown["not_carried"] == {}
    ends = {topic: log_ends(made.broker.bootstrap, topic) for topic in made.records}
    for group, stood in list(made.stood.items())[::6]:
        one = made.groups("show", "--restore-point", "1", group)["group"]
        assert {
            (o["topic"], o["partition"]): (o["offset"], o["leader_epoch"], o["metadata"]) for o in one["offsets"]
        } == stood
        assert one["lag"] == sum(max(0, ends[t][p] - stood[t, p][0]) for t, p in stood)


def test_plan_says_where_and_why_and_writes_nothing(made: Made) -> None:
    before = {group: made.stand(group) for group in made.stood}
    objects = made.archive.objects()
    plan = made.groups("plan", "--restore-id", made.restore_id)
    assert {group: made.stand(group) for group in made.stood} == before
    assert made.archive.objects() == objects
    wanted, reasons = _expected(made), set()
    for group in plan["groups"]:
        for o in group["offsets"]:
            place = o["topic"], o["partition"]
            assert wanted[group["group"]][place] == (o["target"], o["leader_epoch"], o["metadata"])
            assert o["now"] is None
            reasons.add(o["how"])
    assert len(plan["groups"]) == len(made.stood)
    assert reasons == {"exact", "next record", "log end", "log start", "empty"}


def test_apply_long_after_the_restore_and_undo(made: Made) -> None:
    source = {group: made.stand(group) for group in made.stood}
    applied = made.apply()
    assert (applied["capture"], {g["status"] for g in applied["groups"]}) == (1, {"applied"})
    for group, wanted in _expected(made).items():
        assert made.stand(group) == source[group] | wanted, group
    undone = made.undo()
    assert {g["status"] for g in undone["groups"]} == {"put back"}
    assert {group: made.stand(group) for group in made.stood} == source


def test_renamed_groups_are_made_and_deleted_again(made: Made) -> None:
    old, new = f"{made.name}-at-03", f"{made.name}-new"
    made.apply("-g", old, "--map-group", f"{old}={new}")
    assert made.stand(new) == _expected(made)[old]
    undone = made.undo()
    assert [(g["group"], g["status"]) for g in undone["groups"]] == [(new, "deleted")]
    assert new not in {g.group for g in made.cluster.groups.listed()[0]}
    assert made.groups("undo", "--restore-id", made.restore_id)["groups"][0]["status"] == "nothing to do"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_with_a_live_member_is_left_alone(made: Made, protocol: str) -> None:
    old, new = f"{made.name}-at-06", f"{made.name}-{protocol}"
    with joined(made, new, protocol, next(iter(made.records))):
        before = made.stand(new)
        report = made.apply("-g", old, "--map-group", f"{old}={new}", code=3)
        assert [(g["status"], g["why"]) for g in report["groups"]] == [("left alone", "it has 1 live member")]
        assert (report["capture"], made.stand(new)) == (0, before)
        plan = made.groups("plan", "--restore-id", made.restore_id, "-g", old, "--map-group", f"{old}={new}", code=3)
        assert plan["groups"][0]["hindered"] == "it has 1 live member"


@contextmanager
def joined(made: Made, group: str, protocol: str, topic: str) -> Iterator[Consumer]:
    """A consumer that is a member of the group, with partitions, and commits where it starts."""
    consumer = Consumer(
        made.broker.client(
            **{
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
    )
    try:
        consumer.subscribe([topic])
        topics.wait_until(lambda: consumer.poll(0.1) is not None or bool(consumer.assignment()))
        yield consumer
    finally:
        consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consumers_resume_where_the_group_stood_without_a_reset(made: Made, protocol: str) -> None:
    """Though the group had committed a leader epoch that the target's log never had."""
    topic = f"{made.name}-ledger"
    old, new = f"{made.name}-at-03", f"{made.name}-resumes-{protocol}"
    assert made.stood[old][topic, 0] == (3, FOREIGN_EPOCH, ODD_METADATA[1])
    made.apply("-g", old, "--map-group", f"{old}={new}")
    consumer = Consumer(
        made.broker.client(
            **{
                "group.id": new,
                "group.protocol": protocol,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
    )
    consumed: dict[int, list[bytes | None]] = {0: [], 1: [], 2: []}
    ended: set[int] = set()
    try:
        consumer.subscribe([made.target(topic)])

        def ends() -> bool:
            for message in consumer.consume(100, 0.2):
                error, partition = message.error(), message.partition()
                assert partition is not None, error
                if error is None:
                    consumed[partition].append(message.value())
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error.str()
                    ended.add(partition)
            return ended == {0, 1, 2}

        topics.wait_until(ends)
    finally:
        consumer.close()
    held = made.records[topic]
    assert consumed == {p: [r.value for r in records if r.offset >= 3] for p, records in held.items()}


def test_kafkas_own_consumer_resumes_too(made: Made) -> None:
    """Kafka's consumer takes the leader epoch of another log for a leader to wait for, or for a truncation."""
    topic = f"{made.name}-ledger"
    old, new = f"{made.name}-at-03", f"{made.name}-resumes-java"
    made.apply("-g", old, "--map-group", f"{old}={new}")
    assert made.stand(new)[made.target(topic), 0][1] == 0
    restored = read_topic(made.broker.bootstrap, made.target(topic))
    expected = [
        f"{p} {r.offset} {(r.value or b'').decode()}"
        for p, records in restored.items()
        for r in records
        if r.offset >= made.stand(new)[made.target(topic), p][0]
    ]
    assert len(expected) > 20
    program = [
        tools.java(),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        *("-cp", f"{kafka_jars()}/*", str(Path(__file__).with_name("Resume.java"))),
    ]
    arguments = [made.broker.bootstrap, new, made.target(topic), str(len(expected))]
    done = subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(expected)


def test_restore_itself_can_be_undone(made: Made, topic_name: str) -> None:
    topic, group = f"{made.name}-ledger", f"{made.name}-at-09"
    before, restore_id = made.stand(group), f"{made.name}-with-groups"
    report = made.kbackup.restore(
        made.archive, *("-t", topic, "--map", f"{topic}={topic_name}", "-g", group, "--restore-id", restore_id)
    )
    assert [g["status"] for g in report["groups"]] == ["applied"]
    assert {topic for topic, _ in made.stand(group)} > {topic_name}
    undone = made.groups("undo", "--restore-id", restore_id)
    assert (undone["by"], [g["status"] for g in undone["groups"]]) == ("restore", ["put back"])
    assert made.stand(group) == before


def test_no_group_of_kbackup_is_archived(made: Made, new_archive: Any) -> None:
    place: Stand = {(f"{made.name}-ledger", 0): (4, None, "")}
    own = [layout.mirror_group(made.name, "B"), layout.progress_group(made.name)]
    for group in (*own, f"{made.name}-theirs"):
        put(made.cluster, group, place)
    archive = new_archive()
    try:
        made.kbackup.backup(archive, "-t", f"{made.name}-ledger", "-g", f"/.*{made.name}(.B|-theirs)?/")
        shown = made.kbackup("groups", "show", "--archive", archive.url).document["groups"]
        assert [group["group"] for group in shown] == [f"{made.name}-theirs"]
    finally:
        made.cluster.groups.delete([*own, f"{made.name}-theirs"])
