"""What Spark's JVM and its Python workers write: what of it the user sees, and what keeps a session from its jars."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import deque
from collections.abc import Sequence
from itertools import chain

from kbackup.util.text import join_names, printable_lines

log = logging.getLogger(__name__)

_FIRST_LINE = b":: loading settings ::"
_LAST_LINE = re.compile(rb"\s+\d+ artifacts copied, ")
_ERROR = re.compile(rb'Exception in thread "main" [\w.$]+: (.*)')
_CAUSE = re.compile(rb"\s+(Host \S+ not found|Server access error at url .*)")
_MOST_LINES = 2000
_MOST_CAUSES = 2


class JarResolution:
    """What Ivy says while it fetches the jars of a session (`spark.jars.packages`), which no setting of Spark or Ivy
    turns off: 20 lines if all of them are there, and hundreds for a download. `-v` logs them. Of a failure, `failure`
    has the jar and the reason."""

    def __init__(self) -> None:
        self._under_way = False
        self._lines: deque[bytes] = deque(maxlen=_MOST_LINES)

    def takes(self, line: bytes) -> bool:
        """Take a line of the JVM if it is of the resolution. An empty line is the end of the JVM's output."""
        if line.startswith(_FIRST_LINE):
            self._under_way = True
        if not self._under_way or not line:
            return False
        self._lines.append(line)
        text = line.decode(errors="backslashreplace").rstrip()
        if text:
            log.info("%s", text)
        if _LAST_LINE.match(line):
            self._under_way = False
            self._lines.clear()
        return True

    def unexplained(self) -> list[bytes]:
        """Return the lines of a resolution in which the JVM has ended without an error that `failure` would know."""
        return [] if self.failure() is not None else list(self._lines)

    def failure(self) -> str | None:
        """Return which jar could not be had and why, once the JVM has ended; None if that is not why it has ended."""
        errors: list[str] = []
        causes: list[str] = []
        for line in self._lines:
            error = _ERROR.match(line)
            if error is not None:
                errors.append(_text(error[1]).removeprefix("[").removesuffix("]"))
            cause = _CAUSE.match(line)
            if cause is not None and _text(cause[1]) not in causes:
                causes.append(_text(cause[1]))
        if not errors:
            return None
        return join_names([errors[0], *causes], 1 + _MOST_CAUSES, "; ")


def _text(line: bytes) -> str:
    return printable_lines(line.decode(errors="backslashreplace").strip())


_GREETINGS = (b"Using incubator modules", b"Setting default log level", b"To adjust logging level")

_HANG_UP = re.compile(rb"(EOFError|BrokenPipeError|Connection\w+Error)\b")

_DAEMON_FRAME = b"pyspark/daemon.py"
"""In every traceback of a Python worker: each is forked from pyspark's daemon."""


def pass_on(reading: int, unheard: threading.Event, jars: JarResolution) -> None:
    """Write to stderr the lines that come from the pipe `reading`, until `unheard` is set.

    `jars` keeps what is said of the jars of a session. Greetings are left out, and so are tracebacks of workers whose
    connection to the JVM ended: the JVM has cancelled their task, and knows.
    """
    traceback: list[bytes] = []
    with open(reading, "rb") as lines, os.fdopen(os.dup(2), "wb", buffering=0) as out:
        for line in chain(lines, [b""]):  # the last one, empty, is for what is kept back at the end
            if jars.takes(line):
                continue
            if _belongs_to_traceback(line, traceback):
                traceback.append(line)
                continue
            if not line:
                traceback = [*jars.unexplained(), *traceback]
            if not _is_hang_up(traceback, line) and not unheard.is_set():
                for each in (*traceback, line):
                    if not _is_noise(each):
                        text = printable_lines(each.decode(errors="backslashreplace"))
                        out.write(text.encode())
            traceback.clear()


def _belongs_to_traceback(line: bytes, traceback: Sequence[bytes]) -> bool:
    """Return whether `line` begins a traceback, or goes on with the one that is kept back."""
    if line.startswith(b"Traceback "):
        return True
    # Two workers that print at once mix their lines: the end of the second traceback may come without its beginning.
    return line.startswith(b" ") and (bool(traceback) or _DAEMON_FRAME in line)


def _is_hang_up(traceback: Sequence[bytes], line: bytes) -> bool:
    """Return whether `traceback`, which `line` ends, only tells that a worker's connection to the JVM ended."""
    # A first line alone: its frames came between those of another worker, or the worker was ended right there.
    is_of_worker = len(traceback) == 1 or any(_DAEMON_FRAME in frame for frame in traceback)
    if not is_of_worker:
        return False
    # Where the daemon ends its worker in the middle of the traceback, the stream ends without the error's name.
    return not line or _HANG_UP.match(line) is not None


def _is_noise(line: bytes) -> bool:
    return any(greeting in line for greeting in _GREETINGS)
