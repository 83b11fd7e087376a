"""The real command line in a process of its own: started, stopped, and waited for with all that it started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from scripts.dev.process import HANG
from tests.faults.dying import Wish

_ROOT = Path(__file__).parents[2]
_DAEMON = ("--set", "spark.conf.spark.python.daemon.module=tests.faults.dying_daemon")


class Ended(NamedTuple):
    """`code` is negative where a signal ended it."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Return the document that `--json` printed."""
        return json.loads(self.out)


class Kbackup:
    """A context manager: nothing of the run outlives it. Its processes are those of one session (Spark's
    Python daemon has a process group of its own)."""

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str],
        wish: Wish | None = None,
        env: Mapping[str, str] | None = None,
        module: str | None = None,
    ) -> None:
        """`module` is another one than kbackup, which looks for the wish itself."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        extra: tuple[str, ...] = () if wish is None or module is not None else _DAEMON
        module = module or ("kbackup" if wish is None else "tests.faults.dying")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("KBACKUP_", "AWS_"))}
        environment |= {"PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
        environment |= env or {}
        if wish is not None:
            environment |= wish.environment(str(folder / "moments"))
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            self._child = subprocess.Popen(
                [sys.executable, "-m", module, *arguments, *extra],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.signal(signal.SIGKILL)
        self._child.wait()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def wait(self) -> Ended:
        """Wait until the command and all its processes have ended."""
        code = self._child.wait(HANG)
        end = time.monotonic() + HANG
        while self._members():
            assert time.monotonic() < end, f"processes outlive the command: {self._members()}\n{self.err}"
            time.sleep(0.05)
        return Ended(code, (self._folder / "out").read_text(), self.err)

    @property
    def err(self) -> str:
        return (self._folder / "err").read_text()

    def stacks(self) -> str:
        """End the process, and return its stderr with the stacks of its threads."""
        os.kill(self.pid, signal.SIGABRT)
        self._child.wait(HANG)
        return self.err

    def wait_paused(self) -> None:
        """Wait until the process has paused, as its `Wish` says."""
        end = time.monotonic() + HANG
        while _stat(self.pid)[0] != "T":
            assert self._child.poll() is None, f"it ended instead of pausing:\n{self.err}"
            assert time.monotonic() < end, f"it did not pause:\n{self.err}"
            time.sleep(0.05)

    def signal(self, number: int) -> None:
        """Send a signal to each process of the run."""
        for pid in self._members():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def _members(self) -> list[int]:
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        return [pid for pid in pids if _stat(pid)[3:4] == [str(self.pid)] and _stat(pid)[0] not in ("Z", "X")]


def _stat(pid: int) -> list[str]:
    """State, parent, group, session, ... of a process (proc(5)); a dead one's for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["X"]


def run(
    folder: Path, arguments: Sequence[str], wish: Wish | None = None, env: Mapping[str, str] | None = None
) -> Ended:
    with Kbackup(folder, arguments, wish, env) as process:
        return process.wait()
