"""Numbers and names as people read them."""

from __future__ import annotations

import time

from kbackup.util.printable import printable as printable
from kbackup.util.text import plural as plural
from kbackup.util.times import duration_text, ms_of


def human_size(nbytes: float) -> str:
    """1536 is "1.5 KiB"."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1024 or unit == "PiB":
            break
        value /= 1024
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def human_count(number: float) -> str:
    """1234567 is "1,234,567"; from ten million on "12.3M"."""
    if abs(number) < 10_000_000:
        return f"{number:,.0f}"
    for limit, divisor, unit in ((1e9, 1e6, "M"), (1e12, 1e9, "G"), (float("inf"), 1e12, "T")):
        if abs(number) < limit:
            return f"{number / divisor:.1f}{unit}"
    raise ValueError(f"{number} is not a number to count with")


def human_duration(seconds: float) -> str:
    """3725 is "1h02m", 65 is "1m05s", 4 is "4s"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def human_age(moment: str) -> str:
    """Return the age of a time in RFC 3339 in its largest unit: "3h ago"; "0s ago" for a time to come."""
    return f"{duration_text(time.time() - ms_of(moment) / 1000, units=1)} ago"
