"""Partitions whose last stable offset is late when the wait for transactions gives up."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from kbackup.kafka import transactions
from kbackup.kafka.transactions import OpenTransaction, _look_again, _open_transactions
from kbackup.types import TopicPartition

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
ENDS = {FIRST: 10, SECOND: 20}


@pytest.fixture(autouse=True)
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_SETTLING", 0.05)
    monkeypatch.setattr(transactions, "_WAIT_PAUSE", 0.01)


class Logs:
    """A cluster that shows last stable offsets, one answer after the other; the last answer stays."""

    def __init__(self, *answers: dict[TopicPartition, int]) -> None:
        self.answers = list(answers)
        self.looks = 0

    def log_ends(self, partitions: Iterable[TopicPartition], isolation: str) -> dict[TopicPartition, int]:
        assert isolation == "read_committed"
        self.looks += 1
        answer = self.answers[min(self.looks, len(self.answers)) - 1]
        return {tp: answer[tp] for tp in partitions}


def look_again(logs: Any, explained: set[TopicPartition]) -> set[TopicPartition]:
    return _look_again(logs, ENDS, {FIRST, SECOND}, explained)


def test_partitions_with_an_open_transaction_are_not_looked_at_again() -> None:
    logs = Logs()
    assert look_again(logs, {FIRST, SECOND}) == {FIRST, SECOND}
    assert logs.looks == 0


def test_a_partition_whose_transaction_has_ended_is_looked_at_until_it_is_in_time() -> None:
    logs = Logs({FIRST: 3, SECOND: 4}, {FIRST: 10, SECOND: 4})
    assert look_again(logs, {SECOND}) == {SECOND}, "the other one has an open transaction"
    assert logs.looks == 2


def test_an_open_transaction_that_ends_meanwhile_leaves_its_partition_in_time() -> None:
    assert look_again(Logs({FIRST: 10, SECOND: 20}), {SECOND}) == set()


def test_a_partition_that_stays_late_without_a_reason_is_told() -> None:
    assert look_again(Logs({FIRST: 3, SECOND: 20}), set()) == {FIRST}


def test_only_transactions_that_began_below_the_end_explain_a_late_partition() -> None:
    def producer(number: int, first: int) -> Any:
        return SimpleNamespace(producer_id=number, current_txn_start_offset=first, last_timestamp=1_000)

    states = {FIRST: [producer(1, -1), producer(2, 9), producer(3, 10)], SECOND: [producer(4, 5)]}
    assert _open_transactions(states, {FIRST}, ENDS) == [OpenTransaction(FIRST, 2, 9, 1_000)]
