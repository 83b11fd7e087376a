"""python -m scripts.bench --mirror: the apply half of a mirror. Small rounds in a following process, with one new
record in each partition; and one large round, beside a restore of the same archive in the same run."""

from __future__ import annotations

import argparse
import dataclasses
import json
import secrets
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from kbackup.archive.reader import Archive, open_archive
from kbackup.config.models import Backup, Restore
from kbackup.jobs.backup.job import backup
from kbackup.jobs.mirror.apply import Applier
from kbackup.jobs.mirror.flow import Flow, RemoteTopic
from kbackup.jobs.mirror.properties import load_flows
from kbackup.jobs.restore.job import restore
from kbackup.kafka.kernel import selected_kernel
from kbackup.metrics.registry import Silent
from kbackup.spark.session import build_session
from kbackup.store import S3Options, Store, open_store
from scripts.bench import data
from scripts.bench.servers import Servers
from scripts.bench.text import grid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TARGET = 2.0  # s, of a small round
_SIZE = 1024
_PROPERTIES = "clusters = A, B\nA.bootstrap.servers = {0}\nB.bootstrap.servers = {0}\nA->B.enabled = true\n"

Rows = list[tuple[str, str]]


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    session = build_session(f"local[{options.tasks}]", {}, 4)
    rows: Rows = []
    document: dict[str, Any] = {"kernel": selected_kernel().name}
    try:
        with Servers(options.store) as servers:
            if options.rounds:
                document["small"] = _small(Bench(servers, session, options.partitions), options, rows)
            if options.records:
                document["large"] = _large(Bench(servers, session, options.tasks), options, rows)
    finally:
        session.stop()
    print("\n".join(grid(("what", "result"), rows)))
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench --mirror", description=__doc__)
    add = parser.add_argument
    add("--store", choices=("minio", "file"), default="minio")
    add("--partitions", type=int, default=1000, help="of a small round (1000)")
    add("--rounds", type=int, default=10, help="small rounds; 0: none (10)")
    add("--records", type=int, default=1_000_000, help="of 1 KB, of the large round; 0: none (1000000)")
    add("--repeat", type=int, default=2, help="large rounds and restores, in turns (2)")
    add("--tasks", type=int, default=2)
    add("--json", type=Path, metavar="FILE")
    return parser.parse_args(arguments)


class Bench:
    """A topic with a number of partitions, its archive, and flows to the same broker."""

    def __init__(self, servers: Servers, session: SparkSession, partitions: int) -> None:
        self.broker, self.session, self.partitions = servers.broker, session, partitions
        where = servers.new_archive()
        self.store: Store = open_store(where["store"], S3Options(**where["s3"]))
        self.topic = servers.unused_name()
        self.broker.create_topic(self.topic, partitions)

    def fill(self, first: int, records: int) -> None:
        """`records` in turns over the partitions."""
        producer = Producer(
            self.broker.client(**{"linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
        )
        for number, (key, value, timestamp) in enumerate(data.records(_SIZE, first, records)):
            producer.produce(self.topic, value, key, number % self.partitions, timestamp=timestamp)
            if number % 50_000 == 49_999:
                producer.flush(300)
        if producer.flush(300):
            raise SystemExit("the broker did not take the records")

    def take(self) -> Archive:
        backup(Backup(topics=(self.topic,)), self.broker.client(), self.store, self.spark, Silent())
        return open_archive(self.store)

    def spark(self) -> SparkSession:
        return self.session

    def flow(self) -> tuple[Flow, RemoteTopic]:
        """A flow that nobody had before, with its remote topic."""
        flow = load_flows(_PROPERTIES.format(self.broker.bootstrap)).flows[0]
        flow = dataclasses.replace(flow, source=f"A{secrets.token_hex(3)}")
        remote = RemoteTopic(self.topic, f"{flow.source}.{self.topic}", self.partitions)
        self.broker.create_topic(remote.remote, self.partitions)
        return flow, remote

    def applier(self, flow: Flow) -> Applier:
        return Applier(flow, self.broker.client(), self.store, self.spark, Silent())


def _small(bench: Bench, options: argparse.Namespace, rows: Rows) -> dict[str, Any]:
    flow, remote = bench.flow()
    seconds: list[float] = []
    cpu: list[float] = []
    with bench.applier(flow) as applier:
        for number in range(options.rounds + 1):
            bench.fill(number * bench.partitions, bench.partitions)
            archive = bench.take()
            archive.restore_point("latest")
            used = time.process_time()
            took, applied = _timed(partial(applier.apply, archive, archive.restore_point("latest"), [remote]))
            if applied.records != bench.partitions:
                raise SystemExit(f"a round applied {applied.records} records")
            seconds.append(took)
            cpu.append(time.process_time() - used)
            _say(f"round {number}: {took:.2f} s, {cpu[-1]:.2f} s of CPU")
        quiet, _ = _timed(partial(applier.apply, archive, archive.restore_point("latest"), [remote]))
    first, *later = seconds
    middle = sorted(later)[len(later) // 2]
    said = "met" if max(later) < _TARGET else "NOT MET"
    rows += [
        (f"first round, 1 record in each of {bench.partitions:,} partitions", f"{first:.2f} s"),
        ("later rounds, median and longest", f"{middle:.2f} s, {max(later):.2f} s: {said}"),
        ("CPU of this process in a later round, median", f"{sorted(cpu[1:])[len(later) // 2]:.2f} s"),
        ("a round with nothing new", f"{quiet * 1000:.1f} ms"),
    ]
    return {"partitions": bench.partitions, "seconds": seconds, "cpu": cpu, "quiet": quiet}


def _large(bench: Bench, options: argparse.Namespace, rows: Rows) -> dict[str, Any]:
    bench.fill(0, options.records)
    archive = bench.take()
    size = options.records * data.encoded_bytes(_SIZE) / (1 << 20)
    rates: dict[str, list[float]] = {"apply": [], "restore": []}
    for number in range(options.repeat):
        flow, remote = bench.flow()
        with bench.applier(flow) as applier:
            took, _ = _timed(partial(applier.apply, archive, archive.restore_point("latest"), [remote]))
        rates["apply"].append(size / took)
        choice = Restore(map={bench.topic: f"{bench.topic}-{number}"})
        client = bench.broker.client()
        took, _ = _timed(partial(restore, choice, client, bench.store, bench.store, bench.spark, Silent()))
        rates["restore"].append(size / took)
        _say(f"large round {number}: " + ", ".join(f"{name} {r[-1]:.0f} MiB/s" for name, r in rates.items()))
    rows += [(f"{name} of {size:.0f} MiB, best", f"{max(found):.0f} MiB/s") for name, found in rates.items()]
    return {"mib": size, **rates}


def _timed(do: Callable[[], Any]) -> tuple[float, Any]:
    began = time.monotonic()
    done = do()
    return time.monotonic() - began, done


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
