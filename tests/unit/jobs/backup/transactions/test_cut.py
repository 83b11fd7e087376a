"""What kbackup decides is the rule of README.md, in every state of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from kbackup.kafka.admin_protocol.connection import LogBatch, LogWindow
from kbackup.kafka.transactions import Entry, OpenTransaction, Round, SettledProducer, cut_window, producers_of, settle
from kbackup.types import TopicPartition
from tests.unit.jobs.backup.transactions import cluster as model
from tests.unit.jobs.backup.transactions.cluster import ABORT, Producer, Transaction
from tests.unit.jobs.backup.transactions.rules import Known, Log, Whole
from tests.unit.jobs.backup.transactions.test_transactions import ENDS, check


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
        Entry(log_of(who), n, who, -1, e.epoch, e.version, e.kind == model.COMPLETE)
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
