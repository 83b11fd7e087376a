"""Which offsets a run did not get, and whether transactions explain them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbackup.jobs.backup import gaps
from kbackup.jobs.backup.gaps import left_by_transactions, missing_ranges, read_ranges
from kbackup.jobs.backup.plan import PartitionPlan
from kbackup.jobs.capture import Live
from kbackup.kafka.control.logs import LogBatch
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.types import TopicPartition
from tests.support.made_segments import target, write
from tests.support.memory_store import MemoryStore

TP = TopicPartition("orders", 0)


def test_a_run_reads_what_is_owed_and_not_what_is_held_or_vanished() -> None:
    partition = PartitionPlan(0, 10, 30, Live(0, 30, 30), None, held=((20, 22),), owed=((4, 6),))
    assert read_ranges(partition, [(10, 12)]) == ((4, 6), (12, 20), (22, 30))


def test_offsets_without_a_record_are_missing_also_at_both_ends() -> None:
    store = MemoryStore()
    segments = [*write(store, target(), [11, 12, 15]), *write(store, target(), [16, 24])]
    assert missing_ranges(store, segments, ((10, 20), (22, 26))) == ((10, 11), (13, 15), (17, 20), (22, 24), (25, 26))
    assert missing_ranges(store, [], ((3, 5),)) == ((3, 5),)
    assert missing_ranges(store, segments, ((11, 13), (15, 17))) == ()


def marker(offset: int) -> LogBatch:
    return LogBatch(offset, offset, 0, control=True, aborted=False)


def aborted(first: int, last: int) -> LogBatch:
    return LogBatch(first, last, 0, control=False, aborted=True)


def plain(first: int, last: int) -> LogBatch:
    return LogBatch(first, last, 0, control=False, aborted=False)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[LogBatch]:
    """The batches of the log, which brokers give by offset."""
    batches: list[LogBatch] = []

    def answer(_: object, offsets: dict[TopicPartition, int]) -> Any:
        found = {}
        for tp, offset in offsets.items():
            there = [batch for batch in batches if batch.last >= offset]
            if there:
                found[tp] = there[0]
        return found

    monkeypatch.setattr(gaps, "log_batches", answer)
    return batches


def explained(*missing: tuple[int, int], isolation: str = "read_committed") -> bool:
    source: Any = SimpleNamespace(isolation_level=isolation, cluster=SimpleNamespace(router=None))
    return TP in left_by_transactions(source, {TP: missing})


def test_markers_and_aborted_records_explain_gaps(log: list[LogBatch]) -> None:
    log += [plain(0, 4), marker(5), plain(6, 6), aborted(7, 9), marker(10)]
    assert explained((5, 6))
    assert explained((5, 6), (7, 11))


def test_a_removed_record_is_not_explained(log: list[LogBatch]) -> None:
    log += [plain(0, 4), marker(5), plain(8, 9)]
    assert not explained((3, 4)), "its batch is there, with other records"
    assert not explained((5, 8)), "no batch has the offsets behind the marker"
    assert not explained((12, 13)), "the log has nothing there"


def test_aborted_records_that_a_run_reads_explain_nothing(log: list[LogBatch]) -> None:
    log += [aborted(0, 4)]
    assert not explained((3, 4), isolation="read_uncommitted")


def test_what_brokers_do_not_tell_is_not_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps, "log_batches", lambda *_: Unavailable("failed", "no answer"))
    assert not explained((5, 6))
