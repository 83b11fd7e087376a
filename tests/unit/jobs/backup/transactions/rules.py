"""Ways to take a restore point of whole transactions: the one to implement, and others that fail. See README.md."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.unit.jobs.backup.transactions.cluster import (
    COMMIT,
    COMPLETE,
    DATA,
    GIVEN_UP,
    PREPARE,
    Backup,
    Batch,
    Cluster,
    Result,
    Step,
    committed,
    position_of,
)

_MANY = 99
Log = tuple[Batch, ...]
Names = list[tuple[int, int]]
"""The transaction of each batch of a log, as far as it is known."""
Ends = tuple[int, ...]
Position = tuple[int, int] | None


class Bound(NamedTuple):
    """How many commit markers of a producer in a partition are of transactions that are in: at least, and at most.
    `exact`: a count told how many are not, so that another one would tell no more."""

    least: int = 0
    most: int = _MANY
    exact: bool = False


Bounds = tuple[tuple[Hashable, ...], ...]
"""By partition and producer; without a count, `()`. `Whole` has a `Bound` for each."""


class Count(NamedTuple):
    """One count of markers: coordinators' logs end at `before`, partitions at `ends`, coordinators' logs at `after`."""

    before: Ends = ()
    ends: Ends = ()
    after: Ends = ()


class Known(NamedTuple):
    """What the backup knows: last stable offsets `stable`, group positions `base`, where coordinators' logs ended
    `before`, the `ends` of partitions, and a count of markers that goes on, `counted`. `bounds` are what earlier counts
    told. Once the wait gave up, `late` has for each partition whether its last stable offset had not reached its end,
    and `explained` whether an open transaction was found there."""

    phase: str = "stable"
    stable: Ends = ()
    base: tuple[Position, ...] = ()
    before: Ends = ()
    ends: Ends = ()
    counted: Count = Count()
    bounds: Bounds = ()
    late: tuple[bool, ...] = ()
    explained: tuple[bool, ...] = ()


class UndecidedError(Exception):
    """Markers must be counted once more; `never`: or can't be."""

    def __init__(self, never: bool) -> None:
        self.never = never


