"""The comparison of an archive's records with a topic's: every change is found and named, equal sides never differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.query.content import content_of
from kbackup.archive.restores.offset_map import SCHEMA, runs_table
from kbackup.archive.restores.plan import RestorePlan
from kbackup.config.models import Restore
from kbackup.jobs.compare import partition as compare
from kbackup.jobs.compare.job import (
    NO_OFFSETS,
    ComparePlan,
    _all_partitions,
    _compared,
    due_offset,
    is_right_position,
    restored_offsets,
)
from kbackup.jobs.compare.partition import Open, PartitionComparer, Side, TargetOffsets
from kbackup.jobs.compare.report import (
    Comparison,
    Difference,
    DifferenceKind,
    fewer_named,
    findings_of,
    is_wrong,
    sum_counts,
    topics_of,
)
from kbackup.jobs.restore.plan import plan_restore
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.types import RecordBlock, TopicPartition
from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore
from tests.support.plain_records import Plain, block_of

T0 = 1_700_000_000_000


def distinct(number: int) -> Plain:
    """Record `number` of its own kind: null keys, empty values, headers, times that fall and none at all."""
    key = None if number % 5 == 4 else f"key-{number % 3}".encode()
    kind = -2 if number % 7 == 6 else 0
    headers = tuple((f"h{n}".encode(), None if n else b"x") for n in range(number % 3))
    return Plain(key, f"value {number}".encode() * (number % 4 + 1), kind, T0 - 1000 * (number % 9), headers)


def opened(records: Sequence[Plain], offsets: Sequence[int], cuts: Sequence[int]) -> Open:
    """The records in blocks that end at `cuts`; a new read begins at the first record at or after the offset."""

    def blocks(start: int) -> Iterator[RecordBlock]:
        first = int(np.searchsorted(np.array(offsets, np.int64), start))
        edges = sorted({first, *(c for c in cuts if first < c < len(records)), len(records)})
        for low, high in pairwise(edges):
            yield block_of(records[low:high], offsets[low:high])

    return blocks


def compared(
    archive: Sequence[Plain],
    topic: Sequence[Plain],
    *,
    sources: Sequence[int] | None = None,
    targets: Sequence[int] | None = None,
    cuts: tuple[Sequence[int], Sequence[int]] = ((), ()),
    target_offsets: TargetOffsets | None = None,
    stamps: bool = True,
    show: int = 100,
) -> Comparison:
    ours = list(range(len(archive))) if sources is None else list(sources)
    present = list(range(1000, 1000 + len(topic))) if targets is None else list(targets)
    one = Side(opened(archive, ours, cuts[0]), 0, stamps=stamps, restored=True)
    other = Side(opened(topic, present, cuts[1]), 0, stamps=stamps)
    seen = [0, 0]

    def count(records: int, size: int) -> None:
        seen[0] += records
        seen[1] += size

    found = PartitionComparer(one, other, target_offsets, show, count).run("t", 3, "restored.t")
    assert seen == [found.records, found.bytes]
    return found


cuts = st.lists(st.integers(0, 60), max_size=6)


def changed(record: Plain, field: str) -> Plain:
    if field == "timestamp":
        return record._replace(kind=0, timestamp=record.timestamp + 1 if record.kind >= 0 else T0)
    if field == "headers":
        return record._replace(headers=(*record.headers, (b"more", b"")))
    return record._replace(key=b"changed") if field == "key" else record._replace(value=b"changed")


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


@pytest.mark.parametrize(
    ("archived", "present", "pairs"),
    [
        ("abc", "abc", ["aa", "bb", "cc"]),
        ("abc", "axc", ["aa", "bx", "cc"]),
        ("abc", "ac", ["aa", "b-", "cc"]),
        ("ac", "axc", ["aa", "-x", "cc"]),
        ("abcd", "bcda", ["a>a", "bb", "cc", "dd"]),
        ("abcx", "bcya", ["a>a", "bb", "cc", "xy"]),
        ("aab", "aabb", ["aa", "aa", "bb", "-b"]),
        ("abc", "xyz!", ["ax", "by", "cz", "-!"]),
    ],
)
def test_records_of_two_stretches_are_paired(archived: str, present: str, pairs: list[str]) -> None:
    """A pair is written as both records, '-' for none, and with '>' if the record moved."""

    def written(pair: compare.Pair) -> str:
        one = "-" if pair.one is None else archived[pair.one]
        other = "-" if pair.other is None else present[pair.other]
        return f"{one}>{other}" if pair.moved else one + other

    found = compare.pair_records([ord(c) for c in archived], [ord(c) for c in present])
    assert [written(pair) for pair in found] == pairs


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


def test_a_record_at_another_offset_than_mapped_is_misplaced() -> None:
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


# Offsets, groups and totals of `verify --against`.


def target_offsets(*runs: tuple[int, int, int]) -> TargetOffsets:
    return TargetOffsets(*(np.array(column, np.int64) for column in zip(*runs, strict=True)))


@pytest.mark.parametrize(
    ("committed", "due"),
    [
        (0, (7, "log start")),
        (10, (7, "exact")),
        (12, (9, "exact")),
        (13, (11, "next record")),
        (20, (11, "exact")),
        (21, (12, "log end")),
        (99, (12, "log end")),
    ],
)
def test_where_a_group_belongs(committed: int, due: tuple[int, str]) -> None:
    assert due_offset(target_offsets((10, 7, 3), (20, 11, 1)), committed) == due


def test_where_a_group_stands_well() -> None:
    assert due_offset(NO_OFFSETS, 5) == (0, "empty")
    assert is_right_position(7, 7, "exact", 20)
    assert not is_right_position(8, 7, "exact", 20)
    assert [is_right_position(found, 12, "log end", 14) for found in (11, 12, 14, 15)] == [False, True, True, False]


@pytest.fixture(scope="module")
def plan() -> RestorePlan:
    archive = make_archive(MemoryStore())
    point = archive.restore_point("latest")
    content = content_of(archive, point, [t for t in point.topics if t.name == "orders"])
    return plan_restore(RestoreRequest.of(Restore(map={"orders": "again"})), content, "cluster")


def test_every_partition_is_looked_at(plan: RestorePlan) -> None:
    """Also the one that holds nothing: something may have come there."""
    parts = _all_partitions(plan)
    assert sorted(p.tp for p in parts) == [TopicPartition("again", n) for n in range(3)]
    assert [p.partition for p in parts if not p.segments] == [2]


def test_the_map_is_cut_by_partition(plan: RestorePlan) -> None:
    runs = {
        TopicPartition("again", 0): target_offsets((0, 0, 10), (15, 11, 1)),
        TopicPartition("again", 1): target_offsets((0, 3, 12)),
    }
    table = runs_table({tp: (p.source, p.target, p.count) for tp, p in runs.items()})
    offsets = restored_offsets(plan, table)
    assert sorted(offsets) == [TopicPartition("again", n) for n in range(3)]
    for tp in offsets:
        wanted = runs.get(tp, NO_OFFSETS)
        for name in ("source", "target", "count"):
            assert getattr(offsets[tp], name).tolist() == getattr(wanted, name).tolist()
    assert all(not len(p.source) for p in restored_offsets(plan, SCHEMA.empty_table()).values())


@pytest.mark.parametrize(("into_existing", "start"), [(True, 40), (False, 3)])
def test_comparison_skips_earlier_records_only_in_an_existing_topic(
    plan: RestorePlan, into_existing: bool, start: int
) -> None:
    """Is another's where the topic was not empty, else one too many: it may be a second copy."""
    part = _all_partitions(plan)[0]
    plan = msgspec.structs.replace(plan, into_existing=into_existing)
    compare_plan = ComparePlan(plan, {part.tp: target_offsets((0, 40, 10))}, "read_committed", ends={part.tp: 60})
    found = _compared(compare_plan, part, 3, "target")
    assert (found.start, found.end) == (start, 60)


