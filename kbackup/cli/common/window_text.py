"""What was chosen for a window in time or in offsets, and why, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbackup.cli.common.output import Reporter

if TYPE_CHECKING:
    from kbackup.archive.query.window import Choice


def show_choice(choice: Choice, reporter: Reporter) -> None:
    """Notes say why; what is left out is a warning."""
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
