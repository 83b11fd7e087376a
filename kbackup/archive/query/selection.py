"""Which topics and groups a run is about: names and /regexes/, include and exclude."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal, NamedTuple

from kbackup.errors import UsageError, suggest_name
from kbackup.util.linear_regex import LinearRegex
from kbackup.util.text import printable

NameKind = Literal["topic", "group", "subject"]


def is_internal(topic: str) -> bool:
    """Return whether a topic is Kafka's own, or by custom one of its tools: their names begin with two underscores."""
    return topic.startswith("__")


@dataclass(frozen=True)
class Selection:
    """Names that are included and not excluded; an empty `include` means all. An entry is a name, or a regular
    expression between slashes that must match the whole name. `leaves_out` is a rule for more names to exclude that no
    entry can express."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    leaves_out: Callable[[str], bool] | None = None

    @classmethod
    def of(cls, include: Sequence[str], exclude: Sequence[str]) -> Selection:
        for pattern in (*include, *exclude):
            if _is_regex(pattern):
                _regex(pattern)
        return cls(tuple(include), tuple(exclude))

    @property
    def names(self) -> frozenset[str]:
        """The names in `include` that are not regular expressions."""
        return frozenset(pattern for pattern in self.include if not _is_regex(pattern))

    def matches(self, name: str) -> bool:
        if self.leaves_out is not None and self.leaves_out(name):
            return False
        if self.include and not any(_matches(entry, name) for entry in self.include):
            return False
        return not any(_matches(entry, name) for entry in self.exclude)

    def topics(self, names: Iterable[str]) -> list[str]:
        """Return the selected topics, sorted. An internal topic is selected only by its exact name."""
        by_name = self.names
        selected: list[str] = []
        for name in names:
            if self.matches(name) and (name in by_name or not is_internal(name)):
                selected.append(name)
        return sorted(selected)

    @property
    def only_names(self) -> Selection:
        """The selection of the exact names in `include`. Topics that regular expressions match may come later."""
        names = sorted(self.names)
        return Selection(tuple(names))

    def unmatched(self, kind: NameKind, names: Iterable[str], internal: bool = False) -> list[str]:
        """Return the entries of `include` that select nothing of `names`: each exact name that is missing, or all
        entries if nothing is missing and nothing at all is selected. With `internal`, regular expressions select
        internal topics, too."""
        known = set(names)
        # A name that is missing is a mistake of the user. A regular expression may well match nothing today.
        missing = sorted(self.names - known)
        if missing:
            return missing
        if kind == "topic" and not internal:
            selected = self.topics(known)  # without internal topics that only a regular expression matches
        else:
            selected = [name for name in known if self.matches(name)]
        if selected:
            return []
        return list(self.include)


class Selections(NamedTuple):
    """The topics and the groups that a backup captures."""

    topics: Selection
    groups: Selection


def check_selection(
    selection: Selection,
    kind: NameKind,
    names: Iterable[str],
    where: str,
    hint: str,
    reasons: Mapping[str, str] = MappingProxyType({}),
    internal: bool = False,
) -> None:
    """Raise `UsageError` if an exact name is none of `names`, or where nothing is selected though something is asked
    for. `where` completes 'there is no topic orders …'. The error's hint is the one of `reasons` for that name, else
    the nearest name, else `hint`. An exclude pattern may match nothing. `internal` as for `Selection.unmatched`."""
    known = list(names)
    unmatched = selection.unmatched(kind, known, internal)
    if not unmatched:
        return
    first = unmatched[0]
    if first not in known and not _is_regex(first):
        reason = reasons.get(first) or suggest_name(first, known, hint)
        raise UsageError(f"there is no {kind} {first} {where}", reason)
    entries = ", ".join(unmatched)
    # Asked once more without the exclusions, to say which of both leaves nothing.
    if selection.exclude and not Selection(selection.include).unmatched(kind, known, internal):
        raise UsageError(
            f"the exclude patterns leave out every {kind} {where} that {entries} selects", "leave one of them out"
        )
    hint += "; a regular expression must match the whole name"
    if kind == "topic":
        hint += "; internal topics, which begin with __, take their exact name"
    # Of a regular expression without its slashes: many are a name with a mistake.
    nearest = suggest_name(first.strip("/"), known, hint)
    raise UsageError(f"no {kind} {where} matches {entries}", nearest)


def exact_entry(name: str) -> str:
    """Return an entry that selects exactly `name`, printable and without blanks around it: the name, or a /regex/
    where the name can't stand for itself."""
    if name and name.isprintable() and name == name.strip() and not _is_regex(name):
        return name
    signs: list[str] = []
    for sign in name:
        # What `printable` writes for a sign, such as \xff, is an escape of regular expressions, too.
        shown = re.escape(sign) if sign.isprintable() else printable(sign)
        signs.append(shown)
    escaped = "".join(signs)
    return f"/{escaped or '(?:)'}/"


def _is_regex(pattern: str) -> bool:
    return len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/")


def _matches(pattern: str, name: str) -> bool:
    if _is_regex(pattern):
        return _regex(pattern).fullmatch(name)
    return pattern == name


@cache
def _regex(pattern: str) -> LinearRegex:
    try:
        return LinearRegex(pattern[1:-1])
    except re.error as error:
        raise UsageError(
            f"{pattern} is not a regular expression that can be used: {error}",
            "write it as /regex/, in Python's syntax, without look-around and back references",
        ) from error
