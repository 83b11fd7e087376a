"""Count the end of a command, and write the file of `--metrics-file`, also after an error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbackup.cli.common.human import printable
from kbackup.errors import EXIT_OK, KbackupError
from kbackup.metrics.registry import counted

if TYPE_CHECKING:
    from kbackup.metrics.exposition import MetricsFile

OPTION = "--metrics-file"


def requested_metrics_file(args: Sequence[str], command: str) -> MetricsFile | None:
    """Return the file of `--metrics-file`, or None. Raises `UsageError` if it can't be written.

    Reads the raw arguments: a command line that click can't parse is counted, too."""
    path = ""
    for at, argument in enumerate(args):
        if argument == OPTION:
            path = "".join(args[at + 1 : at + 2])
        elif argument.startswith(f"{OPTION}="):
            path = argument.partition("=")[2]
    if not path:
        return None
    from kbackup.metrics.exposition import MetricsFile

    return MetricsFile(path, command)


def finish_metrics(code: int, file: MetricsFile | None) -> int:
    """Count the end, write the metrics and return the exit code: an error if only writing the metrics failed."""
    counted.end(code)
    if file is None:
        return code
    try:
        file.write(counted.snapshot())
    except OSError as error:
        print(f"kbackup: {printable(f'the metrics were not written: {error}')}", file=sys.stderr)
        return KbackupError.exit_code if code == EXIT_OK else code
    return code
