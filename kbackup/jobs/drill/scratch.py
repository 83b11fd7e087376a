"""Scratch topics and groups of a drill: the names of its plan, under a prefix that is free when the drill begins.

Other topics and groups with the prefix that appear later are not deleted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

from kbackup.archive import layout
from kbackup.archive.restores.plan import RestorePlan
from kbackup.errors import ClusterError, KbackupError, RefusedError, UsageError
from kbackup.kafka.admin.cluster import Cluster
from kbackup.util.text import shorten

_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{3,99}")
_PATIENCE = 60.0  # s, for topics to be gone
_CALM = 1.0  # s without any: a producer that was cut off may have asked for its topic once more
_PAUSE = 0.25  # s


@dataclass(frozen=True)
class Names:
    topics: tuple[str, ...]
    groups: tuple[str, ...]

    @classmethod
    def of(cls, plan: RestorePlan) -> Names:
        """Return all names that the restore `plan` creates, also its progress group."""
        groups = (*(g.target for g in plan.groups), layout.progress_group(plan.restore_id))
        return cls(tuple(t.target for t in plan.topics), groups)

    def labels(self) -> tuple[str, ...]:
        """Return each name with its kind."""
        return (*(f"topic {name}" for name in self.topics), *(f"group {name}" for name in self.groups))


@dataclass(frozen=True)
class Scratch:
    cluster: Cluster
    prefix: str

    def check_free(self) -> None:
        """Raise `RefusedError` where anything has the prefix already: a drill must not write into it."""
        if not _PREFIX.fullmatch(self.prefix):
            raise UsageError(
                f"prefix {self.prefix!r} can't be used", "use 4 to 100 letters, digits, '.', '_' and '-'"
            )
        if taken := self.there().labels():
            raise RefusedError(
                f"prefix {self.prefix!r} is not free: {shorten(taken, 3)}",
                "give another --prefix, or delete them",
            )

    def there(self) -> Names:
        """Return all names with the prefix, of the drill or not. `ClusterError` where a broker does not answer."""
        topics = [name for name in self.cluster.topic_names() if name.startswith(self.prefix)]
        listed, failed = self.cluster.groups.listed()
        for name, why in failed.items():
            if name.startswith("("):  # a broker, not a group
                raise ClusterError(
                    f"not every group of the target could be listed: {why}",
                    f"repeat the drill when all brokers answer: it is unknown whether {self.prefix!r} is free",
                )
        groups = {*failed, *(each.group for each in listed)}
        return Names(tuple(topics), tuple(sorted(g for g in groups if g.startswith(self.prefix))))

    def remaining(self, made: Names) -> tuple[str, ...]:
        """Return the labels of `made` that exist."""
        ours = set(made.labels())
        return tuple(name for name in self.there().labels() if name in ours)

    def others(self, made: Names) -> list[str]:
        """Return a warning for each name with the prefix that is not of `made`; never raises."""
        ours = set(made.labels())
        try:
            others = [name for name in self.there().labels() if name not in ours]
        except KbackupError as error:
            return [f"whether others have names {self.prefix}* could not be seen: {error.message}"]
        return [f"{name} has the drill's prefix and is not of it: it was left alone" for name in others]

    def delete(self, made: Names) -> tuple[str, ...]:
        """Delete all of `made`; return the names that could not be deleted, with the reason.

        A failed deletion raises nothing; a second interrupt does.
        """
        topics = self._delete_topics(frozenset(made.topics))
        # after them: a task that is being cut off may still commit its progress, which makes the group anew
        return (*self._delete_groups(made.groups), *topics)

    def _delete_groups(self, made: Iterable[str]) -> list[str]:
        try:
            failures = self.cluster.groups.delete_each(made)
        except KbackupError as error:
            return [f"groups {self.prefix}*: {error.message}"]
        return [f"group {group}: {why}" for group, why in failures.items() if why]

    def _delete_topics(self, made: frozenset[str]) -> list[str]:
        """Delete topics until none has existed for a while; return the failures."""
        until = time.monotonic() + _PATIENCE
        calm = time.monotonic() + _CALM
        failures: dict[str, str] = {}
        try:
            while time.monotonic() < calm:
                if names := [name for name in self.cluster.topic_names() if name in made]:
                    failures = self.cluster.delete_topics(names)
                    if time.monotonic() > until:
                        return [f"topic {name}: {failures[name] or 'it is still there'}" for name in names]
                    calm = time.monotonic() + _CALM
                time.sleep(_PAUSE)
        except KbackupError as error:
            return [f"topics {self.prefix}*: {error.message}"]
        return []
