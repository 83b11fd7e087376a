"""Compare the last archived record with the record at its offset in the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kbackup.archive import layout
from kbackup.archive.models import LastRecord, Manifest, PartitionState
from kbackup.archive.reader import open_archive
from kbackup.archive.segments.last_record import digest_of
from kbackup.config.jobs import Backup
from kbackup.jobs.backup import log_check
from kbackup.jobs.backup.log_check import (
    Expected,
    Seen,
    compare,
    differs,
    epoch_positions,
    expectations,
    with_last_records,
)
from kbackup.jobs.capture.live import Live, LiveTopic
from kbackup.kafka.consume.epochs import Validation
from kbackup.kafka.consume.read import Vanished
from kbackup.types import OffsetRange, RecordBlock, TopicPartition
from tests.support.archives import make_archive
from tests.support.made_segments import TOPIC, block, target, write
from tests.support.memory_store import MemoryStore
from tests.unit.jobs.backup.test_plan import archived

LAST = LastRecord(offset=9, leader_epoch=4, digest="a" * 16)
EXPECTED = Expected(OffsetRange("orders", 0, 9, 12), LAST)
SAME = Seen(9, LAST.digest, 1, 4)


@pytest.mark.parametrize(
    ("seen", "committed", "cut"),
    [
        (SAME, True, False),
        (SAME._replace(digest="b" * 16), True, True),
        (SAME._replace(digest="b" * 16), False, True),
        # the same bytes again, under another leader
        (SAME._replace(leader_epoch=5), True, True),
        (SAME._replace(leader_epoch=-1), True, False),
        # compaction took it
        (None, True, False),
        # a record that the archive would have; of an aborted transaction, perhaps, where those are read
        (Seen(10, LAST.digest, 1, 4), True, True),
        (Seen(10, LAST.digest, 1, 4), False, False),
        (SAME._replace(records=2), True, True),
        (SAME._replace(records=2, leader_epoch=5), False, False),
    ],
)
def test_last_record_reveals_a_truncated_log(seen: Seen | None, committed: bool, cut: bool) -> None:
    assert differs(EXPECTED, seen, committed=committed) is cut


def test_an_epoch_that_was_not_known_is_not_compared() -> None:
    unknown = EXPECTED._replace(last=msgspec.structs.replace(LAST, leader_epoch=None))
    assert not differs(unknown, SAME._replace(leader_epoch=9), committed=True)


def head(*lasts: LastRecord | None, end: int = 12) -> Manifest:
    made = archived(*[end for _ in lasts])
    partitions = tuple(
        msgspec.structs.replace(p, last=last)
        for p, last in zip(made.topics[0].partitions, lasts, strict=True)
    )
    return msgspec.structs.replace(
        made, topics=(msgspec.structs.replace(made.topics[0], partitions=partitions),)
    )


def ranges(manifest: Manifest, *lives: Live, topic_id: str = "A") -> list[OffsetRange]:
    live = [LiveTopic("orders", topic_id, dict(enumerate(lives)))]
    return [e.range for e in expectations(manifest, live)]


def test_a_log_is_read_from_the_last_archived_record_to_the_archived_end() -> None:
    assert ranges(head(LAST), Live(0, 12, 12)) == [OffsetRange("orders", 0, 9, 12)]
    assert ranges(head(LAST), Live(9, 40, 45)) == [OffsetRange("orders", 0, 9, 12)]
    assert ranges(head(LAST), Live(0, 11, 45)) == [OffsetRange("orders", 0, 9, 11)], (
        "an open transaction at 11"
    )


def test_log_check_ends_behind_an_unread_last_record() -> None:
    unread = msgspec.structs.replace(LAST, leader_epoch=None)
    assert ranges(head(unread), Live(0, 40, 40)) == [OffsetRange("orders", 0, 9, 10)]


def test_logs_that_can_not_tell_are_not_read() -> None:
    assert ranges(head(LAST), Live(10, 40, 40)) == [], "retention took it"
    assert ranges(head(LAST), Live(0, 9, 40)) == [], "an open transaction before it"
    assert ranges(head(LAST), Live(0, 11, 11)) == [], "it is shorter, which shows without reading"
    assert ranges(head(None), Live(0, 40, 40)) == [], "nothing is known of it"
    assert ranges(head(LAST), Live(0, 40, 40), topic_id="B") == [], "it is another topic"
    assert ranges(head(LAST, LAST), Live(0, 40, 40)) == [OffsetRange("orders", 0, 9, 12)], "one is gone"


class Reader:
    """In place of `RangeReader`."""

    def __init__(self, logs: dict[TopicPartition, list[range]], gone: Sequence[TopicPartition] = ()) -> None:
        self._logs = logs
        self.vanished = [Vanished(tp, 0, 1) for tp in gone]
        self.epochs = dict.fromkeys(logs, 4)
        self.asked: list[int] = []

    def close(self) -> None: ...

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[tuple[TopicPartition, RecordBlock]]:
        self.asked.append(len(ranges))
        for each in ranges:
            for offsets in self._logs[each.tp]:
                yield each.tp, block(offsets)


def test_every_log_is_read_once_and_those_that_differ_are_told() -> None:
    tps = [TopicPartition("orders", p) for p in range(1200)]
    last = LastRecord(offset=9, leader_epoch=4, digest=digest_of(block(range(9, 10)), 0))
    expected = [Expected(OffsetRange(*tp, 9, 12), last) for tp in tps]
    logs = {tp: [range(9, 10)] for tp in tps}
    logs |= {
        tps[3]: [range(10, 12)],
        tps[700]: [range(9, 10), range(10, 11)],
        tps[701]: [],
        tps[702]: [range(11, 12)],
    }
    reader: Any = Reader(logs, gone=[tps[702]])
    diverged, unseen = compare(reader, expected, committed=True)
    assert diverged == {tps[3]: 9, tps[700]: 9}
    assert [each.range.tp for each in unseen] == [tps[701], tps[702]]
    assert reader.asked == [500, 500, 200]


def test_an_epoch_is_validated_behind_the_last_archived_record() -> None:
    unknown = EXPECTED._replace(
        range=OffsetRange("orders", 1, 9, 10), last=msgspec.structs.replace(LAST, leader_epoch=None)
    )
    assert epoch_positions([EXPECTED, unknown]) == {TopicPartition("orders", 0): (10, 4)}


def test_logs_without_the_last_archived_record_are_asked_for_their_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of three that lack the record one was truncated, one is confirmed, one gives no answer."""
    tps = [TopicPartition("orders", p) for p in range(4)]
    logs: dict[TopicPartition, list[range]] = {tp: [] for tp in tps[:3]} | {tps[3]: [range(9, 10)]}
    last = LastRecord(offset=9, leader_epoch=4, digest=digest_of(block(range(9, 10)), 0))
    run: Any = SimpleNamespace(
        source={"bootstrap.servers": "b:1"},
        archive=None,
        head=head(*[last] * 4),
        options=Backup(poll_timeout_seconds=7),
        writing=SimpleNamespace(run="r"),
    )
    asked: list[Any] = []

    def validate(*arguments: Any) -> Validation:
        asked.append(arguments)
        return Validation(frozenset({tps[0]}), frozenset({tps[2]}))

    monkeypatch.setattr(log_check, "RangeReader", lambda *_, **__: Reader(logs))
    monkeypatch.setattr(log_check, "validate_epochs", validate)
    live = [LiveTopic("orders", "A", dict.fromkeys(range(4), Live(0, 40, 40)))]
    diverged, warnings = log_check.compare_logs(run, live)
    assert diverged == {tps[0]: 9}
    assert [w.split(" was ")[0] for w in warnings] == ["the log of orders-2"]
    assert asked == [(run.source, dict.fromkeys(tps[:3], (10, 4)), "kbackup-backup-r", 7)]


