"""python -m scripts.bench.requests: what each command asks of S3, by the server's own count, in archives of 10,
1,000 and 10,000 restore points of five segments, and how long an archive takes to open.

The archives are kbackup's own to the byte, with the log of a real broker behind them, on which backups go on. Every
command is a process of its own, as a user runs it. Above --whole restore points only the newest ones have documents and
segments, and what looks at more than these is left out; what looks at every object (`verify --quick`, `copy`) is left
out above --every.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer

from kbackup import types
from kbackup.archive.reader import open_archive
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import PartitionWriter, SegmentTarget
from kbackup.formats.record import encode
from kbackup.kafka.control.cluster import Cluster
from kbackup.store import S3Options, open_store
from kbackup.store.base import Store
from kbackup.types import OffsetRange
from scripts.bench.archives import RECORDS, TOPIC, build, copy
from scripts.dev.kafka import Broker
from scripts.dev.s3 import Minio
from tests.support.memory_store import MemoryStore

_COUNTED = re.compile(r'^minio_api_requests_total\{name="(\w+)".*\} (\S+)$', re.MULTILINE)
_BYTES = re.compile(r"^minio_api_requests_traffic_(sent|received)_bytes\{.*\} (\S+)$", re.MULTILINE)
_KINDS = {"Get": "GET", "Head": "HEAD", "List": "LIST", "Delete": "DELETE"}  # all others are paid as PUT


class CountedMinio(Minio):
    """`counts` has its requests so far as 'GET', 'HEAD', 'LIST', 'PUT' and 'DELETE' (a part of a multipart upload, its
    beginning and its end are PUTs), and the bytes of bodies as 'sent' (by the server) and 'received'."""

    def _command(self, port: int, folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        argv, env = super()._command(port, folder)
        return argv, {**env, "MINIO_PROMETHEUS_AUTH_TYPE": "public"}

    def counts(self) -> Counter[str]:
        with urllib.request.urlopen(f"{self.endpoint_url}/minio/metrics/v3/api/requests", timeout=30) as answer:
            text = answer.read().decode()
        totals: Counter[str] = Counter()
        for name, number in _COUNTED.findall(text):
            kind = next((kind for start, kind in _KINDS.items() if name.startswith(start)), "PUT")
            totals[kind] += int(float(number))
        for way, number in _BYTES.findall(text):
            totals[way] += int(float(number))
        return totals


def _content(offset: int) -> dict[str, Any]:
    """Return what a record of a log shares with that of an archive's segment; a backup compares them."""
    key, value = b"customer-%d" % (offset % 97), b'{"order": %d}' % offset
    return {"timestamp": 1_700_000_000_000 + offset, "key": key, "value": value}


def write_segment(store: Store, offsets: OffsetRange) -> Segment:
    """A whole segment of the small records that `produce` sends."""
    numbers, same = range(offsets.start, offsets.end), {"timestamp_type": 0, "headers": []}
    rows: list[dict[str, Any]] = [{"offset": number, **same, **_content(number)} for number in numbers]
    block = encode(pa.RecordBatch.from_pylist(rows, schema=types.RECORDS))
    with PartitionWriter(store, SegmentTarget(offsets.topic, 1, offsets.partition, 1 << 30, "none")) as writer:
        (segment,) = [*writer.append(block), *writer.finish()]
    return segment


def produce(broker: Broker, topic: str, partitions: int, offsets: range) -> None:
    """Small records into every partition, whose logs end at the first of `offsets`."""
    own = {"linger.ms": 50, "enable.idempotence": True, "queue.buffering.max.messages": 10_000_000}
    producer = Producer(broker.client(**own))
    for offset in offsets:
        for partition in range(partitions):
            producer.produce(topic, partition=partition, **_content(offset))
        producer.poll(0)
    if producer.flush(300):
        raise SystemExit(f"the broker did not take the records of {topic}")


SEGMENTS, PARTITIONS = 5, 10
_BUCKET = "requests"


