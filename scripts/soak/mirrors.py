"""python -m scripts.soak.mirrors: both halves of a mirror, and several mirrors in one process, killed at random, run
again, and compared record by record.

One line a round. The first thing that does not hold ends it, with everything left where it is.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from kbackup.spark.session import build_session
from kbackup.store import open_store
from scripts.dev.kafka import Broker
from scripts.dev.minio import Minio
from tests.conftest import Bucket
from tests.faults.mirror_loop import HALVES, MirrorLoop
from tests.faults.shop import open_shop, sell


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak.mirrors", description=__doc__)
    parser.add_argument("--kills", type=int, default=60, help="rounds, each of one kill (60)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed kills in the same way (1)")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="kbackup-soak-"))
    print(f"seed {options.seed}; what runs say is under {folder}", flush=True)
    session = build_session("local[2]", {}, 4)
    with Broker() as broker, Minio() as minio:
        minio.create_bucket("soak")
        bucket = Bucket("soak", minio)
        shop = open_shop(broker, "soak")
        sell(shop, 300)
        store = open_store(f"{bucket.url}/nightly", bucket.options)
        loop = MirrorLoop(shop, store, bucket.env, folder, session, options.seed)
        began = time.monotonic()
        for number in range(options.kills):
            killed = loop.round(HALVES[number % len(HALVES)])
            print(
                f"{killed.number:4}  {killed.half:14} after {killed.seconds:.2f} s: all is right", flush=True
            )
    session.stop()
    print(f"{options.kills} kills, {time.monotonic() - began:.0f} s; nothing lost or doubled")


if __name__ == "__main__":
    main()