@dataclass(frozen=True)
class Whole(Backup):
    """The rule of README.md. Wrong variants leave something out (a False), or do one thing otherwise: `group_positions`
    is `tail`, which is right, or `before` or `after`; `epochs_alone` has producers of version 1 told by epochs as well;
    `own_epochs` looks at the epochs of records in place of those of their markers; `counts_once` takes a transaction
    that is prepared for one with all its markers; `twice` counts markers that may have come twice, and `skips_repeated`
    none of them; `all_in` takes every producer for one that has prepared nothing meanwhile.

    With `gives_up`, the wait may end at any time. Then open transactions are looked for in late partitions. Those
    that have none are looked at again, but for the wrong variant `late_is_done`: it ends them at their last stable
    offset.

    With `others`, producers that are not in the model hold last stable offsets back as far as they like, and have
    markers counted that need not be."""

    groups: tuple[int | None, ...] = ()
    others: bool = False
    in_order: bool = True
    holds: bool = True
    waits: bool = True
    epochs_alone: bool = False
    own_epochs: bool = False
    counts_once: bool = False
    twice: bool = False
    skips_repeated: bool = False
    gives_up: bool = False
    late_is_done: bool = False
    all_in: bool = False
    group_positions: str = "tail"

    def begin(self) -> Known:
        return Known()

    def steps(self, known: Hashable, cluster: Cluster) -> Iterator[Step]:
        assert isinstance(known, Known)
        seen = tuple(map(len, cluster.events))
        if known.phase == "stable":
            yield from self._list_stable(known, cluster)
        elif known.phase == "groups":
            base = tuple(self._ask(group, cluster) for group in self._group_numbers())
            yield "asks for group positions", known._replace(base=base, phase="before" if self.in_order else "ends")
        elif known.phase == "before":
            then = known._replace(before=(*known.before, seen[len(known.before)]))
            if len(then.before) == len(seen):
                then = then._replace(phase="ends" if self.in_order else "wait")
            yield f"lists the coordinator of {len(known.before)}: {then.before[-1]}", then
        elif known.phase == "ends":
            then = known._replace(ends=(*known.ends, len(cluster.logs[len(known.ends)])))
            if len(then.ends) == len(cluster.logs):
                then = then._replace(phase="wait" if self.in_order else "before")
            yield f"lists the end of partition {len(known.ends)}: {then.ends[-1]}", then
        elif known.phase == "wait":
            if not self.waits or all(cluster.stable(n) >= end for n, end in enumerate(known.ends)):
                yield from self._decide(known, cluster, seen)
            if self.gives_up:
                yield "gives up waiting", known._replace(phase="look", late=(), explained=())
        elif known.phase == "look":
            yield from self._look(known, cluster)
        elif known.phase == "explain":
            yield from self._explain(known, cluster)
        elif known.phase == "look again":
            yield from self._look_again(known, cluster)
        else:
            yield from self._count(known, cluster, seen)

    def _look(self, known: Known, cluster: Cluster) -> Iterator[Step]:
        """Take the last look of the wait at one partition. Transactions of `others` may hold it back as well."""
        partition = len(known.late)
        own = cluster.stable(partition) < known.ends[partition]
        for late in sorted({own, own or self.others}):
            then = known._replace(late=(*known.late, late))
            if len(then.late) == len(known.ends):
                then = then._replace(phase="explain" if any(then.late) else "wait")
            yield f"sees partition {partition} {'late' if late else 'in time'}", then

    def _explain(self, known: Known, cluster: Cluster) -> Iterator[Step]:
        """Look for an open transaction in one partition. One of `others` may still be open, or have ended."""
        partition = len(known.explained)
        own = cluster.stable(partition) < known.ends[partition]
        for is_open in sorted({own, own or self.others}):
            then = known._replace(explained=(*known.explained, is_open and known.late[partition]))
            name = f"finds {'an' if is_open else 'no'} open transaction in partition {partition}"
            if len(then.explained) < len(known.ends):
                yield name, then
            elif then.explained == then.late:
                yield f"{name}, and names what is open", GIVEN_UP
            elif not self.late_is_done:
                yield name, then._replace(phase="look again")
            elif any(then.explained):
                yield f"{name}, and names what is open", GIVEN_UP
            else:
                ends = [s if late else e for s, e, late in zip(then.stable, then.ends, then.late, strict=True)]
                yield name, then._replace(phase="wait", ends=tuple(ends))

    def _look_again(self, known: Known, cluster: Cluster) -> Iterator[Step]:
        """Look at late partitions again, until each of them is in time or was explained."""
        late = [was and cluster.stable(n) < known.ends[n] for n, was in enumerate(known.late)]
        if not any(late):
            yield "sees every partition in time", known._replace(phase="wait", late=(), explained=())
        elif all(explained for is_late, explained in zip(late, known.explained, strict=True) if is_late):
            yield "names what is open", GIVEN_UP

    def _decide(self, known: Known, cluster: Cluster, seen: Ends) -> Iterator[Step]:
        again = False
        try:
            yield "commits the restore point", self._result(known, cluster)
        except UndecidedError as error:
            again = not error.never
            if error.never:
                yield "can't tell transactions apart", GIVEN_UP
        if again or (self.others and not known.bounds):
            yield f"begins to count at {seen}", known._replace(phase="count", counted=Count(seen))

    def _count(self, known: Known, cluster: Cluster, seen: Ends) -> Iterator[Step]:
        count = known.counted
        if len(count.ends) < len(cluster.logs):
            count = count._replace(ends=(*count.ends, len(cluster.logs[len(count.ends)])))
            yield f"counts to {count.ends[-1]}", known._replace(counted=count)
        else:
            bounds = tuple(
                tuple(
                    self._bounds(known, count._replace(after=seen), cluster, partition, who) for who in range(len(seen))
                )
                for partition in range(len(cluster.logs))
            )
            then = known._replace(phase="wait", counted=Count(), bounds=bounds)
            yield f"lists the coordinators again: {seen}", then

    def _bounds(self, known: Known, count: Count, cluster: Cluster, partition: int, who: int) -> Hashable:
        """Return what is known after a count: of each boundary between markers that are in and those that are not,
        whether the count allows it."""
        markers = self._commit_markers(cluster.logs[partition], known.stable[partition], who)
        seen = [marker for marker in markers if marker.offset < count.ends[partition]]
        events = cluster.events[who]
        named = [
            n
            for n in range(known.before[who], count.after[who])
            if partition in events[n].partitions and not events[n].aborted
        ]
        surely = sum(n + 1 < count.before[who] or self.counts_once for n in named)
        allowed = []
        for boundary in range(len(seen) + 1):
            outside = seen[boundary:]
            # the first one stands for a transaction; each other one that may repeat the one before may not
            fewest = len(outside[:1]) + sum(not marker.may_repeat for marker in outside[1:])
            if fewest <= len(named) and surely <= len(outside):
                allowed.append(boundary)
        before = self._bound(known, partition, who)
        least = max(before.least, min(allowed, default=0))
        # without one that surely is not in, markers that come later may be in as well
        most = min(before.most, max(allowed, default=_MANY) if surely else _MANY)
        return Bound(least, most, before.exact or surely == len(named))

    def _bound(self, known: Known, partition: int, who: int) -> Bound:
        bound = known.bounds[partition][who] if known.bounds else Bound()
        assert isinstance(bound, Bound)
        return bound

    def _commit_markers(self, log: Log, stable: int, who: int) -> list[Marker]:
        markers = commit_markers(log, stable, who)
        if self.twice:
            return [marker._replace(may_repeat=False) for marker in markers]
        if self.skips_repeated:
            return [marker for marker in markers if not marker.may_repeat]
        return markers

    def _list_stable(self, known: Known, cluster: Cluster) -> Iterator[Step]:
        partition = len(known.stable)
        last = cluster.stable(partition)
        for stable in range(0 if self.others else last, last + 1):
            then = known._replace(stable=(*known.stable, stable))
            if len(then.stable) == len(cluster.logs):
                then = then._replace(phase="groups")
            yield f"lists the last stable offset of partition {partition}: {stable}", then

    def _group_numbers(self) -> range:
        return range(max((g + 1 for g in self.groups if g is not None), default=0))

    def _ask(self, group: int, cluster: Cluster) -> Position:
        return position_of(cluster.logs[-1], group, self.groups, lambda offset: True)

    def _result(self, known: Known, cluster: Cluster) -> Result:
        """Evaluate what was read: batches from the last stable offsets to the ends, and the coordinators' logs."""
        inside = self._inside(known, cluster)
        readable = [
            {n for n in inside[p] if n < cluster.stable(p) and log[n].kind == DATA and committed(log, n)}
            for p, log in enumerate(cluster.logs)
        ]
        positions = known.base
        if self.group_positions == "after":
            positions = tuple(self._ask(group, cluster) for group in self._group_numbers())
        elif self.group_positions == "tail":
            tail = {n for n in readable[-1] if n >= known.stable[-1]}
            newest = [position_of(cluster.logs[-1], g, self.groups, tail.__contains__) for g in self._group_numbers()]
            positions = tuple(new or old for new, old in zip(newest, known.base, strict=True))
        topics = len(cluster.logs) - bool(self.groups)
        return Result(tuple(map(frozenset, readable[:topics])), positions)

    def _inside(self, known: Known, cluster: Cluster) -> list[set[int]]:
        """Return the offsets of each partition that are in; those of aborted records may be, too."""
        return [
            {n for n in range(end) if n < known.stable[p] or self._is_in(known, cluster, p, n)}
            for p, end in enumerate(known.ends)
        ]

    def _is_in(self, known: Known, cluster: Cluster, partition: int, offset: int) -> bool:
        """Return whether a record's transaction was prepared when its producer's coordinator was first listed."""
        if not self.holds:
            return True
        log = cluster.logs[partition]
        batch = log[offset]
        events = cluster.events[batch.producer]
        since = events[known.before[batch.producer] :]
        if not since or self.all_in:
            return True  # nothing was prepared since, and all below the last stable offset was
        first = since[0]
        marks = [n for n in range(offset, len(log)) if log[n].producer == batch.producer and log[n].kind != DATA]
        if (first.version == 2 or self.epochs_alone) and self.own_epochs:
            return batch.epoch < first.epoch - (first.kind == PREPARE)
        if first.version == 2 or self.epochs_alone:
            # the markers of a transaction of version 2 have a higher epoch than those before
            return bool(marks) and log[marks[0]].epoch < first.epoch + (first.kind == COMPLETE)
        if not any(partition in event.partitions and not event.aborted for event in since):
            return True
        if batch.kind != DATA or not committed(log, offset):
            return False  # nobody reads it
        markers = self._commit_markers(log, known.stable[partition], batch.producer)
        number = [marker.offset for marker in markers].index(marks[0])
        bound = self._bound(known, partition, batch.producer)
        if bound.least <= number < bound.most:
            raise UndecidedError(never=bound.exact)
        return number < bound.least


