"""Records from segments to a target: reading ahead, and where the transactions of a unit end."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.map_parts import MapPart, MapPartName, begun_map_parts, read_map_parts, write_map_part
from kbackup.archive.restores.offset_map import runs_table
from kbackup.archive.restores.plan import UnitRange
from kbackup.archive.segments import read as segment_io
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import Window
from kbackup.errors import ClusterError
from kbackup.jobs import replay
from kbackup.jobs.replay import ahead, read_range, together, within
from kbackup.jobs.restore import task as restore_task
from kbackup.jobs.restore.task import RestoreWork, UnitResult, side_by_side
from kbackup.kafka.client import fetch_size_factor
from kbackup.kafka.produce import RefusedTopicError
from kbackup.native.contract import CommittedProgress, Runs
from kbackup.spark.tasks import ProgressSender
from kbackup.store.base import Store
from kbackup.types import RecordBlock, TopicPartition
from tests.support.made_segments import target, write
from tests.support.memory_store import MemoryStore


def test_prefetch_yields_all_items_in_order() -> None:
    assert list(ahead(range(1000), 2)) == list(range(1000))


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("third")

    got: list[int] = []
    with pytest.raises(ValueError, match="third"):
        got.extend(ahead(items(), 4))
    assert got == [1, 2]


def test_prefetch_keeps_its_depth_and_ends_its_thread_when_closed() -> None:
    made: list[int] = []
    enough = threading.Event()

    def items() -> Iterator[int]:
        for n in range(100):
            made.append(n)
            if n == 3:
                enough.set()
            yield n

    reading = ahead(items(), 3)
    assert next(reading) == 0
    assert enough.wait(5)
    assert len(made) <= 4  # one given, three made meanwhile
    reading.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name == "kbackup-ahead"]


TP = TopicPartition("orders", 0)


class Call(NamedTuple):
    """A call of a `BlockProducer`: 'send' with the first and the last source offset, or 'commit' with the progress."""

    method: str
    at: int
    last: int = 0


class Target:
    """Records the calls of a `BlockProducer`."""

    moved = 0
    group = ""

    def __init__(self, *_: object) -> None:
        self.calls: list[Call] = []
        self._queued: list[RecordBlock] = []

    def start(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedProgress]:
        return {}

    def send(self, tp: TopicPartition, block: RecordBlock) -> None:
        self._queued.append(block)
        self.calls.append(Call("send", int(block.offsets[0]), int(block.offsets[-1])))

    def flush(self) -> dict[TopicPartition, Runs]:
        source = np.concatenate([block.offsets for block in self._queued])
        self._queued.clear()
        return {TP: Runs(source, source, np.ones(len(source), np.int64))}

    def commit(self, progress: Mapping[TopicPartition, CommittedProgress]) -> None:
        self.calls.append(Call("commit", progress[TP].next))

    def close(self) -> None: ...


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Target:
    made = Target()

    def start(_target: object, _id: str, group: str, _largest: int, **_: object) -> Target:
        made.group = group
        return made

    monkeypatch.setattr(restore_task, "BlockProducer", start)
    return made


@pytest.fixture
def store() -> Store:
    return MemoryStore()


@pytest.fixture
def small_then_large(store: Store, monkeypatch: pytest.MonkeyPatch) -> tuple[Segment, Segment]:
    """Records 0 to 4, and 100 to 299 in some twenty blocks; only the second must be checked first."""
    for name in ("FETCH_SPAN", "SPAN"):
        monkeypatch.setattr(segment_io, name, 600)
    monkeypatch.setattr(replay, "SMALL", 0)
    (small,), (large,) = (write(store, target(threshold=1 << 20), offsets) for offsets in (range(5), range(100, 300)))
    monkeypatch.setattr(replay, "LARGE_SEGMENT", small.bytes)
    return small, large


def part(segments: Sequence[Segment], window: Window | None = None) -> UnitRange:
    return UnitRange(topic="orders", partition=0, target="orders", segments=tuple(segments), window=window)


def run(store: Store, unit: UnitRange, number: int = 0) -> UnitResult:
    work = RestoreWork(
        target={},
        store=store,
        journal=RestoreJournal(store, "r"),
        groups=("g", "g@1", "g@2"),
        transactions=True,
        transaction_bytes=1 << 30,
    )
    (result,) = work([(number, (unit,))], ProgressSender(None, 0))
    return result


def test_nothing_is_open_while_a_large_segment_is_checked(
    store: Store, producer: Target, small_then_large: tuple[Segment, Segment]
) -> None:
    result = run(store, part(small_then_large))
    small, committed, large = producer.calls[:3]
    assert (small, committed) == (Call("send", 0, 4), Call("commit", 100))
    assert (large.method, large.at) == ("send", 100)
    assert [call for call in producer.calls if call.method == "commit"] == [Call("commit", 100), Call("commit", 300)]
    assert sum(part.runs.column("count").to_numpy().sum() for part in parts_of(store, result)) == 205


def test_nothing_is_open_while_a_window_passes_over_a_large_segment(
    store: Store, producer: Target, small_then_large: tuple[Segment, Segment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "QUIET", 2000)
    large = part(small_then_large[1:], Window(ranges=((100, 103), (290, 292))))
    result = run(store, large)
    _, passing, _, end = producer.calls
    assert [call.method for call in producer.calls] == ["send", "commit", "send", "commit"]
    assert 103 < passing.at < 290
    assert end.at == 300
    first, last = (part.runs.column("source").to_pylist() for part in parts_of(store, result))
    assert first + last == [100, 101, 102, 290, 291]
    rest = list(read_range(store, large, passing.at, check_first=1))
    assert [n for piece in rest if piece.block for n in piece.block.offsets.tolist()] == [290, 291]
    assert min(piece.next for piece in rest) >= passing.at


class PickyTarget:
    """A cluster that refuses a topic, and keeps what each attempt commits: source offsets by topic, and progress."""

    def __init__(self, refused: str) -> None:
        self.refused = refused
        self.committed: dict[str, list[int]] = {}
        self.progress: dict[TopicPartition, CommittedProgress] = {}
        self.moved = 0
        self._queued: dict[TopicPartition, list[int]] = {}

    def start(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedProgress]:
        self._queued = {}
        return {tp: self.progress[tp] for tp in partitions if tp in self.progress}

    def send(self, tp: TopicPartition, block: RecordBlock) -> None:
        if tp.topic == self.refused:
            raise RefusedTopicError(tp.topic, f"no more of {tp.topic}", "mend it")
        self._queued.setdefault(tp, []).extend(block.offsets.tolist())

    def flush(self) -> dict[TopicPartition, Runs]:
        queued = {tp: np.array(offsets) for tp, offsets in self._queued.items()}
        return {tp: Runs(offsets, offsets, np.ones(len(offsets), np.int64)) for tp, offsets in queued.items()}

    def commit(self, progress: Mapping[TopicPartition, CommittedProgress]) -> None:
        for tp, offsets in self._queued.items():
            self.committed.setdefault(tp.topic, []).extend(offsets)
        self.progress |= progress
        self._queued = {}

    def close(self) -> None: ...


@pytest.mark.parametrize("transaction_bytes", [1, 1 << 30])
def test_a_topic_that_is_refused_does_not_stop_the_others_of_its_unit(
    store: Store, monkeypatch: pytest.MonkeyPatch, transaction_bytes: int
) -> None:
    picky = PickyTarget("bad")
    monkeypatch.setattr(restore_task, "BlockProducer", lambda *_, **__: picky)
    segments = write(store, target(threshold=1 << 20), range(50))
    names = ("first", "bad", "last")
    unit = tuple(UnitRange(topic="orders", partition=0, target=name, segments=tuple(segments)) for name in names)
    monkeypatch.setattr(restore_task, "first_committed", lambda *_: None)
    work = RestoreWork({}, store, RestoreJournal(store, "r"), ("g",), True, transaction_bytes)
    (result,) = work([(3, unit)], ProgressSender(None, 0))
    assert [(each.target, each.reason) for each in result.failed] == [("bad", "no more of bad")]
    assert picky.committed == {"first": [*range(50)], "last": [*range(50)]}
    in_map = [row for part in parts_of(store, result) for row in part.runs.to_pylist()]
    assert Counter(row["topic"] for row in in_map) == {"first": 50, "last": 50}  # a row for each record

    picky.refused = ""
    (again,) = work([(3, unit)], ProgressSender(None, 0))
    assert again.failed == ()
    assert picky.committed == {name: [*range(50)] for name in names}


def test_a_topic_that_was_made_anew_after_it_was_written_to_is_given_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers deleted its progress with it, and its records are in the map already."""
    picky = PickyTarget("")
    monkeypatch.setattr(restore_task, "BlockProducer", lambda *_, **__: picky)
    segments = write(store, target(threshold=1 << 20), range(50))
    unit = tuple(UnitRange(topic="orders", partition=0, target=n, segments=tuple(segments)) for n in ("a", "b"))
    monkeypatch.setattr(restore_task, "first_committed", lambda *_: None)
    work = RestoreWork({}, store, RestoreJournal(store, "r"), ("g",), True, 1 << 30)
    list(work([(3, unit)], ProgressSender(None, 0)))
    del picky.progress[TopicPartition("a", 0)]
    (result,) = work([(3, unit)], ProgressSender(None, 0))
    assert [each.reason for each in result.failed] == [
        "target topic a was created again after this restore wrote to it"
    ]
    assert picky.committed == {name: [*range(50)] for name in ("a", "b")}


