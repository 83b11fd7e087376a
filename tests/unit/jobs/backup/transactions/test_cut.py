"""What kbackup decides is the rule of README.md, in every state of the model."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import pytest

from kbackup.errors import CorruptError
from kbackup.kafka.admin_protocol.connection import LogBatch, LogWindow
from kbackup.kafka.groups.calls import CommittedOffset
from kbackup.kafka.transactions import (
    Commit,
    Entry,
    OpenTransaction,
    bounds_of,
    commit_of,
    cut_window,
    entry_of,
    limit_of,
    markers_of,
    must_count,
    prepared,
)
from kbackup.types import TopicPartition
from tests.support.exhaustive import sample
from tests.unit.jobs.backup.transactions import cluster as model
from tests.unit.jobs.backup.transactions import rules as model_rules
from tests.unit.jobs.backup.transactions.cluster import ABORT, COMMIT, FENCED, Producer, Transaction, walk
from tests.unit.jobs.backup.transactions.rules import Known, Log, UndecidedError, Whole
from tests.unit.jobs.backup.transactions.test_transactions import BOTH, ENDS, FENCE, check


def tp_of(partition: int) -> TopicPartition:
    return TopicPartition("orders", partition)


def log_of(who: int) -> TopicPartition:
    return TopicPartition("__transaction_state", who)


def entries_of(cluster: model.Cluster, who: int) -> list[Entry]:
    return [
        Entry(log_of(who), n, who, e.epoch, e.version, e.kind == model.COMPLETE, frozenset(map(tp_of, e.partitions)))
        for n, e in enumerate(cluster.events[who])
    ]


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
    ) -> tuple[int, int]:
        markers = markers_of(who, batches_of(cluster.logs[partition], known.stable[partition]))
        entries = entries_of(cluster, who)[known.before[who] :]
        if markers is None or not entries:
            return 0, 99
        log = log_of(who)
        found = prepared([entries], {log: count.before[who]}, {log: count.after[who]})
        now = bounds_of(markers, count.ends[partition], *found[tp_of(partition), who])
        least, most = known.bounds[partition][who] if known.bounds else now
        return max(least, now[0]), min(most, now[1])

    def _inside(self, known: Known, cluster: model.Cluster) -> list[set[int]]:
        producers = {who: own for who, at in enumerate(known.before) if (own := entries_of(cluster, who)[at:])}
        inside = []
        for p, log in enumerate(cluster.logs):
            tp, stable = tp_of(p), known.stable[p]
            window = window_of(log, stable, known.ends[p])
            for batch in batches_of(log, window.position):
                window.add(batch)  # as far as markers are counted
            counts: dict[tuple[TopicPartition, int], list[tuple[int, int, int]]] = {}
            for at, who in to_count(producers):
                markers = markers_of(who, window.batches)
                if at == tp and markers is not None:
                    least, most = known.bounds[p][who] if known.bounds else (0, 99)
                    counts[tp, who] = [(len(log), len(markers) - most, len(markers) - least)]
                elif at == tp:
                    counts[tp, who] = []
            cut = cut_window(tp, stable, window, producers, counts)
            if isinstance(cut, OpenTransaction):
                raise UndecidedError(never=any(markers_of(who, window.batches) is None for _, who in counts))
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


def test_every_state_of_two_producers_in_one_partition() -> None:
    check([Producer((Transaction((0, 0)),)), Producer((Transaction((0,)),), version=2)], 1, Built())


def test_random_walks_of_three_producers() -> None:
    random = Random(20261127)
    for _ in sample(range(200), 40):
        programs = [
            Producer(tuple(Transaction((0, 1, 2), random.choice((COMMIT, ABORT, FENCED))) for _ in "12"), version)
            for version in random.choices((1, 2), k=3)
        ]
        torn = walk(programs, 3, Built(groups=(0, 0, None)), random)
        assert not torn, torn


# What the model doesn't have.

TP = tp_of(0)


def entry(
    offset: int, producer: int, epoch: int, complete: bool, version: int = 2, partitions: Sequence[int] = ()
) -> Entry:
    return Entry(log_of(0), offset, producer, epoch, version, complete, frozenset(map(tp_of, partitions)))


def window(words: str, end: int | None = None) -> LogWindow:
    """The window of a log like '1 2 plain 1:COMMIT', with an offset for each word: data, or a marker with epoch 5."""
    found = LogWindow(0, len(words.split()) if end is None else end)
    for n, word in enumerate(words.split()):
        number, _, marker = word.partition(":")
        producer = -1 if number == "plain" else int(number)
        found.add(LogBatch(n, n, 0, bool(marker), marker == ABORT, producer >= 0, producer, 5))
    return found


def cut(words: str, entries: Sequence[Entry] = (), told: int | None = None, end: int | None = None) -> object:
    """The cut of a window. Counts tell that the first `told` markers of producer 1 are in; None: they don't tell."""
    found = window(words, end)
    markers = sum(batch.control and batch.producer_id == 1 for batch in found.batches)
    counts = {(TP, 1): [] if told is None else [(99, markers - told, markers - told)]}
    producers = {each.producer_id: entries for each in entries}
    return cut_window(TP, 0, found, producers, counts if to_count(producers) else {})


