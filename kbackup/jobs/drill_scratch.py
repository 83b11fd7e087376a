"""The scratch topics and groups of a drill: everything on the target whose name begins with the drill's prefix."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

from kbackup.errors import KbackupError, RefusedError, UsageError
from kbackup.kafka.admin import Cluster

CONFIGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
}
"""Nothing may go, or change, of what is going to be compared."""

_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{3,99}")
_PATIENCE = 60.0  # s, for topics to be gone
_CALM = 1.0  # s without any: a producer that was cut off may have asked for its topic once more
_PAUSE = 0.25  # s


@dataclass(frozen=True)
class Scratch:
    cluster: Cluster
    prefix: str

    def check_free(self) -> None:
        """`RefusedError` where anything has the prefix already: it would be deleted in the end."""
        if not _PREFIX.fullmatch(self.prefix):
            raise UsageError(
                f"prefix {self.prefix!r} can't be used", "4 to 100 letters, digits, '.', '_' and '-'"
            )
        taken = [*(f"topic {name}" for name in self.topics()), *(f"group {name}" for name in self.groups())]
        if taken:
            raise RefusedError(
                f"prefix {self.prefix!r} is not free: {_some(taken)}", "give another --prefix, or delete them"
            )

    def topics(self) -> list[str]:
        return [name for name in self.cluster.topic_names() if name.startswith(self.prefix)]

    def groups(self) -> list[str]:
        found, _ = self.cluster.groups.listed()
        return [each.group for each in found if each.group.startswith(self.prefix)]

    def delete(self, more_groups: Iterable[str]) -> tuple[str, ...]:
        """Deletes all of it, and `more_groups`. Returns what is left, each with the reason; never raises for that, but
        a second interrupt ends it."""
        return (*self._delete_groups(more_groups), *self._delete_topics())

    def _delete_groups(self, more: Iterable[str]) -> list[str]:
        try:
            said = self.cluster.groups.delete_each([*self.groups(), *more])
        except KbackupError as error:
            return [f"groups {self.prefix}*: {error.message}"]
        return [f"group {group}: {why}" for group, why in said.items() if why]

    def _delete_topics(self) -> list[str]:
        """Until none has been there for a while."""
        until = time.monotonic() + _PATIENCE
        calm = time.monotonic() + _CALM
        said: dict[str, str] = {}
        try:
            while time.monotonic() < calm:
                if names := self.topics():
                    said = self.cluster.delete_topics(names)
                    if time.monotonic() > until:
                        return [f"topic {name}: {said[name] or 'it is still there'}" for name in names]
                    calm = time.monotonic() + _CALM
                time.sleep(_PAUSE)
        except KbackupError as error:
            return [f"topics {self.prefix}*: {error.message}"]
        return []


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
