"""`kbackup groups` on a real cluster: what is set is where the records are, and undo leaves no trace."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from kbackup.kafka.control.cluster import Cluster
from kbackup.store.file import FileStore
from kbackup.types import CommittedOffset, TopicPartition
from scripts.dev import classes
from scripts.dev.jars import kafka_jars
from scripts.dev.kafka import SMALL, Broker
from tests.golden.java_archive import PARTITIONS, ROOT
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.support.kafka_raw import (
    RawCommit,
    Stand,
    raw_commit,
    raw_delete,
    raw_positions,
    share_member,
    streams_member,
)
from tests.support.truth import Records, expected_offset, log_ends, read_topic

CONFIRMED = ("--confirm", "--accept-unproven")  # the tests keep nothing on this machine
FOREIGN_EPOCH = 5  # of a log that had six leaders; those of the tests have one
LONGEST_METADATA = "ü" * 2048  # 4 KiB is what brokers take (offset.metadata.max.bytes)
ODD_METADATA = ["", "AgAAAYvPpSGA", "line\nfeed\ttab \x1b[31m", 'a "quote" and \\', "你好 🎉", LONGEST_METADATA]


@dataclass(frozen=True)
class Grouped:
    broker: Broker
    kbackup: Kbackup
    archive: Archive

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.broker.client(), "target")

    def groups(self, command: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        return self.kbackup.run("groups", command, *arguments, "--archive", self.archive.url, code=code)


@dataclass(frozen=True)
class Made(Grouped):
    """Topics with holes, shortened and empty partitions, groups all over them; backed up, and restored without
    groups."""

    name: str
    records: dict[str, Records]
    stood: dict[str, Stand]

    @property
    def restore_id(self) -> str:
        return f"{self.name}-restore"

    def target(self, topic: str) -> str:
        return f"restored.{topic}"

    def apply(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        return self.groups("apply", "--restore-id", self.restore_id, *arguments, code=code)

    def undo(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        return self.groups("undo", *CONFIRMED, "--restore-id", self.restore_id, *arguments, code=code)

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
    starts = made.cluster.log_starts(TopicPartition(topic, p) for topic, parts in made.records.items() for p in parts)
    for group, stood in list(made.stood.items())[::6]:
        one = made.groups("show", "--restore-point", "1", group)["group"]
        assert {
            (o["topic"], o["partition"]): (o["offset"], o["leader_epoch"], o["metadata"]) for o in one["offsets"]
        } == stood
        first = {(t, p): max(stood[t, p][0], starts[TopicPartition(t, p)]) for t, p in stood}
        assert one["lag"] == sum(max(0, ends[t][p] - first[t, p]) for t, p in stood)


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

    # renamed groups are made, and deleted again
    old, new = f"{made.name}-at-03", f"{made.name}-new"
    made.apply("-g", old, "--map-group", f"{old}={new}")
    assert made.stand(new) == _expected(made)[old]
    undone = made.undo()
    assert [(g["group"], g["status"]) for g in undone["groups"]] == [(new, "deleted")]
    assert new not in {g.group for g in made.cluster.groups.listed()[0]}
    assert made.groups("undo", *CONFIRMED, "--restore-id", made.restore_id)["groups"][0]["status"] == "nothing to do"


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


def consumer_of(made: Made, group: str, protocol: str, **more: Any) -> Consumer:
    own = {"group.id": group, "group.protocol": protocol, "enable.auto.commit": False, "log_level": 0}
    return Consumer(made.broker.client(**own, **more))


@contextmanager
def joined(made: Made, group: str, protocol: str, topic: str) -> Iterator[Consumer]:
    """A consumer that is a member of the group, with partitions, and commits where it starts."""
    consumer = consumer_of(made, group, protocol, **{"auto.offset.reset": "earliest"})
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
    reads = {"auto.offset.reset": "error", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = consumer_of(made, new, protocol, **reads)
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
    read = _java("Resume.java", made.broker.bootstrap, new, made.target(topic), str(len(expected)))
    assert sorted(read) == sorted(expected)


def _java(*arguments: str) -> list[str]:
    """Run a file of this folder, or a class of Kafka's tools, and return the lines that it prints."""
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    program = [*classes.java(kafka_jars()), quiet, *SMALL, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_restore_itself_can_be_undone(made: Made, topic_name: str) -> None:
    topic, group = f"{made.name}-ledger", f"{made.name}-at-09"
    before, restore_id = made.stand(group), f"{made.name}-with-groups"
    renamed = ("--map", f"{topic}={topic_name}", "--restore-id", restore_id)
    report = made.kbackup.restore(made.archive, "-t", topic, "-g", group, *renamed)
    assert [g["status"] for g in report["groups"]] == ["applied"]
    assert {topic for topic, _ in made.stand(group)} > {topic_name}
    undone = made.groups("undo", *CONFIRMED, "--restore-id", restore_id)
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


# Groups set on their own: from other moments, on targets that have moved on, and on the source cluster itself.


@dataclass(frozen=True)
class Kept(Grouped):
    """A topic of two partitions in two restore points: records 0 to 29, then up to 39; its group moved between."""

    topic: str
    first: Stand
    second: Stand

    @property
    def group(self) -> str:
        return f"{self.topic}-group"

    def stand(self) -> Stand:
        return raw_positions(self.broker.bootstrap, self.group)

    def restore(self, name: str) -> tuple[str, list[str]]:
        """Restore point 1 without groups; the new topic and what names the restore."""
        copy, restore_id = f"{self.topic}.{name}", f"{self.topic}-{name}"
        renamed = ("--map", f"{self.topic}={copy}", "--no-groups", "--restore-id", restore_id)
        self.kbackup.restore(self.archive, "--restore-point", "1", *renamed)
        return copy, ["--restore-id", restore_id]


@pytest.fixture
def kept(broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str) -> Kept:
    broker.create_topic(topic_name, 2)
    first: Stand = {(topic_name, 0): (10, 0, "first"), (topic_name, 1): (30, None, "")}
    second: Stand = {(topic_name, 0): (25, 0, "second"), (topic_name, 1): (33, None, "")}
    kept = Kept(broker, kbackup, archive, topic_name, first, second)
    for count, position in ((30, first), (10, second)):
        for partition in range(2):
            topics.produce(broker, topic_name, partition, topics.numbered(count))
        put(kept.cluster, kept.group, position)
        kbackup.backup(archive, "-t", topic_name, "-g", kept.group)
    return kept


def test_source_cluster_gets_its_own_offsets_again(kept: Kept) -> None:
    same = ("--same-offsets", "-g", kept.group)
    applied = kept.groups("apply", *same, "--restore-point", "1")
    assert (applied["restore_point"], kept.stand()) == (1, kept.first)
    kept.groups("undo", *CONFIRMED, "--restore-id", applied["restore_id"])
    assert kept.stand() == kept.second
    archive = open_archive(kept.archive.store)
    taken = [archive.groups(archive.restore_point(n)).captured_at for n in (1, 2)]
    assert kept.groups("plan", *same, "--to-time", taken[0])["captured_at"] == taken[0]
    assert kept.groups("plan", *same, "--to-time", "now")["captured_at"] == taken[1]
    early = kept.groups("plan", *same, "--to-time", "2020-01-01T00:00:00Z", code=2)
    assert "no restore point was captured at or before 2020-01-01" in early["error"]["message"]
    topics.delete_records(kept.broker, kept.topic, {0: 15})
    assert [g["status"] for g in kept.groups("apply", *same, "--to-time", taken[0])["groups"]] == ["applied"]
    assert kept.stand()[kept.topic, 0] == (15, 0, "first")


def test_offsets_of_another_cluster_or_another_log_are_not_the_same(kept: Kept) -> None:
    same = ("--same-offsets", "-g", kept.group)
    with mock.patch.object(Cluster, "connect", return_value=("elsewhere", 1)):
        refused = kept.groups("apply", *same, code=1)
    assert "this is elsewhere: offsets are not the same there" in refused["error"]["message"]
    topics.delete_topic(kept.broker, kept.topic)
    kept.broker.create_topic(kept.topic, 1)
    report = kept.groups("apply", *same, code=3)
    assert sorted(report["groups"][0]["left_out"]) == [
        f"{kept.topic}-0 is another log: the topic was created again since",
        f"{kept.topic}-1 is not on the target",
    ]
    assert (report["capture"], kept.stand()) == (0, {})


def test_target_that_moved_on_is_read_from_where_it_did(kept: Kept) -> None:
    copy, restore = kept.restore("moved")
    for partition in range(2):
        topics.produce(kept.broker, copy, partition, topics.numbered(5, "written since"))
    report = kept.groups("apply", *restore, "-g", kept.group)
    assert {o["how"] for o in report["groups"][0]["offsets"]} == {"exact", "log end"}
    held, stood = read_topic(kept.broker.bootstrap, copy), kept.stand()

    def following(partition: int) -> list[bytes | None]:
        return [r.value for r in held[partition] if r.offset >= stood[copy, partition][0]]

    since = topics.numbered(5, "written since")
    assert following(0) == topics.numbered(30)[10:] + since
    assert following(1) == since


def test_groups_of_another_moment_by_the_records_that_are_still_there(kept: Kept) -> None:
    copy, restore = kept.restore("other")
    topics.delete_records(kept.broker, copy, {0: 27})
    plan = kept.groups("plan", *restore, "--restore-point", "2")
    assert plan["restore_point"] == 2
    assert [(o["source"], o["target"], o["how"]) for o in plan["groups"][0]["offsets"]] == [
        (25, 27, "expired"),
        (33, log_ends(kept.broker.bootstrap, copy)[1], "log end"),
    ]

    # topics deleted from the target are skipped and named
    copy, restore = kept.restore("gone")
    kept.broker.create_topic("unrelated-" + kept.topic)
    topics.delete_topic(kept.broker, copy)
    report = kept.groups("apply", *restore, code=3)
    assert [(g["status"], g["why"]) for g in report["groups"]] == [("left alone", "it gets no offset")]
    assert report["groups"][0]["left_out"] == [f"{copy}-{p} is not on the target" for p in range(2)]
    kept.broker.create_topic(copy, 2)
    again = kept.groups("apply", *restore, code=3)
    assert again["groups"][0]["left_out"] == [
        f"{copy}-{p} ends at 0, and was restored up to 30: it was created again since" for p in range(2)
    ]
    assert kept.stand() == kept.second

    # a topic made anew between restore points is another log
    _, restore = kept.restore("anew")
    topics.delete_topic(kept.broker, kept.topic)
    kept.broker.create_topic(kept.topic, 2)
    topics.produce(kept.broker, kept.topic, 0, topics.numbered(9))
    put(kept.cluster, kept.group, {(kept.topic, 0): (4, None, "")})
    kept.kbackup.backup(kept.archive, "-t", kept.topic, "-g", kept.group, code=3)
    plan = kept.groups("plan", *restore, "--restore-point", "3", code=3)
    assert [g["offsets"] for g in plan["groups"]] == [[]]
    assert "is another log" in plan["groups"][0]["left_out"][0]


def test_unusable_arguments_are_refused(kept: Kept) -> None:
    for arguments, message in (
        (["plan"], "no restore is named"),
        (["plan", "--restore-id", "nobody"], "there is no restore nobody"),
        (["undo", "--restore-id", "nobody"], "nothing was written to groups by restore nobody"),
        (["apply", "--same-offsets", "-g", "nobody"], "there is no group nobody to be set"),
        (["show", "nobody"], "there is no group nobody in restore point 2"),
        (["show", "--to-time", "yesterday"], "--to-time yesterday is not a time"),
        (["show", "--to-time", "now", "--restore-point", "1"], "--restore-point and --to-time exclude each other"),
    ):
        assert message in kept.groups(*arguments, code=2)["error"]["message"]


def test_folder_of_the_java_tool(
    broker: Broker, kbackup: Kbackup, archive: Archive, tmp_path: Path, topic_name: str
) -> None:
    folder = tmp_path / "java"
    shutil.copytree(ROOT / "archive", folder)
    java = Archive(f"file://{folder}", FileStore(folder))
    (own, *_) = [p for p in PARTITIONS if p.topic == "audit_log" and p.number == 1]
    state = ("--state", archive.url, "--restore-id", topic_name)
    kbackup.restore(java, "-t", "audit_log", "--map", f"audit_log={topic_name}", "--no-groups", *state)
    shown = kbackup("groups", "show", "cg-end ü", "--archive", java.url).document["group"]["offsets"]
    committed = json.loads(own.group_bytes())["cg-end ü"]
    assert (own.topic, own.number, committed) in [(o["topic"], o["partition"], o["offset"]) for o in shown]
    renamed = f"{topic_name}-group"
    options = ("-g", "cg-end ü", "--map-group", f"cg-end ü={renamed}", "--archive", java.url, *state)
    assert kbackup("groups", "apply", *options).code == 0
    target = read_topic(broker.bootstrap, topic_name)[1]
    end = log_ends(broker.bootstrap, topic_name)[1]
    wanted = expected_offset(committed, own.truth(), target, end)
    assert raw_positions(broker.bootstrap, renamed)[topic_name, 1] == (wanted, None, "")
    assert not [key for key in java.objects() if key.startswith("restores/")]
    Cluster(broker.client(), "target").groups.delete([renamed])


# Groups of every kind, with names and metadata of any kind, and a thousand of them: nothing is dropped silently.


HOSTILE = [
    "\x1b[2J\x1b]0;title\x07",
    "line\nfeed\r\ttab",
    "\u202eright to left\u2066",
    "../../etc/passwd",
    '<script>alert("&")</script>',
    "=cmd|' /C calc'!A0",
    "%s${env:HOME}{0}",
    "你好 ünï 🎉",
    "x" * 5000,
]
METADATA_SIZES = [*range(60), 255, 256, 1000, 4095, 4096]
"""Bytes; those that fill their memory to the last are among them."""


@pytest.fixture
def named(broker: Broker, topic_name: str) -> Iterator[str]:
    """A topic, and what the names of its groups begin with. Its groups are deleted in the end."""
    broker.create_topic(topic_name, 3)
    for partition in range(3):
        topics.produce(broker, topic_name, partition, topics.numbered(20))
    yield topic_name
    cluster = Cluster(broker.client(), "target")
    ours = [g.group for g in cluster.groups.listed()[0] if g.group.startswith(topic_name)]
    assert not any(cluster.groups.delete_each(ours).values())


def _back_up(kbackup: Kbackup, archive: Archive, name: str) -> dict[str, Any]:
    report = kbackup.backup(archive, "-t", name, "-g", f"/(?s:{name}.*)/")
    shown = kbackup.run("groups", "show", "--archive", archive.url)
    groups = {g["group"]: g for g in shown["groups"]}
    return {"warnings": report["warnings"], "groups": groups, "not_carried": shown["not_carried"]}


def test_every_kind_is_captured_or_named(broker: Broker, kbackup: Kbackup, archive: Archive, named: str) -> None:
    bootstrap, cluster = broker.bootstrap, Cluster(broker.client(), "target")
    for kind in ("classic", "streams"):
        put(cluster, f"{named}-{kind}", {(named, 1): (7, None, kind)})
    nul = f"{named}-a\0b".encode()
    assert raw_commit(bootstrap, nul, RawCommit(named, 0, 3, -1, b"")) == 0
    new_protocol = Consumer(broker.client(**{"group.id": f"{named}-new", "group.protocol": "consumer"}))
    with ExitStack() as members:
        members.callback(raw_delete, bootstrap, nul)
        members.callback(new_protocol.close)
        new_protocol.subscribe([named])
        topics.wait_until(lambda: new_protocol.poll(0.1) is not None or bool(new_protocol.assignment()))
        new_protocol.commit(offsets=[KafkaTopicPartition(named, 2, 11)], asynchronous=False)
        members.enter_context(share_member(bootstrap, f"{named}-share", named))
        members.enter_context(streams_member(bootstrap, f"{named}-streams", named))
        members.enter_context(streams_member(bootstrap, f"{named}-streams-new", named))
        captured = _back_up(kbackup, archive, named)
        restored = ("--map", f"{named}={named}.copy", "--restore-id", f"{named}-kinds")
        report = kbackup.restore(archive, *restored, code=3)
    results = {g["source"].removeprefix(f"{named}-"): (g["status"], g["why"]) for g in report["groups"]}
    assert results == {
        "a\0b": ("applied", ""),
        "classic": ("applied", ""),
        "new": ("left alone", "it has 1 live member"),
        "streams": ("left alone", "it has live members"),
    }
    streams, ours = f"{named}-streams", ("--archive", archive.url, "--restore-id", f"{named}-kinds")
    kbackup.run("groups", "apply", *ours, "-g", streams)
    with streams_member(bootstrap, streams, f"{named}.copy"):
        assert raw_positions(bootstrap, streams) == {(f"{named}.copy", 1): (7, None, "streams")}
    shown = {
        name.removeprefix(f"{named}-"): (g["type"], g["state"], g["partitions"], g["lag"])
        for name, g in captured["groups"].items()
    }
    assert shown == {
        "a\0b": ("classic", "empty", 1, 17),
        "classic": ("classic", "empty", 1, 13),
        "new": ("consumer", "stable", 1, 9),
        "streams": ("streams", "assigning", 1, 13),
    }
    assert captured["not_carried"] == {}, "a share group without a start offset is one without offsets"


def test_a_share_group_goes_on_with_the_next_record(
    broker: Broker, kbackup: Kbackup, archive: Archive, named: str
) -> None:
    """The source has deleted its first records, so that offsets differ."""
    topic, copy, group, restore_id = (f"{named}-{each}" for each in ("shared", "copy", "group", "restore"))
    grouped, again = Grouped(broker, kbackup, archive), f"{group}-again"

    def start_offsets(name: str) -> dict[str, str]:
        arguments = ["--describe", "--offsets", "--bootstrap-server", broker.bootstrap, "--group", name]
        lines = _java("org.apache.kafka.tools.consumer.group.ShareGroupCommand", *arguments)
        return {words[1]: words[3] for line in lines if (words := line.split()) and words[0] == name}

    broker.create_topic(topic, 1)
    topics.produce(broker, topic, 0, topics.numbered(24))
    topics.delete_records(broker, topic, {0: 4})
    assert len(_java("Share.java", broker.bootstrap, group, topic, "12")) == 12
    kbackup.backup(archive, "-t", topic, "-g", group)
    shown = grouped.groups("show", group)["group"]
    (archived,) = shown["offsets"]
    assert (shown["type"], shown["state"], archived["lag"], archived["leader_epoch"]) == ("share", "empty", 8, None)
    assert start_offsets(group) == {topic: str(archived["offset"])}

    report = kbackup.restore(archive, "--map", f"{topic}={copy}", "--restore-id", restore_id)
    assert [(g["status"], g["offsets"][0]["how"]) for g in report["groups"]] == [("applied", "exact")]
    kbackup.run("verify", "--against", "target", "--restore-id", restore_id, "--groups", archive.url)
    ours = ("--restore-id", restore_id)
    assert [g["status"] for g in grouped.groups("undo", *CONFIRMED, *ours)["groups"]] == ["put back"]
    assert start_offsets(group) == {topic: str(archived["offset"]), copy: "-"}
    renamed = (*ours, "--map-group", f"{group}={again}")
    with share_member(broker.bootstrap, again, topic):
        (planned,) = grouped.groups("plan", *renamed, code=3)["groups"]
        assert planned["hindered"] == "it has live members"
    assert [g["status"] for g in grouped.groups("apply", *renamed)["groups"]] == ["applied"]
    assert [g["status"] for g in grouped.groups("undo", *CONFIRMED, *ours)["groups"]] == ["deleted"]
    assert again not in {g.group for g in grouped.cluster.groups.listed()[0]}
    assert [g["status"] for g in grouped.groups("apply", *renamed)["groups"]] == ["applied"]
    assert _java("Share.java", broker.bootstrap, again, copy, "3") == [f"{n} value-{n + 4}" for n in (12, 13, 14)]
    # the group has gone on since, and that is not taken from it
    assert [g["status"] for g in grouped.groups("undo", *CONFIRMED, *ours, code=3)["groups"]] == ["changed since"]


def test_any_name_and_any_metadata_come_back(broker: Broker, kbackup: Kbackup, archive: Archive, named: str) -> None:
    cluster = Cluster(broker.client(), "target")
    stood: dict[str, Stand] = {f"{named}{odd}": {(named, 0): (5, 0, odd[:999])} for odd in HOSTILE}
    for size in METADATA_SIZES:
        metadata = secrets.token_hex((size + 1) // 2)[:size]
        stood[f"{named}-{size}"] = {(named, p): (p, None, metadata) for p in range(3)}
    for group, stands in stood.items():
        put(cluster, group, stands)
    assert {group: raw_positions(broker.bootstrap, group) for group in stood} == stood
    found = _back_up(kbackup, archive, named)
    assert (found["groups"].keys(), found["not_carried"]) == (stood.keys(), {})
    copy, restore_id = f"{named}.copy", f"{named}-hostile"
    report = kbackup.restore(archive, "--map", f"{named}={copy}", "--restore-id", restore_id)
    assert {g["status"] for g in report["groups"]} == {"applied"}
    for group, stands in stood.items():
        assert raw_positions(broker.bootstrap, group) == stands | {(copy, p): held for (_, p), held in stands.items()}
    one = kbackup.run("groups", "show", f"{named}{HOSTILE[0]}", "--archive", archive.url)
    assert one["group"]["offsets"][0]["metadata"] == HOSTILE[0]


def test_a_thousand_groups_there_and_back(broker: Broker, kbackup: Kbackup, archive: Archive, named: str) -> None:
    cluster = Cluster(broker.client(), "target")
    stood = {f"{named}-{n:04}": {(named, p): (n % 20, None, f"{n} of {p}") for p in range(3)} for n in range(1000)}
    refused = cluster.groups.commit_all(
        {group: [CommittedOffset(TopicPartition(*p), *held) for p, held in s.items()] for group, s in stood.items()}
    )
    assert not any(refused.values())
    assert len(_back_up(kbackup, archive, named)["groups"]) == 1000
    copy, restore_id = f"{named}.copy", f"{named}-thousand"
    report = kbackup.restore(archive, "--map", f"{named}={copy}", "--restore-id", restore_id)
    assert (len(report["groups"]), {g["status"] for g in report["groups"]}) == (1000, {"applied"})
    for group, stands in stood.items():
        moved = {(copy, p): archived for (_, p), archived in stands.items()}
        assert raw_positions(broker.bootstrap, group) == stands | moved, group
    kbackup.run("groups", "undo", *CONFIRMED, "--restore-id", restore_id, "--archive", archive.url)
    assert {group: raw_positions(broker.bootstrap, group) for group in stood} == stood
