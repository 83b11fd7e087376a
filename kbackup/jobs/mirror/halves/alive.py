"""Write signs of life of a flow during a long round, so that `expire` retains the records that it has not applied
yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from threading import Event

from kbackup.errors import KbackupError


@contextmanager
def signs_of_life(
    seconds: float, write: Callable[[], None], warn: Callable[[KbackupError], None]
) -> Iterator[None]:
    """Call `write` every `seconds` while the context is open. A write that fails is repeated `seconds` later;
    `warn` gets its last error at the end. An internal error of `write` is raised at the end."""
    done = Event()

    def beat() -> KbackupError | None:
        refused: KbackupError | None = None
        while not done.wait(seconds):
            try:
                write()
            except KbackupError as error:
                refused = error
        return refused

    with ThreadPoolExecutor(1, "sign-of-life") as pool:
        beating = pool.submit(copy_context().run, beat)  # metrics count for the same archive
        try:
            yield
        finally:
            done.set()
            refused = beating.result()
            if refused is not None:
                warn(refused)
