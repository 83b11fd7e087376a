"""python -m scripts.soak.transactions: what restore points have of the transactions that are written meanwhile.

Producers write to many partitions, and applications copy a topic exactly once, while backups and then a follower take
restore points. Each is read, and some are restored, with the applications going on there. Exit code 1 if anything is
wrong with one that has whole transactions.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kbackup
from kbackup.archive.reader import open_archive
from kbackup.errors import KbackupError
from kbackup.spark.session import build_session
from kbackup.store.file import FileStore
from scripts.bench.servers import grid
from scripts.dev.kafka import Broker
from scripts.soak.transactions.judge import Judge, Verdict
from scripts.soak.transactions.load import APPS, Load
from tests.faults.process import Kbackup
from tests.support.truth import read_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARTITIONS = 20
_SAMPLED = 10
_BETWEEN, _DOWN = (10.0, 25.0), (0.0, 4.0)  # s, of kills
_COUNTS = ("torn", "late", "repeated", "missing", "held")


@dataclass
class Soak:
    """A round at `broker`, in `folder`."""

    broker: Broker
    session: SparkSession
    folder: Path
    options: argparse.Namespace

    def __post_init__(self) -> None:
        self.name, self.config = self.folder.name, self.folder / "kbackup.toml"
        self.store = FileStore(self.folder / "archive")
        servers = f'"bootstrap.servers" = "{self.broker.bootstrap}"'
        transactions, wait = self.options.transactions, self.options.wait
        self.config.write_text(f"""
            archive = "{self.store.url}"
            metadata_cache = false
            spark.master = "local[2]"
            source = {{ {servers} }}
            target = {{ {servers} }}
            follow = {{ interval_seconds = 0.5, max_age_seconds = 5 }}
            backup.topics = ["/{self.name}-.*/"]
            backup.transactions = "{transactions}"
            backup.transaction_wait_seconds = {wait}
            """)

    def run(self) -> list[Verdict]:
        """Return what is found of each restore point, and print a table."""
        options, copies, over = self.options, min(3, self.options.nodes), threading.Event()
        killer = threading.Thread(target=self._kill, args=(over,))
        with Load(self.broker, self.name, self.folder) as load:
            load.produce(options.producers, _PARTITIONS, options.seed, copies)
            load.feed(options.rate, copies)
            times = [time.monotonic()]
            try:
                killer.start()
                backups = self._back_up(times[0] + options.seconds * 2 / 3)
                times.append(time.monotonic())
                self._follow(times[0] + options.seconds)
                times.append(time.monotonic())
            finally:
                over.set()
                killer.join()
            load.end()
            while not self._backup():
                time.sleep(1)
            judge = Judge(open_archive(self.store), self.name, load.journals)
            print(f"{len(judge.ids) / (times[2] - times[0]):.0f} transactions/s", flush=True)
            verdicts = [judge.judge(number, i % _SAMPLED == 0) for i, number in enumerate(judge.points)]
            rows = []
            for label, own, i in (("backup", verdicts[:backups], 0), ("follow", verdicts[backups:], 1)):
                points = [len(own), sum(not v.whole for v in own), sum(v.torn > 0 for v in own)]
                sums = [sum(getattr(v, name) for v in own) for name in _COUNTS]
                seconds = (times[i + 1] - times[i]) / max(1, len(own))
                rows.append([label, *map(str, (*points, *sums)), f"{seconds:.1f}"])
            print("\n".join(text for each in verdicts for text in each.examples[:3]))
            head = ("", "points", "in part", "torn points", "torn transactions", *_COUNTS[1:], "s per point")
            print("\n".join(grid(head, rows)), flush=True)
            for each in random.Random(options.seed).sample(verdicts, min(options.restores, len(verdicts))):
                self._restore(load, each)
        return verdicts

    def _backup(self) -> bool:
        """Take a restore point; return whether there is one. Without kills there must be."""
        try:
            report = kbackup.backup(self.config, spark=self.session)
        except KbackupError as error:
            if not self.options.kill:
                raise
            print(f"no restore point: {error}", flush=True)
            return False
        print(*(f"restore point {report.restore_point}: {each}\n" for each in report.warnings), end="", flush=True)
        return True

    def _back_up(self, until: float) -> int:
        """Take two thirds of the restore points, as far as there is time; return how many."""
        taken = 0
        while taken < self.options.points * 2 // 3 and time.monotonic() < until:
            taken += self._backup()
        return taken

    def _follow(self, until: float) -> None:
        """Let a follower take the others, all but the last one."""
        with Kbackup(self.folder / "follower", ["backup", f"--config={self.config}", "--follow"]) as follower:
            while len(open_archive(self.store).restore_points) < self.options.points - 1 and time.monotonic() < until:
                assert follower.alive, follower.err
                time.sleep(0.2)
            follower.signal(signal.SIGTERM)
            assert (ended := follower.wait()).code in (0, 3, -signal.SIGTERM), ended.err

    def _kill(self, over: threading.Event) -> None:
        draw = random.Random(self.options.seed)
        while self.options.kill and not over.wait(draw.uniform(*_BETWEEN)):
            self.broker.kill(node := draw.randrange(self.options.nodes))
            time.sleep(draw.uniform(*_DOWN))
            self.broker.start(node)
            print(f"node {node} was killed and runs again", flush=True)

    def _restore(self, load: Load, verdict: Verdict) -> None:
        """Restore beside the source, let the applications go on there, and compare what they copied."""
        number, prefix = verdict.number, f"r{verdict.number}-{self.name}"
        there = {group.group for group in open_archive(self.store).groups(number).groups}  # who has committed by then
        groups = {f"{self.name}-{app}": f"{prefix}-{app}" for app in APPS if f"{self.name}-{app}" in there}
        named: Any = {"restore_point": number, "map_regex": [f"^=r{number}-"], "map_group": groups}
        kbackup.restore(self.config, spark=self.session, **named)
        load.copy(prefix)
        load.finish(prefix)
        source, *copies = (self._values(f"{prefix}-{topic}") for topic in ("input", *APPS))
        right = sum(each == source for each in copies)
        print(f"restore point {number} is restored; {right} of 3 applications went on as they should", flush=True)
        assert right == len(APPS) or not verdict.whole, f"{[*map(len, copies)]} of {len(source)}"

    def _values(self, topic: str) -> list[bytes]:
        return sorted(r.value or b"" for records in read_topic(self.broker.bootstrap, topic).values() for r in records)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak.transactions", description=__doc__)
    add = parser.add_argument
    add("--points", type=int, default=300, help="restore points (300)")
    add("--seconds", type=float, default=7200, help="take no more restore points after this time (7200)")
    add("--seed", type=int, default=1, help="the same seed draws the same transactions and kills (1)")
    add("--nodes", type=int, default=1, help="of the cluster (1)")
    add("--kill", action="store_true", help="kill a node now and then")
    add("--producers", type=int, default=12, help="processes that write transactions (12)")
    add("--rate", type=int, default=400, help="records a second that each application copies (400)")
    add("--restores", type=int, default=5, help="restore points that are also restored (5)")
    add("--wait", type=float, default=60, help="seconds that open transactions get to end (60)")
    add("--transactions", choices=("whole", "partition"), default="whole", help="what backups promise (whole)")
    return parser.parse_args(arguments)


def main() -> int:
    options = parsed()
    folder = Path(tempfile.mkdtemp(prefix="kbackup-soak-"))
    print(f"seed {options.seed}; archive and logs are in {folder}", flush=True)
    session, copies = build_session("local[2]", {}, 4), min(3, options.nodes)
    properties = {f"{name}.replication.factor": str(copies) for name in ("offsets.topic", "transaction.state.log")}
    properties |= dict.fromkeys(("transaction.state.log.min.isr", "min.insync.replicas"), str(max(1, copies - 1)))
    with Broker(properties, options.nodes) as broker:
        verdicts = Soak(broker, session, folder, options).run()
    session.stop()
    return int(any(each.wrong for each in verdicts))


if __name__ == "__main__":
    sys.exit(main())
