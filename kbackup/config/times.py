"""Times as people write them: one parser for every option, configuration key, form field and argument.

A time without a zone, such as `14:05` or `2026-01-31 14:05`, is in the zone of this machine, as in `date` and
`journalctl`: in that of the variable TZ, or of /etc/localtime. The command line has `--tz` for another zone. Nothing is
guessed beyond that. `14:05` is today and never yesterday, and a local time that a change of clocks repeats or skips is
refused. Commands print the time that they have understood, with its zone.
"""

from __future__ import annotations

import calendar
import math
import re
import time
from datetime import UTC, datetime, timedelta, tzinfo
from fractions import Fraction
from typing import NamedTuple

from kbackup.config.windows import parse_duration
from kbackup.errors import UsageError
from kbackup.util.times import time_text

TIMES = (
    "a time such as 14:05, 'yesterday 14:05', '2 hours ago', '2026-01-31 14:05', 2026-01-31T14:05:00Z or "
    "1769868300000 (ms)"
)

_WALL_CLOCK = re.compile(
    r"(?:(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})|(?P<word>today|yesterday))?"
    r"(?:[T ]\s*(?:at\s+)?)?"
    r"(?:(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d+))?)?"
    r"\s*(?P<zone>Z|UTC|[+-]\d\d(?::?\d\d(?::\d\d)?)?)?)?",
    re.ASCII | re.IGNORECASE,
)
_WORD_LAST = re.compile(r"(.+)\s+(today|yesterday)", re.IGNORECASE)
_AGO = re.compile(r"(.+?)\s+ago", re.IGNORECASE)
_DIGITS = re.compile(r"\d{1,19}", re.ASCII)
_SECONDS = 10
"""Digits of an epoch time in seconds, from 2001 to 2286; in milliseconds they are days of 1970."""
_COMPACT_DATE = re.compile(r"((?:19|20)\d\d)(0[1-9]|1[0-2])([0-3]\d)(?:\d{6})?", re.ASCII)
"""A date, or a date and a time, without signs between: in milliseconds these are hours of 1970, or the year 2612."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_YEAR, _LAST_YEAR = 1970, 9999
_INT64_MAX = 2**63 - 1


class FutureTimeError(ValueError):
    """A time of today that is still to come. The message is the same time of the day before."""


class _WallClock(NamedTuple):
    """What a text says of a time: the time that a clock shows on a day, the digits of a fraction of a second, and the
    offset of that clock from UTC. `offset` is None if the text has no zone, and `day` None if it has no date."""

    day: str | None
    clock: str
    fraction: str
    offset: timedelta | None


def parse_time(text: str, now: int, *, up: bool = False, zone: tzinfo | None = None) -> int:
    """Return the ms since the epoch of a time as people write it; `now` is the present, in ms as well.

    A time without a zone is in `zone`, or else in that of this machine. A fraction of a millisecond is rounded down, or
    `up`. `ValueError` for a text that is no time, and tells which part is wrong."""
    text = text.strip()
    if text.lower() == "now":
        return now
    ago = _AGO.fullmatch(text)
    if ago is not None:
        # No longer ago than 1970: a duration may be infinitely long.
        duration = min(_duration(ago[1]) * 1000, float(now))
        return max(0, round(now - duration))
    if _DIGITS.fullmatch(text):
        return _milliseconds(text)
    found = _wall_clock(text)
    whole = _epoch_seconds(found, now, zone, text) * 1000
    # A fraction may have any number of digits: a float, or a datetime, would round it before `up` decides.
    digits = found.fraction or "0"
    exact = whole + Fraction(int(digits) * 1000, 10 ** len(digits))
    moment = _representable(math.ceil(exact) if up else math.floor(exact))
    if _is_of_today(found) and moment > now:
        without_word = re.sub(r"\s*\btoday\b\s*", "", text, flags=re.IGNORECASE)
        raise FutureTimeError(f"yesterday {without_word}")
    return moment


def absolute_text(text: str, now: int, zone: tzinfo | None = None) -> str:
    """Return the same time as a text whose meaning depends on neither the day nor a zone: `14:05` becomes RFC 3339.

    Other texts stay as they are, also '2 hours ago': it counts from the moment of its use. `ValueError` as in
    `parse_time`."""
    parse_time(text, now, zone=zone)
    stripped = text.strip()
    if stripped.lower() == "now" or _AGO.fullmatch(stripped) or _DIGITS.fullmatch(stripped):
        return text
    found = _wall_clock(stripped)
    if found.offset is not None and found.day not in (None, "today", "yesterday"):
        return text
    local = _local(found, now, zone)
    offset = found.offset
    if offset is None:
        offset = _offset_at(local, zone, stripped)
    fraction = f".{found.fraction}" if found.fraction else ""
    return f"{local.isoformat()}{fraction}{_offset_text(offset)}"


def moment_of(
    name: str,
    given: str | int | datetime | None,
    *,
    now: int | None = None,
    up: bool = False,
    zone: tzinfo | None = None,
) -> int | None:
    """Return the time that an option or an argument gives, in ms since the epoch; None if none is given.

    `now` is the present, that of this call if it is left out: the two bounds of a window need the same one, so that
    '2h ago' to 'now' is two hours. Raises `UsageError` that names the option."""
    if given is None:
        return None
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise UsageError(f"{name} {given} has no zone", "give it one, such as datetime.now(UTC)")
        given = given.isoformat(timespec="microseconds")
    try:
        return parse_time(str(given), now_ms() if now is None else now, up=up, zone=zone)
    except ValueError as error:
        raise not_a_time(f"{name} {given}", error) from None


def not_a_time(what: str, error: ValueError) -> UsageError:
    """Return the error of a text that is no time, of what `parse_time` says of it."""
    if isinstance(error, FutureTimeError):
        return UsageError(f"{what} is still to come today", f"for the day before, give '{error}'")
    return UsageError(f"{what} is not a time: {error}", f"give {TIMES}")


def now_ms() -> int:
    """Return the present in ms since the epoch."""
    return int(time.time() * 1000)


def named_zone(name: str) -> tzinfo:
    """Return a time zone by its name, such as "Europe/Berlin". `ValueError` for an unknown one."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{name} is not a time zone; give one such as Europe/Berlin or UTC") from None


