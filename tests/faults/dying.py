"""kbackup, made to die at a chosen moment: `python -m tests.faults.dying <kbackup's arguments>`.

The product is wrapped from outside and knows nothing of it: the steps of its jobs, what it writes to a store,
and the commits of its transactions are moments; a `Wish` in the environment says what happens at one of them.
Spark's Python processes are wrapped as well (`tests.faults.dying_daemon`): a moment may lie in a task.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kbackup.__main__ import main
from kbackup.jobs.export.job import DeltaTable, ReadRows
from kbackup.kafka.produce import BlockProducer
from kbackup.metrics.registry import Phases
from kbackup.store.azure.store import AzureStore
from kbackup.store.base import Buffer, Upload
from kbackup.store.file import FileStore
from kbackup.store.gcs.store import GcsStore
from kbackup.store.s3.store import S3Store

_WISH, _COUNTER, _GROUP = "DYING_WISH", "DYING_COUNTER", "DYING_GROUP"

_Kill = Literal["kill job", "kill worker", "kill executor", "kill machine"]
Act = Literal[_Kill, "pause worker", "pause", "interrupt", "terminate", "terminate all"]
When = Literal["before", "after"]


class Wish(NamedTuple):
    """`event` is 'phase <name>', 'write <key>', 'transaction', 'delta commit' or 'rows', with wildcards; the
    `nth` one counts, over all processes of a run.

    'kill job' is SIGKILL to driver, JVM and task; 'kill worker' to the process it happens in, 'kill executor' to the
    JVM that started it, 'kill machine' also to the standalone cluster's worker that started that; 'pause' is SIGSTOP to
    all, 'pause worker' to that process; 'interrupt' is Ctrl-C in the terminal, 'terminate' SIGTERM to the driver,
    'terminate all' to everything it started as well.
    """

    act: Act
    when: When
    event: str
    nth: int = 1

    @property
    def name(self) -> str:
        """Return the name that test ids use."""
        return f"{self.when}-{self.event}-{self.nth}".replace(" ", "-").replace("/", "-").replace("*", "x")

    def environment(self, counter: str) -> dict[str, str]:
        return {_WISH: "|".join(map(str, self)), _COUNTER: counter}


def wished() -> bool:
    """Return whether the environment names a moment at which this process dies."""
    return _WISH in os.environ


def _wish() -> Wish:
    act, when, event, nth = os.environ[_WISH].split("|")
    return Wish(act, when, event, int(nth))  # type: ignore[arg-type]


def reached(when: When, event: str) -> None:
    wish = _wish()
    if when != wish.when or not fnmatchcase(event, wish.event):
        return
    if count(Path(os.environ[_COUNTER])) == wish.nth:
        _ACTS[wish.act]()


def count(file: Path) -> int:
    """Count one more event of all processes, and return the new count."""
    with file.open("ab") as counter:
        fcntl.flock(counter, fcntl.LOCK_EX)
        counter.write(b".")
        counter.flush()
        return counter.tell()


def _signal_job(number: int) -> None:
    """All processes of the driver's session, ourselves last."""
    members = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    for pid in sorted(members, key=lambda pid: pid == os.getpid()):
        with suppress(ProcessLookupError):
            if os.getsid(pid) == int(os.environ[_GROUP]):
                os.kill(pid, number)


def _executor() -> int:
    """Our parent is Spark's Python daemon; its parent the JVM."""
    return _parent(os.getppid())


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])  # proc(5)


def _kill_machine() -> None:
    executor = _executor()
    worker = _parent(executor)
    assert b"deploy.worker.Worker" in Path(f"/proc/{worker}/cmdline").read_bytes(), "not on a standalone cluster"
    for pid in (worker, executor, os.getpid()):
        os.kill(pid, signal.SIGKILL)


_ACTS: dict[str, Callable[[], None]] = {
    "kill job": lambda: _signal_job(signal.SIGKILL),
    "kill worker": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "kill executor": lambda: os.kill(_executor(), signal.SIGKILL),
    "kill machine": _kill_machine,
    "pause worker": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "pause": lambda: _signal_job(signal.SIGSTOP),
    "interrupt": lambda: os.killpg(int(os.environ[_GROUP]), signal.SIGINT),
    "terminate": lambda: os.kill(int(os.environ[_GROUP]), signal.SIGTERM),
    "terminate all": lambda: _signal_job(signal.SIGTERM),
}


class _WatchedUpload(Upload):
    def __init__(self, upload: Upload, key: str) -> None:
        self._upload, self._key = upload, key

    def write(self, data: Buffer) -> None:
        self._upload.write(data)

    def in_parts(self) -> None:
        self._upload.in_parts()

    def abort(self) -> None:
        self._upload.abort()

    def commit(self) -> tuple[int, int]:
        reached("before", f"write {self._key}")
        done = self._upload.commit()
        reached("after", f"write {self._key}")
        return done


def arm() -> None:
    """Wrap the product in this process."""
    setattr(Phases, "step", watched_step(reached))  # noqa: B010 (mypy takes an assignment for a mistake)
    _watch(BlockProducer, "commit", lambda *_: "transaction")
    _watch(DeltaTable, "append", lambda *_: "delta commit")
    _watch(ReadRows, "rows", lambda *_: "rows")
    for store in (FileStore, S3Store, AzureStore, GcsStore):
        for name in ("put", "put_new", "replace"):
            _watch(store, name, lambda key, *_: f"write {key}")
        setattr(store, "upload", _watched_upload(store.upload))  # noqa: B010


def watched_step(reached: Callable[[When, str], None]) -> Callable[[Phases, str], object]:
    """Return `Phases.step` with calls of `reached` before and after each step."""
    plain = Phases.step

    @contextmanager
    def step(self: Phases, name: str) -> Iterator[None]:
        reached("before", f"phase {name}")
        with plain(self, name):
            yield
        reached("after", f"phase {name}")

    return step


def _watch(owner: type, name: str, event: Callable[..., str]) -> None:
    plain = getattr(owner, name)

    def watched(self: object, *arguments: Any) -> Any:
        reached("before", event(*arguments))
        result = plain(self, *arguments)
        reached("after", event(*arguments))
        return result

    setattr(owner, name, watched)


def _watched_upload(plain: Callable[..., Upload]) -> Callable[..., Upload]:
    return lambda self, key: _WatchedUpload(plain(self, key), key)


if __name__ == "__main__":
    os.environ[_GROUP] = str(os.getpgrp())
    arm()
    sys.exit(main())
