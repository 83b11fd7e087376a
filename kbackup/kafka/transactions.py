"""Where a restore point of whole transactions ends: none is in it in part.

The rule, and why it holds, is in tests/unit/jobs/backup/transactions/README.md. The steps named here are its steps.
"""

from __future__ import annotations

import struct
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import KafkaError

from kbackup.errors import CorruptError
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.admin_protocol.endpoint import RefusedRequestError
from kbackup.kafka.admin_protocol.session import UntoldError, ask_leaders, describe_topics, log_windows
from kbackup.kafka.groups.admin import OFFSETS_TOPIC
from kbackup.kafka.groups.calls import CommittedOffset, text
from kbackup.kafka.metadata_log.codec import Cursor
from kbackup.kafka.security import Untold
from kbackup.types import Offsets, TopicPartition

if TYPE_CHECKING:
    from kbackup.kafka.admin_protocol.connection import LogBatch, LogWindow

STATE = "__transaction_state"
Ends = Mapping[TopicPartition, int]

_MOST_BYTES = 256 << 20  # of windows, from one broker
_COUNTS, _COUNT_PAUSE, _COUNTING = 20, 0.005, 5.0  # s: the pause grows, and no count begins after that time
_WAIT_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # s, between looks at last stable offsets
_LAG = 1000
"""Offsets of `__consumer_offsets`: a coordinator answers from memory, which may lack the newest that are stable."""
_READ = 3  # of a topic's operations
_EPOCHS_RAISED = 2  # the version of transactions in which each raises the epoch of its markers (KIP-890)
_NO_LIMIT = 1 << 63


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that did not end in time. `start` is the offset of its first record in the partition, `timestamp`
    that of its newest one, in ms. A producer of -1: it may have ended, but can't be told from others."""

    tp: TopicPartition
    producer_id: int
    start: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A position that a group committed; `offset` is None where it was deleted."""

    group: str
    tp: TopicPartition
    offset: CommittedOffset | None


@dataclass(frozen=True)
class TransactionCut:
    """Where a restore point ends. `held` are offsets below ends whose transactions are not in it. `commits` are to be
    replayed in order over the positions that were asked before. The partitions of `open` end at their last stable
    offset. `transactional` are the partitions that transactional producers have written to."""

    ends: Ends
    held: Mapping[TopicPartition, Offsets]
    commits: Sequence[Commit]
    open: tuple[OpenTransaction, ...]
    transactional: frozenset[TopicPartition]


def begin_cut(cluster: Cluster) -> CutBegun | Untold:
    """Take the first step, before groups are asked for their positions."""
    try:
        _, groups = _internal_topics(cluster)
    except UntoldError as error:
        return error.untold
    return CutBegun(cluster, cluster.log_ends(groups, "read_committed"))


@dataclass(frozen=True)
class CutBegun:
    """`groups` are the last stable offsets of `__consumer_offsets`."""

    cluster: Cluster
    groups: Ends

    def close(self, stable: Ends, wait: float, given_up: Ends = MappingProxyType({})) -> TransactionCut | Untold:
        """Take the other steps. `stable` are last stable offsets, listed after the groups were asked. Open transactions
        have `wait` seconds to end, but none where an earlier cut gave up at the same last stable offset."""
        try:
            coordinators, groups = _internal_topics(self.cluster)
            if coordinators and groups and not self.groups:
                return Untold("failed", f"{OFFSETS_TOPIC} was created during the capture")
            if coordinators:
                return self._close(coordinators, stable, wait, given_up)
        except UntoldError as error:
            return error.untold
        except CorruptError as error:
            return Untold("failed", error.message)
        except RefusedRequestError as error:
            return Untold.of(error.kafka_error(), f"reading {OFFSETS_TOPIC}", self.cluster.connection)
        return TransactionCut(dict(stable), {}, (), (), frozenset())  # no transaction was ever begun

    def _close(
        self, coordinators: Sequence[TopicPartition], stable: Ends, wait: float, given_up: Ends
    ) -> TransactionCut:
        starts = {**stable, **self.groups}
        log = _StateLog(self.cluster, self.cluster.log_ends(coordinators, "read_uncommitted"))
        ends = {tp: max(end, starts[tp]) for tp, end in self.cluster.log_ends(starts, "read_uncommitted").items()}
        late = _wait(self.cluster, starts, ends, wait, given_up)
        states = _transactional(self.cluster, starts)
        unended = [
            OpenTransaction(tp, each.producer_id, each.current_txn_start_offset, each.last_timestamp)
            for tp in sorted(late & states.keys())
            for each in states[tp]
            if 0 <= each.current_txn_start_offset < ends[tp]
        ]
        ends |= {tp: starts[tp] for tp in late}
        log.read(log.ends())
        producers = {each.producer_id: tuple(own) for own in log.entries.values() for each in own}
        named = prepared(log.entries.values(), log.positions, log.positions)
        read = {tp for tp, end in ends.items() if starts[tp] < end}
        places = [(tp, who) for tp, who in named if tp in read and must_count(who, producers[who])]
        counts = self._count_markers(log, places)
        windows = self._read_windows(states, starts, ends, counts)
        held: dict[TopicPartition, Offsets] = {}
        for tp, window in windows.items():
            cut = cut_window(tp, starts[tp], window, producers, counts)
            if isinstance(cut, OpenTransaction):
                unended.append(cut)
                ends[tp] = starts[tp]
            else:
                ends[tp], held[tp] = cut
        return TransactionCut(
            ends={tp: ends[tp] for tp in stable},
            held={tp: held[tp] for tp in stable if held.get(tp)},
            commits=[
                commit
                for tp in sorted(windows.keys() & self.groups.keys())
                if windows[tp].complete
                for commit in _commits(tp, windows[tp], ends[tp], held.get(tp, ()))
            ],
            open=tuple(unended),
            transactional=frozenset(stable.keys() & states.keys()),
        )

    def _count_markers(self, log: _StateLog, places: Collection[Place]) -> Counts:
        """Count the markers of producers in partitions, until counts tell or there were many (step 5)."""
        counts: dict[Place, list[tuple[int, int, int]]] = {place: [] for place in places}
        waiting, until = set(places), time.monotonic() + _COUNTING
        for number in range(_COUNTS):
            if not waiting or time.monotonic() > until:
                break
            time.sleep(number * _COUNT_PAUSE)
            before, partitions = log.ends(), {tp for tp, _ in waiting}
            ends, after = self.cluster.log_ends(partitions, "read_uncommitted"), log.ends()
            log.read(after)
            found = prepared(log.entries.values(), before, after)
            for tp, who in places:
                if tp in ends:
                    counts[tp, who].append((ends[tp], *found[tp, who]))
            waiting = {place for place in waiting if found[place][0] < found[place][1]}
        return counts

    def _read_windows(
        self, partitions: Iterable[TopicPartition], starts: Ends, ends: Ends, counts: Counts
    ) -> dict[TopicPartition, LogWindow]:
        begins = {tp: starts[tp] for tp in partitions}
        for tp, log_start in self.cluster.log_starts(begins.keys() & self.groups.keys()).items():
            begins[tp] = max(begins[tp] - _LAG, log_start)
        counted = defaultdict[TopicPartition, int](int)
        for (tp, _), own in counts.items():
            counted[tp] = max(counted[tp], *(end for end, *_ in own))
        ranges = {tp: (at, ends[tp], counted[tp]) for tp, at in begins.items() if at < ends[tp]}
        return log_windows(self.cluster.connection, ranges, _MOST_BYTES, records=self.groups)


def _internal_topics(cluster: Cluster) -> list[list[TopicPartition]]:
    """Return the partitions of both internal topics, none of one that doesn't exist. `UntoldError` if it can't be
    read."""
    found, names = [], (STATE, OFFSETS_TOPIC)
    for topic in sorted(describe_topics(cluster.connection, names).topics, key=lambda t: names.index(t.name)):
        error = topic.error_code or max((p.error_code for p in topic.partitions), default=0)
        if not error and _READ not in (topic.authorized_operations or ()):
            error = KafkaError.TOPIC_AUTHORIZATION_FAILED
        if error not in (0, KafkaError.UNKNOWN_TOPIC_OR_PART):
            raise UntoldError(Untold.of(KafkaError(error), f"reading {topic.name}", cluster.connection))
        found.append([TopicPartition(topic.name, p.partition_index) for p in topic.partitions])
    return found


def _transactional(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[Any]]:
    """Return the producers of each partition that one wrote to in a transaction, as `describe_producers` does."""
    from kbackup.kafka.admin_protocol.connection import describe_producers  # which loads kafka-python

    states = ask_leaders(cluster.connection, partitions, describe_producers, "describing producers of")
    return {
        tp: producers
        for tp, producers in states.items()
        if any(each.coordinator_epoch >= 0 or each.current_txn_start_offset >= 0 for each in producers)
    }


def _wait(cluster: Cluster, starts: Ends, ends: Ends, wait: float, given_up: Ends) -> set[TopicPartition]:
    """Wait until last stable offsets have reached `ends`, and return the partitions where they did not (step 4)."""
    until, pause = time.monotonic() + wait, _WAIT_PAUSE
    late = {tp for tp, end in ends.items() if starts[tp] < end}
    while late:
        stable = cluster.log_ends(late, "read_committed")
        late = {tp for tp in late if stable[tp] < ends[tp]}
        if time.monotonic() + pause > until or all(given_up.get(tp) == stable[tp] for tp in late):
            break
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return late


# The rule for producers and batches: functions of what was listed and read, which tests run on every state of a model.


class Entry(NamedTuple):
    """An entry of `__transaction_state`: a transaction is prepared, with its partitions, or `complete`. `version` is
    that of the producer's transactions."""

    coordinator: TopicPartition
    offset: int
    producer_id: int
    epoch: int
    version: int
    complete: bool
    partitions: frozenset[TopicPartition] = frozenset()