def test_an_older_archive_tells_its_last_records_itself() -> None:
    store = MemoryStore()
    archive = make_archive(store)
    manifest = archive.head
    assert manifest is not None
    live = [
        LiveTopic("orders", "id of orders", {0: Live(0, 50, 50), 1: Live(0, 50, 50), 2: Live(0, 0, 0)}),
        LiveTopic("clicks", "another id", {0: Live(0, 50, 50)}),
    ]
    filled, warnings = with_last_records(archive, manifest, live)
    assert warnings == []
    states = {(t.name, p.partition): p for t in filled.topics for p in t.partitions}
    found = {place: p.last.offset for place, p in states.items() if p.last is not None}
    assert found == {("orders", 0): 39, ("orders", 1): 11}
    again, _ = with_last_records(archive, filled, live)
    assert again is filled, "nothing is read twice"


def test_a_last_record_that_can_not_be_read_is_a_warning() -> None:
    store = MemoryStore()
    make_archive(store)
    archive = open_archive(store)
    (segment,) = [
        s for s in archive.segments(archive.restore_point(2)) if (s.topic, s.partition) == ("orders", 1)
    ][-1:]
    store.delete([layout.index_key_of(segment.key)])
    manifest = archive.head
    assert manifest is not None
    live = [LiveTopic("orders", "id of orders", {1: Live(0, 50, 50)})]
    filled, warnings = with_last_records(archive, manifest, live)
    assert [p.last for t in filled.topics for p in t.partitions if isinstance(p, PartitionState)] == [
        None
    ] * 4
    assert len(warnings) == 1
    assert "the log of orders-1 was not compared with the archive" in warnings[0]


def test_segments_of_an_unfinished_run_are_held_against_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same record, another one, and one that can't be read; compared is the last of each partition."""
    store = MemoryStore()
    segments = [s for p in range(3) for s in write(store, target(p), range(30))]
    assert len(segments) > 3
    store.delete([layout.index_key_of(segments[-1].key)])
    tps = [TopicPartition(TOPIC, p) for p in range(2)]
    reader = Reader({tps[0]: [range(29, 30)], tps[1]: [range(30, 31)]})
    monkeypatch.setattr(log_check, "RangeReader", lambda *_, **__: reader)
    run: Any = SimpleNamespace(
        source={},
        archive=SimpleNamespace(store=store),
        options=Backup(),
        writing=SimpleNamespace(run="r"),
    )
    assert log_check.of_another_history(run, segments) == {tps[1], TopicPartition(TOPIC, 2)}
    assert reader.asked == [2]
