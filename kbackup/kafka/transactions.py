"""Where a restore point of whole transactions ends: none is in it in part.

The rule, and why it holds, is in tests/unit/jobs/backup/transactions/README.md. The steps named here are its steps.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from confluent_kafka import KafkaError

from kbackup.errors import CorruptError
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.errors import REQUEST_SECONDS, RefusedRequestError
from kbackup.kafka.control.groups import OFFSETS_TOPIC
from kbackup.kafka.control.logs import LogBatch, LogWindow, describe_producers, log_windows, readable_topics
from kbackup.kafka.control.unavailable import Unavailable, UnavailableError
from kbackup.kafka.transaction_records import Commit, Entry, commit_of, entry_of
from kbackup.types import Offsets, TopicPartition
from kbackup.util.system import attempts

STATE = "__transaction_state"
Ends = Mapping[TopicPartition, int]

MOST_BYTES = 256 << 20  # of windows, from one broker
_COUNTS, _COUNT_PAUSE, _COUNTING = 20, 0.005, 5.0  # s: the pause grows, and no count begins after that time
_WAIT_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # s, between looks at last stable offsets
_SETTLING = 5.0  # s, for last stable offsets to follow transactions that have ended: replicas get the marker meanwhile
_ELECTION, _ELECTION_PAUSE = 5.0, 0.05  # s, for leaders of an internal topic that was just created
_LAG = 1000
"""How many offsets before its last stable one a partition of `__consumer_offsets` is read from. A coordinator answers
from memory, which may lack the newest positions that are stable in its log."""
_NO_ERRORS = (0, KafkaError.UNKNOWN_TOPIC_OR_PART)
"""Answers about an internal topic that are no errors: Kafka creates such a topic when it is first needed."""
_EPOCHS_RAISED = 2  # the version of transactions in which each raises the epoch of its markers (KIP-890)
_NO_LIMIT = 1 << 63


CutReason = Literal["open", "not stable", "too large", "not counted", "repeated marker", "unknown marker"]
"""Why a partition ends at its last stable offset:

- `open`: a transaction did not end in time.
- `not stable`: no transaction is open, but the last stable offset did not follow in time.
- `too large`: more than `MOST_BYTES` would have to be read to tell the transactions apart.
- `not counted`: a producer committed to the partition at every count of its markers.
- `repeated marker`: a commit marker has no records before it. It may be the marker before, written twice, or that of
  another transaction.
