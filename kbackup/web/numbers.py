"""Render numbers, sizes and times for people, with the exact value to hover over and to copy (`page.js`)."""

from __future__ import annotations

import time
from datetime import datetime

from markupsafe import Markup

from kbackup.cli.common.human import human_count, human_size
from kbackup.util.times import duration_text, human_time, ms_of, time_text
from kbackup.web.charts.area import Unit

DASH = "\N{EN DASH}"
NONE = Markup('<span class="none">{}</span>').format(DASH)
_COUNT = Markup('<data class="n" value="{}">{}</data>')
_SIZE = Markup('<data class="n" value="{}" title="{} bytes">{}</data>')
_TIME = Markup('<time class="n" datetime="{}" title="{}">{}</time>')


def count(number: int | None) -> Markup:
    return NONE if number is None else _COUNT.format(number, f"{number:,}")


def size(nbytes: int | None) -> Markup:
    return NONE if nbytes is None else _SIZE.format(nbytes, f"{nbytes:,}", human_size(nbytes))


def short(value: int, unit: Unit) -> str:
    """Return the label of a round value on an axis: "512 KiB", "20M", "15m"."""
    if unit == "ms":
        return duration_text(value / 1000)
    return (human_size(value) if unit == "bytes" else human_count(value)).replace(".0", "")


def when(moment: int | str | None) -> Markup:
    """Return the markup of a time in ms since the epoch or in RFC 3339."""
    if moment is None or moment == "":
        return NONE
    try:
        ms = ms_of(moment) if isinstance(moment, str) else moment
    except ValueError:
        return Markup("{}").format(moment)
    return _TIME.format(time_text(ms), f"{ms} ms since 1970, {ago(ms)}", human_time(ms))


def ago(ms: int) -> str:
    seconds = time.time() - ms / 1000
    return f"{duration_text(seconds)} ago" if seconds >= 0 else f"{duration_text(-seconds)} ahead"


def between(start: str, end: str) -> str:
    """Return the duration between two RFC 3339 times."""
    try:
        elapsed = datetime.fromisoformat(end) - datetime.fromisoformat(start)
    except ValueError:
        return DASH
    seconds = elapsed.total_seconds()
    return f"{seconds:.1f}s" if 0 <= seconds < 60 else duration_text(seconds)


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else DASH
