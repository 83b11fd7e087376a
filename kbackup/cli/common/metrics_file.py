"""How a command ended, counted; and the file of `--metrics-file`, which is written in any case."""

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


def metrics_file(args: Sequence[str], command: str) -> MetricsFile | None:
    """The file that is asked for, read off the arguments themselves: that they can't be understood is to be counted,
    too. `UsageError` where it can't be written."""
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


def ended(code: int, file: MetricsFile | None) -> int:
    """The exit code: that of the command, unless all went well but the writing of its metrics."""
    counted.end(code)
    if file is None:
        return code
    try:
        file.write(counted.snapshot())
    except OSError as error:
        print(f"kbackup: {printable(f'the metrics were not written: {error}')}", file=sys.stderr)
        return KbackupError.exit_code if code == EXIT_OK else code
    return code
