"""Sizes, durations, addresses, ranges of offsets and rules for names, as people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from kbackup.util.linear_regex import LinearRegex

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}
_DURATIONS = (
    (0.001, "ms millisecond milliseconds"),
    (1.0, "s sec secs second seconds"),
    (60.0, "m min mins minute minutes"),
    (3600.0, "h hr hrs hour hours"),
    (86400.0, "d day days"),
    (7 * 86400.0, "w week weeks"),
)
"""Seconds, and the names of that unit; a number alone counts seconds. Months and years differ in length."""
_UNIT_SECONDS = {"": 1.0}
for _seconds, _names in _DURATIONS:
    _UNIT_SECONDS.update(dict.fromkeys(_names.split(), _seconds))
_QUANTITY = re.compile(r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)
_BETWEEN_PARTS = re.compile(r"(?<=[a-zA-Z])\s*(?=[0-9])")
"""Between the parts of "1h30m" or "1 hour 30 minutes"."""


def parse_size(text: str) -> int:
    """Return the bytes of "8MiB", "5GB" or "1024". `ValueError` for another text, and for a part of a byte."""
    size = _quantity(text, _UNITS)
    if not size.is_integer():
        raise ValueError(size)
    return int(size)


def parse_duration(text: str) -> float:
    """Return the seconds of "90s", "500ms", "5 minutes", "1h30m", "2d" or "90". `ValueError` for another text."""
    parts = _BETWEEN_PARTS.split(text.strip())
    if len(parts) > 1 and parts[-1][-1:].isdigit():
        raise ValueError(text)  # "1h30" may be minutes or seconds
    return sum(_quantity(part, _UNIT_SECONDS) for part in parts)


def _quantity(text: str, units: Mapping[str, float]) -> float:
    found = _QUANTITY.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    unit = found[2].lower()
    if unit not in units:
        raise ValueError(text)
    number = float(found[1].replace("_", ""))
    return number * units[unit]


# Addresses of topics, partitions and offsets, as people write them.


_ADDRESS = re.compile(
    r"(?P<topic>[a-zA-Z0-9._-]+)"
    r"(?:[:/](?P<partition>\d{1,10})(?:[:/](?:(?P<offset>\d{1,19})|(?P<start>\d{0,19})-(?P<end>\d{0,19})))?)?/?",
    re.ASCII,
)
_INT64_MAX = 2**63 - 1

RANGES = "a list of topic:partition:from-to or topic:partition:offset"
ADDRESSES = "topic, topic:partition, topic:partition:offset or topic:partition:from-to"


class TopicAddress(NamedTuple):
    """A topic, one of its partitions, or offsets of a partition: `start` (inclusive) to `end` (exclusive).

    None is as far as the archive goes. `one` is True for the address of a single record.
    """

    topic: str
    partition: int | None = None
    start: int | None = None
    end: int | None = None
    one: bool = False

    @property
    def ranged(self) -> bool:
        """True if the address names offsets."""
        return bool(self.start) or self.end is not None


class Range(NamedTuple):
    """Offsets `start` (inclusive) to `end` (exclusive) of a partition; None: as far as the archive goes."""

    topic: str
    partition: int
    start: int | None
    end: int | None

    def __str__(self) -> str:
        if self.start is not None and self.end == self.start + 1:
            return f"{self.topic}:{self.partition}:{self.start}"
        start = "" if self.start is None else self.start
        end = "" if self.end is None else self.end
        return f"{self.topic}:{self.partition}:{start}-{end}"


def parse_range(text: str) -> Range:
    """Parse "topic:partition:from-to", `from` inclusive, `to` exclusive, either of which may be left out; or
    "topic:partition:offset".

    `ValueError` for others, and for a range that holds nothing."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or (found["start"] is None and found["offset"] is None):
        raise ValueError(text)
    topic, partition, start, end, _ = parse_address(text.strip())
    assert partition is not None  # noqa: S101 (offsets stand behind a partition)
    return Range(topic, partition, start, end)


def parse_address(text: str) -> TopicAddress:
    """Parse one of `ADDRESSES`, with colons or slashes. `ValueError` for others, and for offsets that hold nothing."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ValueError(text)
    partition = _number(match["partition"])
    offset = _number(match["offset"])
    if offset is not None:
        return TopicAddress(match["topic"], partition, offset, offset + 1, one=True)
    start, end = _number(match["start"]), _number(match["end"])
    first = start or 0
    holds_none = end is not None and not first < end <= _INT64_MAX
    if holds_none or first > _INT64_MAX:
        raise ValueError(f"{text} holds no offset")
    return TopicAddress(match["topic"], partition, start, end)


def _number(digits: str | None) -> int | None:
    return int(digits) if digits else None


def parse_rule(rule: str) -> tuple[LinearRegex, str]:
    """Return pattern and replacement of "pattern=replacement"; the last "=" counts, as no topic name has one.

    `ValueError` or `re.error` for a text that is no rule."""
    pattern, sign, replacement = rule.rpartition("=")
    if not sign:
        raise ValueError("it has no '='")
    if not replacement:
        raise ValueError("there is no new name after its last '='")
    return LinearRegex(pattern), replacement