- `unknown marker`: the commit markers don't fit the entries of the producer's coordinator."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction because of which a partition ends at its last stable offset.

    `start` is the offset of the transaction's first record in the partition, `timestamp` the time of its newest record
    in ms. The producer is -1 if the transaction may have ended: then there is nothing to abort."""

    tp: TopicPartition
    producer_id: int
    start: int
    timestamp: int
    reason: CutReason = "open"


class OffsetsTopicCreatedError(Exception):
    """`__consumer_offsets` was created after the cut was begun: it must be begun once more."""


@dataclass(frozen=True)
class TransactionCut:
    """Where a restore point ends.

    `held` has the ranges of offsets below the ends whose transactions are not in the restore point. `commits` are
    replayed in order over the positions of groups that were captured before. The partitions of `open` end at their last
    stable offset. `transactional` are the partitions that transactional producers have written to."""

    ends: Ends
    held: Mapping[TopicPartition, Offsets]
    commits: Sequence[Commit]
    open: tuple[OpenTransaction, ...]
    transactional: frozenset[TopicPartition]


def begin_cut(cluster: Cluster, *, offsets_topic_exists: bool = False) -> CutBegun | Unavailable:
    """Take the first step, before groups are asked for their positions.

    `offsets_topic_exists`: somebody has seen `__consumer_offsets`, so this waits until every broker knows it."""
    groups: tuple[TopicPartition, ...] = ()
    for _ in attempts(REQUEST_SECONDS, _ELECTION_PAUSE):
        try:
            _, groups = _internal_topics(cluster)
        except UnavailableError as error:
            return error.unavailable
        if groups or not offsets_topic_exists:
            break
    if offsets_topic_exists and not groups:
        return Unavailable("failed", f"{OFFSETS_TOPIC} was created, but its brokers don't list it")
    return CutBegun(cluster, cluster.log_ends(groups, "read_committed"))


@dataclass(frozen=True)
class CutBegun:
    """`groups` are the last stable offsets of `__consumer_offsets`. Last stable offsets have `settling` seconds to
    follow transactions that have ended."""

    cluster: Cluster
    groups: Ends
    settling: float = _SETTLING

    def close(self, stable: Ends, wait: float, given_up: Ends = MappingProxyType({})) -> TransactionCut | Unavailable:
        """Take the other steps. `stable` are last stable offsets, listed after the groups were asked. Open transactions
        have `wait` seconds to end, but none where an earlier cut gave up at the same last stable offset.

        Raises `OffsetsTopicCreatedError`."""
        try:
            coordinators, _ = _internal_topics(self.cluster)
            if coordinators:
                return self._close(coordinators, stable, wait, given_up)
        except UnavailableError as error:
            return error.unavailable
        except CorruptError as error:
            return Unavailable("failed", error.message)
        except RefusedRequestError as error:
            return Unavailable.of(error.kafka_error(), f"reading {OFFSETS_TOPIC}", self.cluster.connection)
        return TransactionCut(dict(stable), {}, (), (), frozenset())  # no transaction was ever begun

    def _close(
        self, coordinators: Sequence[TopicPartition], stable: Ends, wait: float, given_up: Ends
    ) -> TransactionCut:
        starts = {**stable, **self.groups}
        # The coordinators' logs come before the ends of partitions (steps 2 and 3): a transaction that is prepared by
        # then has all its records below the ends.
        log = _StateLog(self.cluster, self.cluster.log_ends(coordinators, "read_uncommitted"))
        self._check_offsets_topic()
        ends: dict[TopicPartition, int] = {}
        for tp, end in self.cluster.log_ends(starts, "read_uncommitted").items():
            ends[tp] = max(end, starts[tp])

        late = _wait(self.cluster, starts, ends, wait, given_up)
        states = _transactional(self.cluster, starts)
        unended = _open_transactions(states, late, ends)
        # A transaction that ended after the last look of `_wait` is in no list of open ones. Its partition must not be
        # taken for one that is done, nor for one that is late without a reason: look at it again.
        explained = {each.tp for each in unended}
        late = _look_again(self.cluster, ends, late, explained, self.settling)
        unended = [each for each in unended if each.tp in late]
        unexplained = late - {each.tp for each in unended}
        unended += [OpenTransaction(tp, -1, starts[tp], -1, "not stable") for tp in sorted(unexplained)]
        ends |= {tp: starts[tp] for tp in late}

        # Only now: what lies below the end of a partition that is not late is decided, so the entries that decide it
        # are in the coordinators' logs.
        log.read(log.ends())
        producers = log.entries_of_producers()
        places: list[Place] = []
        for tp, who in prepared(log.entries.values(), log.positions, log.positions):
            is_read = tp in ends and starts[tp] < ends[tp]
            if is_read and must_count(who, producers[who]):
                places.append((tp, who))
        counts = self._count_markers(log, places)
        windows = self._read_windows(states, starts, ends, counts)
        held: dict[TopicPartition, Offsets] = {}
        for tp, window in windows.items():
            boundaries = boundaries_in(tp, window, counts)
            cut = cut_window(tp, starts[tp], window, producers, boundaries)
            if isinstance(cut, OpenTransaction):
                unended.append(cut)
                ends[tp] = starts[tp]
            else:
                ends[tp], held[tp] = cut
        commits: list[Commit] = []
        for tp in sorted(windows.keys() & self.groups.keys()):
            if windows[tp].complete:
                commits += _commits(tp, windows[tp], ends[tp], held.get(tp, ()))
        # `__consumer_offsets` was cut as well, but only for the positions of groups.
        ends_of_stable = {tp: ends[tp] for tp in stable}
        held_of_stable = {tp: held[tp] for tp in stable if held.get(tp)}
        return TransactionCut(
            ends=ends_of_stable,
            held=held_of_stable,
            commits=commits,
            open=tuple(unended),
            transactional=frozenset(stable.keys() & states.keys()),
        )

    def _check_offsets_topic(self) -> None:
        """Raise `OffsetsTopicCreatedError` if groups may have committed positions to a topic that was not looked at.

        This comes after the coordinators' logs were listed: if the topic still doesn't exist then, no transaction that
        is in has positions of groups."""
        if not self.groups:
            _, groups = _internal_topics(self.cluster)
            if groups:
                raise OffsetsTopicCreatedError

    def _count_markers(self, log: _StateLog, places: Collection[Place]) -> Counts:
        """Count the markers of producers in partitions, until the counts are exact or `_COUNTS` were made (step 5)."""
        counts: dict[Place, list[MarkerCount]] = {place: [] for place in places}
        waiting = set(places)
        until = time.monotonic() + _COUNTING
        for number in range(_COUNTS):
            if not waiting or time.monotonic() > until:
                break
            time.sleep(number * _COUNT_PAUSE)
            # The order matters: the ends of partitions are listed between two listings of the coordinators' logs, so
            # that a transaction's marker is known to be below the end, or not to be, or is on its way.
            before = log.ends()
            partitions = {tp for tp, _ in waiting}
            ends = self.cluster.log_ends(partitions, "read_uncommitted")
            after = log.ends()
            log.read(after)
            found = prepared(log.entries.values(), before, after)
            for place in places:
                tp, _ = place
                # Also for a place that waits no longer: one more count of its partition can only narrow the bounds.
                if tp in ends:
                    surely, perhaps = found[place]
                    counts[place].append(MarkerCount(ends[tp], surely, perhaps))
            waiting = {place for place in waiting if found[place][0] < found[place][1]}
        return counts

    def _read_windows(
        self, partitions: Iterable[TopicPartition], starts: Ends, ends: Ends, counts: Counts
    ) -> dict[TopicPartition, LogWindow]:
        """Read the batches of `partitions` from their starts to their ends, and on to where markers were counted."""
        begins = {tp: starts[tp] for tp in partitions}
        of_groups = begins.keys() & self.groups.keys()
        for tp, log_start in self.cluster.log_starts(of_groups).items():
            begins[tp] = max(begins[tp] - _LAG, log_start)
        counted = defaultdict[TopicPartition, int](int)
        for (tp, _), own in counts.items():
            for count in own:
                counted[tp] = max(counted[tp], count.end)
        ranges: dict[TopicPartition, tuple[int, int, int]] = {}
        for tp, begin in begins.items():
            if begin < ends[tp]:
                ranges[tp] = (begin, ends[tp], counted[tp])
        return log_windows(self.cluster.router, ranges, MOST_BYTES, records=self.groups)


def _internal_topics(cluster: Cluster) -> list[tuple[TopicPartition, ...]]:
    """Return the partitions of `__transaction_state` and of `__consumer_offsets`; a topic that does not exist has none.

    `UnavailableError` if a topic can't be read."""
    names = (STATE, OFFSETS_TOPIC)
    refused: dict[str, int] = {}
    # A topic that was just created has no leaders for a moment.
    for _ in attempts(_ELECTION, _ELECTION_PAUSE):
        topics = readable_topics(cluster.router, names)
        refused = {name: topics[name].error for name in names if topics[name].error not in _NO_ERRORS}
        if KafkaError.LEADER_NOT_AVAILABLE not in refused.values():
            break
    for name, code in refused.items():
        error = KafkaError(code)
        raise UnavailableError(Unavailable.of(error, f"reading {name}", cluster.connection))
    return [topics[name].partitions for name in names]


