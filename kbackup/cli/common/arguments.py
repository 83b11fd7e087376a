"""Addresses in an archive and times, as arguments of commands."""

from __future__ import annotations

import time

from kbackup.archive.query.window import Window
from kbackup.config.windows import ADDRESSES, TIMES, Address, parse_time
from kbackup.config.windows import parse_address as parsed
from kbackup.errors import UsageError
from kbackup.util.times import time_text


def parse_address(text: str) -> Address:
    """`UsageError` for what is none."""
    try:
        return parsed(text)
    except ValueError:
        raise UsageError(f"{text} is not an address in an archive", f"give {ADDRESSES}") from None


def parse_partition(text: str | None) -> Address | None:
    """What `kbackup ls` takes: a topic or a partition; None for all topics. `UsageError` for others."""
    if text is None or text == "/":
        return None
    address = parse_address(text)
    if address.ranged:
        raise UsageError(f"{text} names offsets; ls lists segments", "give topic or topic:partition")
    return address


def window_of(address: Address | None, times: Window) -> Window:
    """`times`, and the offsets of `address` where it names some."""
    if address is None or not address.ranged:
        return times
    end = address.end if address.end is not None else 2**63 - 1
    return Window(from_time=times.from_time, to_time=times.to_time, ranges=((address.start or 0, end),))


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
