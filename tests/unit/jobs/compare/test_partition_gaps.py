"""Compare partitions with long ranges of missing, extra or changed records."""

from __future__ import annotations

import numpy as np
import pytest

from kbackup.jobs.compare import partition as compare
from kbackup.jobs.compare.partition import TargetOffsets
from tests.support.comparisons import T0, changed, compared, distinct
from tests.support.plain_records import Plain


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window so small that a test's gap is larger."""
    monkeypatch.setattr(compare, "_SEARCHES", ((8, 4), (16, 4)))


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(("at", "gone"), [(0, 300), (200, 500), (600, 400), (0, 1000)])
def test_a_long_gap_is_missing_and_nothing_else(at: int, gone: int) -> None:
    records = [distinct(n) for n in range(1000)]
    topic = [r.restored for r in records]
    found = compared(records, topic[:at] + topic[at + gone :], cuts=(range(0, 1000, 7), range(0, 1000, 11)))
    assert found.counts == {"missing": gone}
    assert [(d.source, d.count) for d in found.differences] == [(at, gone)]
    assert (found.records, found.same) == (1000, 1000 - gone)


@pytest.mark.usefixtures("narrow")
def test_a_long_insertion_is_extra_and_nothing_else() -> None:
    records = [distinct(n) for n in range(1000)]
    topic = [r.restored for r in records]
    foreign = [Plain(b"k", f"foreign {n}".encode()) for n in range(700)]
    result = compared(records, topic[:400] + foreign + topic[400:], cuts=(range(0, 1000, 7), range(0, 1700, 11)))
    assert result.counts == {"extra": 700}
    assert [(d.target, d.count) for d in result.differences] == [(1400, 700)]
    assert (result.records, result.same, result.after) == (1000, 1000, 0)


@pytest.mark.usefixtures("narrow")
def test_all_values_changed_is_no_loss() -> None:
    records = [distinct(n) for n in range(1000)]
    topic = [r.restored._replace(value=b"v%d" % n) for n, r in enumerate(records)]
    found = compared(records, topic, show=5)
    assert found.counts == {"value": 1000}
    assert [d.source for d in found.differences] == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("narrow")
def test_another_topic_is_all_missing_and_extra() -> None:
    records = [distinct(n) for n in range(500)]
    topic = [Plain(f"k{n}".encode(), f"foreign {n}".encode(), 0, n) for n in range(300)]
    found = compared(records, topic)
    assert found.counts == {"missing": 500, "extra": 300}


def test_records_of_others_after_a_changed_last_record_are_counted() -> None:
    records = [distinct(n) for n in range(10)]
    topic = [r.restored for r in records]
    topic[-1] = changed(topic[-1], "value")
    topic += [Plain(b"other", b"%d" % n) for n in range(5000)]
    found = compared(records, topic)
    assert (found.counts, found.after, found.after_from) == ({"value": 1}, 5000, 1010)


def test_too_many_differences_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_MOST_DIFFERENCES", 10)
    records = [distinct(n) for n in range(1000)]
    topic = [r.restored if n % 30 else changed(r.restored, "value") for n, r in enumerate(records)]
    found = compared(records, topic)
    assert found.stopped == "more than 10 differences"
    assert found.counts == {"value": 11}
    assert found.records < 1000


def test_misplaced_records() -> None:
    """Three runs with a marker between; then one record elsewhere, and one that the map doesn't have."""
    records = [distinct(n) for n in range(12)]
    sources = [0, 1, 2, 3, 10, 11, 12, 20, 21, 22, 23, 24]
    targets = [5, 6, 7, 8, 10, 11, 12, 14, 15, 16, 17, 18]
    target_offsets = TargetOffsets(*(np.array(c, np.int64) for c in ([0, 10, 20], [5, 10, 14], [4, 3, 5])))
    topic = [r.restored for r in records]
    result = compared(records, topic, sources=sources, targets=targets, target_offsets=target_offsets)
    assert result.counts == {}
    shifted = [*targets[:4], 9, *targets[5:]]
    result = compared(records, topic, sources=sources, targets=shifted, target_offsets=target_offsets)
    assert result.counts == {"place": 1}
    assert [(d.source, d.target, d.expected) for d in result.differences] == [(10, 9, 10)]
    short = TargetOffsets(target_offsets.source, target_offsets.target, np.array([4, 3, 4], np.int64))
    result = compared(records, topic, sources=sources, targets=targets, target_offsets=short)
    assert [(d.what, d.source, d.target, d.expected) for d in result.differences] == [(("place",), 24, 18, None)]


@pytest.mark.parametrize("kinds", [(0, 1), (-2, 1), (1, 1), (-1, 1)])
def test_the_brokers_own_time_is_left_out(kinds: tuple[int, int]) -> None:
    """With and without timestamps side by side, which makes records of different length."""
    records = [distinct(n)._replace(kind=kinds[0] if n % 2 else 0) for n in range(40)]
    topic = [r._replace(kind=kinds[1], timestamp=T0 * 2) for r in records]
    assert compared(records, topic, stamps=False).counts == {}
    topic[17] = changed(topic[17], "value")
    found = compared(records, topic, stamps=False)
    assert [(d.what, d.source) for d in found.differences] == [(("value",), 17)]
    assert "timestamp" in compared(records, topic).counts


def test_timestamps_as_a_restore_leaves_them() -> None:
    pairs = [((0, 0), (0, 1)), ((1, T0), (0, T0)), ((-1, 7), (-2, 9)), ((-2, 7), (-1, 0))]
    archive = [Plain(b"k", b"v", *stamp) for stamp, _ in pairs]
    assert compared(archive, [Plain(b"k", b"v", *stamp) for _, stamp in pairs]).counts == {}
    wrong = [((0, 1), (0, 0)), ((0, T0), (1, T0)), ((0, -1), (-2, -1)), ((-2, 0), (0, 0))]
    for (kind, stamp), (other, present) in wrong:
        found = compared([Plain(b"k", b"v", kind, stamp)], [Plain(b"k", b"v", other, present)])
        assert found.counts == {"timestamp": 1}
