"""Signs of life of a flow whose round takes long: `expire` keeps what it has not applied yet."""

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
    """Call `write` every `seconds` beside what is done inside. What the store refuses is tried again `seconds` later;
    `warn` is told of the last refusal at the end. Any other error of `write` is raised at the end."""
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
