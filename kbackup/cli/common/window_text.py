"""Show the window of times and offsets that a restore would read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbackup.cli.common.output import Reporter

if TYPE_CHECKING:
    from kbackup.archive.query.window import Choice


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
