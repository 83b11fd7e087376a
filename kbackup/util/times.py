"""Times as text: RFC 3339 in UTC for files and machines, shorter forms for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = (("y", 365 * 86400), ("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_HOURS_UNTIL = 2 * 86400
"""Seconds up to which a duration has hours and no days: the age of a nightly backup is "26h"."""


def now() -> str:
    """Return the time of the call, as `rfc3339`."""
    return rfc3339(datetime.now(UTC))


def rfc3339(moment: datetime) -> str:
    """Format a moment in UTC with milliseconds: 2026-01-31T14:00:00.000Z."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ms_of(text: str) -> int:
    """Return the milliseconds since 1970 of a time in RFC 3339."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1)


def time_text(ms: int) -> str:
    """Format milliseconds since 1970 as RFC 3339; beyond every calendar a number stays: '9223372036854775807 ms'."""
    try:
        return rfc3339(_EPOCH + timedelta(milliseconds=ms))
    except OverflowError:
        return f"{ms} ms"


def human_time(ms: int | None) -> str:
    """Format milliseconds since 1970 for people: 1700000000000 is "2023-11-14 22:13:20Z"; None is a dash."""
    if ms is None:
        return "-"
    return calendar_text(ms, "%Y-%m-%d %H:%M:%SZ") or f"{ms} ms"


def calendar_text(ms: int, pattern: str) -> str | None:
    """Format milliseconds since 1970 by a pattern of `strftime`; None beyond every calendar."""
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).strftime(pattern)
    except (OverflowError, ValueError):
        return None


def duration_text(seconds: float, units: int = 2) -> str:
    """Format an age or a limit in its largest `units` units: 100 is "1m40s", 93600 "26h", 190800 "2d5h"; "0s" if
    negative. For how long something took there is `text.human_duration`."""
    rest = max(int(seconds), 0)
    parts: list[str] = []
    for unit, length in _UNITS:
        in_hours = unit == "d" and rest < _HOURS_UNTIL and not parts
        if rest >= length and not in_hours:
            parts.append(f"{rest // length:,}{unit}")
            rest %= length
        elif parts:
            break
    return "".join(parts[:units]) or "0s"
