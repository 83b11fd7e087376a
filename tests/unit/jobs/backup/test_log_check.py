"""Compare the last archived records with the records at their offsets in the logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from kbackup.archive import layout
from kbackup.archive.last_record import digest_of
from kbackup.archive.models import EpochEnd, LastRecord, Manifest, Metadata, PartitionState
from kbackup.archive.reader import open_archive
from kbackup.jobs.backup import log_check
from kbackup.jobs.backup.log_check import (
    ExpectedRecords,
    SeenRecords,
    compare,
    differs,
    expectations,
    is_replaced,
    positions,
    with_last_records,
)
from kbackup.jobs.capture import BackupSession, Live, LiveTopic, SourceCluster
from kbackup.kafka.control.logs import LogBatch
from kbackup.kafka.control.offsets import EpochPosition, Validation
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.metadata.sources import Sources
from kbackup.types import OffsetRange, RecordBlock, TopicPartition
from tests.support.archives import make_archive
from tests.support.made_segments import TOPIC, block, target, write
from tests.support.memory_store import MemoryStore
from tests.unit.jobs.backup.test_plan import archived

LAST = LastRecord(offset=9, leader_epoch=4, digest="a" * 16)
EXPECTED = ExpectedRecords(OffsetRange("orders", 0, 9, 12), (LAST,))
UNKNOWN = msgspec.structs.replace(LAST, leader_epoch=None)
BEFORE = LastRecord(offset=7, leader_epoch=None, digest="c" * 16)
FEW = ExpectedRecords(OffsetRange("orders", 0, 7, 12), (BEFORE, LAST))
NONE = ExpectedRecords(OffsetRange("orders", 0, 0, 12), ())
OTHER = "b" * 16
SAME = SeenRecords({9: LAST.digest}, 1, 4)


@pytest.mark.parametrize(
    ("expected", "seen", "exact", "offset"),
    [
        (EXPECTED, SAME, True, None),
        (EXPECTED, SAME._replace(digests={9: OTHER}), True, 9),
        (EXPECTED, SAME._replace(digests={9: OTHER}), False, 9),
        # the same bytes again, under another leader
        (EXPECTED, SAME._replace(leader_epoch=5), True, 9),
        (EXPECTED, SAME._replace(leader_epoch=-1), True, None),
        # it is not there: nothing that its absence alone tells
        (EXPECTED, None, True, None),
        # a record that the archive would have; of an aborted transaction, perhaps, where only some runs read those
        (EXPECTED, SeenRecords({10: LAST.digest}, 1, 4), True, 10),
        (EXPECTED, SeenRecords({10: LAST.digest}, 1, 4), False, None),
        (EXPECTED, SAME._replace(records=2), True, 10),
        (EXPECTED, SAME._replace(records=2, leader_epoch=5), False, None),
        # compaction took the last one, and the record before it is another one, or has another epoch
        (FEW, SeenRecords({7: BEFORE.digest}, 1, 3), True, None),
        (FEW, SeenRecords({7: OTHER}, 1, 3), True, 7),
        (FEW, SeenRecords({7: BEFORE.digest, 9: LAST.digest}, 2, 4), True, None),
        (FEW, SeenRecords({7: BEFORE.digest, 8: OTHER}, 2, 4), True, 8),
        # the archive has no record at all
        (NONE, None, True, None),
        (NONE, SeenRecords({3: OTHER}, 1, 4), True, 3),
    ],
)
def test_last_records_reveal_a_truncated_log(
    expected: ExpectedRecords, seen: SeenRecords | None, exact: bool, offset: int | None
) -> None:
    assert differs(expected, seen, exact=exact) == offset


def test_an_epoch_that_was_not_known_is_not_compared() -> None:
    unknown = EXPECTED._replace(archived=(UNKNOWN,))
    assert differs(unknown, SAME._replace(leader_epoch=9), exact=True) is None


def head(*lasts: LastRecord | None, end: int = 12) -> Manifest:
    made = archived(*[end for _ in lasts])
    partitions = tuple(
        msgspec.structs.replace(p, last=last) for p, last in zip(made.topics[0].partitions, lasts, strict=True)
    )
    return msgspec.structs.replace(made, topics=(msgspec.structs.replace(made.topics[0], partitions=partitions),))


def ranges(manifest: Manifest, *lives: Live, topic_id: str = "A") -> list[OffsetRange]:
    live = [LiveTopic("orders", topic_id, dict(enumerate(lives)))]
    return [e.range for e in expectations(manifest, live, exact=True)]


def test_a_log_is_read_from_the_last_archived_record_to_the_archived_end() -> None:
    assert ranges(head(LAST), Live(0, 12, 12)) == [OffsetRange("orders", 0, 9, 12)]
    assert ranges(head(LAST), Live(9, 40, 45)) == [OffsetRange("orders", 0, 9, 12)]
    assert ranges(head(LAST), Live(0, 11, 45)) == [OffsetRange("orders", 0, 9, 11)], "an open transaction at 11"


def test_log_check_ends_behind_an_unread_last_record() -> None:
    assert ranges(head(UNKNOWN), Live(0, 40, 40)) == [OffsetRange("orders", 0, 9, 10)]


def with_partition(manifest: Manifest, **changes: Any) -> Manifest:
    (topic,) = manifest.topics
    partition = msgspec.structs.replace(topic.partitions[0], **changes)
    return msgspec.structs.replace(manifest, topics=(msgspec.structs.replace(topic, partitions=(partition,)),))


def test_a_log_is_read_from_the_first_record_that_is_remembered() -> None:
    remembered = with_partition(head(LAST), tail=(BEFORE,))
    assert ranges(remembered, Live(0, 40, 40)) == [OffsetRange("orders", 0, 7, 12)]
    assert ranges(remembered, Live(8, 40, 40)) == [OffsetRange("orders", 0, 9, 12)], "retention took one"


def test_a_range_without_archived_records_has_none_in_the_log() -> None:
    aborted = with_partition(head(None), records=0)
    live = [LiveTopic("orders", "A", {0: Live(3, 40, 40)})]
    assert expectations(aborted, live, exact=True) == [ExpectedRecords(OffsetRange("orders", 0, 3, 12), ())]
    assert expectations(aborted, live, exact=False) == [], "some runs read aborted records, and some did not"


def test_logs_that_can_not_tell_are_not_read() -> None:
    assert ranges(head(LAST), Live(10, 40, 40)) == [], "retention took it"
    assert ranges(head(LAST), Live(0, 9, 40)) == [], "an open transaction before it"
    assert ranges(head(LAST), Live(0, 11, 11)) == [], "it is shorter, which shows without reading"
    assert ranges(head(None), Live(0, 40, 40)) == [], "nothing is known of it"
    assert ranges(head(LAST), Live(0, 40, 40), topic_id="B") == [], "it is another topic"
    assert ranges(head(LAST, LAST), Live(0, 40, 40)) == [OffsetRange("orders", 0, 9, 12)], "one is gone"


def changed(of: RecordBlock) -> RecordBlock:
    """Return the block with other bytes in each record."""
    return replace(of, data=of.data ^ np.uint8(1))


class Reader:
    """In place of `RangeReader`; its logs are blocks, or the offsets of blocks."""

    def __init__(self, logs: Mapping[TopicPartition, Sequence[range | RecordBlock]]) -> None:
        self._logs = logs
        self.epochs = dict.fromkeys(logs, 4)
        self.asked: list[int] = []

    def close(self) -> None: ...

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[tuple[TopicPartition, RecordBlock]]:
        self.asked.append(len(ranges))
        for each in ranges:
            for log in self._logs[each.tp]:
                yield each.tp, block(log) if isinstance(log, range) else log


def test_every_log_is_read_once_and_those_that_differ_are_told() -> None:
    tps = [TopicPartition("orders", p) for p in range(1200)]
    last = LastRecord(offset=9, leader_epoch=4, digest=digest_of(block(range(9, 10)), 0))
    expected = [ExpectedRecords(OffsetRange(*tp, 9, 12), (last,)) for tp in tps]
    logs = {tp: [range(9, 10)] for tp in tps}
    logs |= {tps[3]: [range(10, 12)], tps[700]: [range(9, 10), range(10, 11)], tps[701]: [], tps[702]: [range(11, 12)]}
    reader: Any = Reader(logs)
    diverged, unseen = compare(reader, expected, exact=True)
    assert diverged == {tps[3]: 10, tps[700]: 10, tps[702]: 11}
    assert [(each.tp, each.offsets) for each in unseen] == [(tps[701], (9,))]
    assert reader.asked == [500, 500, 200]


class Source:
    """In place of `Cluster`."""

    router = None
    validate_epochs: Callable[[dict[TopicPartition, EpochPosition], float], Validation]

    def __init__(self, policy: str, starts: dict[int, int]) -> None:
        self._policy, self._starts = policy, starts

    def log_starts(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._starts.get(tp.partition, 0) for tp in partitions}

    def one_config(self, names: set[str], config: str) -> dict[str, str]:
        assert config == "cleanup.policy"
        return dict.fromkeys(names, self._policy)


def source_of(cluster: Source | None = None) -> SourceCluster:
    made: Any = cluster or Source("delete", {})
    return SourceCluster(made, "c", 1, Sources(kafka={"bootstrap.servers": "b:1"}), "read_committed", 7)


def base_of(head: Manifest | None = None, settings: Metadata | None = None, **archive: Any) -> BackupSession:
    state = SimpleNamespace(isolation_levels={"read_committed"})
    run: Any = SimpleNamespace(run="r", archive=SimpleNamespace(state=state, **archive))
    return BackupSession(run, head, None, settings)


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
    (segment,) = [s for s in archive.segments(archive.restore_point(2)) if (s.topic, s.partition) == ("orders", 1)][-1:]
    store.delete([layout.index_key_of(segment.key)])
    manifest = archive.head
    assert manifest is not None
    live = [LiveTopic("orders", "id of orders", {1: Live(0, 50, 50)})]
    filled, warnings = with_last_records(archive, manifest, live)
    assert [p.last for t in filled.topics for p in t.partitions if isinstance(p, PartitionState)] == [None] * 4
    assert len(warnings) == 1
    assert "the log of orders-1 was not compared with the archive" in warnings[0]


def test_segments_of_an_unfinished_run_are_held_against_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same record, another one, one that can't be read, and no record; compared is the last of each partition."""
    store = MemoryStore()
    segments = [s for p in (0, 1, 3, 2) for s in write(store, target(p), range(30))]
    assert len(segments) > 3
    store.delete([layout.index_key_of(segments[-1].key)])
    tps = [TopicPartition(TOPIC, p) for p in (0, 1, 3)]
    reader = Reader({tps[0]: [range(30)], tps[1]: [range(30, 31)], tps[2]: []})
    monkeypatch.setattr(log_check, "RangeReader", lambda *_, **__: reader)
    session = base_of(store=store)
    assert log_check.truncated_partitions(source_of(), session, segments) == {tps[1], tps[2], TopicPartition(TOPIC, 2)}
    assert reader.asked == [3, 3], "a difference is looked at once more, with the native kernel"


