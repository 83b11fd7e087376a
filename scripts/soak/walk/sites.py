"""The archives of a walk: where they are, what they must hold, and how a list or a restore is held against that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kbackup.store.base import Store
from scripts.soak.walk.cluster import Cluster
from scripts.soak.walk.commands import Commands, Outcome
from scripts.soak.walk.comparison import compare
from scripts.soak.walk.model import Restored
from scripts.soak.walk.oracle import Book


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

    def free_lease(self) -> None:
        """The holder is dead, and nobody waits until the lease runs out."""
        self.store.delete(["lock.json"])


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
    """Points, pins and labels."""
    points, book = listed(commands, site), site.book
    if set(points) != set(book.points):
        raise WrongError(f"{site.url} lists restore points {sorted(points)}, not {sorted(book.points)}")
    pins = {number for number, point in points.items() if point["pinned"]}
    if pins != book.pins:
        raise WrongError(f"{site.url} has pins {sorted(pins)}, not {sorted(book.pins)}")
    labels = {name: number for number, point in points.items() for name in point["labels"]}
    if labels != book.labels:
        raise WrongError(f"{site.url} has labels {labels}, not {book.labels}")


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
        known = {
            place for views in book.points.values() for v in views.values() for place, _ in book.offsets(v)
        }
        book.points[number] = book.expired.pop(number)
        back = {place for view in book.points[number].values() for place, _ in book.offsets(view)}
        book.unsure |= back - known
    book.pins = {number for number, point in points.items() if point["pinned"]}
    book.labels = {name: number for number, point in points.items() for name in point["labels"]}
    book.expirations = []
    site.shaken = True


def check_restore(
    commands: Commands, cluster: Cluster, site: Site, name: str, number: int, prefix: str
) -> int:
    """Restore a point into topics of its own, compare them with the book, and delete them. Returns how many records
    came back."""
    views = site.book.points[number]
    targets = {topic: f"{prefix}-{topic}" for topic in views}
    chosen = [part for t, target in targets.items() for part in ("--topic", t, "--map", f"{t}={target}")]
    outcome = must(
        commands("restore", site.url, "--restore-point", name, *chosen), 0, 3
    )  # deleted ones must be named
    wrong: list[str] = []
    lacks, records = False, 0
    for topic, target in targets.items():
        log = cluster.log(target)
        records += sum(map(len, log.records.values()))
        found, lost = compare(site.book, views[topic], Restored(log.records, log.positions))
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
