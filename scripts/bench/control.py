"""python -m scripts.bench.control: what a cluster of many partitions is asked before a backup or a restore, in seconds
of the clock and of this process's CPU.

The topics, configs and log offsets of 6,000 partitions are read, and 500 topics are made and deleted, by this checkout
and by those of --against, in turns, on the same broker. Each turn is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

_ROOT = Path(__file__).parents[2]
_PARTITIONS_OF_A_TOPIC = 10
_PREFIX = "bench-"
_OLDER_PACKAGE = "admin"
"""Where checkouts have the cluster that are older than `kbackup.kafka.control`."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=6000)
    parser.add_argument("--topics", type=int, default=500, help="how many topics are made and deleted")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--against", type=Path, action="append", default=[], metavar="CHECKOUT")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--turn", metavar="BOOTSTRAP", help=argparse.SUPPRESS)  # one turn, in a process of its own
    options = parser.parse_args(argv)
    if options.turn:
        print(json.dumps(measure(options.turn, options.topics)))
        return
    seconds = compare(options)
    print_table(seconds)
    if options.json:
        options.json.write_text(json.dumps(seconds, indent=2), "utf-8")


Took = tuple[float, float]
"""Seconds of the clock, and of the CPU of a client with its threads."""

Seconds = dict[str, dict[str, list[Took]]]
"""By what was measured, and by checkout."""


def compare(options: argparse.Namespace) -> Seconds:
    """Measure all checkouts, one after the other in each round; they take turns in going first."""
    from kbackup.kafka.control.topics import TopicToCreate
    from scripts.dev.kafka import Broker

    checkouts = [_ROOT, *options.against]
    seconds: Seconds = defaultdict(lambda: defaultdict(list))
    with Broker(jvm=()) as broker:
        wide = range(options.partitions // _PARTITIONS_OF_A_TOPIC)
        topics = [TopicToCreate(f"orders-{number:04}", _PARTITIONS_OF_A_TOPIC, 1) for number in wide]
        fill(broker.bootstrap, topics)
        for number in range(options.repeat):
            first = number % len(checkouts)
            for checkout in [*checkouts[first:], *checkouts[:first]]:
                for name, took in run_turn(checkout, broker.bootstrap, options.topics).items():
                    seconds[name][str(checkout)].append(took)
    return seconds


def fill(bootstrap: str, topics: Sequence[Any]) -> None:
    from kbackup.errors import KbackupError
    from kbackup.kafka.control.cluster import Cluster
    from kbackup.types import TopicPartition

    cluster = Cluster({"bootstrap.servers": bootstrap}, "target")
    refused = cluster.topic_admin.create(topics)
    for error in refused.values():
        raise SystemExit(str(error))
    partitions = [TopicPartition(topic.name, number) for topic in topics for number in range(topic.partitions)]
    for _ in range(10):
        # a broker may take minutes until the logs of thousands of new partitions are there
        with suppress(KbackupError):
            cluster.log_ends(partitions, "read_committed")
            break


def run_turn(checkout: Path, bootstrap: str, topics: int) -> Mapping[str, Took]:
    """Measure one checkout, by its own .venv if it has one."""
    own = checkout / ".venv" / "bin" / "python"
    program = str(own if own.exists() else sys.executable)
    command = [program, __file__, "--turn", bootstrap, "--topics", str(topics)]
    env = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}  # not the folder of this file
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
    found: dict[str, Took] = json.loads(done.stdout)
    return found


def measure(bootstrap: str, count: int) -> dict[str, Took]:
    """Return what each thing took that is asked of the cluster, with the checkout that this process runs."""
    seconds: dict[str, Took] = {}

    def timed(name: str, ask: Callable[[], Any]) -> Any:
        began, used = time.perf_counter(), time.process_time()
        answer = ask()
        seconds[name] = (time.perf_counter() - began, time.process_time() - used)
        return answer

    cluster_of, topic_of = timed("imports", admin_classes)
    cluster = cluster_of({"bootstrap.servers": bootstrap}, "source")
    timed("connect", cluster.connect)
    described = timed("topics described", cluster.topics)
    names = [name for name in described if not name.startswith(_PREFIX)]
    partitions = _partitions_of([described[name] for name in names])
    timed("configs of topics", lambda: cluster.topic_configs(names))
    timed("log starts", lambda: cluster.log_starts(partitions))
    timed("log ends", lambda: cluster.log_ends(partitions, "read_committed"))
    timed("high watermarks and leader epochs", lambda: cluster.high_watermarks(partitions))
    new = [topic_of(f"{_PREFIX}{number:04}", 1, 1, {"retention.ms": "1000"}) for number in range(count)]
    refused = timed("topics created", lambda: cluster.topic_admin.create(new))
    refused |= timed("new topics shown", lambda: cluster.topic_admin.wait_visible({topic.name: 1 for topic in new}))
    if refused:
        raise SystemExit(str(refused))
    timed("topics deleted", lambda: cluster.delete_topics([topic.name for topic in new]))
    while any(name.startswith(_PREFIX) for name in cluster.topic_names()):
        time.sleep(0.1)
    return seconds


def _partitions_of(topics: Sequence[Any]) -> list[Any]:
    from kbackup.types import TopicPartition

    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]


def admin_classes() -> tuple[Any, Any]:
    """Return the classes of a cluster and of a topic to create, where this checkout has them."""
    try:
        cluster = import_module("kbackup.kafka.control.cluster")
    except ImportError:
        cluster = import_module(f"kbackup.kafka.{_OLDER_PACKAGE}.cluster")
    home = import_module(cluster.TopicAdmin.__module__)
    return cluster.Cluster, home.TopicToCreate


def print_table(seconds: Seconds) -> None:
    """Print the medians of each thing in milliseconds, a line for each checkout."""
    for name, by_checkout in seconds.items():
        print(name)
        for checkout, took in by_checkout.items():
            wall = median(one for one, _ in took)
            cpu = median(one for _, one in took)
            print(f"  {1000 * wall:8.0f} ms, CPU {1000 * cpu:6.0f} ms  {checkout}")


if __name__ == "__main__":
    main()
