"""python -m scripts.soak.kills: backups, followers and restores, killed at random, run again, and compared.

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
from tests.faults.kill_loop import KillLoop
from tests.faults.shop import open_shop, sell


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="rounds, each of at least one kill (50)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed kills in the same way (1)")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="kbackup-soak-"))
    print(f"seed {options.seed}; what runs say is under {folder}", flush=True)
    session = build_session("local[2]", {}, 4)
    with Broker() as broker, Minio() as minio:
        minio.create_bucket("soak")
        bucket = Bucket("soak", minio)
        shop = open_shop(broker, "soak")
        sell(shop, 600)
        loop = KillLoop(
            shop,
            open_store(f"{bucket.url}/nightly", bucket.options),
            bucket.env,
            folder,
            lambda: session,
            options.seed,
        )
        loop.begin()
        began, killed = time.monotonic(), 0
        for number in range(options.kills):
            kill = loop.round(("backup", "restore", "follow")[number % 3])
            killed += sum(code != 0 for code in kill.ended)
            codes = ", ".join(map(str, kill.ended))
            print(f"{kill.number:4}  {kill.job:8} {kill.how} (exit code {codes}): all is right", flush=True)
    session.stop()
    print(
        f"{options.kills} rounds, {killed} runs killed, {time.monotonic() - began:.0f} s; nothing lost or doubled"
    )


if __name__ == "__main__":
    main()