def _transactional(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[Any]]:
    """Return the producers of each partition that has records of transactions, as `describe_producers` does."""
    transactional: dict[TopicPartition, list[Any]] = {}
    for tp, producers in describe_producers(cluster.router, partitions).items():
        if any(map(_has_begun_a_transaction, producers)):
            transactional[tp] = producers
    return transactional


def _has_begun_a_transaction(producer: Any) -> bool:
    """Return True if a producer has ended a transaction, which its coordinator's epoch shows, or has one open."""
    return bool(producer.coordinator_epoch >= 0 or producer.current_txn_start_offset >= 0)


def _wait(cluster: Cluster, starts: Ends, ends: Ends, wait: float, given_up: Ends) -> set[TopicPartition]:
    """Wait until last stable offsets have reached `ends`, and return the partitions where they did not (step 4)."""
    until = time.monotonic() + wait
    pause = _WAIT_PAUSE
    late = {tp for tp, end in ends.items() if starts[tp] < end}
    while late:
        stable = cluster.log_ends(late, "read_committed")
        late = {tp for tp in late if stable[tp] < ends[tp]}
        # An earlier cut has waited for the transactions at these offsets already.
        were_all_given_up = all(given_up.get(tp) == stable[tp] for tp in late)
        if were_all_given_up or time.monotonic() + pause > until:
            break
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return late


