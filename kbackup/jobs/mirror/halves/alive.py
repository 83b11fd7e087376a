"""Write signs of life of a flow during a long round, so that `expire` retains the records that it has not applied
yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

from kbackup.errors import StoreError


@contextmanager
def signs_of_life(
    seconds: float, write: Callable[[], None], warn: Callable[[StoreError], None]
) -> Iterator[None]:
    """Call `write` every `seconds` while the context is open. A write that the store refuses is repeated `seconds`
    later; `warn` gets the last refusal at the end. Any other error of `write` is raised at the end."""
    done = Event()

    def beat() -> StoreError | None:
        refused: StoreError | None = None
        while not done.wait(seconds):
            try:
                write()
            except StoreError as error:
                refused = error
        return refused

    with ThreadPoolExecutor(1, "sign-of-life") as pool:
        beating = pool.submit(beat)
        try:
            yield
        finally:
            done.set()
            refused = beating.result()
            if refused is not None:
                warn(refused)