def test_segments_of_an_unfinished_run_whose_last_record_came_again_are_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, tp = MemoryStore(), TopicPartition(TOPIC, 0)
    segments = write(store, target(0), range(10)) + write(store, target(0), range(10, 30))
    reader = Reader({tp: [block(range(30))]})
    monkeypatch.setattr(log_check, "RangeReader", lambda *_, **__: reader)
    assert log_check.truncated_partitions(source_of(), base_of(store=store), segments) == set()
    reader = Reader({tp: [block(range(5)), changed(block(range(5, 28))), block(range(28, 30))]})
    assert log_check.truncated_partitions(source_of(), base_of(store=store), segments) == {tp}


NEAR = {5: digest_of(block(range(5, 6)), 0), 8: digest_of(block(range(8, 9)), 0)}
AGAIN = LastRecord(offset=9, leader_epoch=4, digest=digest_of(block(range(9, 10)), 0))


def compare_earlier(*blocks: RecordBlock, earlier: dict[int, str] = NEAR) -> tuple[int | None, list[tuple[int, ...]]]:
    """Hold the last record and `earlier` ones against a log of `blocks`; return the differing and the missing ones."""
    tp = TopicPartition("orders", 0)
    each = ExpectedRecords(OffsetRange("orders", 0, min(earlier), 12), (AGAIN,), earlier=earlier)
    reader: Any = Reader({tp: list(blocks)})
    diverged, unseen = compare(reader, [each], exact=True)
    return diverged.get(tp), [each.offsets for each in unseen]


