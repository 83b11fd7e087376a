"""Turn exceptions into kbackup's errors, and print errors on stderr."""

from __future__ import annotations

import sys
import traceback

import click

from kbackup.errors import InterruptedByUserError, KbackupError, UsageError, from_text
from kbackup.util.printable import printable


def as_error(raised: BaseException) -> KbackupError:
    """Return the error to print: kbackup's own, also if it comes in an executor's traceback."""
    if _is_interrupt(raised):
        return InterruptedByUserError("interrupted")
    if isinstance(raised, KbackupError):
        return raised
    if isinstance(raised, click.ClickException):
        context = getattr(raised, "ctx", None)
        path = context.command_path if context else "kbackup"
        return UsageError(raised.format_message().rstrip("."), f"try '{path} --help'")
    if known := from_text(str(raised)):
        return known
    last_line = "".join(traceback.format_exception_only(raised)).strip().partition("\n")[0]
    return KbackupError(f"internal error: {last_line}", "run again with --debug to see the traceback")


def _is_interrupt(raised: BaseException | None) -> bool:
    """Return whether an interrupt caused the exception: Spark's cancelled job raises another one over it."""
    while raised is not None:
        if isinstance(raised, KeyboardInterrupt | click.Abort):
            return True
        raised = raised.__context__
    return False


def print_error(error: KbackupError) -> None:
    """Print the message and the hint of an error."""
    for label, text in (("kbackup", error.message), ("hint", error.hint)):
        if text:
            print(f"{label}: {_lines(text)}", file=sys.stderr)


def _lines(text: str) -> str:
    """Return a text with all lines but the first indented: a line feed in a name can't fake a line of output."""
    first, *others = map(printable, text.split("\n"))
    return "\n".join([first, *(line if line.startswith("  ") else f"  {line}" for line in others)])
