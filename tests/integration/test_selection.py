"""Which topics and groups a backup takes, and which groups a restore sets."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer

from kbackup.archive.reader import open_archive
from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.support.truth import Position, commit, positions


@pytest.fixture(scope="module")
def prefix(broker: Broker) -> str:
    """Topics <prefix>a, <prefix>ab, <prefix>b and __<prefix>own, of one record each."""
    prefix = f"sel-{secrets.token_hex(4)}-"
    for topic in (f"{prefix}a", f"{prefix}ab", f"{prefix}b", f"__{prefix}own"):
        broker.create_topic(topic)
        topics.produce(broker, topic, 0, [b"v"])
    return prefix


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-t", "{}a", "-t", "{}b"], ["{}a", "{}b"]),
        (["-t", "/{}a/"], ["{}a"]),
        (["-t", "/.*{}.*/"], ["{}a", "{}ab", "{}b"]),
        (["-t", "/{}.*/", "--exclude-topic", "/.*b/"], ["{}a"]),
        (["-t", "/.*{}.*/", "-t", "__{}own"], ["__{}own", "{}a", "{}ab", "{}b"]),
        (["-t", "/{}.*/", "--exclude-topic", "{}b"], ["{}a", "{}ab"]),
    ],
    ids=["names", "whole-regex", "never-internal", "exclude", "internal-by-name", "all-but"],
)
def test_a_backup_takes_the_topics_that_are_selected(
    kbackup: Kbackup, archive: Archive, prefix: str, arguments: list[str], expected: list[str]
) -> None:
    report = kbackup.backup(archive, *(a.replace("{}", prefix) for a in arguments))
    assert [t["name"] for t in report["topics"]] == [name.replace("{}", prefix) for name in expected]
    assert report["totals"]["records"] == len(expected)


def test_a_selection_that_matches_nothing_is_a_usage_error(kbackup: Kbackup, archive: Archive, prefix: str) -> None:
    for arguments, message, hint in (
        (["-t", f"{prefix}a", "-t", f"{prefix}x"], f"no topic {prefix}x in the source", f"did you mean {prefix}"),
        (["-t", "zzz"], "there is no topic zzz", "regular expressions go between slashes"),
        (["-t", "/zzz.*/"], "no topic in the source cluster matches /zzz.*/", "must match the whole name"),
        (["-t", f"{prefix}a", "-g", "zzz"], "there is no group zzz in the source cluster", "check the name"),
    ):
        error = kbackup.backup(archive, *arguments, code=2)["error"]
        assert message in error["message"]
        assert hint in error["hint"]
    assert open_archive(archive.store).restore_points == ()


def test_a_topic_that_was_deleted_stops_no_backup(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    broker.create_topic(topic_name)
    for entry in (topic_name, f"/{topic_name}/"):
        kbackup.backup(archive, "-t", entry)
    topics.delete_topic(broker, topic_name)
    for entry in (topic_name, f"/{topic_name}/"):
        (state,) = kbackup.backup(archive, "-t", entry)["topics"]
        assert state["state"] == "deleted"


@pytest.fixture(scope="module")
def grouped(broker: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive], prefix: str) -> Archive:
    """An archive of topic <prefix>a and groups <prefix>g0 to g3 at its end."""
    for n in range(4):
        commit(broker.bootstrap, f"{prefix}g{n}", {(f"{prefix}a", 0): Position(1, f"meta {n}")})
    archive = new_archive()
    kbackup.backup(archive, "-t", f"{prefix}a", "-g", f"/{prefix}g.*/")
    return archive


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["-g", "{}g1"], ["g1"]), (["-g", "/{}g.*/", "--exclude-group", "/.*[12]/"], ["g0", "g3"])],
)
def test_groups_of_a_backup(
    kbackup: Kbackup, archive: Archive, grouped: Archive, prefix: str, arguments: list[str], expected: list[str]
) -> None:
    kbackup.backup(archive, "-t", f"{prefix}a", *(a.replace("{}", prefix) for a in arguments))
    opened = open_archive(archive.store)
    captured = opened.groups(opened.restore_point("latest")).groups
    assert [g.group.removeprefix(prefix) for g in captured] == expected


def _stand(broker: Broker, prefix: str, topic: str) -> dict[str, str]:
    """Groups that stand in `topic`, with their metadata."""
    names = [f"{prefix}{name}" for name in ("g0", "g1", "g2", "g3", "renamed")]
    found = {name.removeprefix(prefix): positions(broker.bootstrap, name).get((topic, 0)) for name in names}
    # confluent-kafka committed it with the NUL that ends a text in C
    return {name: position.metadata.removesuffix("\0") for name, position in found.items() if position}


def test_groups_of_a_restore_are_renamed_left_out_and_selected(
    broker: Broker, kbackup: Kbackup, grouped: Archive, prefix: str, topic_name: str
) -> None:
    g = f"{prefix}g"
    for arguments, expected in (
        (["--map-group", f"{g}0={prefix}renamed", "--exclude-group", f"{g}2"], {"g1": 1, "g3": 3, "renamed": 0}),
        (["-g", f"/{g}[23]/"], {"g2": 2, "g3": 3}),
        (["--no-groups"], {}),
    ):
        topic = f"{topic_name}-{len(expected)}"
        report = kbackup.restore(grouped, "--map", f"{prefix}a={topic}", *arguments)
        assert _stand(broker, prefix, topic) == {name: f"meta {n}" for name, n in expected.items()}
        renamed = {(g["source"], g["group"]) for g in report["groups"]}
        assert renamed >= {(f"{prefix}g{n}", prefix + name) for name, n in expected.items()}
    # two groups never become one
    arguments = ["--map", f"{prefix}a={topic_name}", "--map-group", f"{prefix}g0={prefix}g1"]
    assert "would both become" in kbackup.restore(grouped, *arguments, code=1)["error"]["message"]


def test_group_with_a_live_member_is_left_alone_and_listed(
    broker: Broker, kbackup: Kbackup, grouped: Archive, prefix: str, topic_name: str
) -> None:
    member = Consumer(broker.client(**{"group.id": f"{prefix}g3", "enable.auto.commit": False}))
    try:
        member.subscribe([f"{prefix}b"])
        while not member.assignment():
            member.poll(0.2)
        planned = kbackup.restore(grouped, "--map", f"{prefix}a={topic_name}", "--dry-run")
        named = kbackup.restore(grouped, "--map", f"{prefix}a={topic_name}", "--dry-run", "--no-groups")
        report = kbackup.restore(grouped, "--map", f"{prefix}a={topic_name}", code=3)
    finally:
        member.close()
    (warning,) = planned["warnings"]
    assert warning.startswith(f"group {prefix}g3 has 1 live member on the target now and would be left alone")
    assert named["warnings"] == []
    assert report["missing"] == [
        f"group {prefix}g3 was not set: it has 1 live member; stop it, then: "
        f"kbackup groups apply --restore-id {report['restore_id']} --group {prefix}g3"
    ]
    assert _stand(broker, prefix, topic_name) == {f"g{n}": f"meta {n}" for n in range(3)}
