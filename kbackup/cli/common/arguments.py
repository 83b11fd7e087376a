"""Addresses in an archive, times and windows, as arguments of commands."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kbackup.archive.segments.window import Window
from kbackup.cli.common.output import Reporter
from kbackup.config.windows import ADDRESSES, TIMES, TopicAddress, parse_time
from kbackup.config.windows import parse_address as parse_config_address
from kbackup.errors import UsageError

if TYPE_CHECKING:
    from kbackup.archive.segments.window import Choice


def parse_address(text: str) -> TopicAddress:
    """Parse an address in an archive. Raises `UsageError` if it is invalid."""
    try:
        return parse_config_address(text)
    except ValueError:
        raise UsageError(f"{text} is not an address in an archive", f"give {ADDRESSES}") from None


def parse_partition(text: str | None) -> TopicAddress | None:
    """Parse a topic or a partition, the argument of `kbackup ls`; return None for all topics."""
    if text is None or text == "/":
        return None
    address = parse_address(text)
    if address.ranged:
        raise UsageError(f"{text} names offsets; ls lists segments", "give topic or topic:partition")
    return address


def times_of(from_time: str | None, to_time: str | None) -> Window:
    """Return the window between two times, both included.

    Raises `UsageError` for an invalid time and for an empty window."""
    start = moment_of("--from-time", from_time, up=True)
    end = moment_of("--to-time", to_time)
    if start is not None and end is not None and start > end:
        raise UsageError(
            f"--from-time {from_time} is later than --to-time {to_time}", "give the earlier time as --from-time"
        )
    return Window(from_time=start, to_time=end)


def moment_of(option: str, text: str | None, *, up: bool = False) -> int | None:
    """Return a time in ms since the epoch, None if none is given. Raises `UsageError` if it is invalid."""
    if text is None:
        return None
    try:
        return parse_time(text, int(time.time() * 1000), up=up)
    except ValueError:
        raise UsageError(f"{option} {text} is not a time", f"give {TIMES}") from None


# Show the window of times and offsets that a restore would read.


def show_window(choice: Choice, reporter: Reporter) -> None:
    """Print the bounds and their reasons as notes, and excluded records as warnings."""
    from kbackup.util.times import time_text

    bounds = [
        *([f"from {time_text(choice.from_time)}"] if choice.from_time is not None else []),
        *([f"up to {time_text(choice.to_time)}"] if choice.to_time is not None else []),
    ]
    if bounds:
        reporter.note(f"  records {' '.join(bounds)}, {'both ' if len(bounds) > 1 else ''}included")
    if choice.ranges:
        reporter.note(f"  offsets {', '.join(choice.ranges)}, the end of each range excluded")
    for note in choice.notes:
        reporter.note(f"  {note}")
    for words in choice.left_out:
        reporter.warning(words)