def shown_time(ms: int, zone: tzinfo | None = None) -> str:
    """Return a time in UTC and, in brackets, by the clock of `zone` or of this machine, unless that is UTC's."""
    utc = time_text(ms)
    try:
        there = (_EPOCH + timedelta(milliseconds=ms)).astimezone(zone)
    except (OverflowError, ValueError, OSError):
        return utc  # beyond every calendar
    if not there.utcoffset():
        return utc
    # An offset has seconds where a zone kept to the sun, until 1972.
    offset = _offset_text(there.utcoffset() or timedelta())
    whose = f"in {zone}" if zone is not None else "by this machine's clock"
    return f"{utc} ({there:%Y-%m-%d %H:%M:%S} {offset} {whose})"


# The forms.


def _duration(text: str) -> float:
    number = re.sub("^an? ", "1 ", text, flags=re.IGNORECASE)
    try:
        return parse_duration(number)
    except ValueError:
        if re.search("month|year", text, re.IGNORECASE):
            raise ValueError("months and years differ in length; give days, or a date") from None
        raise ValueError(f"{text!r} is not a duration; give one such as '2 hours ago', '90m ago' or '3d ago'") from None


def _milliseconds(digits: str) -> int:
    if len(digits) == _SECONDS:
        raise ValueError(f"it looks like seconds; in milliseconds it is {digits}000")
    date = _COMPACT_DATE.fullmatch(digits)
    if date is not None:
        with_hyphens = "-".join(date.groups())
        raise ValueError(f"as milliseconds it is no time of an archive; if it is a date, give {with_hyphens}")
    return _representable(int(digits))


def _wall_clock(text: str) -> _WallClock:
    """Return the parts of a text. `ValueError` names each part that is wrong, or what is missing."""
    last = _WORD_LAST.fullmatch(text)
    if last is not None:
        text = f"{last[2]} {last[1]}"
    found = _WALL_CLOCK.fullmatch(text)
    if found is None or not text:
        raise ValueError(_why_not(text))
    wrong = list(_wrong_parts(found))
    if wrong:
        raise ValueError(f"there is {' and '.join(wrong)}")
    day = None
    if found["word"]:
        day = found["word"].lower()
    elif found["year"]:
        day = f"{found['year']}-{int(found['month']):02}-{int(found['day']):02}"
    if found["hour"] is None:
        raise ValueError(f"it has no time of day; give '{day} 00:00', or another one")
    clock = f"{int(found['hour']):02}:{found['minute']}:{found['second'] or '00'}"
    return _WallClock(day, clock, found["fraction"] or "", _offset(found["zone"]))


def _wrong_parts(found: re.Match[str]) -> list[str]:
    """Return what no calendar or clock has, of the parts of a text."""
    wrong: list[str] = []
    if found["year"]:
        wrong += _wrong_date(int(found["year"]), int(found["month"]), int(found["day"]))
    for part, most in (("hour", 23), ("minute", 59), ("second", 59)):
        if found[part] is not None and int(found[part]) > most:
            wrong.append(f"no {part} {found[part]}")
    zone = found["zone"] or ""
    if zone[:1] in ("+", "-"):
        offset = _offset(zone)
        minutes = zone[1:].replace(":", "")[2:4]
        if offset is None or abs(offset) >= timedelta(hours=24) or int(minutes or 0) > 59:
            wrong.append(f"no zone {zone}")
    return wrong


def _wrong_date(year: int, month: int, day: int) -> list[str]:
    wrong: list[str] = []
    if not _FIRST_YEAR <= year <= _LAST_YEAR:
        wrong.append(f"no time of a record in {year:04}")
    is_month = 1 <= month <= 12
    if not is_month:
        wrong.append(f"no month {month:02}")
    if not 1 <= day <= 31:
        wrong.append(f"no day {day:02}")
    elif is_month and year and day > calendar.monthrange(year, month)[1]:
        wrong.append(f"no day {day:02} in {calendar.month_name[month]} {year:04}")
    return wrong


