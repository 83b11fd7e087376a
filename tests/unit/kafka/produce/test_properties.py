"""The size of a producer's queue."""

from __future__ import annotations

import pytest

from kbackup.kafka.produce import TUNING, queue_kbytes


@pytest.mark.parametrize("batch_size", [1 << 20, 4 << 20, 700, 5000])
def test_queue_is_less_than_two_batches(batch_size: int) -> None:
    assert batch_size < queue_kbytes(batch_size, 0) * 1024 < 2 * batch_size


def test_queue_has_room_for_the_largest_record_twice() -> None:
    largest = 20 << 20
    assert queue_kbytes(1 << 20, largest) * 1024 >= 2 * largest


def test_small_records_fill_less_than_two_batches_too() -> None:
    assert TUNING["queue.buffering.max.messages"] < 2 * TUNING["batch.num.messages"]
