"""The scratch topics and groups of a drill: what its plan names, under a prefix that nothing else has when it begins.
What has the prefix and is not in the plan is another's, and stays."""

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
        """All that the restore `plan` makes, its progress group as well."""
        groups = (*(g.target for g in plan.groups), layout.progress_group(plan.restore_id))
        return cls(tuple(t.target for t in plan.topics), groups)

    def told(self) -> tuple[str, ...]:
        """Each with its kind."""
        return (*(f"topic {name}" for name in self.topics), *(f"group {name}" for name in self.groups))


@dataclass(frozen=True)
class Scratch:
    cluster: Cluster
    prefix: str

    def check_free(self) -> None:
        """`RefusedError` where anything has the prefix already: a drill must not write into it."""
        if not _PREFIX.fullmatch(self.prefix):
            raise UsageError(
                f"prefix {self.prefix!r} can't be used", "4 to 100 letters, digits, '.', '_' and '-'"
            )
        if taken := self.there().told():
            raise RefusedError(
                f"prefix {self.prefix!r} is not free: {shorten(taken, 3)}",
                "give another --prefix, or delete them",
            )

    def there(self) -> Names:
        """Whatever has the prefix, whoever made it. `ClusterError` where nobody knows."""
        topics = [name for name in self.cluster.topic_names() if name.startswith(self.prefix)]
        found, failed = self.cluster.groups.listed()
        for name, why in failed.items():
            if name.startswith("("):  # a broker, not a group
                raise ClusterError(
                    f"not every group of the target could be listed: {why}",
                    f"nobody knows whether {self.prefix!r} is free; drill when all its brokers answer",
                )
        groups = {*failed, *(each.group for each in found)}
        return Names(tuple(topics), tuple(sorted(g for g in groups if g.startswith(self.prefix))))

    def kept(self, made: Names) -> tuple[str, ...]:
        """What is there of `made`."""
        ours = set(made.told())
        return tuple(name for name in self.there().told() if name in ours)

    def others(self, made: Names) -> list[str]:
        """A word about what has the prefix and is none of `made`; never raises."""
        ours = set(made.told())
        try:
            found = [name for name in self.there().told() if name not in ours]
        except KbackupError as error:
            return [f"whether others have names {self.prefix}* could not be seen: {error.message}"]
        return [f"{name} has the drill's prefix and is not of it: it was left alone" for name in found]

    def delete(self, made: Names) -> tuple[str, ...]:
        """Deletes all of `made`. Returns what is left, each with the reason; never raises for that, but a second
        interrupt ends it."""
        topics = self._delete_topics(frozenset(made.topics))
        # after them: a task that is being cut off may still commit its progress, which makes the group anew
        return (*self._delete_groups(made.groups), *topics)

    def _delete_groups(self, made: Iterable[str]) -> list[str]:
        try:
            said = self.cluster.groups.delete_each(made)
        except KbackupError as error:
            return [f"groups {self.prefix}*: {error.message}"]
        return [f"group {group}: {why}" for group, why in said.items() if why]

    def _delete_topics(self, made: frozenset[str]) -> list[str]:
        """Until none has been there for a while."""
        until = time.monotonic() + _PATIENCE
        calm = time.monotonic() + _CALM
        said: dict[str, str] = {}
        try:
            while time.monotonic() < calm:
                if names := [name for name in self.cluster.topic_names() if name in made]:
                    said = self.cluster.delete_topics(names)
                    if time.monotonic() > until:
                        return [f"topic {name}: {said[name] or 'it is still there'}" for name in names]
                    calm = time.monotonic() + _CALM
                time.sleep(_PAUSE)
        except KbackupError as error:
            return [f"topics {self.prefix}*: {error.message}"]
        return []
