"""Which topics and groups a run is about: names and /regexes/, include and exclude."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kbackup.errors import UsageError


def is_internal(topic: str) -> bool:
    """Kafka's own topics, and by custom those of its tools, start with two underscores."""
    return topic.startswith("__")


@dataclass(frozen=True)
class Selection:
    """`include` empty means all. An entry is a name, or a regular expression between slashes that must match
    the whole name."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @classmethod
    def of(cls, include: Sequence[str], exclude: Sequence[str]) -> Selection:
        for pattern in (*include, *exclude):
            _matcher(pattern)
        return cls(tuple(include), tuple(exclude))

    @property
    def names(self) -> frozenset[str]:
        """Those asked for by their exact name."""
        return frozenset(pattern for pattern in self.include if not _is_regex(pattern))

    def matches(self, name: str) -> bool:
        wanted = not self.include or any(_matcher(p).fullmatch(name) for p in self.include)
        return wanted and not any(_matcher(p).fullmatch(name) for p in self.exclude)

    def topics(self, names: Iterable[str]) -> list[str]:
        """Those selected, sorted; an internal topic only where it is asked for by its name."""
        return sorted(n for n in names if self.matches(n) and (not is_internal(n) or n in self.names))


def _is_regex(pattern: str) -> bool:
    return len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/")


def _matcher(pattern: str) -> re.Pattern[str]:
    if not _is_regex(pattern):
        return re.compile(re.escape(pattern))
    try:
        return re.compile(pattern[1:-1])
    except re.error as error:
        raise UsageError(
            f"{pattern} is not a regular expression: {error}", "write it as /regex/, in Python's syntax"
        ) from error
