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
        text = super().formatException(ei)
        return printable_lines(without_credentials(text))


_LEVELS_OF_LIBRARIES = {
    # py4j logs the end of a JVM after Ctrl-C; our errors hold its other messages.
    "py4j": logging.CRITICAL,
    # urllib3 logs a traceback if a connection was cut within headers, although the store asks again.
    "urllib3.connection": logging.ERROR,
    # Azure's logins list all that they tried; our error holds what to do.
    "azure.identity": logging.CRITICAL,
}
"""The levels of libraries that warn of what is no news to the user."""


def configure_logging(verbose: int = 0) -> None:
    """Log to stderr: warnings; with `verbose` 1 kbackup's INFO, with 2 its DEBUG and the libraries' INFO.

    The libraries' DEBUG is never logged: such lines of botocore and librdkafka hold credentials.
    """
    handler = _Stderr()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    are_libraries_logged = verbose > 1
    root_level = logging.INFO if are_libraries_logged else logging.WARNING
    logging.basicConfig(handlers=[handler], level=root_level, force=True)
    levels = {0: logging.WARNING, 1: logging.INFO}
    logging.getLogger("kbackup").setLevel(levels.get(verbose, logging.DEBUG))
    for name, quiet_level in _LEVELS_OF_LIBRARIES.items():
        level = logging.NOTSET if are_libraries_logged else quiet_level
        logging.getLogger(name).setLevel(level)
    # librdkafka logs ten lines a second while a broker is down; our errors hold its last message.
    level_of_librdkafka = logging.WARNING if verbose else logging.CRITICAL
    logging.getLogger("kbackup.librdkafka").setLevel(level_of_librdkafka)
