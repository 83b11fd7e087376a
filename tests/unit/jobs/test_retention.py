"""What an expiration lets go, what an undo brings back, and which objects a sweep may delete."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, Committed, commit
from kbackup.archive.catalog.operations import end_run
from kbackup.archive.catalog.state import State
from kbackup.archive.catalog.sweep import Orphans, find_orphans, referred_keys
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Loss, dump
from kbackup.archive.query.content import content_of
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.run import begin_writing, open_or_create
from kbackup.archive.segments.table import Segment
from kbackup.errors import CorruptError, DeniedError, LeaseLostError, NoArchiveError, RefusedError, UsageError
from kbackup.formats.index import decode_partition_index
from kbackup.jobs.points import history as history_of
from kbackup.jobs.points import label, pin, release, remove_label
from kbackup.jobs.repair import repair
from kbackup.jobs.retention import DatedPoint, ExpireReport, Expiry, Policy, expire, moment, reasons, undo
from kbackup.jobs.verify import verify
from kbackup.metrics.registry import Silent
from kbackup.store.base import Buffer, Failed, ObjectInfo, Store, store_time
from tests.support.archives import Did, History, day
from tests.support.copies import copied
from tests.support.exhaustive import CRASHES, sample
from tests.support.faulty_store import Crash, CrashStore, FaultyStore, crashed, down
from tests.support.key_files import encrypted
from tests.support.memory_store import MemoryStore
from tests.support.repairs import repaired

NOW = timedelta(0)
DAY = timedelta(days=1)
LOSS = Loss(kind="retention", topic="a", partition=0, start=1, end=2, message="offset 1 of a-0 was deleted")


def expired(
    store: Store, *, last: int = 0, days: int | None = None, grace: timedelta = NOW, confirm: bool = True
) -> ExpireReport:
    older_than = None if days is None else timedelta(days=days)
    expiry = Expiry(Policy(last=last), older_than, grace)
    return expire(store, expiry, 60, Silent(), confirm=confirm)


def check_whole(store: Store, *, clean: bool = False) -> None:
    """`clean`: there are no orphans either."""
    report = verify(store, "all", True, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    assert report.findings == ()
    if clean:
        assert {note.file for note in report.notes} <= {"topics/"}


@dataclass(frozen=True)
class Seen:
    """The content of a restore point."""

    segments: tuple[Segment, ...]
    groups: object
    settings: object
    losses: tuple[str, ...]


def seen(archive: Archive, number: int) -> Seen:
    manifest = archive.restore_point(number)
    content = content_of(archive, manifest, manifest.topics)
    settings = tuple((t.name, t.incarnation, t.configs, t.replication_factor) for t in content.topics)
    segments = tuple(archive.segments(manifest))
    for segment in segments:
        assert archive.store.stat(segment.key).size == segment.stored
        assert archive.store.stat(layout.index_key_of(segment.key)).size
    return Seen(segments, content.groups, settings, content.losses)


def all_seen(archive: Archive) -> dict[int, Seen]:
    return {point.number: seen(archive, point.number) for point in archive.restore_points}


def check_sees(archive: Archive, expected: Mapping[int, Seen]) -> None:
    """Compare the content of every restore point; a failure names the first one that differs, and its field."""
    assert [point.number for point in archive.restore_points] == sorted(expected), "the restore points"
    for number, content in expected.items():
        found = seen(archive, number)
        for name in (field.name for field in fields(Seen)):
            assert getattr(found, name) == getattr(content, name), f"{name} of restore point {number}"


def objects_of(store: Store) -> dict[str, bytes]:
    """Every object but the lease's."""
    return {entry.key: store.get(entry.key) for entry in store.list() if entry.key != layout.LOCK}


def index_starts(store: Store) -> int:
    """Return the first offset in the index of partition 0 of topic a."""
    key = "topics/a/index_partition_000"
    return min(entry.start_offset for entry in decode_partition_index(store.get(key), key))


def crashed_run(store: Store) -> None:
    """A backup that died with a segment of topic a and a document of its restore point written."""
    with HeldLease(store, "kbackup backup", 60) as lease:
        writing = begin_writing(store, lease, "backup")
        store.put(layout.point_key(writing.next_point, writing.run, layout.GROUPS), b"interrupted")
        end = writing.archive.restore_point("latest").topics[0].partitions[0].end
        for kind in ("records", "index"):
            store.put(f"{layout.TOPICS}a/{layout.segment_stem(0, end + 3)}_{kind}", b"interrupted")


def build(store: Store, then: Callable[[int], object] = lambda number: None) -> History:
    """Eight restore points of three topics: b made anew at 4, c compacted and left out since 3, a with a loss.
    Between 5 and 7 a run died, whose segment no later one took over."""
    history = History(store, {"c": {"cleanup.policy": "compact"}})
    for number in range(1, 10):
        if number == 6:
            crashed_run(store)
            then(number)
            continue
        did: dict[str, Did] = {"a": 3, "b": "anew" if number == 4 else 2, "c": 2 if number < 3 else "out"}
        history.run(number, did, [LOSS] if number == 2 else [])
        then(number)
    return history


