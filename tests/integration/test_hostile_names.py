"""Groups, metadata and headers of anybody's making, from a real broker through every command and back."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from kbackup.cli import main
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.groups.admin import Committed
from kbackup.types import TopicPartition
from scripts.dev.kafka import Broker
from tests.integration.conftest import Archive, Kbackup
from tests.support.restored import assert_restored
from tests.support.truth import read_topic

EVIL = (
    "\x1b]0;owned\x07\x1b[2J",
    "a\nkbackup: all is well",
    "a\r\x1b[1Adone",
    "pay\u202eslip\u2028",
    "../../../etc/passwd",
    "=cmd|' /C calc'!A0",
    "<script>alert(1)</script>",
    "[red]100%[/red] {0} %s $HOME",
)


def test_hostile_names_come_back_and_steer_nothing(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.create_topic(topic_name)
    producer = Producer(broker.client(log_level=0))
    for name in EVIL:
        producer.produce(topic_name, name, name, headers=[(name, name.encode())])
    assert producer.flush(60) == 0
    groups = Cluster(broker.client(log_level="0"), "source").groups
    mine = {name: f"{name}{topic_name}" for name in EVIL}
    for number, (name, group) in enumerate(mine.items()):
        assert groups.commit(group, [Committed(TopicPartition(topic_name, 0), number, None, name)]) == ""

    def stands(group: str, topic: str) -> tuple[int, str]:
        (place,) = [c for c in groups.committed([group])[0][group] if c.tp.topic == topic]
        return place.offset, place.metadata

    before = {group: stands(group, topic_name) for group in mine.values()}
    assert list(before.values()) == list(enumerate(EVIL))

    report = kbackup.backup(archive, "-t", topic_name)
    assert report["totals"]["groups"] >= len(EVIL)
    shown = {name: "restored-" + group for name, group in mine.items()}
    again = f"again-{topic_name}"
    for quiet in ([], ["-vv"]):
        for command in (["info", topic_name], ["list"], ["verify", "--quick"], ["diff", "1", "1"]):
            code = main([*command, *quiet, "--config", str(kbackup.config), "--archive", archive.url])
            said = capsys.readouterr()
            assert code == 0, said
            for line in (said.out + said.err).split("\n"):
                assert line.isprintable(), repr(line)
                assert not line.startswith(("kbackup: all is well", "done"))

    kbackup.restore(
        archive,
        "-t",
        topic_name,
        "--map",
        f"{topic_name}={again}",
        *[
            f"--set=restore.map_group.{group}={shown[name]}"
            for name, group in mine.items()
            if "=" not in group
        ],
    )
    assert_restored(read_topic(broker.bootstrap, topic_name), read_topic(broker.bootstrap, again))
    for name, group in mine.items():
        target = group if "=" in group else shown[name]
        assert stands(target, again) == before[group]
