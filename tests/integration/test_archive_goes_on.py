"""After a restore with the same offsets into a new cluster, the archive goes on with that cluster."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbackup.kafka.control.cluster import Cluster
from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.integration.guide import run_guide
from tests.integration.held_back import back_up_with_a_transaction_held_back
from tests.support.truth import Position, Records, commit, log_starts, positions, read_topic


@pytest.fixture(scope="module")
def rebuilt() -> Iterator[Broker]:
    """The cluster into which everything is restored."""
    with Broker() as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"goes-on-{secrets.token_hex(4)}"
    broker.create_topic(name, 2)
    topics.produce(broker, name, 0, topics.numbered(200), key=b"k")
    topics.committed(broker, name, 1, topics.numbered(20))
    topics.aborted(broker, name, 1, topics.numbered(5))
    topics.delete_records(broker, name, {0: 50})
    return name


def test_the_archive_goes_on_with_the_rebuilt_cluster(
    topic: str, broker: Broker, rebuilt: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive]
) -> None:
    archive = new_archive()
    selected = ["-t", topic, "-g", topic]
    commit(broker.bootstrap, topic, {(topic, 0): Position(77), (topic, 1): Position(9)})
    kbackup.backup(archive, *selected)
    before = read_topic(broker.bootstrap, topic)

    there = ["--bootstrap-server", rebuilt.bootstrap]
    kbackup.restore(archive, "--same-offsets", *there)
    assert read_topic(rebuilt.bootstrap, topic) == before
    assert positions(rebuilt.bootstrap, topic)[topic, 0].offset == 77

    topics.produce(rebuilt, topic, 0, topics.numbered(30, "new"), key=b"k")
    report = kbackup.backup(archive, *selected, *there, "--adopt-cluster")
    assert (sum(report["new_records"].values()), report["losses"]) == (30, [])
    assert any("go on where the archive ends" in warning for warning in report["warnings"])
    assert not any("created again" in warning for warning in report["warnings"])

    mirror = new_archive()
    kbackup.run("copy", "--archive", archive.url, mirror.url)
    for each in (archive, mirror):
        listed = kbackup.run("list", each.url)["restore_points"]
        assert [point["cluster_changed"] for point in listed] == [False, True]
        assert listed[1]["cluster_id"] == Cluster({"bootstrap.servers": rebuilt.bootstrap}, "source").connect()[0]
    history = kbackup.run("log", archive.url)
    assert any(listed[1]["cluster_id"] in change["summary"] for change in history["history"])

    topics.produce(rebuilt, topic, 1, topics.numbered(4, "newer"))
    nightly = kbackup.backup(archive, *selected, *there)
    assert (sum(nightly["new_records"].values()), nightly["losses"]) == (4, [])
    kbackup.run("verify", archive.url)
    kbackup.run("verify", archive.url, "--against", "source", *there)

    whole = read_topic(rebuilt.bootstrap, topic)
    for point, expected in (("1", before), ("3", whole)):
        name = f"{topic}-of-{point}"
        kbackup.restore(archive, "--same-offsets", "--restore-point", point, "--map", f"{topic}={name}", "--no-groups")
        assert read_topic(broker.bootstrap, name) == expected


def test_a_topic_with_other_records_begins_anew(
    topic: str, broker: Broker, rebuilt: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive]
) -> None:
    archive = new_archive()
    kbackup.backup(archive, "-t", topic)
    rebuilt.create_topic(topic, 2)
    for partition in (0, 1):
        topics.produce(rebuilt, topic, partition, topics.numbered(300, "other"), key=b"k")
    there = ["--bootstrap-server", rebuilt.bootstrap]
    report = kbackup.backup(archive, "-t", topic, *there, "--adopt-cluster", code=3)
    assert sum(report["new_records"].values()) == 600
    assert [loss["kind"] for loss in report["losses"]] == ["recreated"]


def test_an_archive_goes_on_without_a_transaction_that_its_last_backup_held_back(
    broker: Broker, rebuilt: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive]
) -> None:
    archive, topic = new_archive(), f"held-{secrets.token_hex(4)}"
    back_up_with_a_transaction_held_back(broker, kbackup, archive, topic)
    there = ("--bootstrap-server", rebuilt.bootstrap)
    kbackup.restore(archive, "--same-offsets", *there)
    topics.produce(rebuilt, topic, 0, [b"new"])
    report = kbackup.backup(archive, "-t", topic, *there, "--adopt-cluster")
    assert (sum(report["new_records"].values()), report["losses"]) == (1, [])
    assert [record.value for record in read_topic(rebuilt.bootstrap, topic)[0]] == [b"quick", b"new"]
    kbackup.run("verify", archive.url, "--against", "source", *there)


@pytest.mark.parametrize("nights", [2, pytest.param(5, marks=pytest.mark.soak)])
def test_every_night_on_both_sides_of_the_change_can_be_restored(
    nights: int, topic: str, broker: Broker, rebuilt: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive]
) -> None:
    archive = new_archive()
    contents: list[Records] = []

    def back_up(cluster: Broker, *options: str) -> int:
        """Change the topic, and back it up. Return how many records the restore point added."""
        number = len(contents)
        topics.produce(cluster, topic, 0, topics.numbered(20, f"night-{number}"), key=b"k")
        topics.aborted(cluster, topic, 1, topics.numbered(3))
        topics.committed(cluster, topic, 1, topics.numbered(5, f"whole-{number}"))
        report = kbackup.backup(archive, "-t", topic, "--bootstrap-server", cluster.bootstrap, *options)
        assert report["losses"] == []
        contents.append(read_topic(cluster.bootstrap, topic))
        return sum(report["new_records"].values())

    for _ in range(nights):
        back_up(broker)
    there = ("--bootstrap-server", rebuilt.bootstrap)
    kbackup.restore(archive, "--same-offsets", *there)
    assert back_up(rebuilt, "--adopt-cluster") == 25
    for _ in range(nights - 1):
        assert back_up(rebuilt) == 25

    kbackup.run("verify", archive.url)
    kbackup.run("verify", archive.url, "--against", "source", *there)
    for point, expected in enumerate(contents, 1):
        name = f"{topic}-of-{point}"
        kbackup.restore(archive, "--same-offsets", "--restore-point", str(point), "--map", f"{topic}={name}")
        assert read_topic(broker.bootstrap, name) == expected, f"restore point {point}"


def test_the_guide_rebuilds_a_cluster_with_the_offsets_that_somebody_keeps(
    topic: str, broker: Broker, rebuilt: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive], tmp_path: Path
) -> None:
    archive = new_archive()
    kbackup.backup(archive, "-t", topic)
    answers = (
        f'case = "cluster-gone"\nservers = "{rebuilt.bootstrap}"\nsame_offsets = true\n'
        "settings = false\nbackup = false\nrun = true\n"
    )
    guided = run_guide(kbackup.config, archive.url, tmp_path, answers)
    assert guided.code == 0, guided
    assert "the next backup needs --adopt-cluster once" in guided.out
    assert read_topic(rebuilt.bootstrap, topic) == read_topic(broker.bootstrap, topic)
    assert log_starts(rebuilt.bootstrap, topic) == {0: 50, 1: 0}
    report = kbackup.backup(archive, "-t", topic, "--bootstrap-server", rebuilt.bootstrap, "--adopt-cluster")
    assert (sum(report["new_records"].values()), report["losses"]) == (0, [])
