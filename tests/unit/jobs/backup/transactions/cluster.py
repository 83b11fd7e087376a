"""Producers with transactions as a model of states, and a checker that visits every state. See README.md."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

DATA, COMMIT, ABORT = "data", "COMMIT", "ABORT"
PREPARE, COMPLETE = "prepare", "complete"
FENCED, HANGING, RESENT = "FENCED", "HANGING", "RESENT"


class Transaction(NamedTuple):
    """Writes a batch to each partition of `writes`, in any order, then ends: COMMIT; RESENT, a commit whose markers
    come twice, as from a coordinator that is restarted; ABORT; FENCED, which is an abort that raises the epoch and may
    come after any write, and puts its marker also where nothing was written; or HANGING, which is none of them.

    `named` are partitions that belong to it without a record: its end puts a marker there, too. librdkafka leaves them
    where it aborts before its records were sent."""

    writes: tuple[int, ...]
    end: str = COMMIT
    named: tuple[int, ...] = ()


class Producer(NamedTuple):
    """`version` 2 raises the epoch with each transaction (KIP-890). With `upgraded` it does from the second one on."""

    transactions: tuple[Transaction, ...]
    version: int = 1
    upgraded: bool = False


class Batch(NamedTuple):
    """One batch of a partition's log. `number`, the transaction within its producer, is not in real batches: only
    invariants, and rules that are told so, may use it."""

    kind: str
    producer: int
    epoch: int
    number: int


class Event(NamedTuple):
    """One entry of a coordinator's log, `__transaction_state`. `number` is not in real entries. `partitions` are those
    that get a marker; an entry of a complete transaction has none. `aborted`: it is PrepareAbort or CompleteAbort."""

    kind: str
    epoch: int
    version: int
    number: int
    partitions: tuple[int, ...] = ()
    aborted: bool = False


class At(NamedTuple):
    """How far a producer is: `left` are writes of the transaction; `marks` are those of its partitions that lack its
    marker, None before it is prepared."""

    number: int
    left: tuple[int, ...]
    epoch: int = 0
    marks: tuple[int, ...] | None = None


class Cluster(NamedTuple):
    """Each producer has a coordinator of its own: what several would share is listed at one moment, which is one of
    the orders of listing them apart."""

    logs: tuple[tuple[Batch, ...], ...]
    events: tuple[tuple[Event, ...], ...]
    producers: tuple[At, ...]

    @classmethod
    def of(cls, partitions: int, programs: Sequence[Producer]) -> Cluster:
        first = tuple(At(0, program.transactions[0].writes) for program in programs)
        return cls(((),) * partitions, ((),) * len(programs), first)

    def stable(self, partition: int) -> int:
        """Return the last stable offset: that of the first record whose transaction has no marker, or the end."""
        log = self.logs[partition]
        first: dict[int, int] = {}
        for offset, batch in enumerate(log):
            if batch.kind == DATA:
                first.setdefault(batch.producer, offset)
            else:
                first.pop(batch.producer, None)
        return min(first.values(), default=len(log))


def steps_of(cluster: Cluster, programs: Sequence[Producer]) -> Iterator[tuple[str, Cluster]]:
    """Yield every next step of every producer, and of its coordinator, with what the cluster is after it."""
    for who, (program, at) in enumerate(zip(programs, cluster.producers, strict=True)):
        if at.number == len(program.transactions):
            continue
        writes, end, named = program.transactions[at.number]
        aborted = end not in (COMMIT, RESENT)
        # as Kafka 4.3 does it: a coordinator fences with version 2, whatever the producer has
        version = 2 if end == FENCED or (program.upgraded and at.number) else program.version
        raised = at.epoch + (version == 2)  # the epoch of its markers
        marked = tuple(sorted({*writes, *named}))
        if at.marks is None:
            for n, to in enumerate(at.left):
                if to not in at.left[:n]:
                    moved = _append(cluster, to, Batch(DATA, who, at.epoch, at.number))
                    yield (
                        f"producer {who} writes to partition {to}",
                        _moved(moved, who, at._replace(left=_without(at.left, to))),
                    )
            if end != HANGING and (not at.left or (end == FENCED and at.left != writes)):
                moved = _log(cluster, who, Event(PREPARE, raised, version, at.number, marked, aborted))
                then = at._replace(left=(), marks=marked * (1 + (end == RESENT)))
                yield f"coordinator of {who} prepares", _moved(moved, who, then)
        elif at.marks:
            mark = Batch(ABORT if aborted else COMMIT, who, raised, at.number)
            for to in sorted({*at.marks}):
                moved = _append(cluster, to, mark)
                yield (
                    f"{mark.kind} of {who} reaches partition {to}",
                    _moved(moved, who, at._replace(marks=_without(at.marks, to))),
                )
        else:
            number, following = at.number + 1, program.transactions[at.number + 1 :]
            moved = _log(cluster, who, Event(COMPLETE, raised, version, at.number, aborted=aborted))
            then = At(number, following[0].writes if following else (), raised + (end == FENCED))
            yield f"coordinator of {who} completes", _moved(moved, who, then)


def _without(partitions: tuple[int, ...], one: int) -> tuple[int, ...]:
    at = partitions.index(one)
    return partitions[:at] + partitions[at + 1 :]


def _append(cluster: Cluster, to: int, batch: Batch) -> Cluster:
    return cluster._replace(logs=(*cluster.logs[:to], (*cluster.logs[to], batch), *cluster.logs[to + 1 :]))


def _log(cluster: Cluster, who: int, event: Event) -> Cluster:
    events = cluster.events
    return cluster._replace(events=(*events[:who], (*events[who], event), *events[who + 1 :]))


def _moved(cluster: Cluster, who: int, at: At) -> Cluster:
    return cluster._replace(producers=(*cluster.producers[:who], at, *cluster.producers[who + 1 :]))


class Result(NamedTuple):
    """What a restore point has: offsets of each partition, and the position that each group committed: the
    transaction (producer, number) that set it."""

    offsets: tuple[frozenset[int], ...]
    positions: tuple[tuple[int, int] | None, ...] = ()


GIVEN_UP = "given up"
Step = tuple[str, Hashable]
"""What a backup did, and what it knows then. A `Result` is its end, or `GIVEN_UP`."""


class Backup:
    """One way to take a restore point: what it knows is a value, and `steps` are its next requests."""

    groups: tuple[int | None, ...] = ()
    """The group of each producer, None for one without; the last partition is that of all groups."""

    def begin(self) -> Hashable:
        raise NotImplementedError

    def steps(self, known: Hashable, cluster: Cluster) -> Iterator[Step]:
        raise NotImplementedError


@dataclass
class Report:
    states: int = 0
    ends: int = 0
    """States in which a restore point was committed."""
    given_up: int = 0
    """States in which the backup could not tell transactions apart, and said so."""
    torn: str = ""
    stuck: str = ""
    """What went on so that the backup can't end, though nothing happens any more."""


