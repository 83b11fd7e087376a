"""`kbackup mirror FILE` as a process of its own: both halves follow, until SIGTERM."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from kbackup.archive.reader import open_archive
from kbackup.mirror.status import flows_of
from kbackup.store import open_store
from tests.integration.mirror.conftest import Mirror
from tests.integration.mirror.test_topologies import topics_of, values
from tests.integration.topics import produce

_PATIENCE = 120.0  # s; only ends what hangs


def until(true: Callable[[], bool]) -> float:
    """Seconds until something is true."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < _PATIENCE
        time.sleep(0.1)
    return time.monotonic() - began


class Process:
    """A mirror that runs; what it says on stderr goes to a file."""

    def __init__(self, file: Path, *arguments: str) -> None:
        self._err = file.with_suffix(f".{secrets.token_hex(3)}.err")
        with self._err.open("w") as err:
            argv = [sys.executable, "-m", "kbackup", "mirror", str(file), "--master", "local[1]", *arguments]
            self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=err)

    @property
    def told(self) -> str:
        return self._err.read_text()

    def until(self, true: Callable[[], bool]) -> float:
        """Seconds until something is true, as long as the process runs."""
        seconds = until(lambda: self.process.poll() is not None or true())
        assert self.process.poll() is None, self.told
        return seconds

    def port(self) -> int:
        self.until(lambda: "metrics on port" in self.told)
        found = re.search(r"metrics on port (\d+)", self.told)
        assert found, self.told
        return int(found[1])

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_PATIENCE)


@contextmanager
def running(file: Path, *arguments: str) -> Iterator[Process]:
    process = Process(file, *arguments)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()


def test_both_halves_follow_until_sigterm(mirror: Mirror) -> None:
    name = f"f-{secrets.token_hex(4)}"
    source, target = mirror.brokers["A"], mirror.brokers["B"]
    source.create_topic(name, 1)
    produce(source, name, 0, [b"1"])
    file = mirror.file(f"A->B.enabled = true\ntopics = {name}.*\nB->A.emit.heartbeats.enabled = true\n", "A", "B")

    def arrived(topic: str, count: int) -> bool:
        if not topics_of(target, mirror.remote("A", topic)):
            return False
        return sum(map(len, values(target, mirror.remote("A", topic)).values())) >= count

    short = ("--interval", "1s", "--set", "follow.lease_seconds=5")
    with running(file, *short, "--listen", "127.0.0.1:0") as process:
        port = process.port()
        process.until(lambda: arrived(name, 1))
        produce(source, name, 0, [b"2"])
        assert process.until(lambda: arrived(name, 2)) < 30
        source.create_topic(f"{name}-later", 1)
        admin = AdminClient(source.client())
        admin.create_partitions([NewPartitions(name, 2)])[name].result(30)
        process.until(lambda: len(topics_of(source, name)) == 1)
        produce(source, f"{name}-later", 0, [b"3"])
        produce(source, name, 1, [b"4"])
        process.until(lambda: arrived(f"{name}-later", 1) and arrived(name, 3))
        assert set(values(target, mirror.remote("A", name))) == {0, 1}, "partition n is partition n"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
            assert answer.status == 200
        process.until(lambda: arrived("heartbeats", 2))  # B->A writes them into A, and A->B mirrors them
        with running(file, *short) as standby:
            standby.until(lambda: standby.told.count("waiting for the end of that lease") == 2)  # of both halves
            process.process.send_signal(signal.SIGSTOP)  # to be seen from here like a node that died elsewhere
            produce(source, name, 0, [b"5"])
            assert standby.until(lambda: arrived(name, 4)) < 30, standby.told
            process.process.send_signal(signal.SIGCONT)
            assert process.process.wait(_PATIENCE) in (1, 11), process.told  # fenced by the producer, or by the lease
            assert standby.end() == 0, standby.told
    assert "retr" not in process.told
    report = mirror.once(file)
    assert values(target, mirror.remote("A", name)) == values(source, name)
    assert report["take A"]["losses"] == {}


def test_apply_half_waits_for_its_archive_and_needs_no_source(mirror: Mirror) -> None:
    name = f"w-{secrets.token_hex(4)}"
    source, target = mirror.brokers["A"], mirror.brokers["B"]
    source.create_topic(name, 1)
    produce(source, name, 0, [b"1", b"2"])
    file = mirror.file(f"A->B.enabled = true\ntopics = {name}\n", "A", "B")
    alone = file.with_name(f"alone-{file.name}")
    lines = file.read_text().splitlines(keepends=True)
    alone.write_text("".join(line for line in lines if not line.startswith(mirror.remote("A", ""))))
    with running(alone, "--apply") as process:
        process.until(lambda: "waits: there is no archive" in process.told)
        mirror(file, "--once", "--take")
        process.until(
            lambda: (
                bool(topics_of(target, mirror.remote("A", name)))
                and values(target, mirror.remote("A", name)) == values(source, name)
            )
        )
        assert process.end() == 0, process.told


@pytest.mark.parametrize("more", [0, 7], ids=["", "more records"])
def test_a_remote_topic_that_is_deleted_under_the_apply_half_gets_every_record_again(more: int, mirror: Mirror) -> None:
    name = f"d-{secrets.token_hex(4)}"
    source, target = mirror.brokers["A"], mirror.brokers["B"]
    source.create_topic(name, 2)
    for partition in (0, 1):
        produce(source, name, partition, [b"%d" % n for n in range(190)])
    file = mirror.file(f"A->B.enabled = true\ntopics = {name}\n", "A", "B")
    remote = mirror.remote("A", name)

    def equal() -> bool:
        try:
            return bool(topics_of(target, remote)) and values(target, remote) == values(source, name)
        except KafkaException:  # the topic is just being deleted or created
            return False

    with running(file, "--interval", "1s") as process:
        process.until(equal)
        admin = AdminClient(target.client())
        admin.delete_topics([remote])[remote].result(30)
        produce(source, name, 0, [b"more"] * more)
        process.until(equal)
        process.until(lambda: f"remote topic {remote} was deleted in the target" in process.told)
        assert process.end() == 0, process.told
    mirror.once(file)
    assert values(target, remote) == values(source, name), "no record twice"
    folder = file.with_suffix("") / mirror.named("A")
    (flow,) = flows_of(open_archive(open_store(str(folder))), open_store(str(folder)))
    assert [incident.topic for incident in flow.incidents] == [name]
    assert flow.records_behind == 0


_TWO = """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from kbackup.cli.common.command_context import FlagValues, load_config
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.session import spark_session

together = Barrier(4)

def ask(_):
    together.wait()
    return session()

with spark_session(load_config(FlagValues()).config, reporter=Reporter()) as session, ThreadPoolExecutor(4) as pool:
    assert len({id(each) for each in pool.map(ask, range(4))}) == 1
"""


def test_threads_that_ask_at_once_get_one_session(tmp_path: Path) -> None:
    """As two take halves of a mirror do."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", _TWO], env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
