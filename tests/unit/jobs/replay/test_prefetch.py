"""Reading ahead keeps order, errors and bounds."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kbackup.jobs.replay import ahead


def test_prefetch_yields_all_items_in_order() -> None:
    assert list(ahead(range(1000), 2)) == list(range(1000))


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("third")

    got: list[int] = []
    with pytest.raises(ValueError, match="third"):
        got.extend(ahead(items(), 4))
    assert got == [1, 2]


def test_prefetch_keeps_its_depth_and_ends_its_thread_when_closed() -> None:
    made: list[int] = []
    enough = threading.Event()

    def items() -> Iterator[int]:
        for n in range(100):
            made.append(n)
            if n == 3:
                enough.set()
            yield n

    reading = ahead(items(), 3)
    assert next(reading) == 0
    assert enough.wait(5)
    assert len(made) <= 4  # one given, three made meanwhile
    reading.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name == "kbackup-ahead"]
