"""The steps of a walk: each runs commands on the cluster or an archive, and changes the book of that archive."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbackup.store.base import Store
from scripts.soak.walk.cluster import Cluster
from scripts.soak.walk.oracle import Book, Life, Log, Record, compare
from tests.faults.dying import Wish
from tests.faults.process import Ended, run
from tests.integration.conftest import Outcome, run_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Commands:
    """`s3` has options of archives, `env` the environment of killed commands; `folder` takes what those leave."""

    bootstrap: str
    s3: Mapping[str, str]
    env: Mapping[str, str]
    folder: Path
    spark: SparkSession
    _killed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        s3 = "\n".join(f's3.{name} = "{value}"' for name, value in self.s3.items())
        self._config = self.folder / "kbackup.toml"
        self._config.write_text(
            f"""
            {s3}
            source."bootstrap.servers" = "{self.bootstrap}"
            target."bootstrap.servers" = "{self.bootstrap}"
            backup = {{ segment_bytes = 4096, split_records = 60, pack_records = 40 }}
            spark.master = "local[2]"
            """
        )

    def __call__(self, *arguments: str) -> Outcome:
        return run_command(self.spark, self._config, arguments)

    def kill(self, wish: Wish, *arguments: str) -> Ended:
        """Run a command in a process of its own that meets its `wish`, unless it is faster."""
        self._killed += 1
        folder = self.folder / f"killed-{self._killed}"
        return run(folder, [*arguments, "--json", "--config", str(self._config)], wish, self.env)


class WrongError(Exception):
    """A command did not do what it must have done."""


@dataclass
class Site:
    """An archive at `url`. `shaken`: it was repaired, or copied to after an expiration, so nobody can tell
    whether an undo is possible."""

    url: str
    store: Store
    book: Book = field(default_factory=Book)
    shaken: bool = False


def must(outcome: Outcome, *codes: int) -> Outcome:
    """`WrongError` for any other exit code."""
    if outcome.code not in codes:
        raise WrongError(f"exit code {' or '.join(map(str, codes))} was expected: {outcome}")
    return outcome


def listed(commands: Commands, site: Site) -> Mapping[int, Mapping[str, Any]]:
    """The restore points that `kbackup list` shows, by number."""
    points = must(commands("list", site.url), 0).document["restore_points"]
    return {point["number"]: point for point in points}


def check_list(commands: Commands, site: Site) -> None:
    """Compare restore points, pins and labels with the book."""
    points, book = listed(commands, site), site.book
    shown = (sorted(points), *_kept(points))
    expected = (sorted(book.points), book.pins, book.labels)
    if shown != expected:
        raise WrongError(f"{site.url} lists restore points, pins and labels {shown}, not {expected}")


def _kept(points: Mapping[int, Mapping[str, Any]]) -> tuple[set[int], dict[str, int]]:
    """Return the pins and the labels."""
    labels = {name: number for number, point in points.items() for name in point["labels"]}
    return {number for number, point in points.items() if point["pinned"]}, labels


def reconcile(commands: Commands, site: Site) -> None:
    """After a repair that listed restore points again, or of a lost catalog or table: none may be missing.

    Those that were let go may be back, or that of a killed backup; the newest change of pins and labels may be lost.
    """
    points, book = listed(commands, site), site.book
    if missing := set(book.points) - set(points):
        raise WrongError(f"{site.url}: restore points {sorted(missing)} were lost with one object")
    for number in sorted(set(points) - set(book.points)):
        if number not in book.expired:
            if book.list_interrupted(number):
                continue
            raise WrongError(f"{site.url} lists restore point {number}, which never was")
        known = {place for views in book.points.values() for v in views.values() for place, _ in book.offsets(v)}
        book.points[number] = book.expired.pop(number)
        back = {place for view in book.points[number].values() for place, _ in book.offsets(view)}
        book.unsure |= back - known
    book.pins, book.labels = _kept(points)
    book.expirations = []
    site.shaken = True


def check_restore(commands: Commands, cluster: Cluster, site: Site, name: str, number: int, prefix: str) -> int:
    """Restore a point into topics of its own, compare them with the book, and delete them. Returns how many records
    came back."""
    views = site.book.points[number]
    targets = {topic: f"{prefix}-{topic}" for topic in views}
    chosen = [part for t, target in targets.items() for part in ("--topic", t, "--map", f"{t}={target}")]
    outcome = must(commands("restore", site.url, "--restore-point", name, *chosen), 0, 3)  # deleted ones must be named
    wrong: list[str] = []
    lacks, records = False, 0
    for topic, target in targets.items():
        log = cluster.log(target)
        records += sum(map(len, log.records.values()))
        found, lost = compare(site.book, views[topic], log)
        wrong += found
        lacks |= lost
    if lacks and outcome.code != 3:
        wrong.append("records of damaged segments are missing, and the exit code was 0")
    if outcome.code == 3 and not site.book.damaged:
        wrong.append("the exit code was 3, and nothing was ever damaged")
    if wrong:
        raise WrongError("\n".join([f"restore point {number} of {site.url}:", *wrong, str(outcome)]))
    cluster.delete(list(targets.values()))
    return records


DAY = 86_400_000  # ms


@dataclass
class WalkState:
    """A cluster and archives with their books.

    `root` is the address below which archives are made, `open_store` opens one. One random number generator makes all
    choices: the same seed makes the same walk, but for the moment at which a killed process ends.
    """

    cluster: Cluster
    commands: Commands
    root: str
    open_store: Callable[[str], Store]
    seed: int
    lives: dict[str, Life] = field(default_factory=dict)
    copies: list[Site] = field(default_factory=list)
    _random: random.Random = field(init=False)
    _main: Site = field(init=False)
    _clock: int = field(init=False)
    _count: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._clock = int(time.time() * 1000) - 400 * DAY
        self._main = self._new_site()

    def _repair(self, site: Site, *options: str) -> Outcome:
        """No undo reaches back behind a repair that commits. A repair lists every restore point that is whole."""
        outcome = must(self.commands("repair", site.url, "--confirm", *options), 0, 3)
        if outcome.code or outcome.document["mended"]:
            site.book.expirations, site.shaken = [], True
        if outcome.document["restored"]:
            reconcile(self.commands, site)
        return outcome

    def _any_main_or_copy(self, copies: float) -> Site:
        return self._random.choice(self.copies) if self.copies and self._random.random() < copies else self._main

    def _logs(self) -> Mapping[Life, Log]:
        return {life: self.cluster.log(name) for name, life in self.lives.items()}

    def _new_site(self) -> Site:
        url = f"{self.root}/archive-{self._next()}"
        return Site(url, self.open_store(url))

    def _next(self) -> int:
        self._count += 1
        return self._count


_NAMES = ("walk-a", "walk-b", "walk-c")


class ClusterSteps(WalkState):
    """Change topics, records and the group."""

    def create_topic(self) -> str:
        free = [name for name in _NAMES if name not in self.lives]
        if not free:
            return self.delete_topic()
        name = self._random.choice(free)
        self._create(name)
        return name

    def _create(self, name: str) -> None:
        is_compacted = self._random.random() < 0.4
        self.cluster.create(name, self._random.randint(1, 3), is_compacted)
        self.lives[name] = Life(self._next(), name, is_compacted)

    def delete_topic(self) -> str:
        if len(self.lives) < 2:
            return self.create_topic()
        name = self._random.choice(sorted(self.lives))
        self.cluster.delete([name])
        del self.lives[name]
        if self._random.random() < 0.6:
            self._create(name)
            self._produce_to(name)
            return f"{name}, and created again"
        return name

    def produce(self) -> str:
        names = self._random.sample(sorted(self.lives), self._random.randint(1, len(self.lives)))
        return ", ".join(f"{self._produce_to(name)} to {name}" for name in names)

    def _produce_to(self, name: str) -> int:
        partitions = sorted(self.cluster.log_ends(name))
        # A compacted topic takes no record without a key.
        keys = (b"", b"key", b"other") if self.lives[name].compacted else (None, b"", b"key")
        rows = []
        for _ in range(self._random.randint(1, 90)):
            self._clock += self._random.randrange(60_000)
            value = f"{name} {self._next()} ".encode() * self._random.randint(1, 20)
            headers = (("h", b"1"), ("h", None)) if self._random.random() < 0.1 else ()
            record = Record(self._clock, self._random.choice(keys), value, headers)
            rows.append((self._random.choice(partitions), record))
        self._clock += self._random.randrange(DAY)
        self.cluster.produce(name, rows, self._random.choice((None, None, None, True, False)))
        return len(rows)

    def add_partitions(self) -> str:
        name = self._random.choice(sorted(self.lives))
        count = len(self.cluster.log_ends(name))
        if count > 3:
            return ""
        self.cluster.add_partitions(name, count + 1)
        return f"{name} has {count + 1}"

    def delete_records(self) -> str:
        name = self._random.choice(sorted(self.lives))
        if self.lives[name].compacted:
            return ""  # Kafka refuses
        ends = self.cluster.log_ends(name)
        partition = self._random.choice(sorted(ends))
        before = self._random.randint(0, ends[partition])
        start = self.cluster.log_starts(name)[partition]
        self.cluster.delete_records(name, {partition: max(before, start)})
        return f"{name}-{partition} before {max(before, start)}"

    def move_group(self) -> str:
        name = self._random.choice(sorted(self.lives))
        ends = self.cluster.log_ends(name)
        positions = {p: self._random.randint(0, end) for p, end in ends.items() if self._random.random() < 0.7}
        if positions:
            self.cluster.commit(name, positions)
        return f"{name} {positions}"


class RetentionSteps(WalkState):
    """Expire, undo, sweep, pin and label."""

    def expire_points(self) -> str:
        site, keep = self._any_main_or_copy(0.1), self._random.randint(1, 5)
        stay = site.book.retained(keep)
        outcome = must(self.commands("expire", site.url, "--keep-last", str(keep), "--confirm"), 0)
        if outcome.document["expiration"] is not None:
            site.book.expire(keep, None)
        elif stay != set(site.book.points):
            raise WrongError(f"restore points {sorted(set(site.book.points) - stay)} did not expire: {outcome}")
        check_list(self.commands, site)
        return f"{len(stay)} stay in {site.url}"

    def expire_records(self) -> str:
        site = self._any_main_or_copy(0.1)
        newest = listed(self.commands, site)[site.book.newest]
        stamps = [r.timestamp for v in site.book.views.values() for _, r in site.book.offsets(v)]
        if not stamps:
            return ""
        committed = int(datetime.fromisoformat(newest["committed_at"]).timestamp() * 1000)
        seconds = (committed - self._random.choice(sorted(stamps)[: len(stamps) // 2 + 1])) // 1000
        outcome = must(self.commands("expire", site.url, "--older-than", f"{seconds}s", "--confirm"), 0, 1)
        if outcome.code == 1:
            if "every record of the newest" not in outcome.err:
                raise WrongError(str(outcome))
            return "refused"
        if outcome.document["expiration"] is not None:
            site.book.expire(None, committed - seconds * 1000)
        check_list(self.commands, site)
        return f"{outcome.document['records']} records of {site.url}"

    def sweep(self) -> str:
        site = self._any_main_or_copy(0.3)
        outcome = must(self.commands("expire", site.url, "--grace", "0s", "--confirm"), 0)
        site.book.expirations, site.shaken = [], False
        check_list(self.commands, site)
        return f"{outcome.document['deleted']} objects of {site.url} deleted"

    def undo(self) -> str:
        site = self._any_main_or_copy(0.1)
        outcome = self.commands("expire", site.url, "--undo")
        if site.shaken:
            must(outcome, 0, 1)
            reconcile(self.commands, site)
            return f"exit code {outcome.code}"
        if site in self.copies or not site.book.expirations:
            must(outcome, 1)
            return "refused"
        must(outcome, 0)
        site.book.undo()
        self._repair(site)  # objects that the expired restore points alone need may be damaged
        check_list(self.commands, site)
        return f"restore points {outcome.document['restore_points']}"

    def pin(self) -> str:
        number = self._random.choice(sorted(self._main.book.points))
        self._on_main("keep", str(number))
        self._main.book.pins.add(number)
        check_list(self.commands, self._main)
        return str(number)

    def release(self) -> str:
        book = self._main.book
        number = self._random.choice(sorted(book.pins or book.points))
        self._on_main("release", str(number), code=0 if number in book.pins else 2)
        book.pins.discard(number)
        check_list(self.commands, self._main)
        return str(number)

    def label(self) -> str:
        book, name = self._main.book, self._random.choice(("before", "after", "between"))
        if name in book.labels and self._random.random() < 0.4:
            self._on_main("label", "--remove", name)
            del book.labels[name]
            return f"{name} removed"
        number = self._random.choice(sorted(book.points))
        self._on_main("label", str(number), name)
        book.labels[name] = number
        check_list(self.commands, self._main)
        return f"{number} is {name}"

    def _on_main(self, command: str, *arguments: str, code: int = 0) -> None:
        must(self.commands(command, "--archive", self._main.url, *arguments), code)


_COPIES = 2
_REPORTS = ("restores/", "check/", "drills/", "verifications/")
_SEGMENT = re.compile(r"^(topics/([^/@]+)(?:@[0-9]+)?/segment_partition_([0-9]+)_from_offset_)([0-9]+)_records")
_EVENTS = (
    *((f"phase {name}", 1) for name in ("discover", "plan", "run", "commit", "refresh derived files")),
    ("write catalog/*", 4),
    ("write tables/*", 3),
    ("write topics/*_records", 8),
    ("write topics/*_index", 8),
    ("write points/*", 3),
    ("write topics/*/index_partition_*", 4),
)
"""Moments of a backup, and how often each comes at least."""


class Walk(ClusterSteps, RetentionSteps):
    """Takes steps by chance, and checks each of them against the books."""

    def begin(self) -> None:
        """Two topics and a restore point."""
        for _ in range(2):
            self.create_topic()
        self.produce()
        self.back_up()

    def step(self) -> str:
        """One step; returns what it was. `WrongError` for what does not hold."""
        names = list(_STEPS)
        (name,) = self._random.choices(names, [_STEPS[each][1] for each in names])
        said = _STEPS[name][0](self)
        return f"{name}: {said}" if said else name

    def end(self) -> str:
        """Restore the newest restore point of every archive, and verify each."""
        records = 0
        for site in (self._main, *self.copies):
            must(self.commands("verify", site.url), 0)
            records += self._restore(site, site.book.newest, "latest")
        return f"{1 + len(self.copies)} archives verified, {records} records restored"

    def clean(self) -> None:
        """Delete the topics, for others who use the same cluster."""
        self.cluster.delete(sorted(self.lives))

    # --- backups

    def back_up(self) -> str:
        site, logs = self._main, self._logs()
        label = f"label-{self._next()}" if self._random.random() < 0.2 else ""
        lacks = site.book.lacks(logs)
        arguments = (*self._backup(site), *(("--label", label) if label else ()))
        is_open = site.book.interrupted if lacks else site.book.has_former(logs) or site.book.is_doubtful
        codes = {0, 3} if is_open else ({3} if lacks else {0})
        outcome = must(self.commands(*arguments), *codes)
        number = outcome.document["restore_point"]
        if number in site.book.points or number in site.book.expired:
            raise WrongError(f"number {number} was given twice: {outcome}")
        site.book.back_up(number, logs, label)
        check_list(self.commands, site)
        return f"restore point {number}{', with losses' if outcome.code else ''}"

    def _backup(self, site: Site) -> tuple[str, ...]:
        compression = self._random.choice(("none", "zstd"))
        options = ("--topic", "/walk-.*/", "--set", f"backup.compression={compression}")
        return ("backup", "--archive", site.url, *options)

    def kill_backup(self) -> str:
        site, logs = self._main, self._logs()
        event, most = self._random.choice(_EVENTS)
        wish = Wish("kill job", self._random.choice(("before", "after")), event, self._random.randint(1, most))
        ended = self.commands.kill(wish, *self._backup(site))
        if ended.code not in (0, 3, -signal.SIGKILL):
            raise WrongError(f"a backup that was to be killed ended with {ended.code}:\n{ended.err}")
        site.store.delete(["lock.json"])  # the holder is dead, and nobody waits until the lease runs out
        new = set(listed(self.commands, site)) - set(site.book.points)
        if len(new) > 1 or (not new and ended.code != -signal.SIGKILL):
            raise WrongError(f"a backup ended with {ended.code} and made restore points {sorted(new)}")
        if new:
            site.book.back_up(new.pop(), logs)
        else:
            site.book.interrupt(logs)
        check_list(self.commands, site)
        return f"{wish.name}, exit code {ended.code}"

    # --- erasures

    def erase(self) -> str:
        """Erase the records of one value, that the newest restore point has."""
        site = self._main
        chosen = self._erasure_of(site)
        if chosen is None:
            return ""
        topic, value, options = chosen
        outcome = must(self.commands("erase", site.url, *options), 0)
        before = site.book.expirations
        count = site.book.erase(topic, value.encode())
        if outcome.document["erasure"] is None:
            site.book.expirations = before
        if outcome.document["records"] < count:
            raise WrongError(f"{count} records had the value, and fewer were erased: {outcome}")
        again = must(self.commands("erase", site.url, *options), 0)
        if again.document["records"]:
            raise WrongError(f"erased records are found again: {again}")
        check_list(self.commands, site)
        return f"{outcome.document['records']} records of {topic} in {site.url}"

    def _erasure_of(self, site: Site) -> tuple[str, str, tuple[str, ...]] | None:
        """A topic, the value of one of its records in the newest restore point, and the options that erase it; None
        where segments are damaged, or without a record."""
        there = [(topic, record) for topic, v in site.book.views.items() for _, record in site.book.offsets(v)]
        if not there or site.book.damaged:
            return None
        topic, record = self._random.choice(there)
        value = (record.value or b"").decode()
        return topic, value, ("--topic", topic, "--jq", f'.value == "{value}"', "--confirm")

    def kill_erase(self) -> str:
        """Kill an erasure, and repeat it: the first one erased nothing, or all."""
        site = self._main
        chosen = self._erasure_of(site)
        if chosen is None:
            return ""
        topic, value, options = chosen
        killed = self._kill(site, ("search", "rewrite", "commit"), "erase", site.url, *options)
        outcome = must(self.commands("erase", site.url, *options), 0)
        count = site.book.erase(topic, value.encode())
        if 0 < outcome.document["records"] < count:
            raise WrongError(f"a killed erasure erased some records, and not all of {count}: {outcome}")
        check_list(self.commands, site)
        return f"{killed}; then {outcome.document['records']} records of {topic}"

    def rewrite(self) -> str:
        """Merge and compact as restore points permit: no record changes, and each key has its last one."""
        site = self._main
        if site.book.damaged:
            return ""
        if self._random.random() < 0.5:
            # Otherwise nearly every segment waits for the end of an undo.
            self.expire_points()
            self.sweep()
        options = self._random.choice(
            (("--merge-below", "1MiB"), ("--compact",), ("--merge-below", "1MiB", "--compact"))
        )
        outcome = must(self.commands("rewrite", site.url, *options, "--confirm"), 0)
        if "--compact" in options:
            site.book.compact()
        check_list(self.commands, site)
        report = outcome.document
        changed = f"{report['segments']} segments of {site.url} became {report['merged']}"
        return f"{changed}, without {report['superseded']} records"

    def kill_rewrite(self) -> str:
        """Kill a rewrite, and repeat it."""
        site = self._main
        if site.book.damaged:
            return ""
        rewriting = ("rewrite", site.url, "--merge-below", "1MiB", "--compact", "--confirm")
        phases = ("choose topics", "compact", "commit compaction", "choose segments", "merge", "commit merge")
        killed = self._kill(site, phases, *rewriting)
        site.book.compact()
        check_list(self.commands, site)
        report = must(self.commands(*rewriting), 0).document
        check_list(self.commands, site)
        return f"{killed}; then {report['segments']} segments became {report['merged']}"

    def _kill(self, site: Site, phases: Sequence[str], *command: str) -> str:
        """Kill a command at a moment of one of its phases, or of a write; it may be faster."""
        events = [
            *(f"phase {name}" for name in phases),
            "write catalog/*",
            "write topics/*_records",
            "write topics/*_index",
        ]
        event = self._random.choice(events)
        nth = 1 if event.startswith("phase") else self._random.randint(1, 3)
        wish = Wish("kill job", self._random.choice(("before", "after")), event, nth)
        ended = self.commands.kill(wish, *command)
        if ended.code not in (0, -signal.SIGKILL):
            raise WrongError(f"{command[0]}, which was to be killed, ended with {ended.code}:\n{ended.err}")
        site.store.delete(["lock.json"])  # the holder is dead, and nobody waits until the lease runs out
        return f"{wish.name}, exit code {ended.code}"

    # --- copies

    def copy(self) -> str:
        new = not self.copies or (len(self.copies) < _COPIES and self._random.random() < 0.3)
        site = self._new_site() if new else self._random.choice(self.copies)
        keep = self._random.random() < 0.3
        options = ("--keep",) if keep else ()
        outcome = must(self.commands("copy", site.url, "--archive", self._main.url, *options), 0, 1)
        if outcome.code == 1:
            # The copy retains a part of what its source has merged, and lacks the rest.
            if "has merged segments of" not in outcome.err:
                raise WrongError(str(outcome))
            return f"{site.url}: refused"
        site.shaken |= bool(site.book.expirations)  # of the copy itself: a later undo may reach them
        site.book.follow(self._main.book, keep=keep)
        if new:
            self.copies.append(site)
        check_list(self.commands, site)
        return f"{site.url}{', with --keep' if keep else ''}: {len(outcome.document['restore_points'])} new"

    def promote(self) -> str:
        if not self.copies:
            must(self.commands("promote", "--archive", self._main.url), 1)
            return "refused"
        site, former = self._random.choice(self.copies), self._main
        must(self.commands("backup", "--archive", site.url, "--topic", "/walk-.*/"), 1)
        must(self.commands("promote", "--archive", site.url), 0)
        self._main, self.copies = site, []
        if not site.book.points:
            raise WrongError("a copy has no restore point")
        self.produce()
        said = self.back_up()
        must(self.commands("copy", site.url, "--archive", former.url), 1)
        return f"{site.url}; {said}"

    # --- damage

    def damage(self) -> str:
        """Delete any one object, and repair."""
        site = self._any_main_or_copy(0.3)
        keys = [e.key for e in site.store.list() if not e.key.startswith(_REPORTS)]
        kinds = sorted({_kind(key) for key in keys})
        kind = self._random.choice(kinds)
        key = self._random.choice([each for each in keys if _kind(each) == kind])
        site.store.delete([key])
        must(self.commands("list", site.url), 0, 10, 13)
        read = ("--read-data",) if self._random.random() < 0.5 else ()
        accept = ("--accept-rollback",) if key.startswith("catalog/") else ()  # this machine has seen the catalog
        outcome = self._repair(site, *read, *accept)
        if outcome.document["new_point"] is not None or outcome.document["lost"]:
            raise WrongError(f"one lost object cost a restore point: {key}: {outcome}")
        self._tell_damage(site, key, keys)
        again = must(self.commands("repair", site.url), 0)
        if again.document["mended"] or again.document["losses"]:
            raise WrongError(f"a second repair finds more after {key}: {again}")
        must(self.commands("verify", site.url, *(() if read else ("--quick",))), 0)
        return f"{key}, exit code {outcome.code}"

    def _tell_damage(self, site: Site, key: str, keys: list[str]) -> None:
        segment = _SEGMENT.match(key)
        if segment is not None:
            others = [m for other in keys if (m := _SEGMENT.match(other)) and m[1] == segment[1]]
            start = int(segment[4])
            end = min((int(m[4]) for m in others if int(m[4]) > start), default=None)
            site.book.lose(segment[2], int(segment[3]), start, end)
        elif key.endswith(("groups.json", "manifest.json")):
            site.book.forget_positions()
        if key.startswith(("catalog/", "tables/")):
            reconcile(self.commands, site)
            if site is self._main:
                must(self.commands("promote", "--archive", site.url), 0, 1)  # that may be lost as well
        check_list(self.commands, site)

    # --- reading

    def restore(self) -> str:
        site = self._any_main_or_copy(0.3)
        number = self._random.choice(sorted(site.book.points))
        names = [str(number), *(name for name, n in sorted(site.book.labels.items()) if n == number)]
        if number == site.book.newest:
            names.append("latest")
        records = self._restore(site, number, self._random.choice(names))
        return f"restore point {number} of {site.url}, {records} records"

    def _restore(self, site: Site, number: int, name: str) -> int:
        if not site.book.points[number]:
            return 0
        return check_restore(self.commands, self.cluster, site, name, number, f"back-{self._next()}")

    def verify(self) -> str:
        site = self._any_main_or_copy(0.4)
        must(self.commands("verify", site.url), 0)
        must(self.commands("log", site.url), 0)
        return site.url


def _kind(key: str) -> str:
    """Objects of one kind are as likely to be deleted as those of another."""
    return re.sub(r"[0-9a-f]{8,}|[0-9]+", "", "/".join((key.split("/")[0], key.rsplit("/", 1)[-1])))


_STEPS: Mapping[str, tuple[Callable[[Walk], str], int]] = {
    "create a topic": (Walk.create_topic, 4),
    "delete a topic": (Walk.delete_topic, 4),
    "produce": (Walk.produce, 22),
    "add partitions": (Walk.add_partitions, 2),
    "delete records": (Walk.delete_records, 6),
    "move the group": (Walk.move_group, 5),
    "backup": (Walk.back_up, 18),
    "kill a backup": (Walk.kill_backup, 6),
    "expire points": (Walk.expire_points, 5),
    "expire records": (Walk.expire_records, 5),
    "sweep": (Walk.sweep, 3),
    "undo": (Walk.undo, 4),
    "keep": (Walk.pin, 4),
    "release": (Walk.release, 3),
    "label": (Walk.label, 3),
    "erase": (Walk.erase, 4),
    "kill an erasure": (Walk.kill_erase, 2),
    "rewrite": (Walk.rewrite, 6),
    "kill a rewrite": (Walk.kill_rewrite, 3),
    "copy": (Walk.copy, 6),
    "promote": (Walk.promote, 1),
    "damage and repair": (Walk.damage, 8),
    "restore": (Walk.restore, 10),
    "verify": (Walk.verify, 2),
}
"""By name, a step and how likely it is."""
