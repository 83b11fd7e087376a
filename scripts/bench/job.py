"""The measured process of kbackup: a driver with its Spark session that runs one backup or one restore."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from kbackup.archive import layout
from kbackup.config.models import Backup, Restore
from kbackup.jobs.backup.job import backup
from kbackup.jobs.restore.job import restore
from kbackup.spark.session import build_session
from kbackup.store import S3Options, Store, open_store
from scripts.bench.children import Spec, receive, say, wait_for_go

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Done = tuple[dict[str, float], dict[str, int]]
"""Seconds by step; records and bytes."""


class _Reporter:
    """Report each phase as it begins."""

    def phase(self, name: str) -> None:
        say(phase=name)

    def progress(self, records: int, size: int, expected: int) -> None: ...


def main(job: str, spec: Spec) -> None:
    began = time.monotonic()
    session = build_session(f"local[{spec['tasks']}]", {}, 1)
    started = time.monotonic()
    _warm(session, spec["tasks"])
    warm = time.monotonic()
    wait_for_go()
    work = {"backup": _backup, "restore": _restore}[job]
    seconds, sizes = work(spec, session)
    say(phase="", seconds=seconds, sizes=sizes, session=started - began, warm=warm - started)
    session.stop()


def _warm(session: SparkSession, tasks: int) -> None:
    """Starts the Python workers and has them import what tasks need: a cost of the start, not of the data."""

    def prepare(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        from kbackup.jobs.restore import task as restore_task  # noqa: F401
        from kbackup.kafka import kernel
        from kbackup.store import s3  # noqa: F401

        kernel.selected_kernel()
        time.sleep(0.5)  # so that each core takes one
        yield from batches

    session.range(tasks, numPartitions=tasks).mapInArrow(prepare, "id long").collect()


def _backup(spec: Spec, session: SparkSession) -> Done:
    options = Backup(topics=(spec["topic"],), **spec.get("options", {}))
    report = backup(options, _cluster(spec), _store(spec), lambda: session, _Reporter())
    totals = report.totals
    return report.seconds, {"records": totals.records, "bytes": totals.bytes, "stored": totals.stored_bytes}


def _restore(spec: Spec, session: SparkSession) -> Done:
    renamed = {spec["topic"]: spec["target"]}
    options = Restore(topics=(spec["topic"],), map=renamed, **spec.get("options", {}))
    store = _store(spec)
    report = restore(options, _cluster(spec), store, store, lambda: session, _Reporter())
    return report.seconds, {"records": report.records}


def _store(spec: Spec) -> Store:
    return open_store(
        spec["store"], S3Options(**{**spec["s3"], **spec.get("s3_options", {})}), key_class=layout.key_class
    )


def _cluster(spec: Spec) -> dict[str, str]:
    return {"bootstrap.servers": spec["bootstrap"], **spec.get("cluster", {})}


if __name__ == "__main__":
    main(sys.argv[1], receive())
