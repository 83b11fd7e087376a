"""Where a restore point of whole transactions ends: none is in it in part.

The rule, and why it holds, is in tests/unit/jobs/backup/transactions/README.md; the steps named here are its steps.
"""

from __future__ import annotations

import struct
import time
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kbackup.errors import CorruptError
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.admin_protocol.session import UntoldError, ask_leaders, log_windows
from kbackup.kafka.client import READS_ALONE
from kbackup.kafka.groups.calls import CommittedOffset, text
from kbackup.kafka.metadata_log.codec import Cursor
from kbackup.kafka.retry import TIMEOUT
from kbackup.kafka.security import Untold
from kbackup.types import TopicPartition

if TYPE_CHECKING:
    from kbackup.kafka.admin_protocol.connection import LogBatch, LogWindow, ProducerState

STATE, OFFSETS = "__transaction_state", "__consumer_offsets"
Offsets = tuple[tuple[int, int], ...]
"""Ranges of offsets: start inclusive, end exclusive; disjoint, rising."""
Ends = Mapping[TopicPartition, int]

_WINDOW_BYTES = 256 << 20
_ROUNDS, _ROUND_PAUSE = 20, 0.01  # s, more after each round
_WAIT_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # s, between looks at last stable offsets
_LAG = 1000
"""Offsets of `__consumer_offsets`: a coordinator answers from memory, which may lack the newest that are stable."""
_READ = 3  # of a topic's operations
_TUNING = {
    **READS_ALONE,
    "group.id": "kbackup-transactions",  # which is never joined
    "allow.auto.create.topics": False,
    "fetch.wait.max.ms": 50,
    "fetch.error.backoff.ms": 100,
}
_MESSAGES, _MESSAGE_WAIT = 10_000, 0.05  # s

_EPOCHS_TELL = 2
"""The version of transactions in which each raises the epoch (KIP-890)."""
_TRANSACTION = struct.Struct(">qhib")
_PREPARED, _COMPLETED = {2, 3}, {4, 5}
_NEWEST_TRANSACTION, _NEWEST_COMMIT = 1, 4
_PREVIOUS, _VERSION = 0, 2
"""Tags of a transaction."""
_COMMIT_KEYS = {0, 1}
_EPOCH_SINCE, _COMPACT_SINCE = 3, 4
_INT16, _INT32, _INT64 = (struct.Struct(f">{form}") for form in "hiq")


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that did not end in time, or could not be decided: the offset of its first record in the partition,
    and the time of its newest one, in ms (-1: not known)."""

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
    """Where a restore point ends. `held` are offsets below an end whose transactions are not in it. `commits` are to be
    replayed, in order, over the positions that were asked for before. `open` could not be waited for: their partitions
    end at the last stable offset. `transactional` are the partitions with records of transactions."""

    ends: Ends
    held: Mapping[TopicPartition, Offsets]
    commits: Sequence[Commit]
    open: tuple[OpenTransaction, ...]
    transactional: frozenset[TopicPartition]


def begin_cut(cluster: Cluster) -> CutBegun | Untold:
    """Take the first step, before groups are asked for their positions."""
    try:
        _partitions(cluster, STATE)
        groups = _partitions(cluster, OFFSETS)
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
            if coordinators := _partitions(self.cluster, STATE):
                with closing(_Coordinators(self.cluster, coordinators)) as log:
                    return self._close(log, stable, wait, given_up)
            return TransactionCut(dict(stable), {}, (), (), frozenset())  # no transaction was ever begun
        except UntoldError as error:
            return error.untold
        except CorruptError as error:
            return Untold("failed", error.message)

    def _close(self, log: _Coordinators, stable: Ends, wait: float, given_up: Ends) -> TransactionCut:
        starts = {**stable, **self.groups}
        rounds = _list_until_settled(self.cluster, log, [*starts])
        ends = {tp: max(end, starts[tp]) for tp, end in rounds[-1].ends.items()}
        late = _wait(self.cluster, starts, ends, wait, given_up)
        states = _producers(self.cluster, [*starts])
        unended = [
            OpenTransaction(tp, p.producer_id, p.start, p.timestamp)
            for tp in late
            for p in states[tp]
            if 0 <= p.start < ends[tp]
        ]
        ends |= {tp: starts[tp] for tp in late}
        transactional = frozenset(tp for tp, known in states.items() if any(map(_is_transactional, known)))
        windows = self._windows(transactional, starts, ends)
        log.read_entries(log.ends())
        producers = producers_of(log.entries.values(), rounds)
        held: dict[TopicPartition, Offsets] = {}
        for tp, window in windows.items():
            found = cut_window(tp, starts[tp], window, producers)
            if isinstance(found, OpenTransaction):
                unended.append(found)
                ends[tp] = starts[tp]
            else:
                ends[tp], held[tp] = found
        groups = {tp: window for tp, window in windows.items() if tp in self.groups}
        return TransactionCut(
            ends={tp: ends[tp] for tp in stable},
            held={tp: held[tp] for tp in stable if held.get(tp)},
            commits=_commits(self.cluster, groups, ends, held),
            open=tuple(unended),
            transactional=transactional & stable.keys(),
        )

    def _windows(
        self, transactional: Set[TopicPartition], starts: Ends, ends: Ends
    ) -> Mapping[TopicPartition, LogWindow]:
        groups = transactional & self.groups.keys()
        logs = self.cluster.log_starts(groups)
        begins = {tp: max(starts[tp] - _LAG, logs[tp]) if tp in groups else starts[tp] for tp in transactional}
        ranges = {tp: (at, ends[tp]) for tp, at in begins.items() if at < ends[tp]}
        return log_windows(self.cluster.connection, ranges, _WINDOW_BYTES) if ranges else {}


def _partitions(cluster: Cluster, topic: str) -> list[TopicPartition]:
    """Return the partitions of an internal topic, none if it is not there. `UntoldError` if it can't be read."""
    with cluster.admin_session() as session:
        found = session if isinstance(session, Untold) else session.topics([topic])
    if isinstance(found, Untold):
        raise UntoldError(found)
    error, operations, leaders = found[topic]
    if error == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return []
    if not error and _READ not in operations:
        error = KafkaError.TOPIC_AUTHORIZATION_FAILED
    if not error and None in leaders.values():
        error = KafkaError.LEADER_NOT_AVAILABLE
    if error:
        raise UntoldError(Untold.of(KafkaError(error), f"reading {topic}", cluster.connection))
    return [TopicPartition(topic, partition) for partition in leaders]


