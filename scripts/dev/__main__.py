"""Servers for a developer, in the foreground:

    python -m scripts.dev kafka|minio|moto|versitygw|azurite|fakegcs|apicurio|all

`fetch` fills the cache; `lock` locks the jars anew after a change of ivy*.xml or of the packages in
`kbackup.spark.jars`; `rules` runs the tests of the alert rules by Prometheus' promtool, which it builds on
first use (four minutes).
"""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack, suppress

from kbackup.errors import KbackupError
from scripts.dev import jars, kafka, zookeeper
from scripts.dev.azurite import Azurite, azurite
from scripts.dev.cache import FAKE_GCS, HELM, MINIO, VERSITY, binary, check_rules
from scripts.dev.gcs import FakeGcs
from scripts.dev.kafka import Broker
from scripts.dev.registry import Apicurio
from scripts.dev.s3 import Minio, MotoServer, VersityServer
from scripts.dev.tools import MissingToolError

_HTTP: dict[str, type[Minio | MotoServer | VersityServer | Azurite | FakeGcs | Apicurio]] = {
    "minio": Minio,
    "moto": MotoServer,
    "versitygw": VersityServer,
    "azurite": Azurite,
    "fakegcs": FakeGcs,
    "apicurio": Apicurio,
}
_SERVERS = ["kafka", *_HTTP]


def main(arguments: list[str]) -> int:
    match arguments:
        case ["lock"]:
            jars.lock()
        case ["fetch"]:
            print(jars.kafka_jars(), jars.mirror_jars(), jars.zookeeper_jars(), jars.old_jars(), sep="\n")
            print(jars.serdes_jars(), jars.apicurio(), sep="\n")
            print(kafka.write_classes(), zookeeper.write_classes(), sep="\n")
            print(*map(binary, (MINIO, VERSITY, FAKE_GCS, HELM)), azurite(), sep="\n")
        case ["rules"]:
            check_rules()
            print("the alert rules pass their tests")
        case [name] if name in {*_SERVERS, "all"}:
            _serve(_SERVERS if name == "all" else [name])
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def _serve(names: list[str]) -> None:
    # SIGTERM ends us as Ctrl-C does, so that what we started is stopped and removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack, suppress(KeyboardInterrupt):
        for name in names:
            if name == "kafka":
                tells = {"bootstrap.servers": stack.enter_context(Broker()).bootstrap}
            else:
                server = _HTTP[name]()
                stack.enter_context(server)
                tells = server.env
            print(f"{name}:", *(f"{variable}={value}" for variable, value in tells.items()), flush=True)
        print("Ctrl-C stops", flush=True)
        signal.pause()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (KbackupError, MissingToolError) as error:
        sys.exit(f"error: {error}")