def _why_not(text: str) -> str:
    """Return what keeps a text from being a time."""
    if re.search(r"\d *[ap]\.?m\b", text, re.ASCII | re.IGNORECASE):
        return "hours go from 0 to 23, as in 14:05"
    named = re.fullmatch(r"(.+:\d\d(?:\.\d+)?) ?([A-Za-z_]+(?:/[A-Za-z_]+)*)", text, re.ASCII)
    if named is not None and _WALL_CLOCK.fullmatch(named[1]):
        zone = named[2] if "/" in named[2] else "Europe/Berlin"
        return f"a zone is Z, an offset such as +01:00, or --tz {zone} beside the time"
    if re.search(r"\d{1,2}[./]\d{1,2}[./]\d{2,4}", text, re.ASCII):
        return "a date is year-month-day, as in 2026-01-31"
    if re.fullmatch(r"[0-9.]+\s*[a-zA-Z]+", text, re.ASCII):
        return f"a duration needs 'ago': '{text} ago'"
    if re.search("[a-zA-Z]", text):
        return "the words are 'now', 'today 14:05', 'yesterday 14:05' and '2 hours ago'"
    return "it has no form of a time"


def _offset(zone: str | None) -> timedelta | None:
    """Return the offset that a text names, such as Z, +01:00 or -0530; None without one."""
    if not zone:
        return None
    if zone.upper() in ("Z", "UTC"):
        return timedelta()
    digits = zone[1:].replace(":", "").ljust(6, "0")
    size = timedelta(hours=int(digits[:2]), minutes=int(digits[2:4]), seconds=int(digits[4:]))
    return -size if zone[0] == "-" else size


def _offset_text(offset: timedelta) -> str:
    """Return an offset as RFC 3339 has it: Z or +01:00."""
    if not offset:
        return "Z"
    sign = "-" if offset < timedelta() else "+"
    minutes, seconds = divmod(int(abs(offset).total_seconds()), 60)
    text = f"{sign}{minutes // 60:02}:{minutes % 60:02}"
    return f"{text}:{seconds:02}" if seconds else text


# From a clock on a wall to the moment at which it shows a time.


def _is_of_today(found: _WallClock) -> bool:
    return found.day is None or found.day == "today"


def _epoch_seconds(found: _WallClock, now: int, zone: tzinfo | None, text: str) -> int:
    local = _local(found, now, zone)
    offset = found.offset
    if offset is None:
        offset = _offset_at(local, zone, text)
    as_utc = local.replace(tzinfo=UTC)
    return (as_utc - offset - _EPOCH) // timedelta(seconds=1)


def _local(found: _WallClock, now: int, zone: tzinfo | None) -> datetime:
    """Return what the clock shows, as a datetime without a zone. `today` is the day of the zone that counts."""
    day = found.day
    if day in (None, "today", "yesterday"):
        present = _EPOCH + timedelta(milliseconds=now)
        there = present.astimezone(zone) if found.offset is None else present + found.offset
        date = there.date()
        if day == "yesterday":
            date -= timedelta(days=1)
        day = date.isoformat()
    return datetime.fromisoformat(f"{day}T{found.clock}")


def _offset_at(local: datetime, zone: tzinfo | None, text: str) -> timedelta:
    """Return the offset from UTC of a zone when its clocks show `local`.

    `ValueError` with both readings for a time that a change of clocks repeats or skips."""
    # Such a time has one offset before the change and another one after it. Of others both are the same.
    before = _offset_with(local.replace(fold=0), zone)
    after = _offset_with(local.replace(fold=1), zone)
    if before == after:
        return before
    where = f"in {zone}" if zone is not None else "by this machine's clock"
    day, clock = f"{local:%Y-%m-%d}", f"{local:%H:%M:%S}"
    if before > after:
        first, second = f"{day}T{clock}{_offset_text(before)}", f"{day}T{clock}{_offset_text(after)}"
        raise ValueError(f"{clock} is twice on {day} {where}, as clocks go back: it is {first} or {second}")
    change = after - before
    earlier = f"{(local - change).isoformat()}{_offset_text(before)}"
    later = f"{(local + change).isoformat()}{_offset_text(after)}"
    raise ValueError(f"{clock} is skipped on {day} {where}, as clocks go forward: give {earlier} or {later}")


def _offset_with(local: datetime, zone: tzinfo | None) -> timedelta:
    as_utc = local.replace(tzinfo=UTC, fold=0)
    try:
        moment = datetime.fromtimestamp(_timestamp(local, zone), UTC)
    except (OverflowError, ValueError, OSError):
        raise ValueError(f"the year {local.year} is beyond the calendar of this machine") from None
    return as_utc - moment


def _timestamp(local: datetime, zone: tzinfo | None) -> float:
    """Return the seconds since the epoch. A datetime without a zone is read by this machine's clock."""
    return local.replace(tzinfo=zone).timestamp()


def _representable(ms: int) -> int:
    if not 0 <= ms <= _INT64_MAX:
        raise ValueError(f"{ms} ms is no timestamp of a record")
    return ms
