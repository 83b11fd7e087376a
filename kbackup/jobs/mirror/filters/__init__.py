"""Filters of topics, groups and config properties, as MirrorMaker 2's default filters select."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kbackup.jobs.mirror.filters.java_regex import java_pattern
from kbackup.util.linear_regex import LinearRegex


@dataclass(frozen=True)
class PatternFilter:
    """Names that match `include` wholly and `exclude` not. None matches nothing."""

    include: LinearRegex | None
    exclude: LinearRegex | None

    def __call__(self, name: str) -> bool:
        return self.includes(name) and not self.excludes(name)

    def includes(self, name: str) -> bool:
        return self.include is not None and self.include.fullmatch(name)

    def excludes(self, name: str) -> bool:
        return self.exclude is not None and self.exclude.fullmatch(name)


def compile_patterns(patterns: Sequence[str]) -> LinearRegex | None:
    """Return one pattern of a list of Java regular expressions; None for an empty list, which matches nothing.

    MirrorMaker 2 joins the list by `|` before it compiles. So a group may begin in one item and end in another.
    Raise `ValueError` for what Java refuses, and for what can't be done as Java does.
    """
    return java_pattern("|".join(patterns)) if patterns else None
