"""Print which records of an archive a command reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbackup.config.times import shown_time

if TYPE_CHECKING:
    from kbackup.archive.segments.window import Choice, Window
    from kbackup.cli.common.output import Reporter


def show_bounds(times: Choice | Window, reporter: Reporter) -> None:
    """Print between which times records are read, as kbackup has understood them, with their zone."""
    bounds = []
    if times.from_time is not None:
        bounds.append(f"from {shown_time(times.from_time, reporter.time_zone)}")
    if times.to_time is not None:
        bounds.append(f"up to {shown_time(times.to_time, reporter.time_zone)}")
    if bounds:
        both = "both " if len(bounds) > 1 else ""
        reporter.note(f"  records {' '.join(bounds)}, {both}included")


def show_window(choice: Choice, reporter: Reporter) -> None:
    """Print the window that a restore would read: bounds and reasons as notes, excluded records as warnings."""
    show_bounds(choice, reporter)
    if choice.ranges:
        reporter.note(f"  offsets {', '.join(choice.ranges)}, the end of each range excluded")
    if choice.skipped:
        # A skipped offset has no end; the name of its topic may have a hyphen.
        has_ranges = any("-" in each.rpartition(":")[2] for each in choice.skipped)
        kept = ", the end of each range kept" if has_ranges else ""
        reporter.note(f"  without offsets {', '.join(choice.skipped)}{kept}")
    if choice.where:
        reporter.note(f"  only records with {choice.where}")
    for note in choice.notes:
        reporter.note(f"  {note}")
    reporter.warning(*choice.left_out)
