"""Where to look in an archive, as people write it: `orders`, `orders/3`, `orders:3:150`, and from when to when."""

from __future__ import annotations

import re
import time
from typing import NamedTuple

from kbackup.archive.moment import time_text
from kbackup.archive.window import Window
from kbackup.config.windows import TIMES, parse_range, parse_time
from kbackup.errors import UsageError

_PLACE = re.compile(r"([A-Za-z0-9._-]+)(?::([0-9]{1,10})(?::([0-9]{1,19}))?)?\Z")
_PATH = re.compile(r"([A-Za-z0-9._-]+)(?:/([0-9]{1,10}))?/?\Z")

PLACES = "topic, topic:partition, topic:partition:offset or topic:partition:from-to"


class Place(NamedTuple):
    """A topic, or one of its partitions, or offsets `start` (inclusive) to `end` (exclusive, None: all that follow)
    of it. `one`: a single record."""

    topic: str
    partition: int | None = None
    start: int = 0
    end: int | None = None
    one: bool = False

    @property
    def ranged(self) -> bool:
        return self.start > 0 or self.end is not None

    def window(self, times: Window) -> Window:
        if not self.ranged:
            return times
        end = self.end if self.end is not None else 2**63 - 1
        return Window(from_time=times.from_time, to_time=times.to_time, ranges=((self.start, end),))


def parse_place(text: str) -> Place:
    """`UsageError` for what is none."""
    if found := _PLACE.match(text):
        topic, partition, offset = found.groups()
        if offset is not None:
            return Place(topic, int(partition), int(offset), int(offset) + 1, one=True)
        return Place(topic, int(partition) if partition is not None else None)
    try:
        wanted = parse_range(text)
    except ValueError:
        raise UsageError(f"{text} is no place in an archive", f"give {PLACES}") from None
    return Place(wanted.topic, wanted.partition, wanted.start or 0, wanted.end)


def parse_path(text: str | None) -> Place | None:
    """What `kbackup ls` takes; None for all topics. `UsageError` for others."""
    if text is None or text == "/":
        return None
    found = _PATH.match(text)
    if found is None:
        raise UsageError(f"{text} is no path in an archive", "give a topic, or topic/partition")
    return Place(found[1], int(found[2]) if found[2] is not None else None)


def times_of(from_time: str | None, to_time: str | None, at: int | None = None) -> Window:
    """All bounds are included; `at` is one more on the end. `UsageError` where one is no time, and where they leave
    nothing."""
    start = moment_of("--from-time", from_time, up=True) if from_time is not None else None
    end = moment_of("--to-time", to_time) if to_time is not None else None
    last, until = "--to-time", to_time
    if at is not None and (end is None or at < end):
        end, last, until = at, "--at", time_text(at)
    if start is not None and end is not None and start > end:
        raise UsageError(
            f"--from-time {from_time} is later than {last} {until}",
            "both are included, the earlier one first",
        )
    return Window(from_time=start, to_time=end)


def moment_of(option: str, text: str, *, up: bool = False) -> int:
    """ms since the epoch. `UsageError` where it is no time."""
    try:
        return parse_time(text, int(time.time() * 1000), up=up)
    except ValueError:
        raise UsageError(f"{option} {text} is no time", f"give {TIMES}") from None
