"""Groups of every kind, with names and metadata of any kind, and a thousand of them: nothing is dropped silently."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.groups.calls import CommittedOffset
from kbackup.types import TopicPartition
from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.integration.test_groups import put
from tests.support.group_requests import (
    RawCommit,
    Stand,
    raw_commit,
    raw_delete,
    raw_positions,
    share_member,
    streams_member,
)

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
    outcome = kbackup("groups", "show", "--archive", archive.url)
    assert outcome.code == 0, outcome.err
    groups = {g["group"]: g for g in outcome.document["groups"]}
    return {"warnings": report["warnings"], "groups": groups, "not_carried": outcome.document["not_carried"]}


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
    shown = {
        name.removeprefix(f"{named}-"): (g["type"], g["state"], g["partitions"], g["lag"])
        for name, g in captured["groups"].items()
    }
    assert shown == {
        "classic": ("classic", "empty", 1, 13),
        "new": ("consumer", "stable", 1, 9),
        "streams": ("streams", "", 1, 13),
    }
    reasons = {name.removeprefix(f"{named}-"): why for name, why in captured["not_carried"].items()}
    assert reasons.keys() == {"share", "streams-new", "a"}
    assert "share groups keep their positions where" in reasons["share"]
    assert "NUL byte" in reasons["a"]
    expected = f"group {named}-share is not in this restore point: {reasons['share']}"
    assert expected in captured["warnings"]


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
    one = kbackup("groups", "show", f"{named}{HOSTILE[0]}", "--archive", archive.url)
    assert one.document["group"]["offsets"][0]["metadata"] == HOSTILE[0]


def test_a_thousand_groups_there_and_back(broker: Broker, kbackup: Kbackup, archive: Archive, named: str) -> None:
    cluster = Cluster(broker.client(), "target")
    stood = {f"{named}-{n:04}": {(named, p): (n % 20, None, f"{n} of {p}") for p in range(3)} for n in range(1000)}
    refused = cluster.groups.commit_all(
        {
            group: [CommittedOffset(TopicPartition(*place), *archived) for place, archived in stands.items()]
            for group, stands in stood.items()
        }
    )
    assert not any(refused.values())
    assert len(_back_up(kbackup, archive, named)["groups"]) == 1000
    copy, restore_id = f"{named}.copy", f"{named}-thousand"
    report = kbackup.restore(archive, "--map", f"{named}={copy}", "--restore-id", restore_id)
    assert (len(report["groups"]), {g["status"] for g in report["groups"]}) == (1000, {"applied"})
    for group, stands in stood.items():
        moved = {(copy, p): archived for (_, p), archived in stands.items()}
        assert raw_positions(broker.bootstrap, group) == stands | moved, group
    undone = kbackup("groups", "undo", "--restore-id", restore_id, "--archive", archive.url)
    assert undone.code == 0, undone.err
    assert {group: raw_positions(broker.bootstrap, group) for group in stood} == stood
