"""What readers and producers ask of a kernel, compiled or in Python, and what a kernel asks of its connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from confluent_kafka import KafkaError

from kbackup.errors import CorruptError, KbackupError
from kbackup.types import Int64Array, OffsetRange, RecordBlock, TopicPartition


class LoginToken(Protocol):
    """A token for OAUTHBEARER: `expires` in seconds since the epoch."""

    @property
    def value(self) -> str: ...

    @property
    def expires(self) -> float: ...

    @property
    def principal(self) -> str: ...

    @property
    def extensions(self) -> Mapping[str, str]: ...


class ClusterConnection(Protocol):
    """The cluster that a client is for: what it is configured with, and who hears of its errors."""

    role: str
    """`source` or `target`, for messages."""
    properties: dict[str, str]

    @property
    def tokens(self) -> Callable[[str], LoginToken] | None:
        """The user's function that gives tokens to log in with, None without one."""

    def settings(self, extra: Mapping[str, Any]) -> dict[str, str]:
        """Return librdkafka's settings of a client, by name; `extra` are the client's own."""

    def heard(self, error: KafkaError) -> None:
        """Remember an error that librdkafka reports without a call that it belongs to."""

    def error(self, error: KafkaError, doing: str) -> KbackupError:
        """Return the error to raise for what failed while `doing` something."""


DamageOf = Callable[[RecordBlock, int], CorruptError]
"""The error that names the damage of a block in which a kernel refused a record, given by its number."""


class Report(NamedTuple):
    """An event of a partition that is no record; `offset` is -1 if the event has none."""

    error: KafkaError
    offset: int


class FetchResult(NamedTuple):
    """Records of a partition that lie in its range, or a report; `ended` where they reach the end of the range.

    `tp` None: a report about the client itself. `leader_epoch` is the last record's if that is the last of its range;
    -1 if it is unknown.
    """

    tp: TopicPartition | None
    block: RecordBlock | None
    ended: bool
    report: Report | None
    leader_epoch: int = -1


