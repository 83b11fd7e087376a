"""The command `kbackup`, and `python -m kbackup`."""

import atexit
import codecs
import gc
import io
import os
import signal
import sys
from contextlib import suppress
from types import FrameType


def main() -> int:
    """Run the command line of this process, and return its exit code.

    An interrupt while modules load ends the process at once: there is nothing to clean up yet.
    """
    gc.set_threshold(20_000)  # with Python's own, a sixth of `kbackup status` looked for garbage in modules just loaded
    ended: list[int] = []
    atexit.register(_leave, ended)  # the first one, which is called last
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _end)
    from kbackup.cli import main as run
    from kbackup.util.system import reuse_freed_memory

    for number, handler in handlers.items():
        signal.signal(number, handler)
    reuse_freed_memory()
    escape_what_the_locale_lacks()
    ended.append(run())
    return ended[0]


def escape_what_the_locale_lacks() -> None:
    """Print characters that the charset of the locale does not have as JSON's escapes, `\\u0433`.

    Python would raise `UnicodeEncodeError` for a group's name, also after a restore that has succeeded. JSON documents
    mean the same with these escapes. stderr has escapes of Python's own.
    """
    codecs.register_error("kbackup-json", _escaped)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="kbackup-json")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    import json

    assert isinstance(error, UnicodeEncodeError)  # noqa: S101 (stdout only encodes)
    signs = error.object[error.start : error.end]
    return json.dumps(signs)[1:-1], error.end


def _leave(ended: list[int]) -> None:
    """End the process with its exit code, once all else is done at its exit, and before Python takes its modules down.

    Threads of native libraries go on meanwhile: one that calls Python then aborts the process of a run that succeeded.
    """
    with suppress(OSError):  # nobody reads any more
        sys.stdout.flush()
        sys.stderr.flush()
        if ended:
            os._exit(ended[0])


def _end(number: int, frame: FrameType | None) -> None:
    """End the process as `InterruptedByUserError` does, without importing the modules that know it."""
    os.write(2, b"kbackup: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
