"""The comparison of an archive's records with a topic's: every change is found and named, equal sides never differ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.jobs.compare import partition as compare
from kbackup.jobs.compare.partition import TargetOffsets
from tests.support.comparisons import T0, changed, compared, cuts, distinct
from tests.support.plain_records import Plain, block_of

FIELDS = ("key", "value", "headers", "timestamp")

plain = st.builds(
    Plain,
    st.one_of(st.none(), st.binary(max_size=3)),
    st.one_of(st.none(), st.binary(max_size=3)),
    st.sampled_from([-2, -1, 0, 0, 0, 1]),
    st.sampled_from([0, 1, T0, T0 + 1]),
    st.lists(st.tuples(st.binary(max_size=2), st.one_of(st.none(), st.binary(max_size=2))), max_size=2).map(tuple),
)


def pair(count: int) -> tuple[list[Plain], list[Plain]]:
    """Records of an archive, and the same as a restore leaves them."""
    records = [distinct(n) for n in range(count)]
    return records, [r.restored for r in records]


@given(st.lists(plain, max_size=50), cuts, cuts, st.data())
def test_equal_sides_never_differ(
    records: list[Plain], ours: list[int], present: list[int], data: st.DataObject
) -> None:
    count = len(records)
    rising = st.lists(st.integers(0, 500), min_size=count, max_size=count, unique=True).map(sorted)
    sources, targets = data.draw(rising), data.draw(rising)
    result = compared(records, [r.restored for r in records], sources=sources, targets=targets, cuts=(ours, present))
    assert (result.counts, result.differences, result.after, result.stopped) == ({}, (), 0, "")
    assert (result.records, result.same) == (count, count)
    assert result.bytes == (block_of(records).nbytes if records else 0)


@given(st.lists(plain, max_size=12), st.lists(plain, max_size=12), cuts, cuts)
def test_sides_agree_only_where_they_are_the_same(
    one: list[Plain], other: list[Plain], ours: list[int], present: list[int]
) -> None:
    """Records of few kinds, so that much of both sides looks alike."""
    restored = [r.restored for r in one]
    result = compared(one, [r.restored for r in other], cuts=(ours, present))
    same = [r.restored for r in other][: len(restored)] == restored
    assert bool(result.counts) != same
    assert result.records == len(one)
    told = result.counts
    arrived = len(one) - told.get("missing", 0) + told.get("extra", 0) + result.after
    assert arrived == len(other)
    assert result.after == (max(0, len(other) - len(one)) if same else result.after)


numbers = st.integers(1, 90)


@given(numbers, st.data(), st.sampled_from(FIELDS), cuts, cuts)
def test_a_changed_field_is_named(
    count: int, data: st.DataObject, field: str, ours: list[int], present: list[int]
) -> None:
    at = data.draw(st.integers(0, count - 1))
    records, topic = pair(count)
    topic[at] = changed(topic[at], field)
    found = compared(records, topic, cuts=(ours, present))
    assert found.counts == {field: 1}
    ((what, source, target),) = [(d.what, d.source, d.target) for d in found.differences]
    assert (what, source, target) == ((field,), at, 1000 + at)
    assert (found.records, found.same, found.after) == (count, count - 1, 0)


@given(numbers, st.data(), st.integers(1, 5), cuts, cuts)
def test_missing_records_are_named(
    count: int, data: st.DataObject, gone: int, ours: list[int], present: list[int]
) -> None:
    at = data.draw(st.integers(0, count - 1))
    records, topic = pair(count)
    gone = min(gone, count - at)
    del topic[at : at + gone]
    found = compared(records, topic, cuts=(ours, present))
    assert found.counts == {"missing": gone}
    sources = [d.source + n for d in found.differences for n in range(d.count) if d.source is not None]
    assert sources == list(range(at, at + gone))
    assert (found.records, found.same, found.after) == (count, count - gone, 0)


@given(numbers, st.data(), st.booleans(), cuts, cuts)
def test_a_record_too_many_is_named(
    count: int, data: st.DataObject, twice: bool, ours: list[int], present: list[int]
) -> None:
    at = data.draw(st.integers(0, count))
    records, topic = pair(count)
    topic.insert(at, topic[at - 1] if twice and at else Plain(b"foreign", b"record"))
    result = compared(records, topic, cuts=(ours, present))
    if at == count:
        assert (result.counts, result.after, result.after_from) == ({}, 1, 1000 + count)
    else:
        assert (result.counts, result.after) == ({"extra": 1}, 0)
        (named,) = result.differences
        assert named.what == ("extra",)
        assert named.target in ((1000 + at - 1, 1000 + at) if twice else (1000 + at,))
    assert (result.records, result.same) == (count, count)


@given(st.integers(2, 90), st.data(), cuts, cuts)
def test_another_order_is_named(count: int, data: st.DataObject, ours: list[int], present: list[int]) -> None:
    at = data.draw(st.integers(0, count - 2))
    to = data.draw(st.integers(at + 1, min(count - 1, at + 6)))
    records, topic = pair(count)
    topic[at], topic[to] = topic[to], topic[at]
    found = compared(records, topic, cuts=(ours, present))
    assert found.counts == {"order": 1 if to == at + 1 else 2}
    assert all(d.source in (at, to) or to - at == 2 for d in found.differences)
    assert (found.records, found.after) == (count, 0)


@given(st.integers(40, 90), st.data(), cuts, cuts)
def test_several_changes_are_told_apart(count: int, data: st.DataObject, ours: list[int], present: list[int]) -> None:
    """Far enough from each other that there is one explanation."""
    records, topic = pair(count)
    indexes = [3, 3 + count // 3, 3 + 2 * (count // 3)]
    kinds = data.draw(st.lists(st.sampled_from(["missing", "extra", "value", "order"]), min_size=3, max_size=3))
    for at, kind in reversed(list(zip(indexes, kinds, strict=True))):
        if kind == "missing":
            del topic[at]
        elif kind == "extra":
            topic.insert(at, Plain(b"foreign", f"record {at}".encode()))
        elif kind == "value":
            topic[at] = changed(topic[at], "value")
        else:
            topic[at], topic[at + 1] = topic[at + 1], topic[at]
    found = compared(records, topic, cuts=(ours, present))
    assert found.counts == {kind: kinds.count(kind) for kind in set(kinds)}
    assert [d.what for d in found.differences] == [(kind,) for kind in kinds]


# Compare partitions with long ranges of missing, extra or changed records.


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window so small that a test's gap is larger."""
    monkeypatch.setattr(compare, "_SEARCHES", ((8, 4), (16, 4)))


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(("at", "gone"), [(0, 300), (200, 500), (600, 400), (0, 1000)])
def test_a_long_gap_is_missing_and_nothing_else(at: int, gone: int) -> None:
    records, topic = pair(1000)
    found = compared(records, topic[:at] + topic[at + gone :], cuts=(range(0, 1000, 7), range(0, 1000, 11)))
    assert found.counts == {"missing": gone}
    assert [(d.source, d.count) for d in found.differences] == [(at, gone)]
    assert (found.records, found.same) == (1000, 1000 - gone)


@pytest.mark.usefixtures("narrow")
def test_a_long_insertion_is_extra_and_nothing_else() -> None:
    records, topic = pair(1000)
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
    records, topic = pair(10)
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