def test_held_batches_are_runs_and_the_last_one_ends_the_partition() -> None:
    """Producer 1 has prepared its transaction after the listing; who is not named had before."""
    later = [entry(0, 1, 5, complete=False, version=1, partitions=(0,))]
    assert cut("2 1 3 3:ABORT 1 2:COMMIT 1:COMMIT", later, 0, end=5) == (1, ())
    assert cut("1 3 3:ABORT 1 plain 1 plain 1 3 3:ABORT 1:COMMIT", later, 0, end=9) == (7, ((0, 4), (5, 6)))
    assert cut("1 plain plain 1:ABORT", later, 0, end=2) == (2, ()), "aborted"
    assert cut("1 2 1:COMMIT 2:COMMIT", later, 0, end=1) == (0, ()), "2 is behind the end"
    assert cut("plain 3 3:ABORT") == (3, ()), "aborted at the end"
    assert cut("1 1:COMMIT 1 1:COMMIT", later, 1) == (2, ()), "between its transactions"


def test_a_producer_that_changes_its_id() -> None:
    """Epochs of one id tell nothing about those of another."""
    log = "7 7:COMMIT 8 8:COMMIT 9 9:COMMIT plain"
    completed = [entry(0, 8, 0, complete=True), entry(1, 8, 1, complete=False)]
    assert cut(log, completed) == (7, ((2, 3),)), "7 was prepared before; 9 is not named"
    prepared = [entry(0, 7, 9, complete=False), entry(1, 8, 9, complete=True)]
    assert cut(log, prepared) == (7, ((2, 3),)), "7 has lower epochs; 8 came after it"


def test_a_window_that_can_not_be_decided_names_a_transaction() -> None:
    busy = [entry(0, 1, 5, complete=False, version=1, partitions=(0,))]
    assert cut("2 1 1:COMMIT 2:COMMIT", busy) == OpenTransaction(TP, -1, 1, -1), "nothing to abort"
    assert cut("2 1 1:COMMIT 2:COMMIT 1:COMMIT", busy, 1) == OpenTransaction(TP, -1, 1, -1), "its marker came twice"
    assert cut("2 plain") == OpenTransaction(TP, -1, 0, -1), "its marker was not read, and it may have ended"


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
    markers = markers_of(1, log.batches)
    assert markers == [1, 3, 5, 7, 9]

    def count(before: int, end: int, after: int) -> tuple[int, int, int]:
        return end, *prepared([own], {log_of(0): before}, {log_of(0): after})[TP, 1]

    first, second, still = count(2, 4, 3), count(3, 6, 4), count(4, 6, 4)
    assert (first, second, still) == ((4, 1, 2), (6, 1, 2), (6, 2, 2))
    assert limit_of(markers, [first]) is None, "1 or 2 of two markers are not in"
    assert limit_of(markers, [second]) is None, "1 or 2 of three"
    assert limit_of(markers, [first, second]) == limit_of(markers, [still]) == 3
    assert limit_of([], []) is not None, "it has no marker there"
    assert limit_of(None, [still]) is None, "they may have come twice"


def test_markers_that_may_have_come_twice_are_not_counted() -> None:
    assert markers_of(1, window("1:COMMIT 1 2 1:COMMIT 2:COMMIT").batches) == [0, 3], "records were before the window"
    assert markers_of(1, window("1 1:COMMIT 2 1:COMMIT 2:COMMIT").batches) is None


def test_records_of_internal_topics() -> None:
    key = b"\0\0\0\2tx"
    start = struct.pack(">qhib", 7, 5, 60_000, 2)
    partitions = b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\0"
    named = frozenset({TopicPartition("t", 0)})
    assert entry_of(TP, 3, key, b"\0\0" + start + partitions + bytes(16)) == ("tx", Entry(TP, 3, 7, 5, 0, False, named))
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
