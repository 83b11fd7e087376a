"""Retention deletes what expires and nothing else: whatever the policy, beside readers and writers, after any crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.archive.query.content import content_of
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.segments.table import Segment
from kbackup.errors import RefusedError, UsageError
from kbackup.formats.index import decode_partition_index
from kbackup.jobs.points import history as history_of
from kbackup.jobs.points import label, pin, release, remove_label
from kbackup.jobs.retention import DatedPoint, Policy, moment, reasons, undo
from kbackup.jobs.verify import verify
from kbackup.metrics.registry import Silent
from kbackup.store.base import Store
from tests.support.expirations import (
    DAY,
    LOSS,
    NOW,
    Seen,
    all_seen,
    build,
    check_whole,
    expired,
    meanwhile,
    objects_of,
    seen,
)
from tests.support.histories import Did, History, day
from tests.support.memory_store import MemoryStore


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


@pytest.mark.exhaustive(keep=2)
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


# Compare the restore points that a policy retains with restic's rules by brute force.


EPOCH = datetime(2025, 11, 20, tzinfo=UTC)
LATER = datetime(2030, 1, 1, tzinfo=UTC)
LABELS: dict[str, Callable[[DatedPoint], str]] = {
    "last": lambda m: str(m.number),
    "daily": lambda m: m.at.strftime("%Y-%m-%d"),
    "weekly": lambda m: m.at.strftime("%G-%V"),
    "monthly": lambda m: m.at.strftime("%Y-%m"),
    "yearly": lambda m: m.at.strftime("%Y"),
}


def brute(policy: Policy, moments: list[DatedPoint], now: datetime) -> set[int]:
    """Of the last n periods that have any, the newest; the oldest of all where fewer than n were found."""
    kept = {moments[-1].number}
    for name, title in LABELS.items():
        newest: dict[str, int] = {}
        for m in moments:
            newest[title(m)] = m.number
        some = sorted(newest.values(), reverse=True)
        count = getattr(policy, name)
        kept |= set(some[:count])
        if count > len(some):
            kept.add(moments[0].number)
    if policy.within is not None:
        kept |= {m.number for m in moments if min(moments[-1].at, now) - m.at <= policy.within}
    return kept


counts = st.integers(0, 4)


@given(
    st.lists(st.integers(0, 24 * 800), min_size=1, max_size=30).map(sorted),
    st.builds(
        Policy, counts, counts, counts, counts, counts, st.none() | st.integers(0, 100).map(lambda d: timedelta(d))
    ),
    st.integers(0, 1000),
)
def test_policy_agrees_with_brute_force(hours: list[int], policy: Policy, today: int) -> None:
    now = EPOCH + timedelta(days=today)
    moments = [DatedPoint(n, EPOCH + timedelta(hours=hour)) for n, hour in enumerate(hours, 1)]
    kept = reasons(policy, moments, now)
    expected = {m.number for m in moments} if policy == Policy() else brute(policy, moments, now)
    assert set(kept) == expected
    assert all(kept.values())
    assert moments[-1].number in kept, "the newest stays in any case"


def test_each_says_why() -> None:
    days = [moment(n, f"2026-01-{n:02}T23:30:00.000+01:00") for n in range(1, 15)]
    kept = reasons(Policy(last=1, daily=2, weekly=2, within=timedelta(days=2)), days, LATER)
    assert kept == {14: ["within", "last", "daily", "weekly"], 13: ["within", "daily"], 12: ["within"], 11: ["weekly"]}
    assert reasons(Policy(yearly=3), days, LATER) == {14: ["yearly"], 1: ["oldest yearly"]}
    assert reasons(Policy(), days[:2], LATER) == {1: ["no policy"], 2: ["no policy"]}
    assert reasons(Policy(last=1), [], LATER) == {}


def test_clocks_that_went_back_keep_more_not_less() -> None:
    days = [3, 1, 2]
    moments = [DatedPoint(n, EPOCH + timedelta(days=d)) for n, d in enumerate(days, 1)]
    kept = reasons(Policy(daily=3), moments, LATER)
    assert set(kept) == {1, 2, 3}


def test_a_clock_that_was_ahead_once_takes_nothing_from_within() -> None:
    """The newest restore point is of ten years from now: what is of the last week is of the last week all the same."""
    today = EPOCH + timedelta(days=10)
    moments = [DatedPoint(n, EPOCH + timedelta(days=n)) for n in range(1, 10)]
    moments.append(DatedPoint(10, today + timedelta(days=3650)))
    kept = reasons(Policy(within=timedelta(days=7)), moments, today)
    assert set(kept) == set(range(3, 11))


# Pins, labels, and the history of an archive after sweeps.


def test_pins(built: MemoryStore) -> None:
    store = built.copy()
    assert pin(store, "latest").pinned == (9,)
    assert not pin(store, "9").changed
    assert pin(store, "2").pinned == (2, 9)
    with pytest.raises(UsageError, match="no restore point 6"):
        pin(store, "6")
    with pytest.raises(UsageError, match="3 is not pinned"):
        release(store, "3")
    expired(store, last=1)
    assert [p.number for p in open_archive(store).restore_points] == [2, 9]
    assert release(store, "2").pinned == (9,)
    expired(store, last=1)
    assert [p.number for p in open_archive(store).restore_points] == [9]
    with pytest.raises(UsageError, match="2 was let go"):
        pin(store, "2")
    check_whole(store, clean=True)


def test_labels(built: MemoryStore) -> None:
    store = built.copy()
    assert label(store, "2", "good").labels == {"good": 2}
    assert label(store, "good", "before-migration").labels == {"good": 2, "before-migration": 2}
    assert open_archive(store).restore_point("good").number == 2
    number = open_archive(store).state.number
    label(store, "2", "good")
    assert open_archive(store).state.number == number, "nothing changed"
    assert label(store, "latest", "good").labels == {"good": 9, "before-migration": 2}
    assert pin(store, "before-migration").pinned == (2,)
    for wrong in ("7", "latest", "7days", "", "a b", "ä", "a" * 101):
        with pytest.raises(UsageError, match="can't be used"):
            label(store, "2", wrong)
    with pytest.raises(UsageError, match="no restore point goood") as raised:
        open_archive(store).restore_point("goood")
    assert "'good'" in raised.value.hint
    release(store, "2")
    expired(store, last=2)
    assert open_archive(store).state.labels == {"good": 9}, "a label does not keep its restore point"
    assert remove_label(store, "good").labels == {}
    with pytest.raises(UsageError, match="no restore point has label 'good'"):
        remove_label(store, "good")
    check_whole(store)


def test_the_history_outlives_sweeps(built: MemoryStore) -> None:
    store = built.copy()
    pin(store, "3")
    label(store, "3", "good")
    expired(store, last=2, grace=DAY)
    undo(store, 60)
    archive = open_archive(store)
    before = history_of(archive)
    assert [row.catalog for row in before] == [*range(1, archive.state.number + 1)]
    assert [row.kind for row in before][-4:] == ["keep", "label", "expire", "undo"]
    assert all(row.at and row.by and row.summary for row in before)
    for last in (5, 3, 2):
        expired(store, last=last)
    archive = open_archive(store)
    assert len([e for e in store.list(layout.CATALOG) if e.key != layout.LATEST]) < 4
    rows = history_of(archive)
    assert rows[: len(before)] == before
    assert [row.catalog for row in rows] == [*range(1, archive.state.number + 1)]
    assert [row.kind for row in rows][len(before) :] == ["expire", "sweep"] * 3
    assert history_of(archive, 4) == rows[-4:]
    assert history_of(archive, 1000) == rows


# The report of an expiration, the log start it sets, and the settings of each incarnation.


def test_the_report_says_what_goes(store: Store) -> None:
    history = build(store)
    pin(store, "3")
    before, objects = all_seen(history.archive), objects_of(store)
    dry = expired(store, last=2, days=3, confirm=False)
    assert objects_of(store) == objects
    report = expired(store, last=2, days=3)
    assert dry.restore_points == report.restore_points
    assert dry.expiration == report.expiration
    assert (dry.records, dry.bytes, dry.segments) == (report.records, report.bytes, report.segments)
    fates = {p.number: p.reasons for p in report.restore_points}
    assert fates == {1: (), 2: (), 3: ("pinned",), 4: (), 5: (), 7: (), 8: ("last",), 9: ("last",)}
    assert report.spared == ("c",)
    archive = open_archive(store)
    assert [p.number for p in archive.restore_points] == [3, 8, 9]
    assert seen(archive, 3) == before[3], "pinned"
    with pytest.raises(UsageError, match="restore point 5 was let go") as raised:
        archive.restore_point(5)
    assert "3 and 8" in raised.value.hint
    with pytest.raises(UsageError, match="there is no restore point 77"):
        archive.restore_point(77)
    with pytest.raises(UsageError, match="was let go"):
        verify(store, "5", True, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    check_whole(store, clean=True)


def test_the_log_start_moves_on(store: Store) -> None:
    history = build(store)
    before = all_seen(history.archive)
    report = expired(store, days=3)
    assert report.records > 0
    assert all(p.stays for p in report.restore_points)
    archive = open_archive(store)
    content = content_of(archive, archive.restore_point(9), archive.restore_point(9).topics)
    a, b, c = ((t, t.partitions[0]) for t in content.topics)
    assert (a[1].start, a[1].expired, a[1].segments[0].first) == (19, 15, 20)  # days 1 to 5 and their markers
    assert (b[0].incarnation, b[1].start, b[1].expired) == (2, 5, 4), "of days 4 and 5"
    assert (c[1].start, c[1].expired, c[1].records) == (0, 0, 4), "it is compacted"
    old = content_of(archive, archive.restore_point(2), archive.restore_point(2).topics).topics[0].partitions[0]
    assert (old.start, old.end, old.expired) == (8, 8, 6), "nothing is left there"
    assert before[9].segments != seen(archive, 9).segments
    index = decode_partition_index(store.get("topics/a/index_partition_000"), "index")
    assert index[0].start_offset == 20
    assert json.loads(store.get("topics/a/consumer_offsets_partition_000")) == {"g": 19}, "it stood at 16"
    history.run(10, {"a": 3, "b": 2, "c": "out"})
    check_whole(store)
    assert expired(store, days=2).records > 0
    check_whole(store, clean=True)


def test_each_incarnation_goes_by_its_own_settings() -> None:
    """Compacted was what a topic was before it was made anew, or what it is since."""
    store = MemoryStore()
    compacted = {"cleanup.policy": "compact"}
    configs = {"was": compacted, "is": {}}
    history = History(store, configs)
    for number in range(1, 9):
        if number == 4:
            configs |= {"was": {}, "is": compacted}
        history.run(number, {"was": "anew" if number == 4 else 2, "is": "anew" if number == 4 else 2})
    before = all_seen(history.archive)
    report = expired(store, days=2)
    assert report.spared == ("is", "was (incarnation 1)")
    after = all_seen(open_archive(store))

    def left(name: str, incarnation: int, number: int) -> set[str]:
        return {s.key for s in after[number].segments if (s.topic, s.incarnation) == (name, incarnation)}

    assert left("is", 1, 3) == set(), "they are old news"
    assert left("was", 1, 3) == {s.key for s in before[3].segments if s.topic == "was"}
    assert left("is", 2, 8) == {s.key for s in before[8].segments if s.topic == "is"}
    assert 0 < len(left("was", 2, 8)) < len([s for s in before[8].segments if s.topic == "was"])
    check_whole(store, clean=True)


# Undo an expiration: before and after sweeps, and beside other operations.


def test_undo_brings_everything_back(store: Store) -> None:
    history = build(store)
    label(store, "2", "before-migration")
    before = all_seen(history.archive)
    files = {k: v for k, v in objects_of(store).items() if k.startswith((layout.TOPICS, layout.POINTS))}
    expired(store, last=2, days=3, grace=DAY)
    assert open_archive(store).state.labels == {}
    report = undo(store, 60)
    assert report.restore_points == (1, 2, 3, 4, 5, 7)
    archive = open_archive(store)
    assert report.catalog == archive.state.number
    assert all_seen(archive) == before
    assert archive.state.labels == {"before-migration": 2}
    assert {k: v for k, v in objects_of(store).items() if k.startswith((layout.TOPICS, layout.POINTS))} == files, (
        "byte for byte, and the derived files too"
    )
    check_whole(store)
    with pytest.raises(RefusedError, match="no expiration"):
        undo(store, 60)
    history.run(10, {"a": 3, "b": 2, "c": "out"})
    expired(store, last=9)
    check_whole(store, clean=True)


def test_undo_of_several_goes_back_one_by_one(built: MemoryStore) -> None:
    store = built.copy()
    views = [all_seen(open_archive(store))]
    for last, days in ((6, None), (0, 5), (4, 3)):
        expired(store, last=last, days=days, grace=DAY)
        views.append(all_seen(open_archive(store)))
    pin(store, "9")
    views.pop()
    while views:
        undo(store, 60)
        assert all_seen(open_archive(store)) == views.pop()
        check_whole(store)
    with pytest.raises(RefusedError, match="no expiration"):
        undo(store, 60)


def test_undo_keeps_what_was_done_since(built: MemoryStore) -> None:
    store = built.copy()
    history = History(store)
    history.topics = {t.name: t for t in open_archive(store).restore_point("latest").topics}
    before = all_seen(open_archive(store))
    label(store, "2", "good")
    expired(store, last=2, days=3, grace=DAY)
    history.run(10, {"a": 3, "b": "anew", "c": "out"})
    label(store, "10", "good")
    pin(store, "10")
    undo(store, 60)
    archive = open_archive(store)
    assert archive.state.labels == {"good": 10}
    assert [*archive.state.pins] == [10]
    assert {n: v for n, v in all_seen(archive).items() if n != 10} == before
    check_whole(store)
    history.run(11, {"a": 3, "b": 1, "c": "out"})
    expired(store, last=3, days=2)
    check_whole(store, clean=True)


def test_undo_is_refused_after_a_sweep(built: MemoryStore) -> None:
    store = built.copy()
    expired(store, last=2, days=3)
    with pytest.raises(RefusedError, match="no expiration that can be undone"):
        undo(store, 60)
    assert [p.number for p in open_archive(store).restore_points] == [8, 9]
    assert open_archive(store).state.number in {row.catalog for row in history_of(open_archive(store))}


def test_a_sweep_keeps_what_an_undo_brought_back(built: MemoryStore) -> None:
    """A restore point that went, came back and went again within the grace time is in none of the oldest and the newest
    catalog; readers between may have it, and it may come back again."""
    store = built.copy()
    store.age("", 2 * 24 * 3600.0)
    expired(store, last=2, days=3, grace=DAY)
    store.age("", 23 * 3600.0)
    undo(store, 60)
    old = open_archive(store)
    before = all_seen(old)
    expired(store, last=4, grace=DAY)
    undo(store, 60)
    expired(store, last=2, days=3, grace=DAY)
    store.age(layout.catalog_key(old.state.number - 1), 2 * 3600.0)
    assert expired(store, grace=DAY).expiration is None
    assert all_seen(Archive(store, old.info, old.committed)) == before
    undo(store, 60)
    assert all_seen(open_archive(store)) == before
    check_whole(store)
    expired(store)
    check_whole(store, clean=True)


def test_an_undo_just_before_a_sweep_is_not_harmed(built: MemoryStore) -> None:
    store = built.copy()
    before = all_seen(open_archive(store))
    expired(store, last=2, days=3, grace=DAY)
    with pytest.raises(RefusedError, match="brought restore points back"):
        expired(meanwhile(store, lambda: undo(store, 60)))
    assert all_seen(open_archive(store)) == before
    check_whole(store)


def test_a_sweep_just_before_an_undo_wins(built: MemoryStore) -> None:
    store = built.copy()
    expired(store, last=2, days=3, grace=DAY)
    after = all_seen(open_archive(store))
    with pytest.raises(RefusedError, match="may be deleted"):
        undo(meanwhile(store, lambda: expired(store)), 60)
    assert all_seen(open_archive(store)) == after
    check_whole(store)
    expired(store)
    check_whole(store, clean=True)


def test_two_undos_at_once_are_one(built: MemoryStore) -> None:
    store = built.copy()
    before = all_seen(open_archive(store))
    expired(store, last=2, days=3, grace=DAY)
    assert undo(meanwhile(store, lambda: undo(store, 60)), 60).restore_points == (1, 2, 3, 4, 5, 7)
    assert all_seen(open_archive(store)) == before
    check_whole(store)


def test_an_undo_beside_another_expiration_is_refused(built: MemoryStore) -> None:
    """Both let go of segments: what the second one dropped must not be missing in restore points that come back."""
    for last, days in ((2, None), (0, 2)):
        store = built.copy()
        expired(store, last=4, days=4, grace=DAY)
        with pytest.raises(RefusedError, match="went since that expiration"):
            undo(meanwhile(store, lambda: expired(store, last=last, days=days, grace=DAY)), 60)  # noqa: B023
        check_whole(store)
