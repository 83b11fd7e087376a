"""A call that never comes back is given up, and its producer with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kbackup.errors import ClusterError
from kbackup.kafka import produce
from kbackup.kafka.kernel_protocol import Progress
from kbackup.kafka.produce import BlockProducer
from kbackup.kafka.retry import in_time
from kbackup.types import TopicPartition


def test_a_call_that_ends() -> None:
    done: list[int] = []
    assert in_time(lambda: done.append(1), 60)
    assert done == [1]


def test_errors_of_a_call_are_raised() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        in_time(fail, 60)


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_call_that_does_not(released: threading.Event) -> None:
    assert not in_time(released.wait, 0.01)


def test_a_producer_whose_progress_is_never_taken(
    released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deaf:
        """An outlet that hangs, and must not be asked for anything else then."""

        def send_progress(self, *_: object) -> None:
            released.wait()

    deaf: Any = Deaf()
    monkeypatch.setattr(produce, "OFFSETS_SECONDS", -9.9)
    producer = BlockProducer({"bootstrap.servers": "nowhere:1"}, "id", "group", outlet=lambda *_: deaf)
    producer._open = True
    with pytest.raises(ClusterError, match="did not take the progress"):
        producer.commit({TopicPartition("t", 0): Progress(5, "note")})
    producer.close()
