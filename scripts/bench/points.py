"""python -m scripts.bench.points: how long commands take in an archive of 10,000 restore points on MinIO.

Each command is measured whole and in this process: arguments in, JSON out, nothing known from before. The start of a
process is measured apart. Commits are those of a backup: a restore point with five new segments.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from statistics import median

from kbackup.archive.lease import HeldLease
from kbackup.archive.reader import open_archive
from kbackup.archive.run import begin_writing
from kbackup.cli import main as kbackup
from kbackup.store import S3Options, Store, open_store
from kbackup.types import OffsetRange
from scripts.bench.requests import SEGMENTS
from scripts.dev.minio import Minio
from scripts.soak.restore_points import RECORDS, TOPIC, build, commit_point, copy, describe
from tests.support.memory_store import MemoryStore

POINTS, REPEAT = 10_000, 5
BOUND = 0.5
"""Seconds that a command may take."""
COMMANDS = {
    "`list`": ("list",),
    "`info`": ("info",),
    "`expire` without `--confirm`": ("expire", "--keep-last", "5000"),
    "`expire` of records, without `--confirm`": ("expire", "--older-than", "1000d"),
}
_BUCKET = "points"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.points", description=__doc__)
    parser.add_argument("--points", type=int, default=POINTS, help=f"restore points ({POINTS})")
    parser.add_argument("--repeat", type=int, default=REPEAT, help=f"times; medians count ({REPEAT})")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    made = MemoryStore()
    build(made, options.points, SEGMENTS, sparse=True)
    with Minio() as minio:
        minio.create_bucket(_BUCKET)
        os.environ |= {"KBACKUP_METADATA_CACHE": "false", **_environment(minio)}
        store = open_store(f"s3://{_BUCKET}/archive", S3Options(path_style=True))
        objects = copy(made, store)
        print(f"{options.points:,} restore points, {objects:,} objects", file=sys.stderr, flush=True)
        seconds = {
            "open": _times(options.repeat, lambda: open_archive(store).restore_point("latest")),
            **{name: _times(options.repeat, partial(_run, store, line)) for name, line in COMMANDS.items()},
            **_commits(store, options.points, options.repeat),
            "`list`, with the start of its process": _times(options.repeat, lambda: _process(store)),
        }
    document = {"format": "kbackup-bench-points", "version": 1, "points": options.points, "seconds": seconds}
    print("\n".join(table(seconds)))
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _environment(minio: Minio) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL_S3": minio.endpoint_url,
        "AWS_REGION": minio.region,
        "AWS_ACCESS_KEY_ID": minio.access_key,
        "AWS_SECRET_ACCESS_KEY": minio.secret_key,
    }


def _times(repeat: int, work: Callable[[], object]) -> list[float]:
    work()  # modules are imported once
    return [_time(work) for _ in range(repeat)]


def _time(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return round(time.perf_counter() - began, 4)


def _run(store: Store, line: Sequence[str]) -> None:
    command, *options = line
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = kbackup([command, "--archive", store.url, *options, "--json"])
    if code:
        raise SystemExit(f"kbackup {command} ended with {code}:\n{err.getvalue()}")


def _process(store: Store) -> None:
    command = [sys.executable, "-m", "kbackup", "list", store.url, "--json"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def _commits(store: Store, points: int, repeat: int) -> dict[str, list[float]]:
    """The fence of a run, and the commits of its restore points."""
    fences: list[float] = []
    commits: list[float] = []
    for number in range(points + 1, points + repeat + 2):
        with HeldLease(store, "kbackup bench", 600) as lease:
            began = time.perf_counter()
            writing = begin_writing(store, lease, "backup")
            fences.append(round(time.perf_counter() - began, 4))
            head = writing.archive.head
            assert head is not None
            end = max(p.end for p in head.topics[0].partitions)
            added = [describe(number, OffsetRange(TOPIC, p, end, end + RECORDS)) for p in range(SEGMENTS)]
            commits.append(_time(partial(commit_point, writing, number, head.topics[0], added)))
    return {"begin a run (fence)": fences[1:], "commit a restore point": commits[1:]}


def table(seconds: dict[str, list[float]]) -> list[str]:
    """Markdown: a row each, median and worst."""
    rows = [f"| {name} | {median(found):.2f} s | {max(found):.2f} s |" for name, found in seconds.items()]
    return ["| | median | worst |", "|---|---|---|", *rows]


if __name__ == "__main__":
    sys.exit(main())