def comparison(counts: dict[DifferenceKind, int], named: int = 0, after: int = 0, stopped: str = "") -> Comparison:
    return Comparison(
        topic="orders",
        partition=1,
        target="again",
        records=1000,
        bytes=5,
        same=0,
        counts=counts,
        differences=tuple(Difference(what=("value",), source=n) for n in range(named)),
        after=after,
        stopped=stopped,
    )


def test_findings_count_what_differs_by_kind() -> None:
    wrong = comparison({"value": 2, "missing": 1}, after=3)
    assert findings_of([wrong], False) == [
        "again-1: of 1,000 records compared, 1 missing in the topic, 2 with another value"
    ]
    assert findings_of([comparison({}, after=3)], False) == []
    assert findings_of([comparison({}, after=3)], True) == [
        "again-1: of 1,000 records compared, 3 after the last restored one"
    ]
    (stopped,) = findings_of([comparison({}, stopped="too many")], False)
    assert "not compared any further: too many" in stopped
    assert [is_wrong(comparison({}, after=1), exact) for exact in (False, True)] == [False, True]
    assert sum_counts([wrong, wrong, comparison({})]) == {"missing": 2, "value": 4}


def test_empty_partitions_are_counted(plan: RestorePlan) -> None:
    """Nothing is compared of a partition that is empty on both sides."""
    (topic,) = topics_of(plan.topics, [], set(), set(), False)
    assert (topic.target, topic.partitions, topic.records, topic.ok) == ("again", 3, 0, True)


def test_so_many_are_named_in_all() -> None:
    results = [comparison({"value": 3}, named=3), comparison({"value": 2}, named=2)]
    for show in range(6):
        assert sum(len(r.differences) for r in fewer_named(results, show)) == min(show, 5)
    assert [len(r.differences) for r in fewer_named(results, 4)] == [3, 1]