def meanwhile(store: Store, work: Callable[[], object]) -> FaultyStore:
    """`store`, where `work` is done just before the first catalog is created."""
    remaining = [work]

    class Meanwhile(FaultyStore):
        def put_new(self, key: str, data: Buffer) -> str:
            if layout.parse_catalog_key(key) is not None and remaining:
                remaining.pop()()
            return super().put_new(key, data)

    return Meanwhile(store)


pytestmark = pytest.mark.exhaustive(keep=1)


@pytest.fixture(scope="module")
def built() -> MemoryStore:
    """`build`; tests take copies."""
    store = MemoryStore()
    build(store)
    return store


@pytest.fixture
def store(built: MemoryStore) -> MemoryStore:
    return built.copy()


@pytest.fixture(params=["plain", "encrypted"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    plain = MemoryStore()
    return plain if request.param == "plain" else encrypted(plain, tmp_path)


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


class Round(NamedTuple):
    """Runs, then pins, then an expiration of all but the `last` restore points and of records older than `days`, which
    sweeps at once, or leaves a grace time, or is undone."""

    runs: list[dict[str, Did]]
    last: int = 0
    days: int | None = None
    pins: Sequence[int] = ()
    then: Literal["sweep", "grace", "undo"] = "sweep"


rounds = st.lists(
    st.builds(
        Round,
        runs=st.lists(dids, min_size=1, max_size=4),
        last=st.integers(0, 3),
        days=st.none() | st.integers(0, 4),
        pins=st.lists(st.integers(1, 12), max_size=1),
        then=st.sampled_from(["sweep", "grace", "undo"]),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.exhaustive(keep=2)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rounds)
@example([Round([{"a": 0, "b": 1}, {"a": 0, "b": 1}, {"a": "out", "b": "out"}], days=1)])
@example([Round([{"a": 0, "b": 1}, {"a": "out", "b": "out"}], days=0)])
@example([Round([{"a": 0, "b": 1}]), Round([{"a": 0, "b": "anew"}], days=0), Round([{"a": 0, "b": 0}], last=1)])
def test_expiration_leaves_retained_points_unchanged(rounds: list[Round]) -> None:
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
        check_sees(history.archive, after)
        assert {p.number: p.records for p in report.restore_points if p.stays} == {
            n: sum(s.count for s in each.segments) for n, each in after.items()
        }
        check_whole(store, clean=then == "sweep")
        if then == "sweep":
            left = {e.key for e in store.list(layout.TOPICS) if e.key.endswith("_records")}
            assert left == {s.key for each in after.values() for s in each.segments}
        else:
            check_sees(Archive(store, old.info, old.committed), before)
        if then == "undo" and report.expiration is not None:
            undo(store, 60)
            check_sees(history.archive, before)
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


def test_each_kept_point_has_the_rules_that_keep_it() -> None:
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


def test_a_pinned_point_outlives_the_policy_until_it_is_released(store: MemoryStore) -> None:
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
    with pytest.raises(UsageError, match="2 expired or was lost"):
        pin(store, "2")
    check_whole(store, clean=True)


def test_a_label_stands_for_its_point_and_moves(store: MemoryStore) -> None:
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


def test_the_history_outlives_sweeps(store: MemoryStore) -> None:
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


def test_the_report_says_what_goes(empty: Store) -> None:
    history = build(empty)
    pin(empty, "3")
    before, objects = all_seen(history.archive), objects_of(empty)
    dry = expired(empty, last=2, days=3, confirm=False)
    assert objects_of(empty) == objects
    report = expired(empty, last=2, days=3)
    assert dry.restore_points == report.restore_points
    assert dry.expiration == report.expiration
    assert (dry.records, dry.bytes, dry.segments) == (report.records, report.bytes, report.segments)
    fates = {p.number: p.reasons for p in report.restore_points}
    assert fates == {1: (), 2: (), 3: ("pinned",), 4: (), 5: (), 7: (), 8: ("last",), 9: ("last",)}
    assert report.spared == ("c",)
    archive = open_archive(empty)
    assert [p.number for p in archive.restore_points] == [3, 8, 9]
    assert seen(archive, 3) == before[3], "pinned"
    with pytest.raises(UsageError, match="restore point 5 expired or was lost") as raised:
        archive.restore_point(5)
    assert "3 and 8" in raised.value.hint
    with pytest.raises(UsageError, match="there is no restore point 77"):
        archive.restore_point(77)
    with pytest.raises(UsageError, match="expired or was lost"):
        verify(empty, "5", True, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    check_whole(empty, clean=True)


def test_the_log_start_moves_on(empty: Store) -> None:
    history = build(empty)
    before = all_seen(history.archive)
    report = expired(empty, days=3)
    assert report.records > 0
    assert all(p.stays for p in report.restore_points)
    archive = open_archive(empty)
    content = content_of(archive, archive.restore_point(9), archive.restore_point(9).topics)
    a, b, c = (topic.partitions[0] for topic in content.topics)
    assert (a.start, a.expired, a.segments[0].first) == (19, 15, 20)  # days 1 to 5 and their markers
    assert [topic.incarnation for topic in content.topics] == [1, 2, 1]
    assert (b.start, b.expired) == (5, 4), "of days 4 and 5"
    assert (c.start, c.expired, c.records) == (0, 0, 4), "it is compacted"
    old = content_of(archive, archive.restore_point(2), archive.restore_point(2).topics).topics[0].partitions[0]
    assert (old.start, old.end, old.expired) == (8, 8, 6), "nothing is left there"
    assert before[9].segments != seen(archive, 9).segments
    index = decode_partition_index(empty.get("topics/a/index_partition_000"), "index")
    assert index[0].start_offset == 20
    assert json.loads(empty.get("topics/a/consumer_offsets_partition_000")) == {"g": 19}, "it stood at 16"
    history.run(10, {"a": 3, "b": 2, "c": "out"})
    check_whole(empty)
    assert expired(empty, days=2).records > 0
    check_whole(empty, clean=True)


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


def test_undo_brings_everything_back(empty: Store) -> None:
    history = build(empty)
    label(empty, "2", "before-migration")
    before = all_seen(history.archive)
    files = {k: v for k, v in objects_of(empty).items() if k.startswith((layout.TOPICS, layout.POINTS))}
    expired(empty, last=2, days=3, grace=DAY)
    assert open_archive(empty).state.labels == {}
    report = undo(empty, 60)
    assert report.restore_points == (1, 2, 3, 4, 5, 7)
    archive = open_archive(empty)
    assert report.catalog == archive.state.number
    check_sees(archive, before)
    assert archive.state.labels == {"before-migration": 2}
    assert {k: v for k, v in objects_of(empty).items() if k.startswith((layout.TOPICS, layout.POINTS))} == files, (
        "byte for byte, and the derived files too"
    )
    check_whole(empty)
    with pytest.raises(RefusedError, match="no expiration"):
        undo(empty, 60)
    history.run(10, {"a": 3, "b": 2, "c": "out"})
    expired(empty, last=9)
    check_whole(empty, clean=True)


def test_undo_of_several_goes_back_one_by_one(store: MemoryStore) -> None:
    views = [all_seen(open_archive(store))]
    for last, days in ((6, None), (0, 5), (4, 3)):
        expired(store, last=last, days=days, grace=DAY)
        views.append(all_seen(open_archive(store)))
    pin(store, "9")
    views.pop()
    while views:
        undo(store, 60)
        check_sees(open_archive(store), views.pop())
        check_whole(store)
    with pytest.raises(RefusedError, match="no expiration"):
        undo(store, 60)


def test_undo_keeps_what_was_done_since(store: MemoryStore) -> None:
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


def test_undo_is_refused_after_a_sweep(store: MemoryStore) -> None:
    expired(store, last=2, days=3)
    with pytest.raises(RefusedError, match="no expiration that can be undone"):
        undo(store, 60)
    assert [p.number for p in open_archive(store).restore_points] == [8, 9]
    assert open_archive(store).state.number in {row.catalog for row in history_of(open_archive(store))}


def test_a_sweep_keeps_what_an_undo_brought_back(store: MemoryStore) -> None:
    """A restore point that went, came back and went again within the grace time is in none of the oldest and the newest
    catalog; readers between may have it, and it may come back again."""
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
    check_sees(Archive(store, old.info, old.committed), before)
    undo(store, 60)
    check_sees(open_archive(store), before)
    check_whole(store)
    expired(store)
    check_whole(store, clean=True)


def test_an_undo_just_before_a_sweep_is_not_harmed(store: MemoryStore) -> None:
    before = all_seen(open_archive(store))
    expired(store, last=2, days=3, grace=DAY)
    with pytest.raises(RefusedError, match="put objects back to use"):
        expired(meanwhile(store, lambda: undo(store, 60)))
    check_sees(open_archive(store), before)
    check_whole(store)


def test_a_sweep_just_before_an_undo_wins(store: MemoryStore) -> None:
    expired(store, last=2, days=3, grace=DAY)
    after = all_seen(open_archive(store))
    with pytest.raises(RefusedError, match="may be deleted"):
        undo(meanwhile(store, lambda: expired(store)), 60)
    check_sees(open_archive(store), after)
    check_whole(store)
    expired(store)
    check_whole(store, clean=True)


def test_two_undos_at_once_are_one(store: MemoryStore) -> None:
    before = all_seen(open_archive(store))
    expired(store, last=2, days=3, grace=DAY)
    assert undo(meanwhile(store, lambda: undo(store, 60)), 60).restore_points == (1, 2, 3, 4, 5, 7)
    check_sees(open_archive(store), before)
    check_whole(store)


def test_an_undo_beside_another_expiration_is_refused(built: MemoryStore) -> None:
    """Both let go of segments: what the second one dropped must not be missing in restore points that come back."""
    for last, days in ((2, None), (0, 2)):
        store = built.copy()
        expired(store, last=4, days=4, grace=DAY)
        with pytest.raises(RefusedError, match="have expired since that expiration"):
            undo(meanwhile(store, lambda: expired(store, last=last, days=days, grace=DAY)), 60)  # noqa: B023
        check_whole(store)


def test_deletes_that_are_refused_are_told_and_tried_again(store: MemoryStore) -> None:
    report = expired(Undeletable(store), last=2, days=3)
    assert report.failed
    assert set(report.failed.values()) == {"it is locked"}
    assert {e.key for e in store.list()} >= report.failed.keys()
    check_whole(store)
    longer = expired(store, grace=timedelta(days=900))
    assert (longer.deleted, longer.unreadable) == (0, None), "catalogs that could not be deleted are no harm"
    again = expired(store)
    assert again.deleted >= len(report.failed)
    check_whole(store, clean=True)


class Undeletable(FaultyStore):
    def delete(self, keys: Iterable[str]) -> list[Failed]:
        return [Failed(key, DeniedError("it is locked", "wait")) for key in keys]


def test_catalogs_that_can_not_be_deleted_stop_no_sweep(store: MemoryStore) -> None:
    """Object lock holds catalogs while tables that they refer to are deleted."""

    class LockedCatalogs(FaultyStore):
        def delete(self, keys: Iterable[str]) -> list[Failed]:
            each = list(keys)
            locked = [key for key in each if key.startswith(layout.CATALOG)]
            failed = [Failed(key, DeniedError("it is locked", "wait")) for key in locked]
            return [*failed, *self.inner.delete([key for key in each if key not in locked])]

    assert expired(LockedCatalogs(store), last=5).failed
    again = expired(LockedCatalogs(store), last=4, grace=timedelta(days=900))
    assert again.unreadable is None
    check_whole(store)
    assert expired(store, last=2).failed == {}
    check_whole(store, clean=True)


def test_nothing_is_deleted_while_a_damaged_catalog_is_young(store: MemoryStore) -> None:
    """Nobody can tell what its readers have open."""
    store.age("", 2 * 24 * 3600.0)
    old = open_archive(store).committed.catalog
    assert old is not None
    expired(store, last=4, grace=DAY)
    newest = open_archive(store).committed.catalog
    assert newest is not None
    store.delete([old.tables.points[-1].key])
    before = objects_of(store).keys()
    report = expired(store, last=2, grace=DAY)
    assert (report.deleted, report.unreadable) == (0, old.number)
    assert objects_of(store).keys() >= before
    store.age("", 2 * 24 * 3600.0)
    assert expired(store, grace=DAY).unreadable is None
    expired(store)
    assert [p.number for p in open_archive(store).restore_points] == [8, 9]
    check_whole(store, clean=True)


def test_a_sweep_passes_over_a_catalog_that_a_repair_replaced(store: MemoryStore) -> None:
    """As it was before the repair, nobody can open the archive; what the repair made stays whole. Nothing is deleted
    before the grace time of the repair is over."""
    for last in (5, 4):
        expired(store, last=last, grace=DAY)
    store.age("", 2 * 24 * 3600.0)
    catalog = open_archive(store).committed.catalog
    assert catalog is not None
    store.delete([catalog.tables.segments[-1].key])
    assert repair(store, True, False, 60, lambda: None, Silent()).confirmed  # type: ignore[arg-type, return-value]
    views = all_seen(open_archive(store))
    report = expired(store, grace=DAY)
    assert (report.failed, report.deleted, report.unreadable) == ({}, 0, catalog.number)
    check_sees(open_archive(store), views)
    check_whole(store)
    store.age("", 2 * 24 * 3600.0)
    assert expired(store, grace=DAY).unreadable is None
    expired(store)
    check_sees(open_archive(store), views)
    check_whole(store)


@pytest.mark.usefixtures("tasks_run_here")
def test_a_copy_follows_beyond_an_undo_of_restore_points_whose_manifests_a_repair_made_anew(store: MemoryStore) -> None:
    """It has the former manifests, and knows the source by them."""
    copy = MemoryStore()
    copied(store, copy)
    first = open_archive(store).restore_points[0]
    (groups,) = [key for key in first.documents if key.endswith("groups.json")]
    store.delete([groups])
    repaired(store)
    former = open_archive(copy).state.lineage
    assert (first.number, first.manifest) in former
    assert open_archive(store).state.point(first.number) != first, "the manifest was made anew"
    expired(store, last=2, grace=DAY)
    undo(store, 60)
    assert former <= open_archive(store).state.lineage
    copied(store, copy)
    check_whole(copy)


class Forgetful(FaultyStore):
    """Leaves objects out of listings of the whole store."""

    def __init__(self, inner: Store, forgotten: str) -> None:
        super().__init__(inner)
        self.forgotten = forgotten

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        return (e for e in super().list(prefix, start_after) if prefix or self.forgotten not in e.key)


@pytest.mark.parametrize("forgotten", ["points/0000000009", "catalog/", "topics/a", "tables/"])
def test_an_object_that_a_listing_lacks_costs_nothing(store: MemoryStore, forgotten: str) -> None:
    old = open_archive(store)
    before = all_seen(old)
    expired(Forgetful(store, forgotten), last=2, grace=DAY)
    check_sees(Archive(store, old.info, old.committed), before)
    check_whole(store)
    expired(store)
    check_whole(store, clean=True)


def test_sweep_spares_segments_that_the_next_backup_may_salvage(store: MemoryStore) -> None:
    mine = "topics/a/segment_partition_000_from_offset_0000000888_records"
    over = "topics/b/segment_partition_000_from_offset_0000000888_records"
    new = "topics/new/segment_partition_000_from_offset_0000000000_records"
    foreign = "topics/b/notes.txt"
    for key in (mine, over, new, foreign):
        store.put(key, b"x")
    expired(store)
    left = {e.key for e in store.list(layout.TOPICS)}
    assert {mine, new, foreign} <= left
    assert over not in left, "that incarnation is over"


def test_expiration_never_empties_an_archive() -> None:
    store = MemoryStore()
    history = History(store)
    history.run(1, {"a": 3})
    history.run(2, {"a": 0})
    number = history.archive.state.number
    with pytest.raises(RefusedError, match="every record of the newest restore point, 2"):
        expired(store, days=0)
    assert open_archive(store).state.number == number
    assert expired(store, days=2, grace=DAY).expiration is None, "counted back from the newest restore point"
    assert expired(store, last=1).expiration == number + 1
    assert [p.number for p in open_archive(store).restore_points] == [2]


def test_where_there_is_no_archive_nothing_is_written() -> None:
    store = MemoryStore()
    for confirm in (False, True):
        with pytest.raises(NoArchiveError):
            expired(store, last=1, confirm=confirm)
    for command in (pin, release):
        with pytest.raises(NoArchiveError):
            command(store, "1")
    with pytest.raises(NoArchiveError):
        undo(store, 60)
    assert list(store.list()) == []
    open_or_create(store)
    with pytest.raises(NoArchiveError, match="no restore point"):
        expired(store, last=1)
    with pytest.raises(NoArchiveError, match="no restore point"):
        pin(store, "latest")
    with pytest.raises(RefusedError, match="no expiration"):
        undo(store, 60)
    with pytest.raises(NoArchiveError, match="no restore point"):
        label(store, "latest", "first")


# Deletes wait for the grace time, whatever a writer forges.


@pytest.mark.exhaustive
def test_expired_objects_stay_until_the_grace_time_is_over() -> None:
    """Expired objects stay for readers until the grace time is over; then any run deletes them."""
    store = MemoryStore()
    history = build(store)
    old = history.archive
    before = all_seen(old)
    remaining = {key for key in objects_of(store) if key.startswith("topics/a/") and "0000000023" in key}
    first = expired(store, last=3, days=3, grace=DAY)
    assert first.expiration == old.state.number + 1
    assert first.deleted == 0, "all is young"
    store.age("", 2 * 24 * 3600.0)
    history.run(10, {"a": 3, "b": 2, "c": "out"})
    again = expired(store, last=2, grace=DAY)
    assert again.deleted > len(remaining) == 2, "of the first expiration, and of the crashed run"
    assert remaining.isdisjoint(objects_of(store))
    assert expired(store, grace=DAY).deleted == 0
    assert set(before) - set(all_seen(open_archive(store))) == {1, 2, 3, 4, 5, 7, 8}
    store.requests.clear()
    dry = expired(store, confirm=False)
    assert (dry.expiration, dry.deleted, dry.failed) == (None, 0, {})
    assert store.requests["LIST"] == 2, "catalogs and flows alone: it asks little of a large archive"
    third = expired(store)
    assert third.deleted > 10
    check_whole(store, clean=True)


@pytest.mark.exhaustive
def test_readers_within_the_grace_time_read_on() -> None:
    """Of each catalog that was the newest within the grace time, whatever was swept since."""
    store = MemoryStore()
    history = History(store)
    readers: list[tuple[Archive, dict[int, Seen]]] = []
    for number in range(1, 12):
        history.run(number, {"a": 3, "b": "anew" if number % 4 == 0 else 2})
        if number % 3 == 0:
            expired(store, last=3, days=4, grace=DAY)
        if number == 5:
            store.age("", 2 * 24 * 3600.0)
        if number > 4:
            readers.append((history.archive, all_seen(history.archive)))
    assert expired(store, last=2, days=2, grace=DAY).expiration is not None
    for old, before in readers:
        check_sees(Archive(store, old.info, old.committed), before)
    check_whole(store)


def forged(store: MemoryStore, gap: int, operation: Callable[[State], State]) -> None:
    """A catalog with any content, `gap` numbers after the next, as a writer without the right to delete can make it."""
    archive = open_archive(store)
    base = Committed(replace(archive.state, number=archive.state.number + gap), archive.committed.catalog)
    commit(store, base, operation, Author("expire", "", "forged"))


def emptied(state: State) -> State:
    """Without all restore points but the newest, and all segments; swept, and with a high next number."""
    points = state.points.dicts()[-1:]
    return replace(
        state,
        swept=state.number,
        reinstated=state.number,
        next_point=1000,
        points=state.points.replace(points),
        segments=state.segments.replace([]),
    )


@pytest.mark.parametrize("gap", [0, 5])
def test_a_writer_can_have_nothing_deleted_before_the_grace_time_is_over(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, gap: int
) -> None:
    """A writer without the right to delete can forge any time and any catalog: the store's times count."""
    store.age("", 2 * 24 * 3600.0)
    expired(store, grace=DAY)
    before = {key for key in objects_of(store) if key.startswith((layout.TOPICS, layout.POINTS))}
    monkeypatch.setattr("kbackup.archive.catalog.commit.now", lambda: "2020-01-01T00:00:00.000Z")
    forged(store, gap, emptied)
    forged(store, 0, lambda state: replace(state, swept=state.number))
    monkeypatch.undo()
    assert expired(store, grace=DAY).deleted == 0
    assert {key for key in objects_of(store) if key.startswith((layout.TOPICS, layout.POINTS))} >= before
    store.age("", 2 * 24 * 3600.0)
    expired(store, grace=DAY)
    assert not objects_of(store).keys() >= before, "the forged state is the state"


# Expirations, pins and undos beside backups and each other.


@contextmanager
def backup_running(store: Store) -> Iterator[Callable[[], None]]:
    """A backup that has begun and holds the lease; the function ends it with restore point 10, of topic a."""
    history = History(store)
    history.topics = {t.name: t for t in open_archive(store).restore_point("latest").topics}

    def end() -> None:
        history.run(10, {"a": 3, "b": "out", "c": "out"})

    with HeldLease(store, "kbackup backup", 60) as lease:
        history.writing = begin_writing(store, lease, "backup")
        yield end


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("grace", [NOW, DAY])
def test_everything_but_segments_works_beside_a_backup(store: MemoryStore, grace: timedelta) -> None:
    before = all_seen(open_archive(store))
    index = store.get("topics/a/index_partition_000")
    with backup_running(store) as end:
        pin(store, "8")
        pin(store, "7")
        release(store, "7")
        label(store, "8", "before-migration")
        report = expired(store, last=2, days=3, grace=grace)
        assert report.expiration is not None
        assert bool(report.deleted) == (grace == NOW)
        assert store.get("topics/a/index_partition_000") == index, "the backup holds the lease"
        end()
    archive = open_archive(store)
    assert [p.number for p in archive.restore_points] == [8, 9, 10]
    views = all_seen(archive)
    assert (views[8], {*archive.state.pins}, archive.state.labels) == (before[8], {8}, {"before-migration": 8})
    assert views[9].segments == tuple(s for s in views[10].segments if s in before[9].segments)
    assert len(views[10].segments) > len(views[9].segments)
    check_whole(store)
    first = next(s for s in views[10].segments if (s.topic, s.partition) == ("a", 0)).first
    assert index_starts(store) == first
    if grace == DAY:
        undo(store, 60)
        assert {n: v for n, v in all_seen(open_archive(store)).items() if n != 10} == before
        check_whole(store)
    expired(store)
    check_whole(store, clean=True)


def test_an_undo_beside_a_backup(store: MemoryStore) -> None:
    before = all_seen(open_archive(store))
    expired(store, last=1, days=2, grace=DAY)
    with backup_running(store) as end:
        undo(store, 60)
        end()
    views = all_seen(open_archive(store))
    assert {n: v for n, v in views.items() if n != 10} == before
    assert views[10].segments[:3] == before[9].segments[:3]
    check_whole(store)


def test_an_expiration_rebases_on_another_one(built: MemoryStore) -> None:
    store = built.copy()
    expired(meanwhile(store, lambda: expired(store, last=4, days=4)), last=1, days=3)
    archive = open_archive(store)
    assert [p.number for p in archive.restore_points] == [9]
    alone = built.copy()
    expired(alone, last=1, days=3)
    check_sees(archive, all_seen(open_archive(alone)))
    expired(store)
    check_whole(store, clean=True)


def test_a_pin_beside_an_expiration_holds(built: MemoryStore) -> None:
    store = built.copy()
    before = all_seen(open_archive(store))
    expired(meanwhile(store, lambda: pin(store, "5")), last=1)
    assert [p.number for p in open_archive(store).restore_points] == [5, 9]
    store = built.copy()
    with pytest.raises(RefusedError, match="a pinned restore point has records"):
        expired(meanwhile(store, lambda: pin(store, "5")), last=1, days=3)
    check_sees(open_archive(store), before)
    check_whole(store)


def test_a_closed_run_commits_nothing(store: MemoryStore) -> None:
    """A writer slept until everything around its catalog was swept: even the number after its own is free again."""
    with HeldLease(store, "kbackup backup", 60) as lease:
        slept = begin_writing(store, lease, "backup")
        store.delete([layout.LOCK])
        crashed_run(store)
        expired(store, last=2)
        pin(store, "8")
        expired(store, last=1)
        assert layout.catalog_key(slept.archive.state.number + 1) not in objects_of(store)
        slept.lease.check = lambda: None  # type: ignore[method-assign]
        with pytest.raises(LeaseLostError, match="another writer has ended this run"):
            slept.commit(lambda state: end_run(state, slept.run), "end", "")
    assert {*open_archive(store).state.pins} == {8}
    check_whole(store)


def test_a_pin_that_slept_holds_on_the_newest_catalog(store: MemoryStore) -> None:
    """Catalogs after the one that it read were swept: it must not take their place."""

    def others() -> None:
        for name in ("one", "two", "three"):
            label(store, "9", name)
            expired(store)

    before = open_archive(store).state.number
    assert pin(meanwhile(store, others), "9").pinned == (9,)
    archive = open_archive(store)
    assert ({*archive.state.pins}, {*archive.state.labels}) == ({9}, {"one", "two", "three"})
    assert archive.state.number > before + 6
    expired(store)
    check_whole(store, clean=True)


# An expiration and an undo that crash at any write.


class Outcome(NamedTuple):
    """What an expiration leaves."""

    keys: set[str]
    points: set[str]
    content: dict[int, Seen]
    past_manifests: object
    starts: object


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.exhaustive(keep=2)
def test_a_crash_at_every_write(built: MemoryStore, after: bool) -> None:
    """The archive is whole at each moment, and the next run comes to the same end."""
    pinned = built.copy()
    pin(pinned, "3")

    def outcome(store: Store) -> Outcome:
        archive = open_archive(store)
        keys = {entry.key for entry in store.list(layout.TOPICS) if "index_p" not in entry.key}
        points = {entry.key for entry in store.list(layout.POINTS)}
        return Outcome(keys, points, all_seen(archive), archive.state.past_manifests, archive.state.starts)

    counting = CrashStore(pinned.copy())
    before = all_seen(open_archive(counting))
    expired(counting, last=2, days=3)
    end = outcome(counting)
    assert counting.writes > 8
    for at in sample(range(1, counting.writes + 1), regular=CRASHES):
        inner = pinned.copy()
        dying = CrashStore(inner, at, after)
        with suppress(Crash):  # nothing follows the last delete
            expired(dying, last=2, days=3)
        assert dying.down
        inner.delete([layout.LOCK])  # it ran out
        check_whole(inner)
        archive = open_archive(inner)
        check_sees(archive, before if not archive.state.past_manifests else end.content)
        expired(inner, last=2, days=3)
        assert outcome(inner)._asdict() == end._asdict()
        expired(inner)  # tables of a catalog that was never created go when its number is given
        check_whole(inner, clean=True)


@pytest.mark.exhaustive
def test_a_crash_at_every_write_of_undo(store: MemoryStore) -> None:
    before = all_seen(open_archive(store))
    expired(store, last=2, days=3, grace=DAY)
    after = all_seen(open_archive(store))
    for crash in crashed(store, lambda inner: undo(inner, 60)):
        check_whole(crash)
        views = all_seen(open_archive(crash))
        assert views in (before, after)
        if views == after:
            undo(crash, 60)
        check_sees(open_archive(crash), before)
        check_whole(crash)


@pytest.mark.parametrize("then", ["backup", "expire"])
def test_the_next_run_writes_the_derived_files_of_a_crashed_one(store: MemoryStore, then: str) -> None:
    fails = FaultyStore(store, down("put", "topics/*"))
    with pytest.raises(Exception, match="down"):
        expired(fails, last=2, days=3)
    check_whole(store)
    store.delete([layout.LOCK])
    if then == "expire":
        assert expired(store).expiration is None
    else:
        with HeldLease(store, "kbackup backup", 60) as lease:
            begin_writing(store, lease, "backup")
    assert index_starts(store) == 20
    check_whole(store)


# Damage of any file that retention reads is found.


@pytest.mark.exhaustive
def test_damage_of_any_file_that_retention_reads_is_found(store: MemoryStore) -> None:
    """Nothing is taken for expired that was not."""
    history = History(store)
    history.topics = {t.name: t for t in open_archive(store).restore_point("latest").topics}
    pin(store, "3")
    expired(store, last=3, days=4)
    history.run(10, {"a": 3, "b": 2, "c": "out"})
    expired(store, last=2)
    catalog = open_archive(store).committed.catalog
    assert catalog is not None
    tables = [getattr(catalog.tables, name) for name in catalog.tables.__struct_fields__]
    keys = [chunks[0].key for chunks in tables if chunks]  # nothing was erased
    manifests = [point.documents[0] for point in open_archive(store).restore_points]
    for key in (layout.catalog_key(catalog.number), *keys, *manifests):
        whole = store.get(key)
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        for data in (None, b"", whole[:-2], flipped):
            with changed(store, key, data):
                report = verify(store, "all", True, lambda: None, Silent())  # type: ignore[arg-type, return-value]
                assert any(key in f"{f.file} {f.what}" for f in report.findings), (key, data)
                with pytest.raises(CorruptError, match=key):
                    use(store)
    check_whole(store)


def use(store: Store) -> None:
    archive = open_archive(store)
    all_seen(archive)
    history_of(archive)
    expired(store, last=1, confirm=False)


@contextmanager
def changed(store: Store, key: str, data: bytes | None) -> Iterator[None]:
    before = store.get(key)
    store.delete([key])
    if data is not None:
        store.put(key, data)
    yield
    store.put(key, before)


# Sweeps beside forged catalogs and wrong clocks: an age is what the store says of an object.


def forge(store: Store, **members: object) -> None:
    """Write a catalog as whoever may write can: by default the next one, in which no restore point has a segment."""
    archive = open_archive(store)
    catalog = archive.committed.catalog
    assert catalog is not None
    members = {"number": catalog.number + 1, "previous": None, "swept": catalog.number, **members}
    forged = structs.replace(catalog, **members, tables=structs.replace(catalog.tables, segments=()))
    store.put(layout.catalog_key(forged.number), dump(forged))


@pytest.mark.parametrize("tables", [False, True], ids=["catalogs whole", "tables overwritten"])
@pytest.mark.parametrize("catalogs", [0, 3, 99], ids=["none", "some", "all"])
def test_no_forged_catalog_makes_a_sweep_delete_before_the_grace_time(
    tables: bool, catalogs: int, store: MemoryStore
) -> None:
    """A writer may commit any catalog, call any other one swept, and overwrite catalogs and tables: nothing that was
    written by then is deleted before the store's own times allow it."""
    store.age("", 30 * 24 * 3600.0)
    committed = open_archive(store).committed
    newest, needed = committed.state.number, referred_keys(committed)
    assert committed.catalog is not None
    for ref in committed.catalog.tables.segments if tables else ():
        store.put(ref.key, b"overwritten")
    for number in range(max(1, newest - catalogs), newest + 1) if catalogs else ():
        forge(store, number=number, swept=number - 1)
    forge(store)
    orphans = sweep(store, DAY)
    assert not needed & {each.key for each in orphans.objects}, "they were let go just now, by the store's clock"
    if tables and not catalogs:
        assert orphans.unreadable == newest, "a catalog whose tables are others stops the sweep"


def sweep(store: Store, grace: timedelta) -> Orphans:
    """As `expire` sweeps."""
    archive = open_archive(store)
    cutoff = store_time(store, "check") - grace.total_seconds()
    return find_orphans(store, archive.committed, store.list(), cutoff)


def test_restored_points_stay_below_a_forged_catalog(store: MemoryStore) -> None:
    """The catalog of an undo counts, whatever a later one says of it."""
    expired(store, last=2, grace=timedelta(days=900))
    store.age("", 5 * 24 * 3600.0)
    undo(store, 60)
    needed = referred_keys(open_archive(store).committed)
    forge(store, reinstated=0)
    assert not needed & {each.key for each in sweep(store, DAY).objects}


def test_a_replaced_catalog_of_the_grace_time_stops_a_sweep(store: MemoryStore) -> None:
    """The next catalog names its checksum."""
    expired(store, last=2, grace=timedelta(days=900))
    store.age("", 5 * 24 * 3600.0)
    undo(store, 60)
    number = open_archive(store).state.number
    pin(store, "9")
    forge(store, number=number, reinstated=0)
    orphans = sweep(store, DAY)
    assert (orphans.objects, orphans.unreadable) == ((), number)


def test_an_orphan_that_was_written_within_the_grace_time_stays(store: MemoryStore) -> None:
    store.age("", 5 * 24 * 3600.0)
    over = "topics/b/segment_partition_000_from_offset_0000000888_records"
    store.put(over, b"x")
    assert over not in {each.key for each in sweep(store, DAY).objects}
    store.age(over, 2 * 24 * 3600.0)
    assert over in {each.key for each in sweep(store, DAY).objects}


def test_ages_count_by_the_clock_of_the_store(built: MemoryStore) -> None:
    """A machine whose clock is days ahead deletes nothing earlier."""
    behind = MemoryStore(clock=lambda: 1e9)
    build(behind)
    assert expired(behind, last=2, grace=DAY).deleted == 0
    assert expired(behind, last=2).deleted > 0
    check_whole(behind, clean=True)


def test_a_sweep_streams_the_listing(store: MemoryStore) -> None:
    """Of a thousand objects that stay, no more than one is held."""
    alive: list[weakref.ref[Probe]] = []
    most = 0

    class Probe(str):
        __slots__ = ("__weakref__",)

    class Streams(FaultyStore):
        def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
            nonlocal most
            for entry in self.inner.list(prefix, start_after):
                if prefix:
                    yield entry
                    continue
                key = Probe(entry.key)
                alive.append(weakref.ref(key))
                yield entry._replace(key=key)
                del key
                most = max(most, sum(ref() is not None for ref in alive))

    report = expired(Streams(store), last=9)
    assert len(alive) > 50
    assert most <= report.deleted + 3, "objects that stay are not collected"
