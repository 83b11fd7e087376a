"""Count the requests of commands for the table of infra/docs/requests.md.

The archives are in memory, and hold their newest catalogs as after a sweep. The store counts requests as S3 would be
asked. Each command runs in this process, with an empty cache unless its step is a cached one.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from tempfile import TemporaryDirectory
from unittest.mock import patch

from kbackup import cli
from kbackup.store import registry, s3
from scripts.bench.archives import NEWEST, build
from scripts.bench.requests import (
    PARTITIONS,
    SEGMENTS,
    STEPS,
    cache_folder,
    counts_cell,
    markdown,
    numbers_of,
    write_segment,
)
from tests.support.memory_store import MemoryStore

SIZES = (10, 10_000)
"""Restore points of the archives."""
_HEADING = "\n## Requests of each command\n"
ARCHIVE = "s3://requests/archive"


def requests_document(page: str) -> str:
    """Return the text of the page with a fresh table below its heading."""
    columns = [count_requests(points) for points in SIZES]
    labels = [step.label for step in STEPS if step.counted and not step.needs_cluster]
    rows = {label: [counts_cell(column.get(label, {})) for column in columns] for label in labels}
    start = page.index("| command |", page.index(_HEADING))
    return page[:start] + "\n".join(markdown(SIZES, rows)) + page[page.index("\n\n", start) :]


def count_requests(points: int) -> dict[str, Counter[str]]:
    """Run every command that needs no cluster on an archive of so many restore points; return its requests."""
    store = MemoryStore(ARCHIVE)
    stores = {ARCHIVE: store}
    whole = points <= NEWEST
    build(store, points, SEGMENTS, PARTITIONS, write=partial(write_segment, store), sparse=not whole)
    counted: dict[str, Counter[str]] = {}
    with TemporaryDirectory(prefix="kbackup-requests-") as folder:
        for step in STEPS:
            if step.needs_cluster or (step.every and not whole):
                continue
            line = step.arguments.format(points=points, point=points - 1, **numbers_of(points))
            requests = run_command(line, stores, cache_folder(step, folder))
            if step.counted:
                counted[step.label] = requests
    return counted


def run_command(line: str, stores: dict[str, MemoryStore], cache: str) -> Counter[str]:
    """Run one command in this process on stores in memory, by address; return its requests to all of them."""

    def open_plain(url: str, *_: object) -> MemoryStore:
        return stores.setdefault(url, MemoryStore(url))

    before = _sum_of_requests(stores)
    environment = {"KBACKUP_ARCHIVE": ARCHIVE, "XDG_CACHE_HOME": cache, "PATH": os.environ["PATH"]}
    output = io.StringIO()
    with (
        patch.dict(os.environ, environment, clear=True),
        patch.dict(registry.KINDS, {"s3": s3.KIND._replace(open=open_plain)}),
        redirect_stdout(output),
        redirect_stderr(output),
    ):
        code = cli.main([*line.split(), "--quiet"])
    if code:
        raise RuntimeError(f"kbackup {line} ended with {code}:\n{output.getvalue()}")
    return _sum_of_requests(stores) - before


def _sum_of_requests(stores: dict[str, MemoryStore]) -> Counter[str]:
    return sum((store.requests for store in stores.values()), Counter[str]())