def parts_of(store: Store, result: UnitResult) -> list[MapPart]:
    return list(read_map_parts(store, "r", [(result.number, result.parts)]))


def begun(store: Store, unit: int, first: int) -> None:
    runs = runs_table({TP: (np.array([0]), np.array([first]), np.array([5]))})
    write_map_part(store, "r", unit, MapPartName("attempt", 0), runs, None)


def test_a_unit_that_was_committed_but_has_no_progress_is_refused(
    store: Store, producer: Target, small_then_large: tuple[Segment, Segment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of another unit says nothing of this one; nor does one whose transaction was given up."""
    asked: list[list[pa.Table]] = []

    def committed(target: object, group: str, parts: Iterator[pa.Table]) -> tuple[TopicPartition, int] | None:
        asked.append(list(parts))
        assert group == producer.group
        return (TP, 7) if asked[-1] and producer.calls else None

    monkeypatch.setattr(restore_task, "first_committed", committed)
    begun(store, 1, 70)
    begun(store, 10, 7)
    run(store, part(small_then_large), 10)
    ((table,),) = asked
    assert table.column("target").to_pylist() == [7]
    with pytest.raises(
        ClusterError, match=r"of unit 10 is missing .* orders-0 holds .* at offset 7, group g@1 "
    ) as told:
        run(store, part(small_then_large), 10)
    assert "offsets.retention.minutes" in told.value.message
    assert "another --restore-id" in told.value.hint


def test_a_unit_that_was_never_begun_asks_nobody(store: Store) -> None:
    assert list(begun_map_parts(store, "r", 0)) == []


def test_others_records_are_none_of_a_part() -> None:
    low, high = np.array([5, 20]), np.array([8, 21])
    assert within(np.array([0, 4, 5, 7, 8, 19, 20, 21, 99]), low, high).tolist() == [5, 7, 20]


def test_small_pieces_go_out_together(store: Store) -> None:
    segments = [
        segment
        for partition in range(5)
        for segment in write(store, target(threshold=1 << 20), range(10 * partition, 10 * partition + 10))
    ]
    pieces = [(part(segments), piece) for piece in read_range(store, part(segments))]
    assert list(together(iter(pieces))) == [pieces]
    size = pieces[0][1].read
    together_of_two = list(together(iter(pieces), 2 * size))
    assert [len(some) for some in together_of_two] == [3, 4, 3]
    assert [each for some in together_of_two for each in some] == pieces


def test_a_pause_is_not_kept_waiting(store: Store, small_then_large: tuple[Segment, Segment]) -> None:
    unit = part(small_then_large)
    lists = list(together((unit, piece) for piece in read_range(store, unit, 0, small_then_large[0].bytes)))
    lasts = [piece for *_, (_, piece) in lists]
    assert [piece.pause for piece in lasts] == [True, False]


@pytest.mark.parametrize(
    ("units", "round_trip", "cores", "sizes"),
    [
        (9, 0.001, 2, [1] * 9),
        (9, 0.1, 2, [2, 2, 2, 2, 1]),
        (9, 0.2, 2, [4, 4, 1]),
        (9, 5.0, 1, [4, 4, 1]),
        (5, 0.2, 2, [2, 2, 1]),
        (3, 0.2, 8, [1, 1, 1]),
    ],
)
def test_units_of_a_far_target_run_side_by_side(units: int, round_trip: float, cores: int, sizes: list[int]) -> None:
    tasks = side_by_side([(number, ()) for number in range(units)], fetch_size_factor(round_trip), cores)
    assert list(map(len, tasks)) == sizes
    assert [number for task in tasks for number, _ in task] == list(range(units))
