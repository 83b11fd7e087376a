"""The steps of a walk: each changes the cluster or an archive, and the book of that archive."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping

from scripts.soak.walk.cluster_steps import ClusterSteps
from scripts.soak.walk.retention_steps import RetentionSteps
from scripts.soak.walk.sites import Site, WrongError, check_list, check_restore, listed, must, reconcile
from tests.faults.dying import Wish

_COPIES = 2
_REPORTS = ("restores/", "check/", "drills/", "verifications/")
_SEGMENT = re.compile(
    r"^(topics/([^/@]+)(?:@[0-9]+)?/segment_partition_([0-9]+)_from_offset_)([0-9]+)_records"
)
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
        wish = Wish(
            "kill job", self._random.choice(("before", "after")), event, self._random.randint(1, most)
        )
        ended = self.commands.kill(wish, *self._backup(site))
        if ended.code not in (0, 3, -signal.SIGKILL):
            raise WrongError(f"a backup that was to be killed ended with {ended.code}:\n{ended.err}")
        site.free_lease()
        new = set(listed(self.commands, site)) - set(site.book.points)
        if len(new) > 1 or (not new and ended.code != -signal.SIGKILL):
            raise WrongError(f"a backup ended with {ended.code} and made restore points {sorted(new)}")
        if new:
            site.book.back_up(new.pop(), logs)
        else:
            site.book.interrupt(logs)
        check_list(self.commands, site)
        return f"{wish.name}, exit code {ended.code}"

    # --- copies

    def copy(self) -> str:
        new = not self.copies or (len(self.copies) < _COPIES and self._random.random() < 0.3)
        site = self._new_site() if new else self._random.choice(self.copies)
        keep = self._random.random() < 0.3
        options = ("--keep",) if keep else ()
        outcome = must(self.commands("copy", site.url, "--archive", self._main.url, *options), 0)
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
        accept = (
            ("--accept-rollback",) if key.startswith("catalog/") else ()
        )  # this machine has seen the catalog
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
    "copy": (Walk.copy, 6),
    "promote": (Walk.promote, 1),
    "damage and repair": (Walk.damage, 8),
    "restore": (Walk.restore, 10),
    "verify": (Walk.verify, 2),
}
"""By name, a step and how likely it is."""
