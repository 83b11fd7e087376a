"""What kbackup decides is the rule of README.md, in every state of the model."""

from __future__ import annotations

import struct
from collections.abc import Sequence
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
    Round,
    SettledProducer,
    commit_of,
    cut_window,
    entry_of,
    producers_of,
    settle,
)
from kbackup.types import TopicPartition
from tests.support.exhaustive import sample
from tests.unit.jobs.backup.transactions import cluster as model
from tests.unit.jobs.backup.transactions.cluster import ABORT, COMMIT, FENCED, Producer, Transaction, walk
from tests.unit.jobs.backup.transactions.rules import Known, Log, Whole
from tests.unit.jobs.backup.transactions.test_transactions import BOTH, ENDS, FENCE, check


def tp_of(partition: int) -> TopicPartition:
    return TopicPartition("orders", partition)


def log_of(who: int) -> TopicPartition:
    return TopicPartition("__transaction_state", who)


def round_of(who: int, before: object, after: object, ends: Sequence[int]) -> Round:
    assert isinstance(before, int)
    assert isinstance(after, int)
    return Round({log_of(who): before}, {tp_of(n): end for n, end in enumerate(ends)}, {log_of(who): after})


def entries_of(cluster: model.Cluster, who: int) -> list[Entry]:
    return [
        Entry(log_of(who), n, who, e.epoch, e.version, e.kind == model.COMPLETE)
        for n, e in enumerate(cluster.events[who])
    ]


def window_of(log: Log, stable: int, end: int) -> LogWindow:
    window = LogWindow(stable, end)
    for n, batch in enumerate(log[stable:], stable):
        if window.complete:
            break
        control = batch.kind != model.DATA
        window.add(LogBatch(n, n, 0, control, batch.kind == ABORT, True, batch.producer, batch.epoch))
    return window


@dataclass(frozen=True)
class Built(Whole):
    """`Whole` by the functions of kbackup."""

    def _is_settled(self, known: Known, cluster: model.Cluster, who: int) -> bool:
        listed = round_of(who, known.before[who][0], known.after[who][0], known.ends)
        return settle(entries_of(cluster, who), [listed]) is not None

    def _inside(self, known: Known, cluster: model.Cluster) -> list[set[int]]:
        producers: dict[int, SettledProducer | None] = {}
        for who, settled in enumerate(known.settled):
            assert settled is not None
            (before,) = settled.coordinator
            assert isinstance(before, int)
            listed = round_of(who, before, before + settled.moved, settled.ends)
            producers |= producers_of([entries_of(cluster, who)], [listed])
        inside = []
        for p, log in enumerate(cluster.logs):
            cut = cut_window(tp_of(p), known.stable[p], window_of(log, known.stable[p], known.ends[p]), producers)
            assert not isinstance(cut, OpenTransaction), cut
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


def entry(offset: int, producer: int, epoch: int, complete: bool, version: int = 2) -> Entry:
    return Entry(log_of(0), offset, producer, epoch, version, complete)


def cut(batches: str, entries: Sequence[Entry], *rounds: Round, end: int | None = None) -> object:
    """The cut of a log like '1 2 plain 1:COMMIT', with an offset for each word: data, or a marker with epoch 5."""
    words = batches.split()
    window = LogWindow(0, len(words) if end is None else end)
    for n, word in enumerate(words):
        number, _, marker = word.partition(":")
        producer = -1 if number == "plain" else int(number)
        window.add(LogBatch(n, n, 0, bool(marker), marker == ABORT, producer >= 0, producer, 5))
    return cut_window(TP, 0, window, producers_of([entries], rounds))


def test_held_batches_are_runs_and_the_last_one_ends_the_partition() -> None:
    """Producer 1 has prepared its transaction after the round; who is not named had before."""
    listed, later = round_of(0, 0, 0, [99]), [entry(0, 1, 5, complete=False, version=1)]
    assert cut("2 1 3 3:ABORT 1 2:COMMIT 1:COMMIT", later, listed._replace(ends={TP: 5}), end=5) == (1, ())
    assert cut("1 3 3:ABORT 1 plain 1 plain 1 3 3:ABORT 1:COMMIT", later, listed._replace(ends={TP: 9}), end=9) == (
        7,
        ((0, 4), (5, 6)),
    )
    assert cut("1 plain plain 1:ABORT", later, listed, end=2) == (2, ()), "aborted"
    assert cut("1 2 1:COMMIT 2:COMMIT", later, listed._replace(ends={TP: 1}), end=1) == (0, ()), "2 is behind the end"
    assert cut("plain 3 3:ABORT", [], listed) == (3, ()), "aborted at the end"


def test_a_producer_that_changes_its_id() -> None:
    """Epochs of one id tell nothing about those of another."""
    moved = round_of(0, 0, 2, [99])
    log = "7 7:COMMIT 8 8:COMMIT 9 9:COMMIT plain"
    completed = [entry(0, 8, 0, complete=True), entry(1, 8, 1, complete=False)]
    assert cut(log, completed, moved) == (7, ((2, 3),)), "7 was prepared before; 9 is not named"
    prepared = [entry(0, 7, 9, complete=False), entry(1, 8, 9, complete=True)]
    assert cut(log, prepared, moved) == (7, ((2, 3),)), "7 has lower epochs; 8 came after it"


def test_a_window_that_can_not_be_decided_names_a_transaction() -> None:
    never = round_of(0, 0, 1, [99])
    busy = [entry(0, 1, 5, complete=False, version=1)]
    assert settle(busy, [never]) is None
    assert cut("2 1 1:COMMIT 2:COMMIT", busy, never) == OpenTransaction(TP, -1, 1, -1), "nothing to abort"
    assert cut("2 plain", [], never) == OpenTransaction(TP, -1, 0, -1), "its marker was not read, and it may have ended"
    earlier, later = round_of(0, 0, 0, [2]), round_of(0, 1, 1, [3])
    for rounds in ([earlier, never], [never, later]):
        assert settle(busy, rounds) is not None, "it was still in one of them"


def test_records_of_internal_topics() -> None:
    key = b"\0\0\0\2tx"
    start = struct.pack(">qhib", 7, 5, 60_000, 2)
    partitions = b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\0"
    assert entry_of(TP, 3, key, b"\0\0" + start + partitions + bytes(16)) == ("tx", Entry(TP, 3, 7, 5, 0, False))
    tags = b"\2\0\x08" + struct.pack(">q", 6) + b"\2\2\0\2"
    flexible = b"\0\1" + start[:-1] + b"\4" + b"\2\2t\2\0\0\0\0\0" + bytes(16) + tags
    assert entry_of(TP, 3, key, flexible) == ("tx", Entry(TP, 3, 7, 5, 2, True))
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