def _open_transactions(
    states: Mapping[TopicPartition, Iterable[Any]], late: AbstractSet[TopicPartition], ends: Ends
) -> list[OpenTransaction]:
    """Return the transactions that are open in `late` partitions, and began before the partition's end. `states` are
    producers as `_transactional` returns them."""
    found: list[OpenTransaction] = []
    for tp in sorted(late & states.keys()):
        for each in states[tp]:
            first = each.current_txn_start_offset  # -1 without an open transaction
            if 0 <= first < ends[tp]:
                found.append(OpenTransaction(tp, each.producer_id, first, each.last_timestamp))
    return found


def _look_again(
    cluster: Cluster,
    ends: Ends,
    late: AbstractSet[TopicPartition],
    explained: AbstractSet[TopicPartition],
    settling: float,
) -> set[TopicPartition]:
    """Look at last stable offsets until no partition of `late` is late without being `explained` by an open
    transaction, and return those that still are late. Takes `settling` seconds at most."""
    remaining = set(late)
    if remaining <= explained:
        return remaining
    for _ in attempts(settling, _WAIT_PAUSE):
        stable = cluster.log_ends(remaining, "read_committed")
        remaining = {tp for tp in remaining if stable[tp] < ends[tp]}
        if remaining <= explained:
            break
    return remaining


# The rule for producers and batches: functions of what was listed and read, which tests run on every state of a model.


Producers = Mapping[int, Sequence[Entry]]
"""The entries of a producer's transactional id since its coordinator was first listed, by producer id. A producer that
is missing has prepared nothing since."""
Place = tuple[TopicPartition, int]
"""A producer in a partition."""


class MarkerCount(NamedTuple):
    """One count of a producer's commit markers in a partition.

    Of the commits that are not in the restore point, at least `surely` and at most `perhaps` have their marker below
    `end`."""

    end: int
    surely: int
    perhaps: int


Counts = Mapping[Place, Sequence[MarkerCount]]


def add_entry(entries: list[Entry], entry: Entry) -> None:
    """Add what was written next to a coordinator's log to the `entries` of its transactional id."""
    if entries and not entries[-1].complete and not entry.complete:
        # The coordinator could not replicate the entry before in time, and has sent no marker by it. The later entry
        # prepares the transaction, and may even abort what the former one would have committed.
        entries[-1] = entry
    else:
        entries.append(entry)