def explore(programs: Sequence[Producer], partitions: int, backup: Backup) -> Report:
    """Visit every state of the producers beside a backup, each once. Ends with the first counterexample."""
    report = Report()
    first = (Cluster.of(partitions, programs), backup.begin())
    before: dict[object, tuple[object, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()  # the nearest first: a counterexample has few steps
        cluster, known = state
        report.states += 1
        if known == GIVEN_UP:
            report.given_up += 1
            continue
        if isinstance(known, Result):
            report.ends += 1
            if why := violation(programs, cluster, known, backup.groups):
                report.torn = f"{_story(before, state)}\n{_picture(cluster, known)}\n{why}"
                return report
            continue  # nothing that follows changes the restore point
        following = [(f"backup {name}", (cluster, then)) for name, then in backup.steps(known, cluster)]
        following += [(name, (then, known)) for name, then in steps_of(cluster, programs)]
        if not following:
            report.stuck = report.stuck or _story(before, state)
        for name, then in following:
            if then not in before:
                before[then] = (state, name)
                waiting.append(then)
    return report


def walk(programs: Sequence[Producer], partitions: int, backup: Backup, random: Random) -> str:
    """Take random steps of producers beside a backup until it ends. Returns a counterexample, or ''."""
    cluster, known = Cluster.of(partitions, programs), backup.begin()
    names: list[str] = []
    while not isinstance(known, Result):
        if known == GIVEN_UP:
            return ""
        following = [(f"backup {name}", (cluster, then)) for name, then in backup.steps(known, cluster)]
        following += [(name, (then, known)) for name, then in steps_of(cluster, programs)]
        name, (cluster, known) = random.choice(following)
        names.append(name)
    why = violation(programs, cluster, known, backup.groups)
    return "\n".join([*names, _picture(cluster, known), why]) if why else ""


def _story(before: dict[object, tuple[object, str] | None], state: object) -> str:
    lines: list[str] = []
    while (link := before[state]) is not None:
        state, name = link
        lines.append(name)
    return "\n".join(f"{n:3}  {line}" for n, line in enumerate(reversed(lines), 1))


def _picture(cluster: Cluster, result: Result) -> str:
    """Return a line per partition: transaction (producer.number), in brackets where the restore point has it."""
    lines = []
    for partition, log in enumerate(cluster.logs):
        kept = result.offsets[partition] if partition < len(result.offsets) else frozenset()
        words = [
            f"{b.producer}.{b.number}{'' if b.kind == DATA else ':' + b.kind}"
            if n not in kept
            else f"[{b.producer}.{b.number}]"
            for n, b in enumerate(log)
        ]
        lines.append(f"partition {partition}: {' '.join(words)}")
    return "\n".join(lines)


def violation(programs: Sequence[Producer], cluster: Cluster, result: Result, groups: Sequence[int | None]) -> str:
    """Return why a restore point breaks the promise, '' if it holds: each transaction that is or will be committed is
    in it with all its records or with none, and group positions are those of the transactions that are in it."""
    kept: dict[tuple[int, int], int] = {}
    for partition, offsets in enumerate(result.offsets):
        for offset in offsets:
            batch = cluster.logs[partition][offset]
            key = (batch.producer, batch.number)
            kept[key] = kept.get(key, 0) + 1
    inside: dict[tuple[int, int], bool] = {}
    for who, program in enumerate(programs):
        for number, transaction in enumerate(program.transactions):
            records = sum(to < len(result.offsets) for to in transaction.writes)
            count = kept.get((who, number), 0)
            name = f"transaction {who}.{number}"
            if transaction.end not in (COMMIT, RESENT):
                if count:
                    return f"{name} was not committed, but {count} of its records are in the restore point"
                inside[who, number] = False
            elif count not in (0, records):
                return f"{name} is torn: {count} of its {records} records are in the restore point"
            elif records:
                inside[who, number] = bool(count)
    for group, position in enumerate(result.positions):
        commits = [(b.producer, b.number) for b in cluster.logs[-1] if b.kind == DATA and groups[b.producer] == group]
        if position is not None and not inside.get(position, True):
            return f"the position of group {group} is that of transaction {position}, which is not in the restore point"
        last = max((n for n, each in enumerate(commits) if inside.get(each)), default=-1)
        if last >= 0 and (position is None or commits.index(position) < last):
            return f"the position of group {group} is that of {position}, but {commits[last]} is in the restore point"
    return ""


def committed(log: Sequence[Batch], offset: int) -> bool:
    """Return whether the record at `offset` is committed by a marker that follows in the log."""
    who = log[offset].producer
    return next((b.kind == COMMIT for b in log[offset:] if b.producer == who and b.kind != DATA), False)


def position_of(
    log: Sequence[Batch], group: int, groups: Sequence[int | None], keep: Callable[[int], bool]
) -> tuple[int, int] | None:
    """Return the last position of a group among the committed records of a log that `keep` keeps, by offset."""
    position = None
    for offset, batch in enumerate(log):
        if batch.kind == DATA and groups[batch.producer] == group and keep(offset) and committed(log, offset):
            position = (batch.producer, batch.number)
    return position