@dataclass(frozen=True)
class Step:
    """`label` stands in the table; `arguments` are formatted with the archive's numbers; `produce` is how many records
    each partition gets before; `lists` says that it lists all segments, `every` that it looks at all objects; `cached`
    that it may keep metadata for the next one that is; `counted` that it is in the table."""

    label: str
    arguments: str
    produce: int = 0
    lists: bool = False
    every: bool = False
    cached: bool = False
    counted: bool = True

    @property
    def needs_cluster(self) -> bool:
        return self.arguments.split()[0] in ("backup", "restore")


STEPS = (
    Step("`backup`, 10 new segments", "backup", produce=1),
    Step("`backup`, nothing new", "backup"),
    Step("`status`", "status --max-age 90000d"),
    Step("`list`", "list"),
    Step("`info`", "info"),
    Step("`ls`", "ls"),
    Step("`ls` of a partition", "ls events/3"),
    Step("`cat` of one record", "cat events:3:{last}"),
    Step("", "cat events:3:{first}", cached=True, counted=False),
    Step("`cat` of one record, metadata cached", "cat events:3:{last}", cached=True),
    Step("`cat --tail 10` of a partition", "cat events:3 --tail 10"),
    Step("`find` in 5 segments", "find nobody events:3:{five}-{end}"),
    Step("`diff` of the newest two", "diff {point} latest"),
    Step("`groups show`", "groups show"),
    Step("`restore --dry-run`", "restore --dry-run --map events=dry", lists=True),
    Step("`restore` of 5 segments", "restore --range events:3:{five}-{end} --map events=back-{points}", lists=True),
    Step("`expire` without `--confirm`", "expire --keep-last 5"),
    Step("`verify --quick`", "verify --quick", every=True),
    Step("", "copy s3://requests/copy-{points}", every=True, counted=False),
    Step("`copy`, nothing new", "copy s3://requests/copy-{points}", every=True),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.requests", description=__doc__)
    add = parser.add_argument
    add("--points", type=int, nargs="+", default=(10, 1_000, 10_000), help="restore points (10 1000 10000)")
    add("--repeat", type=int, default=5, help="times that the archive is opened; the median counts (5)")
    add("--every", type=int, default=1_000, help="what looks at every object runs up to so many points (1000)")
    whole = "larger archives have documents and segments of their newest restore points alone (1000)"
    add("--whole", type=int, default=1_000, help=whole)
    add("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    sizes = [_measure(points, options) for points in options.points]
    document = {"format": "kbackup-bench-requests", "version": 1, "sizes": sizes}
    print("\n".join(table(document)))
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _measure(points: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the number of objects, the seconds from nothing to the newest restore point with connections made
    (`opened`), and by `Step.label` requests by kind, 'sent' and 'received' bytes and 'seconds' of the process."""
    with Broker(jvm=()) as broker, CountedMinio() as minio, TemporaryDirectory(prefix="kbackup-bench-") as folder:
        minio.create_bucket(_BUCKET)
        broker.create_topic(TOPIC, PARTITIONS)
        each = points * SEGMENTS * RECORDS // PARTITIONS
        produce(broker, TOPIC, PARTITIONS, range(each))
        made, sparse = MemoryStore(), points > options.whole
        identity = Cluster(broker.client(), "source").topics([TOPIC])[TOPIC].id
        build(made, points, SEGMENTS, PARTITIONS, partial(write_segment, made), identity, sparse=sparse)
        objects = copy(made, open_store(_archive(points), {"s3": S3Options(**minio.options)}))
        print(f"{points:,} restore points, {objects:,} objects", file=sys.stderr, flush=True)
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("KBACKUP_", "AWS_"))} | {
            "KBACKUP_ARCHIVE": _archive(points),
            "KBACKUP_SOURCE_BOOTSTRAP_SERVERS": broker.bootstrap,
            "KBACKUP_TARGET_BOOTSTRAP_SERVERS": broker.bootstrap,
            "KBACKUP_BACKUP_TOPICS": TOPIC,
            "KBACKUP_SPARK_MASTER": "local[2]",
            **minio.env,
        }
        opened, steps = list(_opened(minio, points, options.repeat)), {}
        end = each
        for step in STEPS:
            if (step.every and points > options.every) or (step.lists and points > options.whole):
                continue
            produce(broker, TOPIC, PARTITIONS, range(end, end + step.produce))
            end += step.produce
            counted = _run(step, {**environment, "XDG_CACHE_HOME": cache_folder(step, folder)}, minio, points)
            if step.counted:
                steps[step.label] = counted
    return {"points": points, "objects": objects, "opened": opened, "steps": steps}


def _opened(minio: CountedMinio, points: int, repeat: int) -> Iterator[float]:
    store = open_store(_archive(points), {"s3": S3Options(**minio.options)})
    for number in range(repeat + 1):
        began = time.perf_counter()
        open_archive(store).restore_point("latest")
        if number:  # the first one makes the connections
            yield round(time.perf_counter() - began, 4)


def numbers_of(points: int) -> dict[str, int]:
    """Return the offsets in the arguments of steps, for an archive of so many restore points."""
    end = points * SEGMENTS * RECORDS // PARTITIONS
    return {"first": end - RECORDS // 3, "last": end - RECORDS // 2, "five": end - 5 * RECORDS, "end": end}


def _run(step: Step, environment: Mapping[str, str], minio: CountedMinio, points: int) -> dict[str, float]:
    line = step.arguments.format(points=points, point=points + 1, **numbers_of(points))
    before, began = minio.counts(), time.perf_counter()
    argv = [sys.executable, "-m", "kbackup", *line.split(), "--quiet"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"kbackup {line} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    counted = minio.counts()
    counted.subtract(before)
    print(f"  {line}: {dict(counted)}, {seconds:.2f} s", file=sys.stderr, flush=True)
    return {"seconds": round(seconds, 2), **{name: number for name, number in counted.items() if number}}


def cache_folder(step: Step, folder: str) -> str:
    """Return the folder for a command's cache: an empty one, unless the step is a cached one."""
    return str(Path(folder) / "shared") if step.cached else mkdtemp(dir=folder)


def _archive(points: int) -> str:
    return f"s3://{_BUCKET}/archive-{points}"


def table(document: Mapping[str, Any]) -> list[str]:
    """Return a table in Markdown of the commands that need a cluster: requests by kind, then bytes of bodies."""
    sizes = document["sizes"]
    rows = {
        step.label: [_cell(each["steps"].get(step.label)) for each in sizes]
        for step in STEPS
        if step.counted and step.needs_cluster
    }
    rows["opened in"] = [f"{median(each['opened']):.2f} s" for each in sizes]
    return markdown([each["points"] for each in sizes], rows)


def markdown(points: Sequence[int], rows: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the lines of a table with a row per command and a column per archive of so many restore points."""
    table = {"command": [f"{each:,} restore points" for each in points], **rows}
    head, *lines = (f"| {' | '.join([name, *cells])} |" for name, cells in table.items())
    return [head, f"|{'---|' * (len(points) + 1)}", *lines]


def _cell(counted: Mapping[str, float] | None) -> str:
    if counted is None:
        return ""
    size = counted.get("sent", 0) + counted.get("received", 0)
    return f"{counts_cell(counted)}; {f'{size / 1e6:.1f} MB' if size >= 1e6 else f'{max(1, round(size / 1e3))} kB'}"


def counts_cell(counted: Mapping[str, float]) -> str:
    """Return requests by kind; a HEAD counts as a GET."""
    kinds = {"GET": counted.get("GET", 0) + counted.get("HEAD", 0)}
    kinds |= {kind: counted.get(kind, 0) for kind in ("LIST", "PUT", "DELETE")}
    return ", ".join(f"{number:,.0f} {kind}" for kind, number in kinds.items() if number)


if __name__ == "__main__":
    sys.exit(main())