def _producers(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[ProducerState]]:
    from kbackup.kafka.admin_protocol.connection import describe_producers  # which loads kafka-python

    return ask_leaders(cluster.connection, partitions, describe_producers, "describing producers of")


def _is_transactional(producer: ProducerState) -> bool:
    return producer.coordinator_epoch >= 0 or producer.start >= 0


def _wait(cluster: Cluster, starts: Ends, ends: Ends, wait: float, given_up: Ends) -> set[TopicPartition]:
    """Wait until last stable offsets have reached `ends`, and return the partitions where they did not (step 6)."""
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
    """An entry of `__transaction_state`: a transaction is prepared, or `complete`. `previous_id` is the producer id
    that the transactional id had before, or -1; `version` is that of the producer's transactions."""

    transactional_id: str
    coordinator: TopicPartition
    offset: int
    producer_id: int
    previous_id: int
    epoch: int
    version: int
    complete: bool


class Round(NamedTuple):
    """Ends listed one after the other: of coordinators' logs, of partitions, of coordinators' logs again."""

    before: Ends
    ends: Ends
    after: Ends


class SettledProducer(NamedTuple):
    """`first`: the first entry of its transactional id after the round's `before`. `still`: it comes after `after`."""

    first: Entry
    still: bool
    ends: Ends


def settle(entries: Sequence[Entry], rounds: Sequence[Round]) -> tuple[Round, bool] | None:
    """Return the last round that settles a transactional id by its entries, and whether it was still; None for none
    (steps 4 and 5)."""
    for each in reversed(rounds):
        within = (e for e in entries if each.before[e.coordinator] <= e.offset < each.after[e.coordinator])
        first = next(within, None)
        if first is None or first.version >= _EPOCHS_TELL:
            return each, first is None
    return None


