"""Logs that lack the last archived record: a cut, compaction, or retention."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbackup.archive.last_record import digest_of
from kbackup.archive.models import EpochEnd, LastRecord, Metadata
from kbackup.jobs.backup import log_check
from kbackup.jobs.backup.log_check import is_replaced, positions
from kbackup.jobs.capture import Live, LiveTopic
from kbackup.kafka.admin_protocol.log_batches import LogBatch
from kbackup.kafka.consume import EpochPosition, Validation
from kbackup.kafka.security_types import Untold
from kbackup.types import TopicPartition
from tests.support.made_segments import block
from tests.unit.jobs.backup.test_log_check import EXPECTED, LAST, UNKNOWN, Reader, Source, base_of, head, source_of


@pytest.mark.parametrize(
    ("batch", "committed", "cut"),
    [
        (LogBatch(8, 10, 4, False, False), True, False),
        (LogBatch(9, 9, 4, True, False), True, True),
        (LogBatch(9, 9, 4, True, False), False, True),
        (LogBatch(8, 10, 4, False, True), True, True),
        (LogBatch(8, 10, 4, False, True), False, False),
        (LogBatch(8, 10, 5, False, False), True, True),
        (LogBatch(10, 10, 5, True, False), True, False),  # a hole has the offset
    ],
)
def test_a_batch_at_the_last_record_reveals_a_truncated_log(batch: LogBatch, committed: bool, cut: bool) -> None:
    assert is_replaced(LAST, batch, committed=committed) is cut


def test_epochs_are_validated_behind_their_last_archived_records() -> None:
    earlier = EpochEnd(leader_epoch=1, offset=2), EpochEnd(leader_epoch=3, offset=6)
    expected = EXPECTED._replace(epochs=earlier)
    assert positions(expected, 0) == [EpochPosition(10, 4), EpochPosition(7, 3), EpochPosition(3, 1)]
    assert positions(expected, 5) == [EpochPosition(10, 4), EpochPosition(7, 3)], "retention took the first"
    assert positions(EXPECTED._replace(archived=(UNKNOWN,)), 0) == []


def compared(
    monkeypatch: pytest.MonkeyPatch,
    source: Source,
    batches: dict[int, LogBatch] | Untold | None = None,
    settings: Metadata | None = None,
) -> tuple[dict[int, int], list[str], list[Any]]:
    """Compare five logs: the last one has the record. Epoch 4 of partition 0 was truncated; 2 gives no answer."""
    tps = [TopicPartition("orders", p) for p in range(5)]
    logs: dict[TopicPartition, list[range]] = {tp: [] for tp in tps[:4]} | {tps[4]: [range(9, 10)]}
    last = LastRecord(offset=9, leader_epoch=4, digest=digest_of(block(range(9, 10)), 0))
    connected, base = source_of(source), base_of(head(*[last] * 5), settings)
    asked: list[Any] = []

    def validate(*arguments: Any) -> Validation:
        asked.append(arguments[1])
        assert arguments[0] is connected.properties
        assert arguments[2:] == ("kbackup-backup-r", 7)
        return Validation(frozenset({tps[0]} & arguments[1].keys()), frozenset({tps[2]} & arguments[1].keys()))

    monkeypatch.setattr(log_check, "RangeReader", lambda *_, **__: Reader(logs))
    monkeypatch.setattr(log_check, "validate_epochs", validate)
    known = batches if isinstance(batches, Untold) else {tps[p]: b for p, b in (batches or {}).items()}
    monkeypatch.setattr(log_check, "log_batches", lambda *_: known)
    live = [LiveTopic("orders", "A", dict.fromkeys(range(5), Live(0, 40, 40)))]
    diverged, warnings = log_check.compare_logs(connected, base, live)
    return {tp.partition: at for tp, at in diverged.items()}, warnings, [sorted(a) for a in asked]


def test_without_compaction_a_log_that_lacks_the_last_archived_record_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention took the record of one of them while the logs were compared."""
    diverged, warnings, asked = compared(monkeypatch, Source("delete", {1: 10}))
    assert (diverged, warnings, asked) == ({0: 9, 2: 9, 3: 9}, [], [])


def test_compacted_logs_are_asked_for_their_batches_and_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    same = LogBatch(9, 9, 4, False, False)
    batches = {0: same, 1: same._replace(control=True), 2: same, 3: same}
    diverged, warnings, asked = compared(monkeypatch, Source("compact", {}), batches)
    assert diverged == {0: 9, 1: 9}
    assert [w.split(" was ")[0] for w in warnings] == ["the log of orders-2"]
    assert asked == [[TopicPartition("orders", p) for p in (0, 2, 3)]]


def test_a_topic_that_was_compacted_at_the_last_backup_counts_as_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = SimpleNamespace(name="orders", configs={"cleanup.policy": "compact"})
    settings: Any = SimpleNamespace(topics=[topic])
    assert compared(monkeypatch, Source("delete", {}), settings=settings)[0] == {0: 9}


def test_batches_that_can_not_be_read_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    untold = Untold("not supported", "sasl.mechanism GSSAPI works in librdkafka alone")
    diverged, warnings, _ = compared(monkeypatch, Source("compact", {}), untold)
    assert diverged == {0: 9}
    assert warnings[0].startswith("4 logs (orders-0, …) that compaction may have changed were compared")
    assert "GSSAPI" in warnings[0]
