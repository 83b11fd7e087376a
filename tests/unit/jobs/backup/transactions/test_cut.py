"""What kbackup decides is the rule of README.md, in every state of the model."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import pytest

from kbackup.errors import CorruptError
from kbackup.kafka.control.logs import LogBatch, LogWindow
from kbackup.kafka.transaction_records import Commit, Entry, commit_of, entry_of
from kbackup.kafka.transactions import (
    Boundary,
    Bounds,
    CommitMarker,
    CutReason,
    MarkerCount,
    OpenTransaction,
    add_entry,
    boundaries_in,
    boundary_of,
    bounds_of,
    commit_markers,
    cut_window,
    must_count,
    prepared,
)
from kbackup.types import CommittedOffset, TopicPartition
from tests.support.exhaustive import sample
from tests.unit.jobs.backup.transactions import cluster as model
from tests.unit.jobs.backup.transactions import rules as model_rules
from tests.unit.jobs.backup.transactions.cluster import ABORT, Producer, Transaction, walk
from tests.unit.jobs.backup.transactions.rules import Known, Log, UndecidedError, Whole
from tests.unit.jobs.backup.transactions.test_transactions import (
    BOTH,
    ENDS,
    FENCE,
    WITHOUT_RECORDS,
    check,
    random_transaction,
)


def tp_of(partition: int) -> TopicPartition:
    return TopicPartition("orders", partition)


def log_of(who: int) -> TopicPartition:
    return TopicPartition("__transaction_state", who)


def entries_of(cluster: model.Cluster, who: int) -> list[Entry]:
    entries = []
    for offset, event in enumerate(cluster.events[who]):
        partitions = frozenset(map(tp_of, event.partitions))
        complete = event.kind == model.COMPLETE
        entries.append(Entry(log_of(who), offset, who, event.epoch, event.version, complete, partitions, event.aborted))
    return entries


def batches_of(log: Log, stable: int) -> list[LogBatch]:
    return [
        LogBatch(n, n, 0, b.kind != model.DATA, b.kind == ABORT, True, b.producer, b.epoch)
        for n, b in enumerate(log[stable:], stable)
    ]


def window_of(log: Log, stable: int, end: int) -> LogWindow:
    window = LogWindow(stable, end)
    for batch in batches_of(log, stable):
        if window.complete:
            break
        window.add(batch)
    return window


def to_count(producers: Mapping[int, Sequence[Entry]]) -> set[tuple[TopicPartition, int]]:
    """Return the places where markers are counted."""
    ends = dict.fromkeys(map(log_of, range(9)), 99)
    return {(tp, who) for tp, who in prepared(producers.values(), ends, ends) if must_count(who, producers[who])}


@dataclass(frozen=True)
class Built(Whole):
    """`Whole` by the functions of kbackup."""

    def _bounds(
        self, known: Known, count: model_rules.Count, cluster: model.Cluster, partition: int, who: int
    ) -> Hashable:
        entries = entries_of(cluster, who)[known.before[who] :]
        log = log_of(who)
        found = prepared([entries], {log: count.before[who]}, {log: count.after[who]})
        markers = commit_markers(who, batches_of(cluster.logs[partition], known.stable[partition]))
        now = bounds_of(markers, MarkerCount(count.ends[partition], *found[tp_of(partition), who]))
        for before in self._earlier(known, partition, who):
            now = Bounds(max(now.least, before.least), min(now.most, before.most), now.exact or before.exact)
        return now

    def _earlier(self, known: Known, partition: int, who: int) -> list[Bounds]:
        bounds = known.bounds[partition][who] if known.bounds else None
        assert bounds is None or isinstance(bounds, Bounds)
        return [] if bounds is None else [bounds]

    def _inside(self, known: Known, cluster: model.Cluster) -> list[set[int]]:
        producers = {who: own for who, at in enumerate(known.before) if (own := entries_of(cluster, who)[at:])}
        counted = to_count(producers)
        inside = []
        for p, log in enumerate(cluster.logs):
            tp, stable = tp_of(p), known.stable[p]
            window = window_of(log, stable, known.ends[p])
            for batch in batches_of(log, window.position):
                window.add(batch)  # as far as markers are counted
            boundaries = {}
            for who in producers:
                if (tp, who) in counted:
                    boundaries[who] = boundary_of(commit_markers(who, window.batches), self._earlier(known, p, who))
            cut = cut_window(tp, stable, window, producers, boundaries)
            if isinstance(cut, OpenTransaction):
                assert cut.reason in ("repeated marker", "not counted")
                raise UndecidedError(never=cut.reason == "repeated marker")
            end, held = cut
            inside.append(set(range(end)).difference(*(range(*run) for run in held)))
        return inside


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("ends", ENDS, ids=str)
def test_every_state_of_two_partitions(ends: tuple[str, str], version: int) -> None:
    program = Producer(tuple(Transaction((0, 1), end) for end in ends), version)
    check([program], 2, Built(groups=(0,), others=True))


@pytest.mark.exhaustive(keep=0)
@pytest.mark.parametrize("program", [Producer((BOTH, BOTH), upgraded=True), Producer((BOTH, FENCE))], ids=str)
def test_a_producer_that_changes_its_version(program: Producer) -> None:
    check([program], 2, Built(others=True))


@pytest.mark.exhaustive
@pytest.mark.parametrize("program", WITHOUT_RECORDS, ids=str)
def test_every_state_of_a_transaction_without_records(program: Producer) -> None:
    check([program], 2, Built())


def test_every_state_of_two_producers_in_one_partition() -> None:
    check([Producer((Transaction((0, 0)),)), Producer((Transaction((0,)),), version=2)], 1, Built())


def test_random_walks_of_three_producers() -> None:
    random = Random(20261127)
    for _ in sample(range(200), 40, regular=100):
        programs = [
            Producer(tuple(random_transaction(random) for _ in "123"), version)
            for version in random.choices((1, 2), k=3)
        ]
        torn = walk(programs, 3, Built(groups=(0, 0, None)), random)
        assert not torn, torn


# What the model doesn't have.

TP = tp_of(0)


def entry(
    offset: int,
    producer: int,
    epoch: int,
    complete: bool,
    version: int = 2,
    partitions: Sequence[int] = (),
    aborted: bool = False,
) -> Entry:
    return Entry(log_of(0), offset, producer, epoch, version, complete, frozenset(map(tp_of, partitions)), aborted)


def window(words: str, end: int | None = None) -> LogWindow:
    """The window of a log like '1 2 plain 1:COMMIT', with an offset for each word: data, or a marker with epoch 5."""
    found = LogWindow(0, len(words.split()) if end is None else end)
    for n, word in enumerate(words.split()):
        number, _, marker = word.partition(":")
        producer = -1 if number == "plain" else int(number)
        found.add(LogBatch(n, n, 0, bool(marker), marker == ABORT, producer >= 0, producer, 5))
    return found


def cut(words: str, entries: Sequence[Entry] = (), outside: int | None = None, end: int | None = None) -> object:
    """The cut of a window. A count tells how many commits of producer 1 are `outside` of the restore point; no count
    does if that is None."""
    found = window(words, end)
    counts = {(TP, 1): [] if outside is None else [MarkerCount(99, outside, outside)]}
    producers = {each.producer_id: entries for each in entries}
    if not to_count(producers):
        counts = {}
    return cut_window(TP, 0, found, producers, boundaries_in(TP, found, counts))


def test_held_batches_are_runs_and_the_last_one_ends_the_partition() -> None:
    """Producer 1 has prepared its transaction after the listing; who is not named had before."""
    later = [entry(0, 1, 5, complete=False, version=1, partitions=(0,))]
    assert cut("2 1 3 3:ABORT 1 2:COMMIT 1:COMMIT", later, 1, end=5) == (1, ())
    assert cut("1 3 3:ABORT 1 plain 1 plain 1 3 3:ABORT 1:COMMIT", later, 1, end=9) == (7, ((0, 4), (5, 6)))
    assert cut("1 plain plain 1:ABORT", later, 0, end=2) == (2, ()), "aborted"
    assert cut("1 2 1:COMMIT 2:COMMIT", later, 1, end=1) == (0, ()), "2 is behind the end"
    assert cut("plain 3 3:ABORT") == (3, ()), "aborted at the end"
    assert cut("1 1:COMMIT 1 1:COMMIT", later, 1) == (2, ()), "between its transactions"


def test_a_producer_that_changes_its_id() -> None:
    """Epochs of one id tell nothing about those of another."""
    log = "7 7:COMMIT 8 8:COMMIT 9 9:COMMIT plain"
    completed = [entry(0, 8, 0, complete=True), entry(1, 8, 1, complete=False)]
    assert cut(log, completed) == (7, ((2, 3),)), "7 was prepared before; 9 is not named"
    prepared = [entry(0, 7, 9, complete=False), entry(1, 8, 9, complete=True)]
    assert cut(log, prepared) == (7, ((2, 3),)), "7 has lower epochs; 8 came after it"


def test_a_window_that_can_not_be_decided_names_a_transaction_and_the_reason() -> None:
    busy = [entry(0, 1, 5, complete=False, version=1, partitions=(0,))]

    def undecided(start: int, reason: CutReason) -> OpenTransaction:
        """Nothing is to be aborted, so no producer is named."""
        return OpenTransaction(TP, -1, start, -1, reason)

    assert cut("2 1 1:COMMIT 2:COMMIT", busy) == undecided(1, "not counted")
    assert cut("2 plain") == undecided(0, "too large"), "its marker was not read"
    assert cut("2 1 1:COMMIT 2:COMMIT", busy, 2) == undecided(1, "unknown marker"), "two commits, and one marker"
    log = "2 1 1:COMMIT 1 1:COMMIT 1:COMMIT 2:COMMIT"
    assert cut(log, busy, 1) == undecided(3, "repeated marker"), "of the last transaction, or of one without records"
    assert cut(log, busy, 2) == undecided(1, "repeated marker"), "the last two, or the first two of three"
    assert cut(log, busy, 3) == (1, ()), "as many as there are markers"


def test_markers_of_aborts_without_records_are_no_riddle() -> None:
    """librdkafka aborts a transaction before its records were sent."""
    log = "2 1 1:COMMIT 1:ABORT 1 1:COMMIT 1:ABORT 1:ABORT 1 1:COMMIT 2:COMMIT"
    own = [entry(0, 1, 5, complete=True, version=1, partitions=(0,))]
    assert cut(log, own, 0) == (11, ())
    assert cut(log, own, 1) == (8, ())
    assert cut(log, own, 2) == (4, ())
    assert cut(log, own, 3) == (1, ())


def test_only_producers_whose_epochs_do_not_tell_are_counted() -> None:
    here = entry(4, 1, 5, complete=False, version=1, partitions=(0, 2))
    assert to_count({1: [here]}) == {(tp_of(0), 1), (tp_of(2), 1)}
    assert to_count({1: [here._replace(version=2), here]}) == set(), "epochs tell"
    assert to_count({1: [here._replace(producer_id=2), here], 2: [here._replace(producer_id=2), here]}) == {
        (tp_of(0), 2),
        (tp_of(2), 2),
    }, "1 came later"


def test_counts_of_a_producer_without_a_pause_tell_together() -> None:
    """Its transactions 1 to 4 are prepared at entries 0, 2, 4 and 6, and complete at the next one each."""
    own = [entry(n, 1, 5, complete=bool(n % 2), version=1, partitions=() if n % 2 else (0,)) for n in range(8)]
    log = window("1 1:COMMIT 1 1:COMMIT 1 1:COMMIT 1 1:COMMIT 1 1:COMMIT")  # the first one was prepared before
    markers = commit_markers(1, log.batches)
    assert [marker.offset for marker in markers] == [1, 3, 5, 7, 9]

    def count(before: int, end: int, after: int) -> MarkerCount:
        return MarkerCount(end, *prepared([own], {log_of(0): before}, {log_of(0): after})[TP, 1])

    def boundary(*counts: MarkerCount) -> Boundary:
        return boundary_of(markers, [bounds_of(markers, each) for each in counts])

    first, second, still = count(2, 4, 3), count(3, 6, 4), count(4, 6, 4)
    assert (first, second, still) == ((4, 1, 2), (6, 1, 2), (6, 2, 2))
    assert boundary(first) == Boundary(1, 3), "1 or 2 of two markers are not in"
    assert boundary(second) == Boundary(3, 5), "1 or 2 of three"
    together = boundary(first, second)
    assert (together.first, together.last) == (3, 3)
    exact = boundary(still)
    assert (exact.first, exact.last) == (3, 3)
    none = boundary_of([], [])
    assert none.first == none.last > 99, "it has no marker there"


def test_aborts_are_not_counted() -> None:
    committed = entry(2, 1, 5, complete=False, version=1, partitions=(0,))
    done = entry(3, 1, 5, complete=True, version=1)
    own = [
        entry(0, 1, 5, complete=False, version=1, partitions=(0, 1), aborted=True),
        entry(1, 1, 5, complete=True, version=1, aborted=True),
        committed,
        done,
    ]
    ends = {log_of(0): 4}
    assert prepared([own], ends, ends) == {(TP, 1): (1, 1)}
    assert prepared([own], {log_of(0): 3}, ends) == {(TP, 1): (0, 1)}, "it is on its way"
    assert to_count({1: own[:2]}) == set()


def test_a_commit_marker_may_repeat_the_one_right_before_it() -> None:
    def repeats(words: str) -> list[tuple[int, bool]]:
        return [(marker.offset, marker.may_repeat) for marker in commit_markers(1, window(words).batches)]

    assert repeats("1:COMMIT 1 2 1:COMMIT 2:COMMIT") == [(0, False), (3, False)], "records were before the window"
    assert repeats("1 1:COMMIT 2 1:COMMIT 2:COMMIT 1:COMMIT") == [(1, False), (3, True), (5, True)]
    assert repeats("1 1:COMMIT 1:ABORT 1:COMMIT") == [(1, False), (3, False)], "a transaction lies between"
    assert repeats("1 1:ABORT 1:COMMIT") == [(2, False)]


def test_markers_that_may_repeat_bound_what_a_count_tells() -> None:
    markers = [CommitMarker(1, False), CommitMarker(2, True), CommitMarker(4, False), CommitMarker(5, True)]

    def bounds(outside: int) -> tuple[int, int]:
        least, most, _ = bounds_of(markers, MarkerCount(9, outside, outside))
        return least, most

    least, _ = bounds(0)
    assert least == 4, "all of them are in, and those that come later may be"
    assert bounds(1) == (2, 3), "the last two are of one transaction, or of two"
    assert bounds(2) == (0, 2)
    assert bounds(3) == (0, 1)


def test_an_entry_that_is_written_again_is_one_transaction() -> None:
    """Where a coordinator could not replicate it in time."""
    entries: list[Entry] = []
    first = entry(0, 1, 5, complete=False, version=1, partitions=(0,))
    again = first._replace(offset=1, aborted=True)
    done = entry(2, 1, 5, complete=True, version=1)
    following = first._replace(offset=3)
    for each in (first, again, done, following):
        add_entry(entries, each)
    assert entries == [again, done, following]


def test_records_of_internal_topics() -> None:
    key = b"\0\0\0\2tx"
    start = struct.pack(">qhib", 7, 5, 60_000, 2)
    partitions = b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\0"
    named = frozenset({TopicPartition("t", 0)})
    assert entry_of(TP, 3, key, b"\0\0" + start + partitions + bytes(16)) == ("tx", Entry(TP, 3, 7, 5, 0, False, named))
    aborting = entry_of(TP, 3, key, b"\0\0" + start[:-1] + b"\3" + partitions + bytes(16))
    assert aborting == ("tx", Entry(TP, 3, 7, 5, 0, False, named, aborted=True))
    tags = b"\2\0\x08" + struct.pack(">q", 6) + b"\2\2\0\2"
    flexible = b"\0\1" + start[:-1] + b"\4" + b"\2\2t\2\0\0\0\0\0" + bytes(16) + tags
    assert entry_of(TP, 3, key, flexible) == ("tx", Entry(TP, 3, 7, 5, 2, True, named))
    assert entry_of(TP, 3, key, b"\0\1" + start[:-1] + b"\1\0" + bytes(17)) == ("tx", None), "ongoing"
    assert entry_of(TP, 3, key, None) == ("tx", None)
    with pytest.raises(CorruptError, match="version 2 is not known"):
        entry_of(TP, 3, key, b"\0\2" + start)

    key = b"\0\1\0\1g\0\1t\0\0\0\7"
    place = TopicPartition("t", 7)
    at, stamp = struct.pack(">q", 40), bytes(8)
    for value, epoch in [
        (b"\0\0" + at + b"\0\1m" + stamp, None),
        (b"\0\1" + at + b"\0\1m" + stamp + stamp, None),
        (b"\0\3" + at + b"\0\0\0\2\0\1m" + stamp, 2),
        (b"\0\4" + at + b"\xff\xff\xff\xff\2m" + stamp + b"\0", None),
    ]:
        assert commit_of(TP, key, value) == Commit("g", place, CommittedOffset(place, 40, epoch, "m"))
    assert commit_of(TP, key, None) == Commit("g", place, None)
    assert commit_of(TP, b"\0\2\0\1g", b"\0\3") is None, "the state of a group"
    with pytest.raises(CorruptError, match="version 5 is not known"):
        commit_of(TP, key, b"\0\5" + at)
