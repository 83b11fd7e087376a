"""python -m scripts.bench.transactions: what whole transactions cost a backup, in seconds and in bytes from the broker.

Backups with and without them in turns, at the same pace, of one topic that producers write to all the time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import kbackup
from kbackup.spark.session import build_session
from scripts.bench.servers import grid
from scripts.dev.kafka import Broker
from scripts.dev.link import Link
from scripts.soak.transactions.load import ENTRY, Load


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.transactions", description=__doc__)
    parser.add_argument("--partitions", type=int, default=6000, help="of the topic (6000)")
    parser.add_argument("--producers", type=int, default=24, help="processes that write transactions (24)")
    parser.add_argument("--rounds", type=int, default=5, help="backups of each kind (5)")
    parser.add_argument("--every", type=float, default=30, help="seconds from backup to backup (30)")
    options = parser.parse_args()
    session, modes = build_session("local[2]", {}, 4), ("partition", "whole")
    with (
        tempfile.TemporaryDirectory(prefix="kbackup-bench-") as folder,
        Link() as link,
        Broker(via=link.open, jvm=()) as broker,
    ):
        config = {"archive": f"file://{folder}/archive", "source": {"bootstrap.servers": broker.bootstrap}}
        with Load(broker, "bench", Path(folder)) as load:
            load.produce(options.producers, options.partitions, 1)
            kbackup.backup(config, spark=session)  # the first one has a segment of each partition
            rows: dict[str, list[list[float]]] = {mode: [] for mode in modes}
            due = time.monotonic()
            for mode in modes * options.rounds:
                time.sleep(max(0.0, (due := due + options.every) - time.monotonic()))
                began, passed, written = time.monotonic(), link.passed[1], _written(load)
                report = kbackup.backup(config, spark=session, transactions=mode)
                seconds, received = time.monotonic() - began, link.passed[1] - passed
                rate, records = (_written(load) - written) / seconds, sum(report.new_records.values())
                steps = [report.seconds.get(step, 0.0) for step in ("end transactions", "run")]
                rows[mode].append([seconds, *steps, received / 1e6, records, rate])
                print(f"{mode}: {seconds:.1f} s", flush=True)
    session.stop()
    head = ("", "s", "of it ends", "run", "MB received", "records", "transactions/s")
    of = {mode: [median(column) for column in zip(*own, strict=True)] for mode, own in rows.items()}
    of["more"] = [whole - partition for partition, whole in zip(of["partition"], of["whole"], strict=True)]
    print("\n".join(grid(head, [[mode, *(f"{value:,.1f}" for value in own)] for mode, own in of.items()])))


def _written(load: Load) -> int:
    return sum(journal.stat().st_size for journal in load.journals if journal.exists()) // ENTRY.size


if __name__ == "__main__":
    main()
