"""python -m scripts.soak.faults [--faults N]: random reads and writes of buckets through faults.

One line for each hundred steps. The first thing that does not hold ends it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from kbackup.store import reading
from kbackup.store.azure import container
from kbackup.store.gcs import client
from scripts.dev.azurite import Azurite
from scripts.dev.gcs import FakeGcs
from scripts.dev.s3 import Minio, VersityServer
from tests.contract.conftest import PART, AzureLocation, GcsLocation, S3Location
from tests.contract.fault_walk import FaultWalk
from tests.contract.proxy import Proxy
from tests.contract.test_gcs_faults import GcsProxy

_SERVERS: dict[str, tuple[Any, Any, type[Proxy]]] = {
    "minio": (Minio, S3Location, Proxy),
    "versitygw": (VersityServer, S3Location, Proxy),
    "azurite": (Azurite, AzureLocation, Proxy),
    "fakegcs": (FakeGcs, GcsLocation, GcsProxy),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak.faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=10_000, help="faults for each kind of server (10,000)")
    parser.add_argument("--server", choices=_SERVERS, nargs="*", default=list(_SERVERS), help="these alone")
    parser.add_argument("--seed", type=int, default=1, help="the same seed does the same (1)")
    options = parser.parse_args(arguments)
    for module in (reading, container, client):
        module._FIRST_WAIT = 0.01  # type: ignore[attr-defined]
    for name in options.server:
        server_kind, location_kind, proxy_kind = _SERVERS[name]
        began, faults, failed, seed = time.monotonic(), 0, 0, options.seed
        with server_kind() as server:
            while faults < options.faults:
                location = location_kind(server)
                with proxy_kind(server.endpoint_url.removesuffix(f"/{getattr(server, 'account', '')}")) as proxy:
                    walk = FaultWalk(location.opened(endpoint_url=proxy.url), location.store(), proxy, seed, PART)
                    for _ in range(100):
                        walk.step()
                faults, failed, seed = faults + walk.faults, failed + walk.failed, seed + 1
                print(f"{name}: {faults} faults, {failed} operations failed, all is right", flush=True)
        print(f"{name}: {faults} faults in {time.monotonic() - began:.0f} s; nothing lost or doubled", flush=True)


if __name__ == "__main__":
    main()
