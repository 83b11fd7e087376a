"""One archive of many odd topics, three runs deep, with what the cluster held at each run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer

from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.support.truth import Position, Records, commit, log_ends, positions, read_topic
from tests.unit.formats.reference import Record

BUILDERS: dict[str, Callable[[Broker, str], None]] = {
    "odd": topics.make_odd,
    "stamped": topics.make_stamped,
    "big": topics.make_big,
    "compacted": topics.make_compacted,
    "ledger": topics.make_ledger,
    "open": topics.make_plain,
    "trimmed": topics.make_trimmed,
    "long": topics.make_long,
    "growing": topics.make_plain,
    "reborn": topics.make_plain,
    "overtaken": topics.make_plain,
    "gone": topics.make_plain,
}
FIRST = list(BUILDERS)
SECOND = [*(name for name in FIRST if name != "gone"), "late"]
POSITIONS = ("start", "middle", "gap", "end", "beyond")


@dataclass(frozen=True)
class Moment:
    """A run of the backup, and what it had to find, by short names of topics and places of groups."""

    report: dict[str, Any]
    records: dict[str, Records]
    groups: dict[str, dict[tuple[str, int], Position]]


@dataclass
class Zoo:
    broker: Broker
    prefix: str
    archive: Archive
    moments: list[Moment] = field(default_factory=list)

    def topic(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def group(self, position: str) -> str:
        return f"{self.prefix}-{position}"

    @property
    def selection(self) -> list[str]:
        return ["-t", f"/{self.prefix}-.*/", "-g", f"/{self.prefix}-.*/"]

    def held(self, name: str, moment: int) -> Records:
        """Return the archive's records of a topic at restore point `moment`, with those that the cluster lost later."""
        here = self.moments[moment - 1].records[name]
        before = self.moments[0].records[name] if moment > 1 and name in FIRST and name != "reborn" else {}
        archived: Records = {}
        for partition, records in here.items():
            merged = {r.offset: r for r in [*before.get(partition, []), *records]}
            archived[partition] = [merged[offset] for offset in sorted(merged)]
        return archived

    def read(self, names: list[str]) -> dict[str, Records]:
        return {name: read_topic(self.broker.bootstrap, self.topic(name)) for name in names}


def build(broker: Broker, prefix: str, archive: Archive, kbackup: Kbackup) -> Zoo:
    """Fill, back up, change, back up, and once more without a change."""
    zoo = Zoo(broker, prefix, archive)
    for name, make in BUILDERS.items():
        make(broker, zoo.topic(name))
    unfinished = topics.begin(broker, zoo.topic("open"), 0, topics.numbered(15, "open"))
    topics.wait_compacted(broker, zoo.topic("compacted"))
    _take(zoo, kbackup, FIRST, 3)  # a transaction is open
    _change(zoo, unfinished)
    _take(zoo, kbackup, SECOND, 3)
    _take(zoo, kbackup, SECOND, 0)
    return zoo


def _take(zoo: Zoo, kbackup: Kbackup, names: list[str], code: int) -> None:
    records = zoo.read(names)
    _commit_positions(zoo, records)
    groups = {position: positions(zoo.broker.bootstrap, zoo.group(position)) for position in POSITIONS}
    wait = ("--set", "backup.transaction_wait_seconds=0")
    report = kbackup.backup(zoo.archive, *zoo.selection, *wait, code=code)
    zoo.moments.append(Moment(report, records, groups))


def _commit_positions(zoo: Zoo, records: dict[str, Records]) -> None:
    ends = {name: log_ends(zoo.broker.bootstrap, zoo.topic(name)) for name in records}
    for position in POSITIONS:
        committed = {
            (zoo.topic(name), p): Position(
                _offset(position, partition_records, ends[name][p]), f"{position} of {name}-{p} ü"
            )
            for name, partitions in records.items()
            for p, partition_records in partitions.items()
        }
        commit(zoo.broker.bootstrap, zoo.group(position), committed)


def _offset(position: str, records: list[Record], end: int) -> int:
    there = [r.offset for r in records]
    if position == "middle":
        return there[len(there) // 2] if there else 0
    if position == "gap":  # where there is none: just after the first record
        missing = sorted(set(range(there[0], end)) - set(there)) if there else []
        return missing[len(missing) // 5] if missing else min(1, end)
    return {"start": 0, "end": end, "beyond": end + 1000}[position]


def _change(zoo: Zoo, unfinished: Producer) -> None:
    """Change the topics as may happen between two backups."""
    broker, topic = zoo.broker, zoo.topic
    unfinished.commit_transaction(60)
    topics.committed(broker, topic("ledger"), 1, topics.numbered(6, "later"))
    topics.aborted(broker, topic("ledger"), 2, topics.numbered(6, "never"))
    topics.produce(broker, topic("long"), 0, topics.numbered(200, "later"))
    topics.add_partitions(broker, topic("growing"), 4)
    topics.set_config(broker, topic("growing"), "max.message.bytes", "2000000")
    topics.produce(broker, topic("growing"), 0, topics.numbered(5, "later"))
    topics.produce(broker, topic("growing"), 2, topics.numbered(8, "new"))
    topics.delete_topic(broker, topic("reborn"))
    broker.create_topic(topic("reborn"), 1)
    topics.produce(broker, topic("reborn"), 0, topics.numbered(30, "second life"))
    topics.produce(broker, topic("overtaken"), 0, topics.numbered(50, "later"))
    topics.delete_records(broker, topic("overtaken"), {0: 70})
    topics.delete_topic(broker, topic("gone"))
    topics.make_plain(broker, topic("late"))
