"""Ways to take a restore point of whole transactions: the one to implement, and others that fail. See README.md."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.unit.jobs.backup.transactions.cluster import (
    COMPLETE,
    DATA,
    PREPARE,
    Backup,
    Batch,
    Cluster,
    Event,
    Result,
    Step,
    committed,
    position_of,
)

Log = tuple[Batch, ...]
Names = list[tuple[int, int]]
"""The transaction of each batch of a log, as far as it is known."""
Ends = tuple[int, ...]
Position = tuple[int, int] | None


Seen = tuple[int | str, ...]
"""What was seen of a coordinator at one moment: the end of its log, or its answer to DescribeTransactions."""


class Settled(NamedTuple):
    """Where one producer is cut: `coordinator` was seen before the partitions ended at `ends`. `moved`: it had prepared
    or completed a transaction when it was seen afterwards, so that epochs must tell."""

    coordinator: Seen
    ends: Ends
    moved: bool


class Known(NamedTuple):
    """What the backup knows: last stable offsets `stable`, group positions `base`, the coordinators before and after
    the ends of partitions."""

    phase: str = "stable"
    stable: Ends = ()
    base: tuple[Position, ...] = ()
    before: tuple[Seen, ...] = ()
    ends: Ends = ()
    after: tuple[Seen, ...] = ()
    settled: tuple[Settled | None, ...] = ()


@dataclass(frozen=True)
class Whole(Backup):
    """The rule of README.md, with the coordinators' logs, or with DescribeTransactions where `asks`. Wrong variants
    leave something out (a False), or do one thing otherwise: `group_positions` is `tail`, which is right, or `before`
    or `after`; `epochs_alone`, which `asks`, looks at states and epochs without start times; `own_epochs` looks at the
    epochs of records in place of those of their markers.

    With `others`, producers that are not in the model hold last stable offsets back as far as they like, and make the
    backup list again as often as they like."""

    groups: tuple[int | None, ...] = ()
    others: bool = False
    asks: bool = False
    second_listing: bool = True
    in_order: bool = True
    holds: bool = True
    waits: bool = True
    epochs_alone: bool = False
    own_epochs: bool = False
    group_positions: str = "tail"

    def begin(self) -> Known:
        return Known()

    def steps(self, known: Hashable, cluster: Cluster) -> Iterator[Step]:
        assert isinstance(known, Known)
        if known.phase == "stable":
            yield from self._list_stable(known, cluster)
        elif known.phase == "groups":
            base = tuple(self._ask(group, cluster) for group in self._group_numbers())
            yield "asks for group positions", known._replace(base=base, phase="before" if self.in_order else "ends")
        elif known.phase == "before":
            then = known._replace(before=(*known.before, self._see(cluster, len(known.before))))
            if len(then.before) == len(cluster.events):
                then = then._replace(phase="ends" if self.in_order else "after")
            yield f"sees the coordinator of {len(known.before)} at {then.before[-1]}", then
        elif known.phase == "ends":
            then = known._replace(ends=(*known.ends, len(cluster.logs[len(known.ends)])))
            if len(then.ends) == len(cluster.logs):
                then = then._replace(phase="after" if self.in_order else "before")
            yield f"lists the end of partition {len(known.ends)}: {then.ends[-1]}", then
        elif known.phase == "after":
            yield from self._see_again(known, cluster)
        elif not self.waits or all(cluster.stable(n) >= end for n, end in enumerate(known.ends)):
            yield "commits the restore point", self._result(known, cluster)

    def _list_stable(self, known: Known, cluster: Cluster) -> Iterator[Step]:
        partition = len(known.stable)
        last = cluster.stable(partition)
        for stable in range(0 if self.others else last, last + 1):
            then = known._replace(stable=(*known.stable, stable))
            if len(then.stable) == len(cluster.logs):
                then = then._replace(phase="groups")
            yield f"lists the last stable offset of partition {partition}: {stable}", then

    def _see(self, cluster: Cluster, who: int) -> Seen:
        if not self.asks:
            return (len(cluster.events[who]),)
        at, events = cluster.producers[who], cluster.events[who]
        if at.marks is not None:
            state, number = "Prepare", at.number
        elif any(b.kind == DATA and (b.producer, b.number) == (who, at.number) for log in cluster.logs for b in log):
            state, number = "Ongoing", at.number
        else:
            state, number = "Complete", at.number - 1
        epoch = events[-1].epoch if state == "Prepare" else at.epoch
        return (state, epoch) if self.epochs_alone else (state, epoch, number)  # its number for its start time

    def _see_again(self, known: Known, cluster: Cluster) -> Iterator[Step]:
        who = len(known.after)
        then = known._replace(after=(*known.after, self._see(cluster, who)))
        name = f"sees the coordinator of {who} again at {then.after[-1]}"
        if len(then.after) < len(cluster.events):
            yield name, then
            return
        old = then.settled or (None,) * len(then.after)
        settled = tuple(
            Settled(then.before[n], then.ends, moved=self.second_listing and then.before[n] != then.after[n])
            if self._is_settled(then, cluster, n)
            else old[n]
            for n in range(len(then.after))
        )
        if all(settled):
            yield name, then._replace(settled=settled, phase="wait", before=(), after=())
        if self.others or not all(settled):
            again = then._replace(settled=settled, phase="before", before=(), ends=(), after=())
            yield f"{name}, and lists again", again if self.in_order else again._replace(phase="ends")

    def _is_settled(self, known: Known, cluster: Cluster, who: int) -> bool:
        if not self.second_listing or known.before[who] == known.after[who]:
            return True
        return not self.asks and _following(cluster, who, known.before[who]).version == 2

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
        """Return whether a record's transaction was prepared when its producer's coordinator was first seen."""
        if not self.holds:
            return True
        log = cluster.logs[partition]
        batch = log[offset]
        settled = known.settled[batch.producer]
        assert settled is not None
        end = settled.ends[partition]
        marks = [n for n in range(offset, len(log)) if log[n].producer == batch.producer and log[n].kind != DATA]
        marked = bool(marks) and marks[0] < end
        if self.asks:
            return offset < end and (marked or settled.coordinator[0] == "Prepare")
        if settled.coordinator[0] == len(cluster.events[batch.producer]):
            return True  # nothing was prepared since, and all below the last stable offset was
        following = _following(cluster, batch.producer, settled.coordinator)
        if settled.moved and self.own_epochs:
            return batch.epoch < following.epoch - (following.kind == PREPARE)
        if settled.moved:  # the markers of a transaction of version 2 have a higher epoch than those before
            return bool(marks) and log[marks[0]].epoch < following.epoch + (following.kind == COMPLETE)
        return offset < end and (marked or following.kind == COMPLETE)


def _following(cluster: Cluster, who: int, seen: Seen) -> Event:
    """Return the first entry of a coordinator's log after an end that was seen."""
    (end,) = seen
    assert isinstance(end, int)
    return cluster.events[who][end]


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
