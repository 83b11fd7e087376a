"""Either half of a mirror killed at random, run again, compared: rounds of a seeded loop.
`scripts.soak.kills --mirrors` runs many, CI a handful."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from kbackup.jobs.backup.job import backup
from kbackup.mirror.flow_map import SLOTS, slot_of
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from tests.faults.conftest import Counting, backup_arguments, free_lease, options
from tests.faults.dying import Wish
from tests.faults.mirrored import Mirror
from tests.faults.process import Kbackup
from tests.faults.shop import Shop, sell
from tests.support.truth import in_cluster, without_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LONGEST = 6.0  # s after a process has begun to work
_READY = 240.0  # s, for a process to begin; on a busy machine Spark takes a minute and more

SMALL = """
replication.factor = 1
heartbeats.topic.replication.factor = 1
checkpoints.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
emit.heartbeats.enabled = false
sync.topic.acls.enabled = false
"""

Half = Literal["take", "apply", "apply by Spark", "worker", "several"]
HALVES: tuple[Half, ...] = ("apply", "take", "apply by Spark", "worker", "several")


class Killed(NamedTuple):
    """Round `number`: `half` was killed `seconds` after it began to work."""

    number: int
    half: Half
    seconds: float


@dataclass
class MirrorLoop:
    """`store` as `env` names it for a process. The shop's broker is source and target."""

    shop: Shop
    store: Store
    env: Mapping[str, str]
    folder: Path
    spark: SparkSession
    seed: int
    rounds: int = 0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.mirror = Mirror(self.store, self.shop.broker.bootstrap)
        self._take()
        self.mirror.apply()

    def round(self, half: Half) -> Killed:
        """One round; raises what doesn't hold."""
        self.rounds += 1
        if half == "several":
            return Killed(self.rounds, half, self._kill_several())
        seconds = self._kill_take() if half == "take" else self._kill_apply(half)
        self._take()
        applied = self.mirror.apply()
        self.mirror.check(applied)
        return Killed(self.rounds, half, seconds)

    def _take(self) -> None:
        sell(self.shop, self._random.randrange(20, 200))
        free_lease(self.store)
        backup(options(self.shop), self.shop.broker.client(), self.store, lambda: self.spark, Counting())

    def _kill_take(self) -> float:
        """While an apply half follows what it commits."""
        moment = self._random.uniform(0, _LONGEST)
        sell(self.shop, self._random.randrange(20, 200))
        with self.mirror.applier() as applier:
            arguments = [*backup_arguments(self.shop, self.store.url), "--follow", "--interval=300ms"]
            with Kbackup(self._next_folder(), arguments, None, self.env) as process:
                end = time.monotonic() + moment + self._random.uniform(2, 2 * _LONGEST)
                while time.monotonic() < end:
                    sell(self.shop, self._random.randrange(5, 30))
                    self.mirror.round(applier)
                process.signal(signal.SIGKILL)
                process.wait()
        return moment

    def _kill_apply(self, half: Half) -> float:
        """While restore points come in. A worker's death is made good by Spark, while the process goes on."""
        again = {slot_of(tp, SLOTS) for tp in self.mirror.held()}  # their positions are committed at the start
        wish = Wish("kill worker", self._random.choice(("before", "after")), "transaction", len(again) + 2)
        arguments, module = ["mirror", str(self._file()), "--apply"], None
        if half != "apply":
            arguments = [self.store.url, self.shop.broker.bootstrap, self.mirror.flow.source, "--spark"]
            module = "tests.faults.applying"
        moment = self._random.uniform(0, _LONGEST)
        self._take()
        folder = self._next_folder()
        with Kbackup(folder, arguments, wish if half == "worker" else None, self.env, module) as process:
            self._wait_working(process, folder)
            end = time.monotonic() + moment
            while time.monotonic() < end:
                self._take()
            if half == "worker":
                self._wait_worker(folder, process)
            process.signal(signal.SIGKILL)
            process.wait()
        return moment

    def _kill_several(self) -> float:
        """Two mirrors in one process, take halves and apply halves, that share its Spark. The next process ends what
        they left."""
        moment = self._random.uniform(0, 3 * _LONGEST)
        aliases = [f"{self.mirror.flow.source}{name}" for name in "XY"]
        lines = "".join(f"{alias}->Z.enabled = true\n" for alias in aliases)
        archives = f"{self.store.url.rpartition('/')[0]}/several/{{source}}"
        file = self._write_file("several.properties", (*aliases, "Z"), archives, lines)
        with Kbackup(self._next_folder(), ["mirror", str(file), "--interval=300ms"], None, self.env) as process:
            end = time.monotonic() + _LONGEST + moment
            while time.monotonic() < end:
                sell(self.shop, self._random.randrange(5, 30))
                time.sleep(0.2)
            assert process.alive, process.err
            process.signal(signal.SIGKILL)
            process.wait()
        # Transactions of the killed process may be open while the first one takes: then it says so, and ends with 3.
        for codes in ((0, 3), (0, 3), (0,)):
            with Kbackup(self._next_folder(), ["mirror", str(file), "--once"], None, self.env) as process:
                ended = process.wait()
            assert ended.code in codes, ended.err
            if ended.code == 0:
                break
        due = without_offsets(in_cluster(self.shop.broker.bootstrap, self.shop.topics))
        for alias in aliases:
            there = without_offsets(in_cluster(self.shop.broker.bootstrap, [f"{alias}.{t}" for t in self.shop.topics]))
            remote = {TopicPartition(f"{alias}.{tp.topic}", tp.partition): rows for tp, rows in due.items()}
            assert there == remote, f"what {alias}->Z has applied"
        return moment

    def _wait_working(self, process: Kbackup, folder: Path) -> None:
        """Until it has written its first file of the round, or ended it."""
        before = {entry.key for entry in self.store.list("mirrors/")}
        end = time.monotonic() + _READY
        while not (folder / "out").stat().st_size:
            assert process.alive, process.err
            assert time.monotonic() < end, process.stacks()
            if {entry.key for entry in self.store.list("mirrors/")} - before:
                return
            time.sleep(0.02)

    def _wait_worker(self, folder: Path, process: Kbackup) -> None:
        """Until the worker was killed and the round is done nevertheless."""
        end = time.monotonic() + _READY
        while not (folder / "out").stat().st_size:
            assert process.alive, f"the job itself was killed\n{process.err}"
            assert time.monotonic() < end, process.stacks()
            time.sleep(0.1)

    def _file(self) -> Path:
        """The flow's properties."""
        alias = self.mirror.flow.source
        return self._write_file("mm2.properties", (alias, "B"), self.store.url, f"{alias}->B.enabled = true\n")

    def _write_file(self, name: str, aliases: Sequence[str], archive: str, lines: str) -> Path:
        """Properties of clusters that are all the shop's."""
        path, bootstrap = self.folder / name, self.shop.broker.bootstrap
        servers = "".join(f"{alias}.bootstrap.servers = {bootstrap}\n" for alias in aliases)
        path.write_text(
            f"clusters = {', '.join(aliases)}\n{servers}{lines}kbackup.archive = {archive}\n"
            f"topics = {', '.join(self.shop.topics)}\n{SMALL}"
        )
        return path

    def _next_folder(self) -> Path:
        return self.folder / f"run-{time.monotonic_ns()}"
