"""`python -m scripts.soak.walk [--steps N] [--seed S] [--minio [--bad-network]]`: a random walk over real commands.

One line a step. The first thing that does not hold ends the walk with exit code 1, and everything is left where it is.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kbackup.spark.session import build_session
from kbackup.store import S3Options, open_store
from scripts.dev.kafka import Broker
from scripts.dev.s3 import Minio
from scripts.soak.walk.cluster import Cluster
from scripts.soak.walk.steps import Commands, Walk, WrongError
from tests.contract.proxy import Proxy

_HEADERS = 700  # bytes of MinIO's headers: most cuts of a bad network fall into them


@contextmanager
def _archive_root(folder: Path, minio: bool) -> Iterator[tuple[str, dict[str, Any], dict[str, str], Proxy | None]]:
    """Yield the address of archives, the options to open it, the environment of a process that opens it, and the
    network between."""
    if not minio:
        yield str(folder), {}, {}, None
        return
    with Minio() as server, Proxy(server.endpoint_url) as proxy:
        server.create_bucket("walk")
        env = server.env | {"AWS_ENDPOINT_URL_S3": proxy.url}
        yield "s3://walk", server.options | {"endpoint_url": proxy.url}, env, proxy


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak.walk", description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1, help="the same seed walks the same way (1)")
    parser.add_argument("--minio", action="store_true", help="archives on MinIO, not in a directory")
    parser.add_argument("--bad-network", action="store_true", help="cut answers of MinIO, most in their headers")
    options = parser.parse_args()
    if options.bad_network and not options.minio:
        parser.error("a bad network takes --minio")
    folder = Path(tempfile.mkdtemp(prefix="kbackup-walk-"))
    print(f"seed {options.seed}; archives and killed commands are under {folder}", flush=True)
    session = build_session("local[2]", {}, 2)
    began, counts = time.monotonic(), Counter[str]()
    with Broker() as broker, _archive_root(folder, options.minio) as (root, s3, env, proxy):
        commands = Commands(broker.bootstrap, s3, env, folder, session)
        walk = Walk(
            Cluster(broker.bootstrap),
            commands,
            root,
            partial(open_store, options={"s3": S3Options(**s3)}),
            options.seed,
        )
        try:
            walk.begin()
            for number in range(1, options.steps + 1):
                if proxy is not None and options.bad_network:
                    cuts = random.Random(f"{options.seed}-{number}").choices(range(_HEADERS + 100), k=5)
                    proxy.cut_answers("", *cuts)
                said = walk.step()
                counts[said.partition(":")[0]] += 1
                print(f"{number:4} {time.monotonic() - began:6.0f} s  {said}", flush=True)
            print(walk.end())
        except WrongError as error:
            print(f"WRONG: {error}", flush=True)
            return 1
    session.stop()
    steps = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    print(f"{options.steps} steps in {time.monotonic() - began:.0f} s, all is right: {steps}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
