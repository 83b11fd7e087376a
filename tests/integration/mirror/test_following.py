"""`kbackup mirror FILE` as a process of its own: both halves follow, until SIGTERM."""

from __future__ import annotations

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

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

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

    def port(self) -> int:
        until(lambda: "metrics on port" in self.told or self.process.poll() is not None)
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
    file = mirror.file(
        f"A->B.enabled = true\ntopics = {name}.*\nB->A.emit.heartbeats.enabled = true\n", "A", "B"
    )

    def arrived(topic: str, count: int) -> bool:
        if not topics_of(target, f"A.{topic}"):
            return False
        return sum(map(len, values(target, f"A.{topic}").values())) >= count

    with running(file, "--interval", "1s", "--listen", "127.0.0.1:0") as process:
        port = process.port()
        until(lambda: arrived(name, 1) or process.process.poll() is not None)
        assert process.process.poll() is None, process.told
        produce(source, name, 0, [b"2"])
        assert until(lambda: arrived(name, 2)) < 30
        source.create_topic(f"{name}-later", 1)
        grown = AdminClient(source.client()).create_partitions([NewPartitions(name, 2)])
        grown[name].result(30)
        until(lambda: len(topics_of(source, name)) == 1)
        produce(source, f"{name}-later", 0, [b"3"])
        produce(source, name, 1, [b"4"])
        until(lambda: arrived(f"{name}-later", 1) and arrived(name, 3))
        assert set(values(target, f"A.{name}")) == {0, 1}, "partition n is partition n"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
            assert answer.status == 200
        until(lambda: arrived("heartbeats", 2))  # B->A writes them into A, and A->B mirrors them
        assert process.end() == 0, process.told
    assert "retr" not in process.told
    report = mirror(file, "--once")["halves"]
    assert values(target, f"A.{name}") == values(source, name)
    assert next(half["losses"] for told, half in report.items() if told.startswith("take")) == {}


def test_apply_half_waits_for_its_archive_and_needs_no_source(mirror: Mirror) -> None:
    name = f"w-{secrets.token_hex(4)}"
    source, target = mirror.brokers["A"], mirror.brokers["B"]
    source.create_topic(name, 1)
    produce(source, name, 0, [b"1", b"2"])
    file = mirror.file(f"A->B.enabled = true\ntopics = {name}\n", "A", "B")
    alone = file.with_name(f"alone-{file.name}")
    alone.write_text("".join(line for line in file.read_text().splitlines(True) if not line.startswith("A.")))
    with running(alone, "--apply") as process:
        until(lambda: "waits: there is no archive" in process.told)
        mirror(file, "--once", "--take")
        until(
            lambda: (
                bool(topics_of(target, f"A.{name}")) and values(target, f"A.{name}") == values(source, name)
            )
        )
        assert process.end() == 0, process.told