class Marker(NamedTuple):
    """A commit marker. `may_repeat`: it follows another one of its producer, without a batch of it between."""

    offset: int
    may_repeat: bool


def commit_markers(log: Log, stable: int, who: int) -> list[Marker]:
    """Return the commit markers of a producer from offset `stable` on."""
    own = [n for n in range(stable, len(log)) if log[n].producer == who]
    found = []
    for place, offset in enumerate(own):
        if log[offset].kind == COMMIT:
            follows_commit = place > 0 and log[own[place - 1]].kind == COMMIT
            found.append(Marker(offset, follows_commit))
    return found


class Window(NamedTuple):
    stable: Ends = ()
    second: Ends = ()


@dataclass(frozen=True)
class ByPosition(Backup):
    """End each partition at one offset: the last stable one, raised until it cuts no transaction, if the second listing
    is not below that. `by_markers` asks only markers, not records, which transactions are in. `counted` takes for one
    transaction what is followed by as many markers of its producer in each partition, while no marker is on its way;
    the others may use the numbers of transactions, which no broker tells."""

    closes: bool = True
    rounds: int = 1_000
    by_markers: bool = False
    counted: bool = False

    def begin(self) -> Window:
        return Window()

    def steps(self, known: Hashable, cluster: Cluster) -> Iterator[Step]:
        assert isinstance(known, Window)
        partition, again = len(known.stable), len(known.second)
        if partition < len(cluster.logs):
            at = cluster.stable(partition)
            name = f"lists the last stable offset of partition {partition}: {at}"
            yield name, known._replace(stable=(*known.stable, at))
        elif again < len(cluster.logs):
            at = cluster.stable(again)
            name = f"lists the last stable offset of partition {again} again: {at}"
            yield name, known._replace(second=(*known.second, at))
        elif not self.counted or all(at.marks is None for at in cluster.producers):
            ends = self._closed(known, cluster) if self.closes else known.stable
            if any(end > second for end, second in zip(ends, known.second, strict=True)):
                yield "finds no cut", known._replace(second=())
                return
            kept = tuple(
                frozenset(n for n in range(end) if log[n].kind == DATA and committed(log, n))
                for log, end in zip(cluster.logs, ends, strict=True)
            )
            yield f"ends the partitions at {ends}", Result(kept)

    def _closed(self, known: Window, cluster: Cluster) -> Ends:
        names = [[self._name(log, n) for n in range(len(log))] for log in cluster.logs]
        return close(cluster.logs, names, known.stable, self.rounds, self.by_markers)

    def _name(self, log: Log, offset: int) -> tuple[int, int]:
        batch = log[offset]
        if not self.counted:
            return batch.producer, batch.number
        return batch.producer, sum(b.producer == batch.producer and b.kind != DATA for b in log[offset:])


def close(
    logs: Sequence[Log], names: Sequence[Names], ends: Ends, rounds: int = 1_000, by_markers: bool = False
) -> Ends:
    """Raise `ends` until no transaction is on both sides of them. A transaction without a marker in a partition raises
    its end beyond the log."""
    marks: list[dict[tuple[int, int], int]] = []
    for log, named in zip(logs, names, strict=True):
        marks.append(dict.fromkeys(named, len(log) + 1))
        marks[-1] |= {name: n + 1 for n, name in enumerate(named) if log[n].kind != DATA}
    for _ in range(rounds):
        inside = {
            name
            for log, named, end in zip(logs, names, ends, strict=True)
            for batch, name in zip(log[:end], named[:end], strict=False)
            if not by_markers or batch.kind != DATA
        }
        raised = tuple(
            max([end, *(at for name, at in own.items() if name in inside)])
            for own, end in zip(marks, ends, strict=True)
        )
        if raised == ends:
            break
        ends = raised
    return ends