def test_an_earlier_record_that_is_another_one_reveals_a_log_that_ends_with_the_same_record() -> None:
    assert compare_earlier(block(range(5, 10))) == (None, [])
    assert compare_earlier(block(range(5, 8)), changed(block(range(8, 9))), block(range(9, 10))) == (8, [])
    assert compare_earlier(changed(block(range(5, 9))), block(range(9, 10))) == (5, []), "the lowest is told"


def test_a_log_without_an_earlier_record_lacks_it() -> None:
    assert compare_earlier(block(range(6, 10))) == (None, [(5,)])
    assert compare_earlier(block(range(5, 9))) == (None, [(9,)])
    assert compare_earlier() == (None, [(5, 8, 9)])


def test_records_between_the_earlier_ones_are_not_compared() -> None:
    """Nobody remembers them, so they are none that the archive lacks."""
    assert compare_earlier(block(range(4, 10)), earlier={5: NEAR[5]}) == (None, [])
    assert compare_earlier(block(range(5, 10)), block(range(10, 11))) == (10, []), "behind the last one they are"


def test_the_records_that_one_fetch_brings_are_read_with_the_last_one() -> None:
    earlier = {1: "a", 400: "b", 900: "c", 990: "d"}
    each = ExpectedRecords(OffsetRange("orders", 0, 1000, 1001), (msgspec.structs.replace(LAST, offset=1000),))
    small = log_check.with_earlier(each, earlier, record_bytes=10)
    assert (small.range.start, dict(small.far)) == (1, {})
    usual = log_check.with_earlier(each, earlier, record_bytes=100)
    assert (usual.range.start, dict(usual.far)) == (400, {1: "a"})
    large = log_check.with_earlier(each, earlier, record_bytes=1 << 20)
    assert (large.range.start, dict(large.far)) == (900, {400: "b", 1: "a"}), "two at least"


