"""python -m scripts.soak.kills [--mirrors]: runs killed at random, run again, and compared record by record.

Backups, followers and restores; with --mirrors both halves of a mirror, and several mirrors in one process. One line a
round. The first thing that does not hold ends it, with everything left where it is.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from kbackup.spark.session import build_session
from kbackup.store import S3Options, Store, open_store
from kbackup.store.azure import AzureOptions
from kbackup.store.gcs import GcsOptions
from scripts.dev.azurite import Azurite
from scripts.dev.gcs import FakeGcs
from scripts.dev.kafka import Broker
from scripts.dev.s3 import Minio
from tests.faults.kill_loop import KillLoop
from tests.faults.mirror_loop import HALVES, MirrorLoop
from tests.faults.shop import open_shop, sell, with_schemas
from tests.support.confluent_registry import ConfluentRegistry

SERVERS: dict[str, type[Minio | Azurite | FakeGcs]] = {"s3": Minio, "az": Azurite, "gs": FakeGcs}
JOBS = ("backup", "restore", "follow")


def _made(server: Minio | Azurite | FakeGcs) -> Store:
    """Return a store in a new bucket of `server`."""
    if isinstance(server, Azurite):
        server.create_container("soak")
        return open_store(f"az://{server.account}/soak/nightly", {"azure": AzureOptions(**server.options)})
    server.create_bucket("soak")
    if isinstance(server, FakeGcs):
        return open_store("gs://soak/nightly", {"gcs": GcsOptions(**server.options)})
    return open_store("s3://soak/nightly", {"s3": S3Options(**server.options)})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="rounds, each of at least one kill (50)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed kills in the same way (1)")
    parser.add_argument("--mirrors", action="store_true", help="kill mirrors, not backups and restores")
    parser.add_argument("--store", choices=SERVERS, default="s3", help="what the archive is in (s3)")
    parser.add_argument("--schemas", action="store_true", help="records name schemas, and restores map them")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=JOBS, help="kill these alone")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="kbackup-soak-"))
    print(f"seed {options.seed}; what runs say is under {folder}", flush=True)
    session = build_session("local[2]", {}, 4)
    with ExitStack() as stack, Broker() as broker, SERVERS[options.store]() as server:
        shop = open_shop(broker, "soak")
        store = _made(server)
        if options.schemas:
            source, target = stack.enter_context(ConfluentRegistry()), stack.enter_context(ConfluentRegistry())
            shop = with_schemas(shop, source, target)
        sell(shop, 300 if options.mirrors else 600)
        if options.mirrors:
            mirrors = MirrorLoop(shop, store, server.env, folder, session, options.seed)
        else:
            jobs = KillLoop(shop, store, server.env, folder, lambda: session, options.seed)
            jobs.begin()
        began = time.monotonic()
        for number in range(options.kills):
            if options.mirrors:
                half = mirrors.round(HALVES[number % len(HALVES)])
                killed = f"{half.half:14} after {half.seconds:.2f} s"
            else:
                job = jobs.round(options.jobs[number % len(options.jobs)])
                killed = f"{job.job:8} {job.how} (exit code {', '.join(map(str, job.ended))})"
            print(f"{number + 1:4}  {killed}: all is right", flush=True)
    session.stop()
    print(f"{options.kills} rounds, {time.monotonic() - began:.0f} s; nothing lost or doubled")


if __name__ == "__main__":
    main()
