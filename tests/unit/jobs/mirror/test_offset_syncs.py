"""Offset syncs made from an offset map."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kbackup.jobs.mirror.internal import offset_syncs
from kbackup.kafka.mirror_records import OffsetSync
from kbackup.types import TopicPartition
from tests.support.flow_maps import Pairs, histories, map_of

TP = TopicPartition("orders", 3)


def synced(pairs: Pairs, last: OffsetSync | None = None, lag: int = 100) -> Pairs:
    return [(s.upstream, s.offset) for s in offset_syncs(TP, map_of(pairs), last, lag)]


def straight(count: int, source: int = 0, target: int = 0) -> Pairs:
    return [(source + i, target + i) for i in range(count)]


def test_a_round_has_the_syncs_that_mirrormaker_writes() -> None:
    assert synced(straight(250)) == [(n, n) for n in (0, 101, 202, 249)]


def test_the_next_round_goes_on_from_the_last_sync() -> None:
    last = OffsetSync(TP, 249, 249)
    assert synced(straight(400), last) == [(350, 350), (399, 399)]
    assert synced(straight(250), last) == []
    assert synced(straight(251), last) == [(250, 250)]


def test_a_new_incarnation_begins_anew() -> None:
    """Its first sync goes back in the source, so that readers forget what they know."""
    assert synced(straight(50, target=250), OffsetSync(TP, 249, 249)) == [(0, 250), (49, 299)]


def test_a_topic_without_records_has_none() -> None:
    assert synced([]) == []


def test_a_sync_is_at_the_next_record_where_one_is_missing() -> None:
    pairs = [*straight(100), *straight(100, source=500, target=105)]
    assert synced(pairs) == [(0, 0), (500, 105), (597, 202), (599, 204)]


def test_a_large_round_has_few_syncs_and_they_lie_near_its_end() -> None:
    offsets = [offset for _, offset in synced(straight(1_000_000))]
    assert offsets[0] == 0
    assert offsets[-1] == 999_999
    assert len(offsets) < 64
    assert np.diff(offsets[-32:-1]).tolist() == [101] * 30


@given(histories(), st.integers(0, 50))
def test_every_sync_is_a_record_and_the_last_record_has_one(pairs: Pairs, lag: int) -> None:
    found = synced(pairs, lag=lag)
    assert set(found) <= set(pairs)
    assert found == sorted(set(found))
    assert found[:1] == pairs[:1]
    assert found[-1:] == pairs[-1:]


@given(histories(), st.data())
def test_rounds_give_records_behind_the_last_sync_only(pairs: Pairs, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(pairs)))
    before = synced(pairs[:cut])
    last = OffsetSync(TP, *before[-1]) if before else None
    after = synced(pairs, last)
    assert all(pair > before[-1] for pair in after) if before else after == synced(pairs)
    assert after[-1:] == (pairs[-1:] if cut < len(pairs) else [])
