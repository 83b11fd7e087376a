"""Measured work runs in processes of its own: what they are told (a line of JSON) and what they say (lines of JSON).

A child prepares, says {"ready": true}, waits for a line, works, and says what it did.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, cast

from kbackup.errors import KbackupError
from scripts.bench.processes import peak_of

Spec = dict[str, Any]
Words = dict[str, Any]

_ROOT = Path(__file__).parents[2]


class ChildError(KbackupError):
    """A measured process ended before its work was done."""


class Child:
    """A `python -m` process; a context manager that kills what is left of it. `within` comes before it on the command
    line: a command that becomes the one it is given."""

    def __init__(self, module: str, *arguments: str, within: Sequence[str] = ()) -> None:
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        self._name = " ".join((module, *arguments))
        self._process = subprocess.Popen(
            [*within, sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, words: Words) -> None:
        print(json.dumps(words), file=cast(IO[str], self._process.stdin), flush=True)

    def hear(self) -> Words:
        """Return the next message of the process."""
        line = cast(IO[str], self._process.stdout).readline()
        if not line:
            raise ChildError(
                f"{self._name} ended with exit code {self._process.wait()}", "see what it said above"
            )
        return cast(Words, json.loads(line))


@contextmanager
def children(
    specs: Sequence[Spec], module: str, *arguments: str, within: Sequence[str] = ()
) -> Iterator[list[Child]]:
    """A child a spec, all of them prepared and waiting to be told to go."""
    with ExitStack() as stack:
        running = [stack.enter_context(Child(module, *arguments, within=within)) for _ in specs]
        for child, spec in zip(running, specs, strict=True):
            child.tell(spec)
        for child in running:
            child.hear()
        yield running


def receive() -> Spec:
    return cast(Spec, json.loads(sys.stdin.readline()))


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def wait_for_go() -> None:
    say(ready=True)
    sys.stdin.readline()


def serve(work: Callable[[], int]) -> None:
    """In a child: do `work`, which returns its records, when told, and say when (one clock for all processes), at
    what CPU and with how much memory."""
    wait_for_go()
    began, cpu = time.monotonic(), time.process_time()
    records = work()
    ended, used = time.monotonic(), time.process_time() - cpu
    say(records=records, began=began, ended=ended, cpu=used, peak=peak_of(os.getpid()))
