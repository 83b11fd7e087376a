"""Roll a broker's disk back, let its logs grow again past the archived end, and see which cuts a backup reports:
`python -m scripts.soak.regrown [--cases N] [--seed S]`.

A model of each log says whether its archived part has changed. Exit code 1 where a cut goes unnoticed that the
documentation does not except, where a loss is reported that is none, and where a record is missing in the archive.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from confluent_kafka import Producer

from kbackup.archive.reader import open_archive
from kbackup.spark.session import build_session
from kbackup.store.file import FileStore
from kbackup.store.options import S3Options
from scripts.dev.kafka import Broker
from scripts.soak.walk.steps import Commands, Outcome
from tests.integration.topics import wait_until
from tests.support.kafka_raw import raw_produce
from tests.support.truth import archive_records, log_ends, read_topic
from tests.unit.formats.reference import Record

Way = Literal["plain", "committed", "aborted"]

WAYS: tuple[Way, ...] = ("plain", "committed", "aborted")
KINDS: dict[str, tuple[Way, ...]] = {
    "plain": ("plain",),
    "ledger": WAYS,
    "committed": ("committed",),
    "aborted": ("aborted",),
    "compacted": ("plain",),
    "compacted-ledger": WAYS,
}
"""The ways of the first history; those of a second one are all."""
_FEW = 4
"""Records of a compacted topic that a backup remembers."""


class Entry(NamedTuple):
    """A record, visible or aborted, or a marker. `epoch` tells leader epochs apart."""

    content: tuple[bytes, bytes | None] | None
    visible: bool
    epoch: int


class Step(NamedTuple):
    """Records that come into a log together."""

    way: Way
    records: tuple[tuple[bytes, bytes | None], ...]

    def entries(self, epoch: int) -> list[Entry]:
        found = [Entry(content, self.way != "aborted", epoch) for content in self.records]
        return found if self.way == "plain" else [*found, Entry(None, False, epoch)]


@dataclass
class Log:
    """A topic of one partition. `first` is its archived history, `second` the one that took its place."""

    name: str
    kind: str
    first: list[Entry] = field(default_factory=list)
    second: list[Entry] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    """Steps of the first history; the second one repeats the first of them."""

    @property
    def is_compacted(self) -> bool:
        return self.kind.startswith("compacted")

    def new_step(self, rng: random.Random, ways: Sequence[Way] = ()) -> Step:
        values = [b"a", b"b", b"c", b"d", b"e", None if self.is_compacted else b"f"]
        records = tuple(
            (rng.choice((b"k", b"l", b"m")), rng.choice(values)) for _ in range(rng.randint(1, 4))
        )
        return Step(rng.choice(ways or KINDS[self.kind]), records)

    @property
    def differs(self) -> bool:
        """Return whether a consumer of the log finds other records where the archive ends, or an earlier end."""
        end = len(self.first)
        return len(self.second) < end or _visible(self.first) != _visible(self.second[:end])

    def is_excepted(self, archived: Sequence[Record], live: Sequence[Record], hidden: set[int]) -> bool:
        """Return whether the documentation says that a cut can't be noticed. `hidden`: offsets of aborted records that
        compaction has left."""
        if len(self.second) < len(self.first):
            return False
        few = {r.offset: r for r in archived[-_FEW if self.is_compacted else -1 :]}
        start = min(few, default=0)
        seen = {r.offset: r for r in live if start <= r.offset < len(self.first)}
        if any(few.get(at) != r or self.first[at].epoch != self.second[at].epoch for at, r in seen.items()):
            return False
        last = max(few, default=-1)
        if last in seen:
            return True
        if not self.is_compacted:
            return False
        taken = self.second[last].content is not None and last not in hidden
        epochs = {entry.epoch for entry in self.second}
        return last < 0 or (taken and self.first[last].epoch in epochs)


def _visible(entries: Sequence[Entry]) -> dict[int, Entry]:
    return {at: entry for at, entry in enumerate(entries) if entry.visible}


def holds(log: Log, model: Sequence[Entry], records: Sequence[Record]) -> bool:
    """Return whether records are those of the model; compaction may have taken some."""
    expected = {at: entry.content for at, entry in _visible(model).items()}
    found = {record.offset: (record.key, record.value) for record in records}
    return found.items() <= expected.items() if log.is_compacted else found == expected


T = TypeVar("T")
_COMPACTION = {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01"}
_BEFORE, _FIRST, _SECOND = range(3)


@dataclass
class Case:
    """Some logs on one broker, and their archive."""

    broker: Broker
    commands: Commands
    folder: Path
    rng: random.Random
    number: int
    logs: list[Log] = field(default_factory=list)

    @property
    def store(self) -> FileStore:
        return FileStore(self.folder / "archive")

    def grow(self, log: Log, entries: list[Entry], steps: Sequence[Step], epoch: int) -> None:
        """Append the steps to the real log and to the model."""
        producer: Producer | None = None
        for step in steps:
            at = len(entries)
            stamps = [1_700_000_000_000 + (at + n) * 60_000 for n in range(len(step.records))]
            if step.way == "plain":
                raw_produce(
                    self.broker.bootstrap,
                    log.name,
                    0,
                    [
                        (key, value, stamp, [])
                        for (key, value), stamp in zip(step.records, stamps, strict=True)
                    ],
                )
            else:
                if producer is None:
                    name = f"{log.name}-{time.monotonic_ns()}"
                    producer = Producer(self.broker.client(**{"transactional.id": name, "linger.ms": 0}))
                    producer.init_transactions(60)
                producer.begin_transaction()
                for (key, value), stamp in zip(step.records, stamps, strict=True):
                    producer.produce(log.name, value, key, 0, timestamp=stamp)
                assert producer.flush(60) == 0, f"no answer for {log.name}"
                end = producer.commit_transaction if step.way == "committed" else producer.abort_transaction
                end(60)
            entries.extend(step.entries(epoch))
            if step.way != "plain":  # the marker comes after the answer
                wait_until(lambda: log_ends(self.broker.bootstrap, log.name)[0] >= len(entries))

    def backup(self) -> Outcome:
        chosen = f"/case-{self.number}-.*/"
        return self.commands("backup", "--archive", str(self.folder / "archive"), "-t", chosen)

    def archived(self, point: int, log: Log) -> list[Record]:
        return archive_records(self.store, log.name, open_archive(self.store).restore_point(point))[0]

    def live(self, log: Log, isolation: str = "read_committed") -> list[Record]:
        return read_topic(self.broker.bootstrap, log.name, isolation)[0]

    def run(self, topics: int) -> list[tuple[Log, str]]:
        """Return what became of each log."""
        for n in range(topics):
            kind = list(KINDS)[n % len(KINDS)]
            self.logs.append(Log(f"case-{self.number}-{n}-{kind}", kind))
        before = {log.name: self.random_steps(log, 0) for log in self.logs}
        self.each(lambda log: self.create(log, before[log.name]))
        data, copy = self.broker.folder / "node-0" / "data", self.folder / "copy"
        self.broker.stop()
        shutil.copytree(data, copy)
        self.broker.start()
        for log in self.logs:
            log.steps = self.random_steps(log, 1)
        self.each(lambda log: self.grow(log, log.first, log.steps, _FIRST))
        time.sleep(self.rng.choice((0, 3)))  # for the cleaner
        done = self.backup()
        assert done.code == 0, done
        self.broker.stop()
        shutil.rmtree(data)
        shutil.move(copy, data)
        self.broker.start()
        epoch = _FIRST
        if self.rng.random() < 0.3:
            self.broker.restart()
            epoch = _SECOND
        after = {log.name: self.regrown(log) for log in self.logs}
        self.each(lambda log: self.grow(log, log.second, after[log.name], epoch))
        time.sleep(self.rng.choice((0, 3)))
        seen = dict(self.each(lambda log: (log.name, (self.archived(1, log), self.live(log)))))
        done = self.backup()
        assert done.code in (0, 3), done
        lost = {loss["topic"] for loss in done.document["losses"]}
        assert (done.code == 3) == bool(lost), done
        return self.each(lambda log: (log, self.judge(log, *seen[log.name], log.name in lost)))

    def each(self, do: Callable[[Log], T]) -> list[T]:
        """Return what `do` does with each log, with several at once: it waits for the broker most of the time."""
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(do, self.logs))

    def create(self, log: Log, steps: Sequence[Step]) -> None:
        self.broker.create_topic(log.name, config=_COMPACTION if log.is_compacted else {})
        self.grow(log, log.first, steps, _BEFORE)
        log.second = list(log.first)

    def random_steps(self, log: Log, least: int) -> list[Step]:
        return [log.new_step(self.rng) for _ in range(self.rng.randint(least, 4))]

    def regrown(self, log: Log) -> list[Step]:
        """Return a second history: the first one up to some step, then another one; nearly always past its end."""
        steps = log.steps[: self.rng.randint(0, len(log.steps))]
        end = len(log.second) + sum(len(step.entries(0)) for step in steps)
        past = len(log.first) if self.rng.random() < 0.9 else 0
        while end <= past:
            steps.append(log.new_step(self.rng, WAYS))
            end += len(steps[-1].entries(0))
        return steps

    def judge(self, log: Log, archived: list[Record], seen: list[Record], reported: bool) -> str:
        """Return what the backup made of the log; "wrong: …" where it had to do otherwise."""
        live = self.live(log)
        if not (holds(log, log.first, archived) and holds(log, log.second, live)):
            return "wrong: the model does not fit"
        if reported and not log.differs:
            return "wrong: a loss that is none"
        if not reported and log.differs:
            hidden = {r.offset for r in self.live(log, "read_uncommitted")}
            excepted = any(log.is_excepted(archived, records, hidden) for records in (seen, live))
            return "a cut that can't be noticed" if excepted else "wrong: an unnoticed cut"
        now = self.archived(2, log)
        if not all(record in now for record in live):
            return "wrong: a record is not archived"
        return "a cut, reported" if reported else "the same log"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak.regrown", description=__doc__)
    parser.add_argument("--cases", type=int, default=50, help="times that the disk is rolled back (50)")
    parser.add_argument("--topics", type=int, default=24, help="topics of a case (24)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same logs (1)")
    options = parser.parse_args()
    rng, ends = random.Random(options.seed), Counter[tuple[str, str]]()
    root = Path(tempfile.mkdtemp(prefix="kbackup-soak-"))
    print(f"seed {options.seed}; archives are under {root}", flush=True)
    session = build_session("local[2]", {}, 4)
    with Broker() as broker:
        commands = Commands(broker.bootstrap, S3Options(), {}, root, lambda: session)
        for number in range(options.cases):
            folder = root / f"case-{number}"
            folder.mkdir()
            judged = Case(broker, commands, folder, rng, number).run(options.topics)
            ends.update((log.kind, end) for log, end in judged)
            for log, end in judged:
                if end.startswith("wrong"):
                    print(
                        f"{log.name}: {end[7:]}\n  archived {log.first}\n  the log {log.second}", flush=True
                    )
            print(f"case {number}: {dict(Counter(end for _, end in judged))}", flush=True)
    session.stop()
    for (kind, end), count in sorted(ends.items()):
        print(f"{kind:18} {count:5} {end}")
    wrong = sum(count for (_, end), count in ends.items() if end.startswith("wrong"))
    print(f"{ends.total()} logs, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