def test_far_records_are_read_one_of_each_partition_at_a_time() -> None:
    def expect(partition: int, far: dict[int, str]) -> ExpectedRecords:
        return ExpectedRecords(OffsetRange("orders", partition, 9, 12), (LAST,), far=far)

    passes = list(log_check.far_records([expect(0, {3: "c", 1: "a"}), expect(1, {}), expect(2, {5: "e"})]))
    assert [[each.range for each in one] for one in passes] == [
        [OffsetRange("orders", 0, 3, 4), OffsetRange("orders", 2, 5, 6)],
        [OffsetRange("orders", 0, 1, 2)],
    ]


@pytest.mark.parametrize(
    ("log_end", "end", "epoch", "read"),
    [
        (12, 12, 5, False),  # nothing new
        (12, 40, None, True),
        (12, 40, 4, True),
        (12, 13, 4, False),
        (12, 13, None, False),
        (12, 13, 5, True),
    ],
)
def test_far_records_are_read_of_logs_with_many_new_records_or_a_new_leader(
    log_end: int, end: int, epoch: int | None, read: bool
) -> None:
    last = msgspec.structs.replace(LAST, offset=11)
    remembered = with_partition(
        head(last), earlier={2: "a", 3: "b", 10: "c"}, log_end=log_end, records=12, bytes=12 * 100_000
    )
    live = [LiveTopic("orders", "A", {0: Live(0, end, end, epoch)})]
    (each,) = expectations(remembered, live, exact=True)
    assert (dict(each.earlier), dict(each.far)) == ({3: "b", 10: "c"}, {2: "a"} if read else {})