Producers = Mapping[int, Sequence[Entry]]
"""The entries of a producer's transactional id since its coordinator was first listed, by producer id. Who is not named
has prepared nothing since."""
Place = tuple[TopicPartition, int]
"""A producer in a partition."""


Counts = Mapping[Place, Sequence[tuple[int, int, int]]]
"""Of a producer in a partition: ends, and how many markers below are of transactions that are not in, at least and at
most."""


def prepared(entries: Iterable[Sequence[Entry]], before: Ends, after: Ends) -> defaultdict[Place, tuple[int, int]]:
    """Return how many transactions that are not in have their marker below an end of a partition, at least and at most.
    `entries` are those of each transactional id, in logs that ended `before` and `after` the partition did."""
    found: defaultdict[Place, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for own in entries:
        for n, each in enumerate(own):
            if each.offset < after[each.coordinator]:
                complete = any(later.offset < before[later.coordinator] for later in own[n + 1 : n + 2])
                for place in ((tp, each.producer_id) for tp in each.partitions):
                    surely, perhaps = found[place]
                    found[place] = surely + complete, perhaps + 1
    return found


def markers_of(producer_id: int, batches: Iterable[LogBatch]) -> list[int] | None:
    """Return the offsets of a producer's markers; None if one has no records before it, as one that came twice."""
    markers: list[int] = []
    empty = False
    for batch in batches:
        if batch.producer_id == producer_id:
            if batch.control and empty:
                return None
            empty = batch.control
            markers += [batch.first] if batch.control else []
    return markers


def bounds_of(markers: Sequence[int], end: int, surely: int, perhaps: int) -> tuple[int, int]:
    """Return how many markers are of transactions that are in, at least and at most, by one count."""
    seen = bisect_left(markers, end)
    return seen - perhaps, seen - surely


def limit_of(markers: Sequence[int] | None, counts: Iterable[tuple[int, int, int]]) -> int | None:
    """Return the offset from which on markers are of transactions that are not in; None if it can't be told."""
    if markers is None:
        return None
    bounds = [(0, len(markers)), *(bounds_of(markers, *count) for count in counts)]
    first, last = max(least for least, _ in bounds), min(most for _, most in bounds)
    return [*markers, _NO_LIMIT][first] if first == last else None


def cut_window(
    tp: TopicPartition, stable: int, window: LogWindow, producers: Producers, counts: Counts
) -> tuple[int, Offsets] | OpenTransaction:
    """Return where a partition ends, and which offsets below are held: runs of committed batches that are not in, with
    the markers and aborted batches among them (step 7). Or a transaction that can't be decided."""
    if not window.complete:  # it was too large
        return OpenTransaction(tp, -1, stable, -1)
    held: list[tuple[int, int]] = []
    joined = False
    counted = {each.producer_id for each in window.batches if (tp, each.producer_id) in counts}
    limits = {who: limit_of(markers_of(who, window.batches), counts[tp, who]) for who in counted}
    for batch, marker in _committed(window):
        if not stable <= batch.first < window.end:
            continue
        limit = limits.get(batch.producer_id, _NO_LIMIT)
        if limit is None:
            return OpenTransaction(tp, -1, batch.first, -1)
        is_in = marker is None or _is_in(marker, producers.get(batch.producer_id), limit)
        if not is_in:
            held.append((held.pop()[0] if joined else batch.first, batch.last + 1))
        joined = not is_in
    end = held.pop()[0] if joined else window.end
    return end, tuple(held)


def _committed(window: LogWindow) -> list[tuple[LogBatch, LogBatch | None]]:
    """Return the batches with committed records, each with the marker of its transaction, None without one."""
    markers: dict[int, LogBatch] = {}
    found: list[tuple[LogBatch, LogBatch | None]] = []
    for batch in reversed(window.batches):
        if batch.control:
            markers[batch.producer_id] = batch
        elif not batch.transactional:
            found.append((batch, None))
        elif (marker := markers.get(batch.producer_id)) and not marker.aborted:
            found.append((batch, marker))
    return found[::-1]


def must_count(producer_id: int, entries: Sequence[Entry]) -> bool:
    """Return whether neither the producer's id nor the epochs of its markers tell which transactions are in."""
    return entries[0].producer_id == producer_id and entries[0].version < _EPOCHS_RAISED


def _is_in(marker: LogBatch, entries: Sequence[Entry] | None, limit: int) -> bool:
    """Return whether a marker's transaction was prepared when its producer's coordinator was first listed."""
    if not entries:
        return True
    if must_count(marker.producer_id, entries):
        return marker.first < limit
    first = entries[0]  # of another id: the transactional id got this one later; else later epochs are higher
    return marker.producer_id == first.producer_id and marker.producer_epoch < first.epoch + first.complete


# Reading the internal topics. Their records are by Kafka's definitions TransactionLogValue and OffsetCommitValue.

_TRANSACTION = struct.Struct(">qhib")
_PREPARED, _COMPLETED = {2, 3}, {4, 5}
_CLIENT_VERSION = 2  # the tag
_NEWEST_TRANSACTION, _NEWEST_COMMIT = 1, 4
_COMMIT_KEYS = {0, 1}
_EPOCH_SINCE, _COMPACT_SINCE = 3, 4
_INT16, _INT32, _INT64 = (struct.Struct(f">{form}") for form in "hiq")


@dataclass
class _StateLog:
    """What was written to `__transaction_state` since the first `positions`: its entries by transactional id."""

    cluster: Cluster
    positions: dict[TopicPartition, int]
    entries: dict[str, list[Entry]] = field(default_factory=lambda: defaultdict(list))

    def ends(self) -> dict[TopicPartition, int]:
        return self.cluster.log_ends(self.positions, "read_uncommitted")

    def read(self, ends: Ends) -> None:
        ranges = {tp: (at, ends[tp], 0) for tp, at in self.positions.items() if at < ends[tp]}
        for tp, window in log_windows(self.cluster.connection, ranges, _MOST_BYTES, records=ranges).items():
            for offset, key, value in (record for batch in window.batches for record in batch.records()):
                if offset != self.positions[tp]:
                    break
                self.positions[tp] += 1
                name, entry = entry_of(tp, offset, key, value)
                if entry is not None:
                    self.entries[name].append(entry)
            if self.positions[tp] < ends[tp]:
                raise UntoldError(Untold("failed", f"{tp} lacks offset {self.positions[tp]}, or is too large"))


def entry_of(tp: TopicPartition, offset: int, key: bytes, value: bytes | None) -> tuple[str, Entry | None]:
    """Return a transactional id, and what a record tells of its transaction. `CorruptError` for unknown versions."""
    keys, values = Cursor(key, str(tp)), Cursor(value or b"", str(tp))
    _version(keys, 0)
    name = _text(keys)
    if value is None:
        return name, None
    version = _version(values, _NEWEST_TRANSACTION)
    producer_id, epoch, _, status = values.unpack(_TRANSACTION)
    if status not in _PREPARED | _COMPLETED:
        return name, None
    size = (lambda: values.unsigned() - 1) if version else (lambda: values.unpack(_INT32)[0])
    partitions: set[TopicPartition] = set()
    for _ in range(size()):
        topic = text(values.take(values.unsigned() - 1)) if version else _text(values)
        partitions |= {TopicPartition(topic, *values.unpack(_INT32)) for _ in range(size())}
        if version:
            _tags(values)
    values.take(16)  # times
    tags = _tags(values) if version else {}
    client = int.from_bytes(tags.get(_CLIENT_VERSION, b""), "big")
    return name, Entry(tp, offset, producer_id, epoch, client, status in _COMPLETED, frozenset(partitions))


def _commits(tp: TopicPartition, window: LogWindow, end: int, held: Offsets) -> list[Commit]:
    """Return what groups with transactional commits have committed in a partition of `__consumer_offsets` (step 8)."""
    commits: list[Commit] = []
    transactional: set[str] = set()
    for batch, marker in _committed(window):
        if batch.first < end and not any(low <= batch.first < high for low, high in held):
            found = [c for _, key, value in batch.records() if (c := commit_of(tp, key, value))]
            commits += found
            if marker is not None:
                transactional |= {commit.group for commit in found}
    return [commit for commit in commits if commit.group in transactional]


def commit_of(tp: TopicPartition, key: bytes, value: bytes | None) -> Commit | None:
    """Return the position that a record commits, None for another kind. `CorruptError` for unknown versions."""
    keys, values = Cursor(key, str(tp)), Cursor(value or b"", str(tp))
    if keys.unpack(_INT16)[0] not in _COMMIT_KEYS:
        return None
    group, topic, (partition,) = _text(keys), _text(keys), keys.unpack(_INT32)
    place = TopicPartition(topic, partition)
    if value is None:
        return Commit(group, place, None)
    version = _version(values, _NEWEST_COMMIT)
    (offset,) = values.unpack(_INT64)
    (epoch,) = values.unpack(_INT32) if version >= _EPOCH_SINCE else (-1,)
    metadata = text(values.take(values.unsigned() - 1)) if version >= _COMPACT_SINCE else _text(values)
    return Commit(group, place, CommittedOffset(place, offset, epoch if epoch >= 0 else None, metadata))


def _version(cursor: Cursor, newest: int) -> int:
    (version,) = cursor.unpack(_INT16)
    if not 0 <= version <= newest:
        cursor.fail(f"version {version} is not known")
    return int(version)


def _text(cursor: Cursor) -> str:
    (size,) = cursor.unpack(_INT16)
    return text(cursor.take(size))


def _tags(cursor: Cursor) -> dict[int, bytes]:
    return {cursor.unsigned(): cursor.take(cursor.unsigned()) for _ in range(cursor.unsigned())}
