"""The command `kbackup`, and `python -m kbackup`."""

import atexit
import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Runs the command line of this process, and returns its exit code.

    An interrupt while modules load ends the process at once: there is nothing to clean up yet.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _end)
    from kbackup.cli import main as run

    for number, handler in handlers.items():
        signal.signal(number, handler)
    code = run()
    _leave(code)
    return code


def _leave(code: int) -> None:
    """End the process at once, without taking down its modules and native threads one by one.

    Where Spark ran, that takes a third of a second. Handlers of the exit are called."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # the reader has gone: the interpreter's own end says so
        return
    atexit._run_exitfuncs()
    os._exit(code)


def _end(number: int, frame: FrameType | None) -> None:
    """End the process as `InterruptedByUserError` does, without importing the modules that know it."""
    os.write(2, b"kbackup: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
