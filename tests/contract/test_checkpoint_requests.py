"""An archive of 5,000 restore points on a real S3 server: opening it takes a handful of requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kbackup.archive.overview import list_points, overview
from kbackup.archive.reader import open_archive
from kbackup.store import open_store
from kbackup.store.base import Store
from kbackup.store.s3.client import client_of
from scripts.soak.restore_points import build, copy, manifests_and_newest
from tests.conftest import Bucket
from tests.support.memory_store import MemoryStore

POINTS, SEGMENTS = 5_000, 2


@contextmanager
def counting(bucket: Bucket) -> Iterator[Counter[str]]:
    """The HTTP requests that go out meanwhile, as 'LIST' and 'GET'."""
    found: Counter[str] = Counter()

    def count(request: Any, **_: Any) -> None:
        found["LIST" if "list-type=2" in request.url else request.method] += 1

    events = client_of(bucket.options).meta.events
    events.register("before-send.s3", count)
    try:
        yield found
    finally:
        events.unregister("before-send.s3", count)


@pytest.fixture(scope="module")
def made() -> MemoryStore:
    store = MemoryStore()
    build(store, POINTS, SEGMENTS)
    return store


@pytest.fixture
def store(made: MemoryStore, bucket: Bucket) -> Store:
    target = open_store(bucket.url, bucket.options)
    assert copy(made, target, manifests_and_newest(POINTS)) > POINTS
    return target


def test_requests_at_5000_restore_points(store: Store, bucket: Bucket) -> None:
    with counting(bucket) as opened:
        archive = open_archive(store)
        assert archive.head is not None
        assert archive.head.seq == POINTS
    parts = len(archive.covered.checkpoint.parts) if archive.covered else 0
    since = POINTS - archive.covered.seq if archive.covered else POINTS
    assert (parts < 9, since) == (True, POINTS % 16)
    # archive.json, checkpoint.json, its parts, the manifests since; a page each of expirations/, checkpoints/, backups/
    assert opened == {"GET": 2 + parts + since, "LIST": 3}
    with counting(bucket) as listed:
        points = list_points(archive)
    assert (len(points), sum(len(p.losses) for p in points), listed) == (POINTS, 10, {})
    with counting(bucket) as told:
        whole = overview(store, "latest")
    # and the segment tables of the parts and of what came since, groups and metadata of the newest
    assert told == {"GET": opened["GET"] + parts + since + 2, "LIST": 3}
    assert (whole.restore_points, whole.sums.segments) == (POINTS, POINTS * SEGMENTS)
    with counting(bucket) as older:
        assert archive.restore_point(1234).seq == 1234
    assert older == {"GET": 1}
