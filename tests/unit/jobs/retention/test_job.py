"""Retention deletes what expires and nothing else: whatever the policy, beside readers and writers, after any crash."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.archive.reader import Archive
from kbackup.archive.segments.table import Segment
from kbackup.errors import (
    RefusedError,
)
from kbackup.jobs.points import pin
from kbackup.jobs.retention import undo
from tests.support.expirations import DAY, LOSS, NOW, Seen, all_seen, check_whole, expired
from tests.support.histories import Did, History, day
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.exhaustive(keep=2)


def without(before: dict[int, Seen], kept: set[int], pinned: set[int], cutoff: int | None) -> dict[int, Seen]:
    """By brute force: of each partition, what all restore points that stay have, in order, up to the first segment that
    is young or pinned."""
    gone: set[Segment] = set()
    places: dict[tuple[str, int, int], list[Segment]] = {}
    for segment in sorted({s for n in kept for s in before[n].segments}, key=lambda s: s.first):
        places.setdefault((segment.topic, segment.incarnation, segment.partition), []).append(segment)
    for segments in places.values():
        for segment in segments:
            young = cutoff is None or (segment.max_timestamp or 0) >= cutoff
            if young or any(segment in before[number].segments for number in pinned):
                break
            gone.add(segment)
    return {
        number: Seen(
            tuple(s for s in before[number].segments if s not in gone),
            before[number].groups,
            before[number].settings,
            before[number].losses,
        )
        for number in kept
    }


dids = st.fixed_dictionaries({name: st.sampled_from([0, 1, 3, 5, "out", "anew"]) for name in ("a", "b")})

rounds = st.lists(
    st.tuples(
        st.lists(dids, min_size=1, max_size=4),
        st.integers(0, 3),
        st.none() | st.integers(0, 4),
        st.lists(st.integers(1, 12), max_size=1),
        st.sampled_from(["sweep", "grace", "undo"]),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.exhaustive
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rounds)
@example([([{"a": 0, "b": 1}, {"a": 0, "b": 1}, {"a": "out", "b": "out"}], 0, 1, [], "sweep")])
@example([([{"a": 0, "b": 1}, {"a": "out", "b": "out"}], 0, 0, [], "sweep")])
@example(
    [
        ([{"a": 0, "b": 1}], 0, None, [], "sweep"),
        ([{"a": 0, "b": "anew"}], 0, 0, [], "sweep"),
        ([{"a": 0, "b": 0}], 1, None, [], "sweep"),
    ]
)
def test_expiration_leaves_retained_points_unchanged(
    rounds: list[tuple[list[dict[str, Did]], int, int | None, list[int], str]],
) -> None:
    store = MemoryStore()
    history = History(store)
    number = 0
    for runs, last, days, pins, then in rounds:
        for did in runs:
            number += 1
            history.run(number, did, [LOSS])
        points = [p.number for p in history.archive.restore_points]
        for pinned_number in {*pins} & {*points}:
            pin(store, str(pinned_number))
        pinned = {*history.archive.state.pins}
        kept = {*points[-last:], *pinned} if last else {*points}
        old = history.archive
        before = all_seen(old)
        newest = day(max((topic.captured for topic in history.topics.values()), default=number))
        cutoff = None if days is None else int((newest - timedelta(days=days)).timestamp() * 1000)
        after = without(before, kept, pinned, cutoff)
        if before[number].segments and not after[number].segments:
            with pytest.raises(RefusedError, match="every record of the newest restore point"):
                expired(store, last=last, days=days, confirm=False)
            days, after = None, without(before, kept, pinned, None)
        report = expired(store, last=last, days=days, grace=NOW if then == "sweep" else DAY)
        assert {p.number for p in report.restore_points if p.stays} == kept
        assert all_seen(history.archive) == after
        assert {p.number: p.records for p in report.restore_points if p.stays} == {
            n: sum(s.count for s in each.segments) for n, each in after.items()
        }
        check_whole(store, clean=then == "sweep")
        if then == "sweep":
            left = {e.key for e in store.list(layout.TOPICS) if e.key.endswith("_records")}
            assert left == {s.key for each in after.values() for s in each.segments}
        else:
            assert all_seen(Archive(store, old.info, old.committed)) == before, "earlier readers read on"
        if then == "undo" and report.expiration is not None:
            undo(store, 60)
            assert all_seen(history.archive) == before
            check_whole(store)
