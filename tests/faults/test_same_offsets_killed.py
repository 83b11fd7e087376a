"""A restore with the same offsets that is killed anywhere goes on where its logs end, and they become what they were to
become."""

from __future__ import annotations

import random
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kbackup.kafka.control.append import new_producer
from kbackup.kafka.control.cluster import Cluster
from kbackup.types import TopicPartition
from scripts.dev.kafka import Broker
from tests.support.same_offsets import MadeLog, MadeUnit
from tests.support.truth import log_ends, log_starts, read_topic

_PATIENCE = 240.0  # s, for all tries together

LOGS = [
    MadeLog(range(9_000_000, 9_004_000), 9_000_000, 9_004_000),
    MadeLog([number for number in range(40, 700) if number % 3], 40, 720),
    MadeLog([*range(300), 340, *range(600, 2000)], 0, 2009),
    MadeLog([], 4_000_000, 4_000_000),
]


@pytest.mark.parametrize("kills", [4, pytest.param(60, marks=pytest.mark.soak)])
def test_a_filling_that_is_killed_anywhere_goes_on(kills: int, broker: Broker, tmp_path: Path) -> None:
    until = time.monotonic() + _PATIENCE
    killed = 0
    while killed < kills:
        folder = tmp_path / f"after-{killed}"
        folder.mkdir()
        killed += _fill_and_kill(broker, folder, kills - killed, until)


def _fill_and_kill(broker: Broker, folder: Path, most: int, until: float) -> int:
    """Fill the logs of a new topic, killing the process up to `most` times on the way. Return how often that was."""
    target = f"killed-{secrets.token_hex(4)}"
    broker.create_topic(target, len(LOGS), config={"retention.ms": "-1"})
    cluster = Cluster({"bootstrap.servers": broker.bootstrap}, "target")
    assert cluster.topic_admin.wait_visible({target: len(LOGS)}) == {}
    producer = new_producer(cluster.router)
    unit = MadeUnit(str(folder), broker.bootstrap, target, LOGS, producer.id, producer.epoch)
    unit.describe()
    chosen = random.Random(target)
    killed = 0
    while killed < most:
        ends = log_ends(broker.bootstrap, target, "read_uncommitted")
        unfinished = [number for number, log in enumerate(LOGS) if ends[number] < log.end]
        if not unfinished:
            break
        number = chosen.choice(unfinished)
        # A few offsets on, so that many kills fit into what is left; or far on, into the next phase.
        left = LOGS[number].end - ends[number]
        at = ends[number] + min(left, round(left ** chosen.random()))
        killed += _kill_at(folder, cluster, TopicPartition(target, number), at, until)
    assert subprocess.run(_command(folder), timeout=_PATIENCE, check=False).returncode == 0
    found = read_topic(broker.bootstrap, target, "read_uncommitted")
    starts, ends = log_starts(broker.bootstrap, target), log_ends(broker.bootstrap, target, "read_uncommitted")
    for number, log in enumerate(LOGS):
        assert found[number] == unit.records(number), f"records of partition {number} after {killed} kills"
        assert (starts[number], ends[number]) == (log.start, log.end), f"bounds of partition {number}"
    return killed


def _command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "tests.support.same_offsets", str(folder)]


def _kill_at(folder: Path, cluster: Cluster, tp: TopicPartition, offset: int, until: float) -> bool:
    """Fill the logs, and kill the process when a log has come to an offset; return False if it ended before."""
    process = subprocess.Popen(_command(folder))
    while process.poll() is None:
        assert time.monotonic() < until
        if cluster.log_ends([tp], "read_uncommitted")[tp] >= offset:
            process.kill()
            return process.wait() != 0
    assert process.returncode == 0
    return False
