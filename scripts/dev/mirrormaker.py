"""MirrorMaker 2 in dedicated mode: one process, for tests and benchmarks."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from scripts.dev import tools
from scripts.dev.jars import mirror_jars
from scripts.dev.process import Process

_DEFAULTS = {
    "dedicated.mode.enable.internal.rest": "false",
    "replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "heartbeats.topic.replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "config.storage.replication.factor": "1",
    "offset.storage.partitions": "1",
    "status.storage.partitions": "1",
    "refresh.topics.interval.seconds": "1",
    "sync.topic.configs.interval.seconds": "1",
    "sync.topic.acls.interval.seconds": "1",
    "offset.flush.interval.ms": "1000",
}

_WORKER = {
    # a worker that a busy machine keeps from its heartbeats gets its tasks back at once, not after five minutes
    "scheduled.rebalance.max.delay.ms": "0",
}
"""MirrorMaker 2 takes properties of its workers from those of the target alone."""


class MirrorMaker:
    """A running MirrorMaker 2; as a context manager, one that is stopped and removed at the end.

    `properties` are its file's, and win over defaults that suit tests. It starts in ten seconds or so."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        clusters = [name.strip() for name in properties["clusters"].split(",")]
        worker = {f"{cluster}.{name}": value for cluster in clusters for name, value in _WORKER.items()}
        self._properties = {**_DEFAULTS, **worker, **properties}
        self._folder = Path()
        self.process: Process

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="kbackup-mm2-"))
        file = self._folder / "mm2.properties"
        file.write_text("".join(f"{name} = {value}\n" for name, value in self._properties.items()))
        argv = [
            tools.java(),
            *("-cp", str(mirror_jars() / "*"), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            f"-Djava.io.tmpdir={self._folder}",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *("org.apache.kafka.connect.mirror.MirrorMaker", str(file)),
        ]
        self.process = Process(argv, self._folder / "log")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
