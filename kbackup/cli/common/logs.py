"""Configure the log on stderr."""

from __future__ import annotations

import logging
import sys
from typing import Any

from kbackup.errors import without_credentials
from kbackup.util.text import printable, printable_lines


class _Stderr(logging.Handler):
    """Writes to the present sys.stderr: a progress bar replaces it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except (OSError, ValueError):
            self.handleError(record)


class _Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        record.message = printable(without_credentials(record.message))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 (logging's name)
        return printable_lines(without_credentials(super().formatException(ei)))


def configure_logging(verbose: int = 0) -> None:
    """Log to stderr: warnings; with `verbose` 1 kbackup's INFO, with 2 its DEBUG and the libraries' INFO.

    The libraries' DEBUG is never logged: those of botocore and librdkafka hold credentials.
    """
    handler = _Stderr()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO if verbose > 1 else logging.WARNING, force=True)
    levels = {0: logging.WARNING, 1: logging.INFO}
    logging.getLogger("kbackup").setLevel(levels.get(verbose, logging.DEBUG))
    # py4j logs the end of a JVM after Ctrl-C; our errors hold its other messages
    logging.getLogger("py4j").setLevel(logging.NOTSET if verbose > 1 else logging.CRITICAL)
    # urllib3 logs a traceback where a connection was cut within headers, which the store asks for again
    logging.getLogger("urllib3.connection").setLevel(logging.NOTSET if verbose > 1 else logging.ERROR)
    # Azure's logins list all that they tried; our error holds what to do
    logging.getLogger("azure.identity").setLevel(logging.NOTSET if verbose > 1 else logging.CRITICAL)
    # librdkafka logs ten lines a second while a broker is down; our errors hold its last message
    logging.getLogger("kbackup.librdkafka").setLevel(logging.WARNING if verbose else logging.CRITICAL)
