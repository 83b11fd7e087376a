"""Sizes, durations, times, addresses, ranges of offsets and rules for names, as people write them."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import NamedTuple

from kbackup.errors import UsageError
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
_UNIT_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of "8MiB", "5GB" or "1024". `ValueError` for another text, and for a part of a byte."""
    size = _quantity(text, _UNITS)
    if not size.is_integer():
        raise ValueError(size)
    return int(size)


def parse_duration(text: str) -> float:
    """Return the seconds of "90s", "500ms", "5m", "1h", "2d" or "90". `ValueError` for another text."""
    return _quantity(text, _UNIT_SECONDS)


def _quantity(text: str, units: Mapping[str, float]) -> float:
    found = _QUANTITY.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    unit = found[2].lower()
    if unit not in units:
        raise ValueError(text)
    number = float(found[1].replace("_", ""))
    return number * units[unit]


# Times, and addresses of topics, partitions and offsets, as people write them.


_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?(?:([Zz])|([+-]\d\d:\d\d))", re.ASCII)
_LOCAL = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d)(?:(:\d\d)(\.\d+)?)?", re.ASCII)
_MILLISECONDS = re.compile(r"\d{1,19}", re.ASCII)
_SECONDS = 10  # digits of an epoch time in seconds, from 2001 to 2286; in ms they are days of 1970
_AGO = re.compile(r"(.+?)\s+ago")
_ADDRESS = re.compile(
    r"(?P<topic>[a-zA-Z0-9._-]+)"
    r"(?:[:/](?P<partition>\d{1,10})(?:[:/](?:(?P<offset>\d{1,19})|(?P<start>\d{0,19})-(?P<end>\d{0,19})))?)?/?",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INT64_MAX = 2**63 - 1

TIMES = "a time such as 2026-01-31T12:00:00Z, 1769860800000 (ms) or '2h ago'"
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


def parse_time(text: str, now: int, *, up: bool = False) -> int:
    """Return the ms since the epoch of a time in RFC 3339 with its zone, of epoch ms, of "2h ago" before `now`, or of
    "now".

    A fraction of a millisecond is rounded down, or `up`. `ValueError` for another text."""
    text = text.strip()
    if text == "now":
        return now
    ago = _AGO.fullmatch(text)
    if ago is not None:
        # No longer ago than 1970: a duration may be infinitely long.
        duration = min(parse_duration(ago[1]) * 1000, float(now))
        return max(0, round(now - duration))
    if _MILLISECONDS.fullmatch(text):
        if len(text) == _SECONDS:
            raise ValueError(f"it looks like seconds; in milliseconds it is {text}000")
        return _representable(int(text))
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError(_why_not(text))
    date, clock, fraction, _, zone = found.groups()
    moment = datetime.fromisoformat(f"{date}T{clock}{zone or '+00:00'}") - _EPOCH
    whole = moment // timedelta(milliseconds=1)
    # A fraction may have any number of digits: a float, or a datetime, would round it before `up` decides.
    digits = fraction or "0"
    exact = whole + Fraction(int(digits) * 1000, 10 ** len(digits))
    return _representable(math.ceil(exact) if up else math.floor(exact))


def _why_not(text: str) -> str:
    """Return what a text lacks to be a time, or the text itself if it is not like a time at all."""
    local = _LOCAL.fullmatch(text)
    if local is not None:
        seconds = local[3] or ":00"
        return f"it has no zone; give {local[1]}T{local[2]}{seconds}Z for UTC, or --tz Europe/Berlin as well"
    zoned = re.fullmatch(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d)([Zz]|[+-]\d\d:\d\d)", text, re.ASCII)
    if zoned is not None:
        return f"it has no seconds; give {zoned[1]}T{zoned[2]}:00{zoned[3]}"
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
        return f"it has no time of day; give {text}T00:00:00Z, or another one"
    clock = re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?", text, re.ASCII)
    if clock is not None:
        seconds = "" if clock[2] else ":00"
        return f"it has no date; give {datetime.now(UTC):%Y-%m-%d}T{text}{seconds}Z, which is UTC"
    if re.fullmatch("[a-zA-Z]+", text):
        return "the only word is 'now'; give a date with a time, or '24h ago'"
    return text


def in_zone(text: str, zone: str) -> str:
    """Return a time without a zone as that time in `zone`, such as "Europe/Berlin"; another text as it is.

    `ValueError` for an unknown zone, and for a time that a change of clocks makes ambiguous."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        info = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{zone} is not a time zone; give one such as Europe/Berlin or UTC") from None
    found = _LOCAL.fullmatch(text.strip())
    if found is None:
        return text
    date, minutes, seconds, fraction = found[1], found[2], found[3] or ":00", found[4] or ""
    moment = datetime.fromisoformat(f"{date}T{minutes}{seconds}").replace(tzinfo=info)
    # An hour that a change of clocks repeats or skips has one offset before the change and one after it.
    before = moment.replace(fold=0).isoformat()[19:]
    after = moment.replace(fold=1).isoformat()[19:]
    if before != after:
        raise ValueError(f"clocks change in {zone} at {text}; add {before} or {after} to it")
    return f"{date}T{minutes}{seconds}{fraction}{before}"


def moment_of(name: str, given: str | int | datetime | None, *, up: bool = False) -> int | None:
    """Return the time that an option or an argument gives, in ms since the epoch; None if none is given.

    Raises `UsageError` that names it."""
    if given is None:
        return None
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise UsageError(f"{name} {given} has no zone", "give it one, such as datetime.now(UTC)")
        given = given.isoformat(timespec="microseconds")
    try:
        return parse_time(str(given), int(time.time() * 1000), up=up)
    except ValueError as error:
        why = f": {error}" if str(error) != given else ""
        raise UsageError(f"{name} {given} is not a time{why}", f"give {TIMES}") from None


def _representable(ms: int) -> int:
    if not 0 <= ms <= _INT64_MAX:
        raise ValueError(f"{ms} ms is no timestamp of a record")
    return ms


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
    if not sign or not replacement:
        raise ValueError(rule)
    return LinearRegex(pattern), replacement
