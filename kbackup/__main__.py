"""The command `kbackup`, and `python -m kbackup`."""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run the command line of this process, and return its exit code.

    An interrupt while modules load ends the process at once: there is nothing to clean up yet.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _end)
    from kbackup.cli import main as run
    from kbackup.util.system import reuse_freed_memory

    for number, handler in handlers.items():
        signal.signal(number, handler)
    reuse_freed_memory()
    return run()


def _end(number: int, frame: FrameType | None) -> None:
    """End the process as `InterruptedByUserError` does, without importing the modules that know it."""
    os.write(2, b"kbackup: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