class Source(Protocol):
    """One client. Its errors are kbackup's own."""

    def start(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Read these partitions only, each from its range's start."""

    def restart(self, tp: TopicPartition, offset: int) -> None:
        """Continue a partition at `offset`, which the log has now."""

    def stop(self, tp: TopicPartition) -> None:
        """Read no more of this partition; idempotent."""

    def take(self) -> Iterable[FetchResult]:
        """Return the records and events that arrived, in order; waits a little where nothing did."""

    def watermarks(self, tp: TopicPartition, timeout: float) -> tuple[int, int]:
        """Return the log's current start and end offsets; `timeout` in seconds."""

    def close(self) -> None: ...


UNKNOWN = -1
"""The target of a run whose records were delivered, but without their offsets in the broker's answer."""

Ask = Callable[[int, int | None], Int64Array]
"""The offsets of a partition that hold records, from one (inclusive) to another (exclusive; None: the log's end)."""


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Target offsets of records: int64[n] each; record `source + i` is at `target + i` for 0 <= i < `count`."""

    source: Int64Array
    target: Int64Array
    count: Int64Array

    @property
    def next(self) -> int | None:
        """The first target offset after all of them; None without a run or where it is unknown."""
        if not len(self.target) or self.target[-1] < 0:
            return None
        return int(self.target[-1] + self.count[-1])


class NotProvenError(Exception):
    """The target offsets of some records can't be proven."""


def runs_of(sources: Int64Array, targets: Int64Array) -> Runs:
    """Return the runs of records one by one, in the order in which they were sent; a negative target is unknown."""
    ones = np.ones(len(sources), np.int64)
    return join([Runs(sources, np.where(targets < 0, UNKNOWN, targets), ones)])


def join(parts: Sequence[Runs]) -> Runs:
    """Return the parts one after the other. A run that continues the one before it becomes one with that."""
    if not parts:
        empty = np.empty(0, np.int64)
        return Runs(empty, empty, empty)
    source = np.concatenate([part.source for part in parts])
    target = np.concatenate([part.target for part in parts])
    count = np.concatenate([part.count for part in parts])
    if not len(source):
        return Runs(source, target, count)
    known = target >= 0
    source_goes_on = source[1:] == source[:-1] + count[:-1]
    target_goes_on = known[:-1] & (target[1:] == target[:-1] + count[:-1])
    # Records whose targets are unknown make one run, whatever their targets are.
    both_unknown = ~known[:-1] & ~known[1:]
    goes_on = source_goes_on & np.where(known[1:], target_goes_on, both_unknown)
    first = np.concatenate(([0], np.flatnonzero(~goes_on) + 1))
    return Runs(source[first], target[first], np.add.reduceat(count, first))


def resolve(runs: Runs, floor: int | None, ask: Ask) -> Runs:
    """Return the runs with every target known, or raise `NotProvenError`. `runs` are one partition's; all its records
    lie at `floor` or after it (None: unknown).

    librdkafka reports a batch that it sent again as delivered, but without offsets, where the broker had taken it the
    first time. What is certain then: the records of one partition and one producer lie in its log in the order in
    which they were sent. So between two records whose offsets are known, exactly as many offsets as records leave one
    arrangement; with more offsets than records, the broker is asked which of them hold records.
    """
    unknown = np.flatnonzero(runs.target < 0)
    if not len(unknown):
        return runs
    parts: list[Runs] = []
    done = 0
    for some in np.split(unknown, np.flatnonzero(np.diff(unknown) != 1) + 1):
        begin, end = int(some[0]), int(some[-1]) + 1
        before = _part(runs, done, begin)
        lower = before.next if begin > done else floor
        upper = int(runs.target[end]) if end < len(runs.target) else None
        parts += [before, _placed(_part(runs, begin, end), lower, upper, ask)]
        done = end
    return join([*parts, _part(runs, done, len(runs.source))])


def _part(runs: Runs, begin: int, end: int) -> Runs:
    return Runs(runs.source[begin:end], runs.target[begin:end], runs.count[begin:end])


def _placed(unknown: Runs, lower: int | None, upper: int | None, ask: Ask) -> Runs:
    """Return records whose targets are unknown, with those in [lower, upper) that can only be theirs."""
    if lower is None:
        raise NotProvenError
    number = int(unknown.count.sum())
    if upper is not None and upper - lower == number:
        targets = np.arange(lower, upper, dtype=np.int64)
    else:
        targets = ask(lower, upper)
        if len(targets) != number:
            raise NotProvenError
    ranges = zip(unknown.source.tolist(), unknown.count.tolist(), strict=True)
    return runs_of(np.concatenate([np.arange(s, s + n, dtype=np.int64) for s, n in ranges]), targets)


CAUSED_BY_ANOTHER = {KafkaError._INVALID_DIFFERENT_RECORD, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
_PART_OF_A_BATCH = "Failed to append record because it was part of a batch"
"""librdkafka's words, where one record of a batch was refused: all have that one's code then."""


class Undelivered(NamedTuple):
    """The record from source offset `source`, and why it is not in `tp`."""

    error: KafkaError
    tp: TopicPartition
    source: int


class RefusedRecordError(Exception):
    """librdkafka did not take a record. The reason is often in the report of an earlier record."""

    def __init__(self, lost: Undelivered) -> None:
        super().__init__(lost)
        self.lost = lost


class CommittedProgress(NamedTuple):
    """`next` is the source offset from which to go on; `note` is what was committed with it."""

    next: int
    note: str


def cause(lost: Sequence[Undelivered]) -> Undelivered | None:
    """Return the one that took the others with it."""
    for each in lost:
        if each.error.code() not in CAUSED_BY_ANOTHER and not each.error.str().startswith(_PART_OF_A_BATCH):
            return each
    return lost[0] if lost else None


class RecordSink(Protocol):
    """One client. Its calls raise confluent-kafka's `KafkaException`; times are in seconds. Close it after use."""

    @property
    def moved(self) -> int:
        """The number of records sent with timestamp 1 for 0, which librdkafka takes for 'now'."""

    def init(self, timeout: float) -> None:
        """Fence whoever had this transactional id before."""

    def begin(self) -> None: ...

    def send(self, tp: TopicPartition, block: RecordBlock) -> None:
        """Queue a block's records in order; blocks while the queue is full. `RefusedRecordError`, and `CorruptError`
        for a block that is damaged, after the records before the damage may be queued."""

    def serve(self, wait: float) -> None:
        """Take what is reported, or comes within `wait`."""

    def lost(self) -> Undelivered | None:
        """Return the records that were not delivered since the last `taken`."""

    def flush(self, timeout: float) -> int:
        """Wait up to `timeout` seconds for deliveries; return the number of records neither delivered nor lost."""

    def taken(self) -> dict[TopicPartition, Runs]:
        """Return the target offsets of all records since the last call; to be called after `flush`.

        Targets are unknown where no delivery report gave an offset.
        """

    def send_progress(self, progress: Mapping[TopicPartition, CommittedProgress], timeout: float) -> None: ...

    def commit(self, timeout: float) -> None: ...

    def abort(self, timeout: float) -> None:
        """End the transaction without a trace of what was sent since `begin`."""

    def close(self) -> None:
        """Give up what is neither delivered nor lost."""


SILENCE_SECONDS = 10.0
"""How long a client's queue may stay as long as it was before its bootstrap servers are added again."""


class Bootstrap:
    """Add the bootstrap servers to a client again while its queue stays as long as it was.

    A broker that stops leaves itself out of its last answers for metadata. Where it is the only one, librdkafka then
    knows no broker at all, and asks nobody for one: a producer stood still until its messages and its abort had timed
    out. A client that has brokers removes the added ones with its next metadata.
    """

    def __init__(self, servers: str, add: Callable[[bytes], object], silence: float = SILENCE_SECONDS) -> None:
        self._servers = servers.encode()
        self._add = add
        self._silence = silence
        self._length = -1
        self._since = 0.0

    def watch(self, length: int) -> None:
        """Note how long the queue is. To be called again and again while it is waited for."""
        now = time.monotonic()
        if length != self._length:
            self._length, self._since = length, now
        elif now - self._since >= self._silence:
            self._add(self._servers)
            self._since = now
