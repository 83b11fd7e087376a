"""The apply half of a flow in a process of its own, following an archive: `python -m tests.faults.applying ADDRESS
BOOTSTRAP ALIAS [--spark]`. It ends when it is killed. With a `Wish` in the environment it is wrapped as by `dying`."""

from __future__ import annotations

import os
import sys
import time

from pyspark.sql import SparkSession

from kbackup.archive.reader import open_archive
from kbackup.mirror.apply import applier
from kbackup.spark.session import build_session
from kbackup.store import open_store
from tests.faults import dying
from tests.faults.mirrored import Mirror

_DAEMON = {"spark.python.daemon.module": "tests.faults.dying_daemon"}


def main(arguments: list[str]) -> None:
    address, bootstrap, alias, *options = arguments
    if dying.wished():
        dying.arm()

    def session() -> SparkSession:
        return build_session("local[2]", _DAEMON if dying.wished() else {}, 4)

    if "--spark" in options:
        applier.SMALL_BYTES = 0
    store = open_store(address)
    mirror = Mirror(store, bootstrap, alias)
    archive = open_archive(store)
    with mirror.applier(session) as applying:
        while True:
            applied = mirror.round(applying, archive)
            print(applied.point, applied.records, flush=True)
            time.sleep(0.05)
            archive.reopen()


if __name__ == "__main__":
    os.environ.setdefault("DYING_GROUP", str(os.getpgrp()))
    main(sys.argv[1:])
