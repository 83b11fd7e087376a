"""Records from segments to a target: reading ahead, and where the transactions of a unit end."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.map_parts import Cut, MapPart, MapPartName, begun_map_parts, read_map_parts
from kbackup.archive.restores.offset_map import runs_table
from kbackup.archive.restores.plan import UnitRange
from kbackup.archive.segments import read as segment_io
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import Window
from kbackup.errors import ClusterError, UsageError
from kbackup.jobs import replay
from kbackup.jobs.replay import ahead, read_range, together, within
from kbackup.jobs.restore.task import RestoreWork, TargetClients, Unit, UnitResult, side_by_side
from kbackup.jobs.transform import Transform
from kbackup.kafka.client import fetch_size_factor
from kbackup.kafka.produce import RefusedTopicError
from kbackup.native.contract import CommittedProgress, Runs
from kbackup.spark.tasks import ProgressSender
from kbackup.store.base import Store
from kbackup.types import RecordBlock, TopicPartition
from tests.support.made_segments import target, write
from tests.support.map_parts import a_map_part
from tests.support.memory_store import MemoryStore
from tests.support.transforms import EVEN_OFFSETS, NOTHING, a_transform


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
def producer() -> Target:
    return Target()


def nothing_committed(target: object, group: str, parts: object) -> None:
    return None


def clients_of(producer: Any, committed: Any = nothing_committed) -> TargetClients:
    """Return what reaches a target by this producer alone."""

    def open_producer(_target: object, _id: str, group: str, _largest: int, **_: object) -> Any:
        producer.group = group
        return producer

    return TargetClients(open_producer, committed)


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


def run(
    store: Store, unit: UnitRange, clients: TargetClients, number: int = 0, transform: Transform | None = None
) -> UnitResult:
    work = RestoreWork(
        target={},
        store=store,
        journal=RestoreJournal(store, "r"),
        groups=("g", "g@1", "g@2"),
        transactions=True,
        transaction_bytes=1 << 30,
        clients=clients,
        transform=transform,
    )
    (result,) = work([(number, (unit,))], ProgressSender(None, 0))
    return result


def test_nothing_is_open_while_a_large_segment_is_checked(
    store: Store, producer: Target, small_then_large: tuple[Segment, Segment]
) -> None:
    result = run(store, part(small_then_large), clients_of(producer))
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
    result = run(store, large, clients_of(producer))
    _, passing, _, end = producer.calls
    assert [call.method for call in producer.calls] == ["send", "commit", "send", "commit"]
    assert 103 < passing.at < 290
    assert end.at == 300
    first, last = (part.runs.column("source").to_pylist() for part in parts_of(store, result))
    assert first + last == [100, 101, 102, 290, 291]
    rest = list(read_range(store, large, passing.at, check_first=1))
    assert [n for piece in rest if piece.block for n in piece.block.offsets.tolist()] == [290, 291]
    assert min(piece.next for piece in rest) >= passing.at


def test_what_a_transform_leaves_out_is_counted_and_progress_goes_past_it(store: Store, producer: Target) -> None:
    segments = write(store, target(threshold=1 << 20), range(10))
    result = run(store, part(segments), clients_of(producer), transform=a_transform(EVEN_OFFSETS))
    (only,) = parts_of(store, result)
    assert only.runs.column("source").to_pylist() == [0, 2, 4, 6, 8]
    assert producer.calls[-1] == Call("commit", 10)
    assert only.cut.plus(result.cut) == Cut(left_out=(("orders", 5),))


def test_in_a_window_the_records_that_it_selected_are_counted_too(store: Store, producer: Target) -> None:
    segments = write(store, target(threshold=1 << 20), range(10))
    window = part(segments, Window(ranges=((2, 7),)))
    result = run(store, window, clients_of(producer), transform=a_transform(EVEN_OFFSETS))
    (only,) = parts_of(store, result)
    cut = only.cut.plus(result.cut)
    assert (cut.records, cut.left_out) == (5, (("orders", 2),))
    assert only.runs.column("source").to_pylist() == [2, 4, 6]


def test_a_unit_of_which_nothing_is_left_commits_nothing(store: Store, producer: Target) -> None:
    segments = write(store, target(threshold=1 << 20), range(10))
    result = run(store, part(segments), clients_of(producer), transform=a_transform(NOTHING))
    assert (producer.calls, result.parts) == ([], ())
    assert result.cut == Cut(left_out=(("orders", 10),))


def test_nothing_of_a_unit_is_committed_whose_transform_fails(store: Store, producer: Target) -> None:
    segments = write(store, target(threshold=200), range(40))
    assert len(segments) > 2
    transform = a_transform("return batch if batch.column('offset')[0].as_py() < 20 else batch['gone']")
    with pytest.raises(UsageError, match="failed at line 5, for the records of orders-0 from offset"):
        run(store, part(segments), clients_of(producer), transform=transform)
    assert [call for call in producer.calls if call.method == "commit"] == []


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


def segments_of(store: Store, offsets: range) -> list[Segment]:
    return write(store, target(threshold=1 << 20), offsets)


def unit_of(topics: Sequence[str], segments: Sequence[Segment]) -> Unit:
    """Return unit 3, which brings the same records into each topic."""
    ranges = [UnitRange(topic="orders", partition=0, target=name, segments=tuple(segments)) for name in topics]
    return 3, tuple(ranges)


def attempt(store: Store, unit: Unit, producer: PickyTarget, transaction_bytes: int = 1 << 30) -> UnitResult:
    work = RestoreWork(
        target={},
        store=store,
        journal=RestoreJournal(store, "r"),
        groups=("g",),
        transactions=True,
        transaction_bytes=transaction_bytes,
        clients=clients_of(producer),
    )
    (result,) = work([unit], ProgressSender(None, 0))
    return result


def topics_in_map(store: Store, result: UnitResult) -> Counter[str]:
    """Return how many records of each topic are in a unit's map, which has a row for each."""
    return Counter(row["topic"] for part in parts_of(store, result) for row in part.runs.to_pylist())


