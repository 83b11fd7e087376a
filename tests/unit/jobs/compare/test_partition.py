"""The comparison of an archive's records with a topic's: every change is found and named, equal sides never differ."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
    records = [distinct(n) for n in range(count)]
    topic = [r.restored for r in records]
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
    records = [distinct(n) for n in range(count)]
    gone = min(gone, count - at)
    topic = [r.restored for r in records]
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
    records = [distinct(n) for n in range(count)]
    topic = [r.restored for r in records]
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
    records = [distinct(n) for n in range(count)]
    topic = [r.restored for r in records]
    topic[at], topic[to] = topic[to], topic[at]
    found = compared(records, topic, cuts=(ours, present))
    assert found.counts == {"order": 1 if to == at + 1 else 2}
    assert all(d.source in (at, to) or to - at == 2 for d in found.differences)
    assert (found.records, found.after) == (count, 0)


@given(st.integers(40, 90), st.data(), cuts, cuts)
def test_several_changes_are_told_apart(count: int, data: st.DataObject, ours: list[int], present: list[int]) -> None:
    """Far enough from each other that there is one explanation."""
    records = [distinct(n) for n in range(count)]
    topic = [r.restored for r in records]
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
