"""Print the steps of a check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbackup.cli.common.output import Reporter

if TYPE_CHECKING:
    from kbackup.jobs.check.job import Step


def show_step(step: Step, reporter: Reporter) -> None:
    """Print a step in one line, and its hint in a second one."""
    word = step.status.upper() if step.status == "failed" else step.status
    reporter.line(f"{word:<8} {step.name}: {step.detail}")
    if step.hint:
        reporter.line(f"{'':<8}   hint: {step.hint}")
