"""python -m scripts.bench --small: 2,000 partitions of 100 records each from a real broker into MinIO: time by step,
requests and, with --profile, where one task's time goes."""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from kbackup.config.models import Backup
from kbackup.jobs.backup.task import BackupWork, make_tasks
from kbackup.spark.tasks import ProgressSender
from kbackup.store import S3Options, open_store
from kbackup.types import OffsetRange
from scripts.bench import data
from scripts.bench.children import children
from scripts.bench.processes import Tree
from scripts.bench.servers import Servers
from scripts.bench.text import grid

_TARGET = 30.0  # s, of the whole run after Spark has started
_PARTITIONS = 2000
_TOPIC_PARTITIONS = 100
_SIZE = 140


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    with Servers(options.store) as servers:
        topics = _fill(servers, options.partitions, options.records)
        runs = [_run(servers, options) for _ in range(options.repeat)]
        if options.profile:
            _profile(servers, topics, options.records)
    best = min(runs, key=lambda words: float(words["total"]))
    print(_table(best, options))
    if options.json is not None:
        options.json.write_text(json.dumps(_document(runs, options), indent=1) + "\n")
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench --small", description=__doc__)
    add = parser.add_argument
    add("--partitions", type=int, default=_PARTITIONS)
    add("--records", type=int, default=100, help="records of a partition (100)")
    add("--tasks", type=int, default=2, help="tasks at a time (2)")
    add("--repeat", type=int, default=1, help="runs, each into a new archive; the fastest counts (1)")
    add("--store", choices=("minio", "file"), default="minio")
    add("--profile", action="store_true", help="run one task here as well, and print what it spends time on")
    add("--json", type=Path, metavar="FILE")
    return parser.parse_args(arguments)


def _fill(servers: Servers, partitions: int, records: int) -> dict[str, int]:
    """Topics by name with their numbers of partitions, `records` in each."""
    _say(f"writing {partitions:,} partitions of {records} records")
    pool = list(data.records(_SIZE, 0, records))
    producer = Producer(servers.broker.client(**{"linger.ms": 50, "queue.buffering.max.messages": 1_000_000}))
    topics: dict[str, int] = {}
    while (left := partitions - sum(topics.values())) > 0:
        topic, here = servers.unused_name(), min(left, _TOPIC_PARTITIONS)
        servers.broker.create_topic(topic, here)
        topics[topic] = here
        for partition in range(here):
            for key, value, timestamp in pool:
                producer.produce(topic, value, key, partition, timestamp=timestamp)
        if producer.flush(120):
            raise SystemExit(f"the broker did not take the records of {topic}")
    return topics


def _run(servers: Servers, options: argparse.Namespace) -> dict[str, Any]:
    spec = {
        "bootstrap": servers.broker.bootstrap,
        "topic": "/.*/",
        "tasks": options.tasks,
        **servers.new_archive(),
    }
    with children([spec], "scripts.bench.job", "backup") as (child,), Tree(child.pid) as tree:
        before = {**tree.cpu(), **servers.cpu()}
        child.tell({"go": True})
        words: dict[str, Any] = {"phase": None}
        while words["phase"] != "":
            words = child.hear()
        after = {**tree.cpu(), **servers.cpu()}
    cpu = {name: round(used - before.get(name, 0.0), 2) for name, used in after.items()}
    total = round(sum(words["seconds"].values()), 2)
    _say(f"  {total:.1f} s")
    return {"total": total, "steps": words["seconds"], "cpu": cpu, "peak": tree.peaks()}


def _profile(servers: Servers, topics: dict[str, int], records: int) -> None:
    """One packed task in this process: what of it is Python, and where."""
    where = servers.new_archive()
    ranges = [OffsetRange(topic, p, 0, records) for topic, count in topics.items() for p in range(count)]
    task = make_tasks(ranges, Backup().split_records, Backup().pack_records)[0]
    work = BackupWork(
        source={"bootstrap.servers": servers.broker.bootstrap},
        store=open_store(where["store"], S3Options(**where["s3"])),
        isolation="read_committed",
        group="bench",
        segment_bytes=Backup().segment_bytes,
        compression="none",
        poll_timeout=60.0,
        incarnations=dict.fromkeys(topics, 1),
        since=time.time(),
        salvage=True,
    )
    with cProfile.Profile() as profile:
        list(work(task, ProgressSender(None, 0)))
    print(f"one task of {len(task)} partitions:")
    pstats.Stats(profile, stream=sys.stdout).sort_stats("cumulative").print_stats(45)


def _table(best: dict[str, Any], options: argparse.Namespace) -> str:
    total = best["total"]
    rows = [(name, f"{seconds:.2f}") for name, seconds in best["steps"].items()]
    records = options.partitions * options.records
    verdict = "met" if total * _PARTITIONS / options.partitions < _TARGET else "NOT MET"
    return "\n".join(
        [
            *grid(("step", "s"), [*rows, ("all", f"{total:.2f}")]),
            f"{options.partitions:,} partitions of {options.records} records: "
            f"{options.partitions / total:,.0f} partitions/s, {records / total:,.0f} records/s",
            "CPU s: " + "  ".join(f"{name} {used:.1f}" for name, used in best["cpu"].items()),
            f"target: {_PARTITIONS:,} partitions in less than {_TARGET:.0f} s, at this rate {verdict}",
        ]
    )


def _document(runs: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    return {
        "format": "kbackup-bench-small",
        "version": 1,
        "options": {name: str(value) for name, value in vars(options).items()},
        "target": _TARGET,
        "runs": runs,
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
