"""Writing records of internal topics while nobody answers."""

from __future__ import annotations

import threading
import time

import pytest

from kbackup.errors import UnreachableError
from kbackup.kafka.mirror_records import Heartbeat, RecordWriter

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}
RECORD = Heartbeat("A", "B", 1)


def test_a_record_that_nobody_takes_is_an_error_and_the_next_one_is_tried() -> None:
    with RecordWriter(NOBODY, "target", timeout=0.3) as writer:
        for _ in range(2):
            with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1 .* writing to topic heartbeats"):
                writer.write("heartbeats", [RECORD])


def test_nothing_to_write_needs_no_answer() -> None:
    with RecordWriter(NOBODY, "target") as writer:
        assert writer.write("heartbeats", []) == 0


def test_a_write_is_aborted_from_another_thread() -> None:
    writer = RecordWriter(NOBODY, "target", timeout=300)
    errors: list[BaseException] = []

    def write() -> None:
        try:
            writer.write("heartbeats", [RECORD])
        except BaseException as error:  # noqa: BLE001 (looked at below)
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    until = time.monotonic() + 60
    while thread.is_alive() and time.monotonic() < until:
        writer.abort()
        thread.join(0.05)
    assert not thread.is_alive()
    assert "writing to topic heartbeats" in str(errors[0])
