"""`python -m scripts.soak.limits [CASE ...]`: what one machine must bear, on a real broker and a real S3 server.

memory: a topic of 2 GiB through Python workers that must stay under 512 MiB each. partitions: 2,000 of them.
record: one of 20 MB. points: an archive of 10,000 restore points and 50,000 segments on S3. Each is bounded, says
what it measured, and ends the whole with an error where a limit does not hold.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kbackup.archive.query.overview import list_points, overview
from kbackup.archive.reader import open_archive
from kbackup.config.models import Backup, Restore
from kbackup.jobs.backup.job import backup
from kbackup.jobs.restore.job import restore
from kbackup.jobs.verify.job import verify
from kbackup.metrics.registry import Silent
from kbackup.spark.session import build_session
from kbackup.store import S3Options, open_store
from scripts.bench.processes import Tree
from scripts.dev.kafka import Broker
from scripts.dev.minio import Minio
from scripts.soak.restore_points import build, copy
from tests.integration.topics import produce
from tests.support.memory_store import MemoryStore
from tests.support.truth import read_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MIB = 1 << 20
_WORKER = 512 * _MIB
_TOPIC, _BACK = "limits", "limits-restored"
_QUEUE = 20_000  # records: what the producer's queue has room for
_POINTS, _SEGMENTS = 10_000, 5


def memory(gib: float = 2) -> str:
    """Records of 4 KiB in two partitions, read and written by one worker after the other."""
    values = [random.Random(n).randbytes(4096) for n in range(256)]
    count = int(gib * (1 << 30)) // len(values[0]) // 2
    with Broker() as broker:
        broker.create_topic(_TOPIC, 2)
        for partition in range(2):
            for done in range(0, count, _QUEUE):
                some = range(done, min(done + _QUEUE, count))
                produce(broker, _TOPIC, partition, (values[n % len(values)] for n in some))
        peak, seconds = _there_and_back(broker, 2 * count)
    assert peak < _WORKER, f"a worker held {peak // _MIB} MiB"
    return f"{gib:g} GiB through workers of at most {peak // _MIB} MiB, {seconds:.0f} s"


def partitions(count: int = 2_000) -> str:
    with Broker() as broker:
        broker.create_topic(_TOPIC, count)
        for partition in range(count):
            if partition % 10 == 0:
                produce(broker, _TOPIC, partition, [b"%d" % partition] * 5)
        peak, seconds = _there_and_back(broker, 5 * -(-count // 10))
    return f"{count:,} partitions, workers of at most {peak // _MIB} MiB, {seconds:.0f} s"


def record(size: int = 20_000_000) -> str:
    value = os.urandom(size)
    with Broker() as broker:
        for topic in (_TOPIC, _BACK):
            broker.create_topic(topic, 1, config={"max.message.bytes": str(24 * _MIB)})
        produce(broker, _TOPIC, 0, [b"before", value, b"after"])
        peak, seconds = _there_and_back(broker, 3)
        found = [r.value for r in read_topic(broker.bootstrap, _BACK)[0]]
        assert [hashlib.sha256(v or b"").digest() for v in found] == [
            hashlib.sha256(v).digest() for v in (b"before", value, b"after")
        ]
    return f"a record of {size:,} bytes, workers of at most {peak // _MIB} MiB, {seconds:.0f} s"


def points(count: int = _POINTS, segments: int = _SEGMENTS) -> str:
    made = MemoryStore()
    build(made, count, segments, sparse=True)
    with Minio() as minio:
        minio.create_bucket("limits")
        options = S3Options(
            endpoint_url=minio.endpoint_url,
            region=minio.region,
            access_key_id=minio.access_key,
            secret_access_key=minio.secret_key,
        )
        store = open_store("s3://limits", options)
        objects = copy(made, store)
        open_archive(store).restore_point("latest")  # connections are made once
        seconds = []
        for ask in (
            lambda: open_archive(store).restore_point("latest"),
            lambda: list_points(open_archive(store)),
            lambda: overview(store, "latest"),
        ):
            began = time.perf_counter()
            ask()
            seconds.append(time.perf_counter() - began)
        archive = open_archive(store)
        assert len(archive.restore_points) == count
        assert len(archive.segments(archive.restore_point("latest"))) == count * segments
    opened, listed, told = seconds
    return (
        f"{count:,} restore points, {count * segments:,} segments, {objects:,} objects on S3: "
        f"open {opened:.2f} s, list {listed:.2f} s, info {told:.2f} s"
    )


CASES: dict[str, Callable[[], str]] = {
    "memory": memory,
    "partitions": partitions,
    "record": record,
    "points": points,
}


def _there_and_back(broker: Broker, records: int) -> tuple[int, float]:
    """Backup, verify, and restore under another name; the most bytes of a worker, and seconds."""
    folder = Path(tempfile.mkdtemp(prefix="kbackup-limits-"))
    cluster = broker.client()
    session: SparkSession = build_session("local[1]", {}, 4)
    try:
        with Tree(os.getpid()) as tree:
            began = time.monotonic()
            store = open_store(str(folder / "archive"))
            done = backup(Backup(topics=(_TOPIC,)), cluster, store, lambda: session, Silent())
            assert done.totals.records == records, done.totals
            verified = verify(store, "all", False, lambda: session, Silent())
            assert (verified.findings, verified.read_records) == ((), records), verified.findings
            options = Restore(topics=(_TOPIC,), map={_TOPIC: _BACK}, into_existing=True)
            restored = restore(options, cluster, store, store, lambda: session, Silent())
            assert restored.records == records, restored
            return tree.peaks().get("worker", 0), time.monotonic() - began
    finally:
        session.stop()
        shutil.rmtree(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak.limits", description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all of them by default")
    for name in parser.parse_args(arguments).cases or CASES:
        print(f"{name}: {CASES[name]()}", flush=True)


if __name__ == "__main__":
    main()
