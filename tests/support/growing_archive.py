"""More restore points for the archive of `tests.support.archives.make_archive`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from kbackup.archive.models import TopicState
from kbackup.archive.reader import open_archive
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.jobs.retention import Expiry, Policy, expire
from kbackup.metrics.registry import Silent
from kbackup.store.base import Store
from tests.support.archives import T0, commit_point, topic_state, write

CLICKS = [("clicks", 0, o) for o in range(20)]
FIRST_ORDERS = [("orders", 0, o) for o in [*range(10), 15, *range(17, 40)]]
ORDERS = [*FIRST_ORDERS, *(("orders", 1, o) for o in range(12))]
"""All records that it begins with: (topic, partition, offset)."""


def grow(store: Store, seq: int, first: int, stop: int) -> None:
    """Restore point `seq`, with offsets `first` to `stop` of orders-1."""
    archive = open_archive(store)
    head = archive.head
    assert head is not None
    segments = write(store, SegmentTarget("orders", 1, 1, 1000, "none"), range(first, stop))
    states: list[TopicState] = [
        *(t for t in head.topics if t.name != "orders"),
        topic_state("orders", seq, "present", [(0, 41, []), (0, stop, segments), (0, 0, [])]),
    ]
    commit_point(archive, seq, states, segments, [])


def grow_each(store: Store, numbers: Iterable[int]) -> None:
    """A restore point of each number, with ten offsets of orders-1 from ten times that number on."""
    for seq in numbers:
        grow(store, seq, seq * 10, seq * 10 + 10)


def expired(store: Store, before: int | None = None, **policy: Any) -> None:
    """By policy, and records up to `before` seconds after `T0`, deleted at once."""
    newest = open_archive(store).restore_points[-1].committed_at
    age = None
    if before is not None:
        moment = datetime.fromtimestamp(T0 / 1000, UTC) + timedelta(seconds=before)
        age = datetime.fromisoformat(newest) - moment
    report = expire(store, Expiry(Policy(**policy), age, timedelta(0)), 60, Silent(), confirm=True)
    assert report.expiration is not None
