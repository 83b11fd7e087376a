"""Groups, metadata and headers of anybody's making, from a real broker through every command and back."""

from __future__ import annotations

import re
import subprocess
from typing import Any
from urllib.parse import urlencode

import pytest
from confluent_kafka import Producer

from kbackup.archive.query.selection import exact_entry
from kbackup.cli import main
from kbackup.kafka.control.cluster import Cluster
from kbackup.types import CommittedOffset, TopicPartition
from scripts.dev.kafka import Broker
from tests.integration.conftest import Archive, Kbackup
from tests.integration.topics import produce
from tests.support.truth import assert_restored, read_topic
from tests.support.visits import command_lines, form_fields, visit

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
        assert groups.commit(group, [CommittedOffset(TopicPartition(topic_name, 0), number, None, name)]) == ""

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

    renamed = [f"--set=restore.map_group.{group}={shown[name]}" for name, group in mine.items() if "=" not in group]
    kbackup.restore(archive, "-t", topic_name, "--map", f"{topic_name}={again}", *renamed)
    assert_restored(read_topic(broker.bootstrap, topic_name), read_topic(broker.bootstrap, again))
    for name, group in mine.items():
        target = group if "=" in group else shown[name]
        assert stands(target, again) == before[group]


def test_commands_of_the_page_restore_what_it_computes(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    """Groups of any name, renamed on the page; a shell reads the commands."""
    broker.create_topic(topic_name)
    produce(broker, topic_name, 0, [str(number).encode() for number in range(20)])
    groups = Cluster(broker.client(log_level="0"), "source").groups
    mine = [f"{name}{topic_name}" for name in EVIL]
    for number, group in enumerate(mine):
        assert groups.commit(group, [CommittedOffset(TopicPartition(topic_name, 0), number + 4, None, "")]) == ""
    kbackup.backup(archive, "-t", topic_name)
    client = visit(archive.store)
    query = [("range", f"{topic_name}:0:5-15"), *(("group", exact_entry(group)) for group in mine)]
    names = {"map_to": f"paged-{topic_name}"}
    fields = form_fields(client.get(f"/restore?{urlencode(query)}").text)
    renamed = iter(f"paged {n} {group}" for n, group in enumerate(sorted(mine)))
    filled = [(k, next(renamed) if k == "map_group_to" else names.get(k, v)) for k, v in fields]
    page = client.get(f"/restore?{urlencode(filled)}").text
    assert re.search(r"<dt>records</dt><dd><data [^>]*>10</data>", page)
    dry_run, restore, verify = (_run(kbackup, line) for line in command_lines(page))
    assert (dry_run["status"], dry_run["records"]) == ("planned", 10)
    assert (restore["status"], restore["records"]) == ("restored", 10)
    assert (verify["same"], verify["records"], len(verify["groups"])) == (10, 10, len(mine))
    restored = read_topic(broker.bootstrap, f"paged-{topic_name}")
    assert [record.value for record in restored[0]] == [str(n).encode() for n in range(5, 15)]
    for number, group in enumerate(sorted(mine)):
        (position,) = groups.committed([f"paged {number} {group}"])[0][f"paged {number} {group}"]
        assert position.offset == max(0, mine.index(group) + 4 - 5)


def _run(kbackup: Kbackup, line: str) -> dict[str, Any]:
    """Run a command line as a shell reads it, and return its document."""
    script = f"set -- {line}; printf '%s\\0' \"$@\""
    read = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout
    _, *words = read.decode().split("\0")[:-1]
    return kbackup.run(*words)