@pytest.mark.parametrize("transaction_bytes", [1, 1 << 30])
def test_a_topic_that_is_refused_does_not_stop_the_others_of_its_unit(store: Store, transaction_bytes: int) -> None:
    picky = PickyTarget("bad")
    names = ("first", "bad", "last")
    unit = unit_of(names, segments_of(store, range(50)))

    result = attempt(store, unit, picky, transaction_bytes)
    assert [(each.target, each.reason) for each in result.failed] == [("bad", "no more of bad")]
    assert picky.committed == {"first": [*range(50)], "last": [*range(50)]}
    assert topics_in_map(store, result) == {"first": 50, "last": 50}

    picky.refused = ""
    again = attempt(store, unit, picky, transaction_bytes)
    assert again.failed == ()
    assert picky.committed == {name: [*range(50)] for name in names}


def test_a_topic_that_was_made_anew_after_it_was_written_to_is_given_up(store: Store) -> None:
    """Brokers deleted its progress with it, and its records are in the map already."""
    picky = PickyTarget("")
    unit = unit_of(("a", "b"), segments_of(store, range(50)))
    attempt(store, unit, picky)
    del picky.progress[TopicPartition("a", 0)]

    result = attempt(store, unit, picky)
    assert [each.reason for each in result.failed] == [
        "target topic a was created again after this restore wrote to it"
    ]
    assert picky.committed == {name: [*range(50)] for name in ("a", "b")}


def test_a_topic_that_was_given_up_goes_on_where_it_was_and_the_others_where_they_are(store: Store) -> None:
    """Its progress names an older part of the map than that of the others."""
    picky = PickyTarget("")
    names = ("given-up", "orders", "clicks")
    early = segments_of(store, range(20))
    attempt(store, unit_of(names, early), picky)
    picky.refused = "given-up"
    whole = unit_of(names, [*early, *segments_of(store, range(20, 50))])
    attempt(store, whole, picky, transaction_bytes=1)
    assert picky.committed["given-up"] == [*range(20)]
    notes = {tp.topic: committed.note for tp, committed in picky.progress.items()}
    assert notes["given-up"] != notes["orders"] == notes["clicks"]

    picky.refused = ""
    result = attempt(store, whole, picky)
    assert result.failed == ()
    assert picky.committed == {name: [*range(50)] for name in names}
    assert topics_in_map(store, result) == dict.fromkeys(names, 50)


@pytest.mark.parametrize(
    "notes", [[""], ["x"], ["a-1\0"], ["a-1", "a-2"], ["a-1", ""]], ids=lambda notes: "+".join(map(repr, notes))
)
def test_progress_that_names_no_part_of_the_map_is_refused(store: Store, notes: list[str]) -> None:
    """The restore would continue from there, without the records before it in its map and count."""
    picky = PickyTarget("")
    names = [f"topic-{number}" for number in range(len(notes))]
    for name, note in zip(names, notes, strict=True):
        picky.progress[TopicPartition(name, 0)] = CommittedProgress(5, note)

    with pytest.raises(ClusterError, match="progress of unit 3 on the target names no part of its offset map"):
        attempt(store, unit_of(names, segments_of(store, range(50))), picky)
    assert picky.committed == {}


def parts_of(store: Store, result: UnitResult) -> list[MapPart]:
    return list(read_map_parts(store, "r", [(result.number, result.parts)]))


def begun(store: Store, unit: int, first: int) -> None:
    runs = runs_table({TP: (np.array([0]), np.array([first]), np.array([5]))})
    a_map_part(store, MapPartName("attempt", 0), runs, unit=unit)


def test_a_unit_that_was_committed_but_has_no_progress_is_refused(
    store: Store, producer: Target, small_then_large: tuple[Segment, Segment]
) -> None:
    """A part of another unit says nothing of this one; nor does one whose transaction was given up."""
    asked: list[list[pa.Table]] = []

    def committed(target: object, group: str, parts: Iterator[pa.Table]) -> tuple[TopicPartition, int] | None:
        asked.append(list(parts))
        assert group == producer.group
        return (TP, 7) if asked[-1] and producer.calls else None

    clients = clients_of(producer, committed)
    begun(store, 1, 70)
    begun(store, 10, 7)
    run(store, part(small_then_large), clients, 10)
    ((table,),) = asked
    assert table.column("target").to_pylist() == [7]
    with pytest.raises(
        ClusterError, match=r"of unit 10 is missing .* orders-0 holds .* at offset 7, group g@1 "
    ) as told:
        run(store, part(small_then_large), clients, 10)
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