def prepared(entries: Iterable[Sequence[Entry]], before: Ends, after: Ends) -> defaultdict[Place, tuple[int, int]]:
    """Return how many commits that are not in have their marker below an end of a partition, at least and at most.

    `entries` are those of each transactional id, in logs that ended `before` and `after` the partition did. Aborts are
    left out: their markers are told from those of commits, and what they end is never read."""
    found: defaultdict[Place, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for own in entries:
        for number, entry in enumerate(own):
            if entry.aborted or entry.offset >= after[entry.coordinator]:
                continue
            # The entry that follows completes the transaction. A coordinator writes it when all partitions have the
            # marker, so markers are below an end that was listed after it.
            has_all_markers = False
            if number + 1 < len(own):
                completed = own[number + 1]
                has_all_markers = completed.offset < before[completed.coordinator]
            for tp in entry.partitions:
                surely, perhaps = found[tp, entry.producer_id]
                found[tp, entry.producer_id] = surely + has_all_markers, perhaps + 1
    return found


class CommitMarker(NamedTuple):
    """A commit marker of a producer in a partition.

    It `may_repeat` the commit marker before if nothing of the producer lies between them. Then it is the same marker,
    which a coordinator wrote twice, or the marker of a transaction without records."""

    offset: int
    may_repeat: bool


def commit_markers(producer_id: int, batches: Iterable[LogBatch]) -> list[CommitMarker]:
    """Return a producer's commit markers, in the order of offsets.

    Markers of aborts are left out. librdkafka writes them without records before, where it aborts a transaction while
    its records wait to be sent. A coordinator writes all markers of a transaction, repeated ones too, before it
    prepares the next one: so a commit marker that follows an abort marker is no repeated one."""
    found: list[CommitMarker] = []
    follows_commit = False
    for batch in batches:
        if batch.producer_id != producer_id:
            continue
        is_commit = batch.control and not batch.aborted
        if is_commit:
            found.append(CommitMarker(batch.first, follows_commit))
        follows_commit = is_commit
    return found


class Boundary(NamedTuple):
    """Commit markers below offset `first` are of transactions that are in; those from offset `last` on are of
    transactions that are not. Those between can't be told apart, for the `reason`."""

    first: int
    last: int
    reason: CutReason = "not counted"


ALL_IN = Boundary(_NO_LIMIT, _NO_LIMIT)


class Bounds(NamedTuple):
    """How many commit markers are of transactions that are in: at least, and at most.

    `exact` if the count left no doubt of how many are not in: another count would tell no more."""

    least: int
    most: int
    exact: bool


def bounds_of(markers: Sequence[CommitMarker], count: MarkerCount) -> Bounds:
    """Return what one count tells of a producer's commit markers in a partition."""
    seen = sum(marker.offset < count.end for marker in markers)
    # Each transaction that is not in has a marker of its own. Where none is known to have it below the end, all markers
    # may be of transactions that are in, and so may later ones: a marker that comes twice, or one without records.
    most = _NO_LIMIT
    if count.surely:
        most = seen - count.surely
    # From the newest one back, as many markers may be of transactions that are not in as these are allowed to be. One
    # that may repeat the marker before it needs no transaction of its own, unless it is the first one that is not in.
    least = seen
    transactions = 0
    while least > 0 and transactions < count.perhaps:
        least -= 1
        if not markers[least].may_repeat:
            transactions += 1
    return Bounds(least, most, exact=count.surely == count.perhaps)


def boundary_of(markers: Sequence[CommitMarker], bounds: Iterable[Bounds]) -> Boundary:
    """Return where a producer's commit markers in a partition begin to be of transactions that are not in."""
    # Every count holds: together they bound the boundary from both sides.
    least = 0
    most = len(markers)
    exact = False
    for each in bounds:
        least = max(least, each.least)
        most = min(most, each.most)
        exact = exact or each.exact
    if least > most:
        return Boundary(-1, _NO_LIMIT, "unknown marker")
    offsets = [marker.offset for marker in markers]
    offsets.append(_NO_LIMIT)
    # If the numbers are certain and the place is not, only a marker that may repeat the one before can be why.
    reason: CutReason = "repeated marker" if exact else "not counted"
    return Boundary(offsets[least], offsets[most], reason)


def boundaries_in(tp: TopicPartition, window: LogWindow, counts: Counts) -> dict[int, Boundary]:
    """Return the boundary of each producer whose markers were counted in a partition."""
    found: dict[int, Boundary] = {}
    for producer_id in {batch.producer_id for batch in window.batches}:
        own = counts.get((tp, producer_id))
        if own is not None:
            markers = commit_markers(producer_id, window.batches)
            bounds = [bounds_of(markers, count) for count in own]
            found[producer_id] = boundary_of(markers, bounds)
    return found


def cut_window(
    tp: TopicPartition, stable: int, window: LogWindow, producers: Producers, boundaries: Mapping[int, Boundary]
) -> tuple[int, Offsets] | OpenTransaction:
    """Return where a partition ends, and which ranges of offsets below the end are held (step 7); or a transaction that
    can't be decided.

    A range that is held is a run of committed batches that are not in, with the markers and aborted batches among them.
    `boundaries` are by producer id."""
    if not window.complete:
        return OpenTransaction(tp, -1, stable, -1, "too large")
    held: list[tuple[int, int]] = []
    is_run_open = False
    for batch, marker in _committed(window):
        if not stable <= batch.first < window.end:
            continue
        boundary = boundaries.get(batch.producer_id, ALL_IN)
        if marker is not None and boundary.first <= marker.first < boundary.last:
            return OpenTransaction(tp, -1, batch.first, -1, boundary.reason)
        is_in = marker is None or _is_in(marker, producers.get(batch.producer_id), boundary.last)
        if not is_in:
            run_start = batch.first
            if is_run_open:
                run_start, _ = held.pop()
            held.append((run_start, batch.last + 1))
        is_run_open = not is_in
    end = window.end
    # Nothing that is in follows the last run: the partition ends before it, and needs no range to be held.
    if is_run_open:
        end, _ = held.pop()
    return end, tuple(held)


def _committed(window: LogWindow) -> list[tuple[LogBatch, LogBatch | None]]:
    """Return the batches with committed records, each with the marker of its transaction, None without one."""
    # From the end, since the marker of a batch is the next one of its producer. What has none yet is open.
    markers: dict[int, LogBatch] = {}
    found: list[tuple[LogBatch, LogBatch | None]] = []
    for batch in reversed(window.batches):
        if batch.control:
            markers[batch.producer_id] = batch
        elif not batch.transactional:
            found.append((batch, None))
        elif (marker := markers.get(batch.producer_id)) and not marker.aborted:
            found.append((batch, marker))
    found.reverse()
    return found


def must_count(producer_id: int, entries: Sequence[Entry]) -> bool:
    """Return whether neither the producer's id nor the epochs of its markers tell which transactions are in."""
    return entries[0].producer_id == producer_id and entries[0].version < _EPOCHS_RAISED


def _is_in(marker: LogBatch, entries: Sequence[Entry] | None, limit: int) -> bool:
    """Return whether a marker's transaction was prepared when its producer's coordinator was first listed."""
    if not entries:
        return True
    if must_count(marker.producer_id, entries):
        return marker.first < limit
    first = entries[0]
    # Of another producer id: the transactional id got the marker's producer id later.
    if marker.producer_id != first.producer_id:
        return False
    # Each transaction raises the epoch of its markers. An entry that completes one is of a transaction that was
    # prepared before the listing, and so its own epoch counts as well.
    if first.complete:
        return marker.producer_epoch <= first.epoch
    return marker.producer_epoch < first.epoch


# Reading the internal topics.


@dataclass
class _StateLog:
    """What was written to `__transaction_state` since the first `positions`: `entries` by transactional id."""

    cluster: Cluster
    positions: dict[TopicPartition, int]
    entries: dict[str, list[Entry]] = field(default_factory=lambda: defaultdict(list))

    def ends(self) -> dict[TopicPartition, int]:
        return self.cluster.log_ends(self.positions, "read_uncommitted")

    def entries_of_producers(self) -> Producers:
        """Return the entries by producer id: all of its transactional id, which may have had several producer ids."""
        producers: dict[int, Sequence[Entry]] = {}
        for own in self.entries.values():
            entries = tuple(own)
            for entry in own:
                producers[entry.producer_id] = entries
        return producers

    def read(self, ends: Ends) -> None:
        """Read on to `ends`; `UnavailableError` if the log lacks an entry."""
        ranges = {tp: (at, ends[tp], 0) for tp, at in self.positions.items() if at < ends[tp]}
        windows = log_windows(self.cluster.router, ranges, MOST_BYTES, records=ranges)
        for tp, window in windows.items():
            self._add_records(tp, window)
            position = self.positions[tp]
            if position < ends[tp]:
                raise UnavailableError(Unavailable("failed", f"{tp} lacks offset {position}, or is too large"))

    def _add_records(self, tp: TopicPartition, window: LogWindow) -> None:
        """Add the entries of a window up to the first gap: what decides a transaction may be missing there."""
        for batch in window.batches:
            for offset, key, value in batch.records():
                if offset != self.positions[tp]:
                    return
                self.positions[tp] += 1
                name, entry = entry_of(tp, offset, key, value)
                if entry is not None:
                    add_entry(self.entries[name], entry)


def _commits(tp: TopicPartition, window: LogWindow, end: int, held: Offsets) -> list[Commit]:
    """Return what groups with transactional commits have committed in a partition of `__consumer_offsets` (step 8)."""
    commits: list[Commit] = []
    transactional: set[str] = set()
    for batch, marker in _committed(window):
        if batch.first >= end:
            continue
        is_held = any(low <= batch.first < high for low, high in held)
        if is_held:
            continue
        for _, key, value in batch.records():
            commit = commit_of(tp, key, value)
            if commit is None:
                continue
            commits.append(commit)
            if marker is not None:
                transactional.add(commit.group)
    # The other groups' positions are those that their coordinators answered, as without transactions.
    return [commit for commit in commits if commit.group in transactional]