def test_earlier_records_below_the_log_start_are_not_looked_for() -> None:
    remembered = with_partition(head(msgspec.structs.replace(LAST, offset=11)), earlier={1: "a", 2: "b", 10: "c"})
    (each,) = expectations(remembered, [LiveTopic("orders", "A", {0: Live(2, 40, 40)})], exact=True)
    assert dict(each.earlier) == {2: "b", 10: "c"}


def test_an_earlier_record_above_the_log_start_is_missed_without_compaction_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = [block(range(7, 10))]
    for policy, start, cut in (("delete", 5, {0: 5}), ("delete", 6, {}), ("compact", 5, {})):
        monkeypatch.setattr(log_check, "RangeReader", lambda *_, **__: Reader({TopicPartition("orders", 0): log}))
        session = base_of(with_partition(head(AGAIN), earlier=NEAR))
        live = [LiveTopic("orders", "A", {0: Live(0, 40, 40)})]
        diverged, warnings = log_check.compare_logs(source_of(Source(policy, {0: start})), session, live)
        assert ({tp.partition: at for tp, at in diverged.items()}, warnings) == (cut, []), (policy, start)


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


def test_a_log_is_compared_once_under_each_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader cuts no log of its own. Where the epoch is unknown, nobody can tell."""
    last = LastRecord(offset=9, leader_epoch=4, digest=digest_of(block(range(9, 10)), 0))
    logs = {TopicPartition("orders", p): [range(9, 10)] for p in range(2)}
    reader, session = Reader(logs), base_of(head(last, last))
    monkeypatch.setattr(log_check, "RangeReader", lambda *_, **__: reader)
    for epochs, asked in (((4, None), 2), ((4, None), 1), ((4, 4), 1), ((4, 4), 0), ((5, 4), 1), ((5, 4), 0)):
        reader.asked.clear()
        live = [LiveTopic("orders", "A", {p: Live(0, 40, 40, epoch) for p, epoch in enumerate(epochs)})]
        assert log_check.compare_logs(source_of(), session, live) == ({}, [])
        assert sum(reader.asked) == asked, epochs


def compared(
    monkeypatch: pytest.MonkeyPatch,
    source: Source,
    batches: dict[int, LogBatch] | Unavailable | None = None,
    settings: Metadata | None = None,
) -> tuple[dict[int, int], list[str], list[Any]]:
    """Compare five logs: the last one has the record. Epoch 4 of partition 0 was truncated; 2 gives no answer."""
    tps = [TopicPartition("orders", p) for p in range(5)]
    logs: dict[TopicPartition, list[range]] = {tp: [] for tp in tps[:4]} | {tps[4]: [range(9, 10)]}
    last = LastRecord(offset=9, leader_epoch=4, digest=digest_of(block(range(9, 10)), 0))
    connected, session = source_of(source), base_of(head(*[last] * 5), settings)
    asked: list[Any] = []

    def validate(positions: dict[TopicPartition, EpochPosition], seconds: float) -> Validation:
        asked.append(positions)
        assert seconds == 7
        return Validation(frozenset({tps[0]} & positions.keys()), frozenset({tps[2]} & positions.keys()))

    monkeypatch.setattr(log_check, "RangeReader", lambda *_, **__: Reader(logs))
    source.validate_epochs = validate
    known = batches if isinstance(batches, Unavailable) else {tps[p]: b for p, b in (batches or {}).items()}
    monkeypatch.setattr(log_check, "log_batches", lambda *_: known)
    live = [LiveTopic("orders", "A", dict.fromkeys(range(5), Live(0, 40, 40)))]
    diverged, warnings = log_check.compare_logs(connected, session, live)
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
    diverged, _, _ = compared(monkeypatch, Source("delete", {}), settings=settings)
    assert diverged == {0: 9}


def test_batches_that_can_not_be_read_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    unavailable = Unavailable("not supported", "sasl.mechanism GSSAPI works in librdkafka alone")
    diverged, warnings, _ = compared(monkeypatch, Source("compact", {}), unavailable)
    assert diverged == {0: 9}
    assert warnings[0].startswith("4 logs (orders-0, …) that compaction may have changed were compared")
    assert "GSSAPI" in warnings[0]