def producers_of(entries: Iterable[Sequence[Entry]], rounds: Sequence[Round]) -> dict[int, SettledProducer | None]:
    """Return the producers that entries of transactional ids name, by id; None for those that no round settles. Who is
    not named has prepared nothing since the last round began."""
    producers: dict[int, SettledProducer | None] = {}
    for own in entries:
        settled = settle(own, rounds)
        later = [e for e in own if settled is None or e.offset >= settled[0].before[e.coordinator]]
        named = {number for e in later for number in (e.producer_id, e.previous_id)}
        producer = SettledProducer(later[0], settled[1], settled[0].ends) if settled is not None and later else None
        producers |= dict.fromkeys(named, producer)
    return producers


def cut_window(
    tp: TopicPartition, stable: int, window: LogWindow, producers: Mapping[int, SettledProducer | None]
) -> tuple[int, Offsets] | OpenTransaction:
    """Return where a partition ends, and which offsets below are held: runs of committed batches that are not in, with
    the markers and aborted batches among them (step 7). Or a transaction that can't be decided."""
    markers: dict[int, LogBatch] = {}
    following: list[LogBatch | None] = []
    for batch in reversed(window.batches):
        if batch.control:
            markers[batch.producer_id] = batch
        following.append(markers.get(batch.producer_id))
    held: list[tuple[int, int]] = []
    joined = False
    for batch, marker in zip(window.batches, reversed(following), strict=True):
        if batch.control or not stable <= batch.first < window.end:
            continue
        if not batch.transactional:
            joined = False
        elif marker is None or not window.complete or producers.get(batch.producer_id, ()) is None:
            return OpenTransaction(tp, batch.producer_id, batch.first, batch.timestamp)
        elif not marker.aborted:
            is_in = _is_in(tp, batch, marker, producers.get(batch.producer_id))
            if not is_in:
                start = held.pop()[0] if joined else batch.first
                held.append((start, batch.last + 1))
            joined = not is_in
    if not window.complete:
        return OpenTransaction(tp, -1, stable, -1)
    end = held.pop()[0] if joined else window.end
    return end, tuple(held)


def _is_in(tp: TopicPartition, batch: LogBatch, marker: LogBatch, producer: SettledProducer | None) -> bool:
    """Return whether a batch's transaction was prepared when its producer's coordinator was first listed. `producer` is
    None if no entry names it."""
    if producer is None or producer.first.producer_id != batch.producer_id:
        return producer is None or producer.first.previous_id == batch.producer_id
    if not producer.still:  # epochs tell, as those of markers rise with each transaction
        return marker.producer_epoch < producer.first.epoch + producer.first.complete
    end = producer.ends[tp]
    return batch.first < end and (producer.first.complete or marker.first < end)


# Reading the internal topics. Their values are by Kafka's definitions TransactionLogValue and OffsetCommitValue.


class _InternalLog:
    """Records of partitions of an internal topic, each once and in order."""

    def __init__(self, cluster: Cluster, starts: Ends, isolation: str) -> None:
        self._connection = cluster.connection
        self._consumer = self._connection.consumer(_TUNING | {"isolation.level": isolation})
        with self._connection.errors("an assignment"):
            self._consumer.assign([KafkaTopicPartition(*tp, at) for tp, at in starts.items()])
        self.positions = dict(starts)

    def close(self) -> None:
        self._consumer.close()

    def read(self, ends: Ends) -> Iterator[tuple[TopicPartition, int, bytes, bytes | None]]:
        """Yield partition, offset, key and value of each record up to `ends`, and some beyond."""
        heard = time.monotonic()
        while any(self.positions[tp] < end for tp, end in ends.items()):
            with self._connection.errors("reading internal topics"):
                messages = self._consumer.consume(_MESSAGES, _MESSAGE_WAIT)
            for message in messages:
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    if error.fatal() or not (topic is None or error.retriable()):
                        raise UntoldError(Untold.of(error, f"reading {topic}", self._connection))
                elif topic is not None and partition is not None and offset is not None:
                    heard = time.monotonic()
                    tp = TopicPartition(topic, partition)
                    if error is None:
                        yield tp, offset, message.key() or b"", message.value()
                    self.positions[tp] = offset + (error is None)
            if time.monotonic() - heard > TIMEOUT:
                raise self._connection.silent(f"gave nothing for {TIMEOUT:.0f} s while its internal topics were read")


