"""python -m scripts.soak.kills [--mirrors]: runs killed at random, run again, and compared record by record.

Backups, followers and restores; with --mirrors both halves of a mirror, and several mirrors in one process. One line a
round. The first thing that does not hold ends it, with everything left where it is.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kbackup.spark.session import build_session
from kbackup.store import open_store
from scripts.dev.kafka import Broker
from scripts.dev.s3 import Minio
from tests.conftest import Bucket
from tests.faults.kill_loop import KillLoop
from tests.faults.mirror_loop import HALVES, MirrorLoop
from tests.faults.shop import Shop, open_shop, sell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Round = Callable[[int], str]
"""Runs round N and says what was killed; raises where something does not hold."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="rounds, each of at least one kill (50)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed kills in the same way (1)")
    parser.add_argument("--mirrors", action="store_true", help="kill mirrors, not backups and restores")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="kbackup-soak-"))
    print(f"seed {options.seed}; what runs say is under {folder}", flush=True)
    session = build_session("local[2]", {}, 4)
    with Broker() as broker, Minio() as minio:
        minio.create_bucket("soak")
        shop = open_shop(broker, "soak")
        rounds = (_mirrors if options.mirrors else _jobs)(shop, Bucket("soak", minio), folder, session, options.seed)
        began = time.monotonic()
        for number in range(options.kills):
            print(f"{number + 1:4}  {rounds(number)}: all is right", flush=True)
    session.stop()
    print(f"{options.kills} rounds, {time.monotonic() - began:.0f} s; nothing lost or doubled")


def _jobs(shop: Shop, bucket: Bucket, folder: Path, session: SparkSession, seed: int) -> Round:
    """Backups, restores and followers."""
    sell(shop, 600)
    store = open_store(f"{bucket.url}/nightly", bucket.options)
    loop = KillLoop(shop, store, bucket.env, folder, lambda: session, seed)
    loop.begin()

    def run(number: int) -> str:
        kill = loop.round(("backup", "restore", "follow")[number % 3])
        return f"{kill.job:8} {kill.how} (exit code {', '.join(map(str, kill.ended))})"

    return run


def _mirrors(shop: Shop, bucket: Bucket, folder: Path, session: SparkSession, seed: int) -> Round:
    sell(shop, 300)
    store = open_store(f"{bucket.url}/nightly", bucket.options)
    loop = MirrorLoop(shop, store, bucket.env, folder, session, seed)

    def run(number: int) -> str:
        killed = loop.round(HALVES[number % len(HALVES)])
        return f"{killed.half:14} after {killed.seconds:.2f} s"

    return run


if __name__ == "__main__":
    main()
