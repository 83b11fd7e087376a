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
    file = mirror.file(
        f"A->B.enabled = true\ntopics = {name}.*\nB->A.emit.heartbeats.enabled = true\n", "A", "B"
    )

    def arrived(topic: str, count: int) -> bool:
        if not topics_of(target, mirror.remote("A", topic)):
            return False
        return sum(map(len, values(target, mirror.remote("A", topic)).values())) >= count

    with running(file, "--interval", "1s", "--listen", "127.0.0.1:0") as process:
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
        assert process.end() == 0, process.told
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