class _Coordinators(_InternalLog):
    """The log `__transaction_state` from now on. `entries` are those that count, by transactional id."""

    def __init__(self, cluster: Cluster, partitions: Sequence[TopicPartition]) -> None:
        self._cluster, self._partitions = cluster, partitions
        super().__init__(cluster, self.ends(), "read_uncommitted")
        self.entries: dict[str, list[Entry]] = defaultdict(list)

    def ends(self) -> dict[TopicPartition, int]:
        return self._cluster.log_ends(self._partitions, "read_uncommitted")

    def read_entries(self, ends: Ends) -> None:
        for tp, offset, key, value in self.read(ends):
            if offset != self.positions[tp]:
                raise UntoldError(Untold("failed", f"{tp} was compacted while it was read"))
            if entry := entry_of(tp, offset, key, value):
                self.entries[entry.transactional_id].append(entry)


def _list_until_settled(cluster: Cluster, log: _Coordinators, partitions: Sequence[TopicPartition]) -> list[Round]:
    """List ends until every producer is settled (steps 2 to 5)."""
    rounds: list[Round] = []
    while len(rounds) < _ROUNDS:
        time.sleep(len(rounds) * _ROUND_PAUSE)
        rounds.append(Round(log.ends(), cluster.log_ends(partitions, "read_uncommitted"), log.ends()))
        log.read_entries(rounds[-1].after)
        if all(settle(own, rounds) for own in log.entries.values()):
            break
    return rounds


def entry_of(tp: TopicPartition, offset: int, key: bytes, value: bytes | None) -> Entry | None:
    """Return what a record tells of a transaction, None if it doesn't count. `CorruptError` for unknown versions."""
    keys = Cursor(key, str(tp))
    _version(keys, 0)
    name = _text(keys)
    if value is None:
        return None
    values = Cursor(value, str(tp))
    version = _version(values, _NEWEST_TRANSACTION)
    producer_id, epoch, _, status = values.unpack(_TRANSACTION)
    if status not in _PREPARED | _COMPLETED:
        return None
    tags: dict[int, bytes] = {}
    if version:
        for _ in range(values.unsigned() - 1):
            values.take(values.unsigned() - 1)  # a topic
            values.take(4 * (values.unsigned() - 1))  # its partitions
            _tags(values)
        values.take(16)  # times
        tags = _tags(values)
    previous, transactions = (int.from_bytes(tags.get(tag, b"\xff"), signed=True) for tag in (_PREVIOUS, _VERSION))
    return Entry(name, tp, offset, producer_id, previous, epoch, transactions, status in _COMPLETED)


def commit_of(tp: TopicPartition, key: bytes, value: bytes | None) -> Commit | None:
    """Return the position that a record commits, None for another kind. `CorruptError` for unknown versions."""
    keys = Cursor(key, str(tp))
    if keys.unpack(_INT16)[0] not in _COMMIT_KEYS:
        return None
    group, topic, (partition,) = _text(keys), _text(keys), keys.unpack(_INT32)
    place = TopicPartition(topic, partition)
    if value is None:
        return Commit(group, place, None)
    values = Cursor(value, str(tp))
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


def _commits(
    cluster: Cluster, windows: Mapping[TopicPartition, LogWindow], ends: Ends, held: Mapping[TopicPartition, Offsets]
) -> list[Commit]:
    """Return what groups with transactional commits have committed in windows of `__consumer_offsets` (step 8)."""
    windows = {tp: w for tp, w in windows.items() if any(b.transactional and not b.control for b in w.batches)}
    if not windows:
        return []
    starts = {tp: window.batches[0].first for tp, window in windows.items()}
    firsts = {tp: [batch.first for batch in window.batches] for tp, window in windows.items()}
    commits: list[Commit] = []
    transactional: set[str] = set()
    with closing(_InternalLog(cluster, starts, "read_committed")) as log:
        for tp, offset, key, value in log.read({tp: ends[tp] for tp in windows}):
            if offset >= ends[tp] or any(low <= offset < high for low, high in held.get(tp, ())):
                continue
            if commit := commit_of(tp, key, value):
                commits.append(commit)
                if windows[tp].batches[bisect(firsts[tp], offset) - 1].transactional:
                    transactional.add(commit.group)
    return [commit for commit in commits if commit.group in transactional]
