"""Answers that wait for their clients stay within a bound, and keep nothing else in memory."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from contextlib import ExitStack, suppress
from typing import Any, cast

import pytest

from kbackup.serve import server as servers
from kbackup.serve.unsent import UnsentAnswers
from tests.support.serve_client import ServeClient, encoded_request, fetch_request, records_of, served
from tests.unit.serve.made import TOPIC, archive_of, made_records


class KeepingTransport(asyncio.WriteTransport):
    """A transport that keeps what it is given, as those of Python 3.12 do, and of which a client takes some bytes."""

    def __init__(self, taken_at_once: int = 0) -> None:
        super().__init__()
        self.kept: list[bytes | bytearray | memoryview] = []
        self.is_aborted = False
        self._room = taken_at_once

    def write(self, data: bytes | bytearray | memoryview) -> None:
        taken = min(self._room, len(data))
        self._room -= taken
        if taken < len(data):
            self.kept.append(memoryview(data)[taken:])

    def get_write_buffer_size(self) -> int:
        return sum(len(each) for each in self.kept)

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True
        self.kept.clear()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def take(self, size: int) -> None:
        """Let the client take some bytes of the first piece that waits."""
        self.kept[0] = memoryview(self.kept[0])[size:]


def waiting(size: int) -> KeepingTransport:
    """A connection on which so many bytes wait."""
    transport = KeepingTransport()
    transport.write(bytes(size))
    return transport


class Writer:
    """As much of a stream's writer as an answer needs."""

    def __init__(self, transport: KeepingTransport) -> None:
        self.transport = transport
        self.write = transport.write


@pytest.mark.parametrize("taken_at_once", [0, 10, 300_000, 700_000])
def test_what_waits_for_a_slow_client_keeps_no_records_in_memory(taken_at_once: int) -> None:
    unit = bytes(4 << 20)
    records = memoryview(unit)[1 << 20 : 2 << 20]
    held = sys.getrefcount(unit)
    transport = KeepingTransport(taken_at_once)
    servers._write(cast("asyncio.StreamWriter", Writer(transport)), [b"head", records, bytearray(b"between"), b"end"])
    assert transport.get_write_buffer_size() == 4 + len(records) + 7 + 3 - taken_at_once
    assert sys.getrefcount(unit) == held
    assert all(memoryview(each).obj is not unit for each in transport.kept)


def test_an_answer_arrives_as_it_is() -> None:
    transport = KeepingTransport()
    unit = bytes(range(256)) * 5000
    servers._write(cast("asyncio.StreamWriter", Writer(transport)), [bytearray(b"head"), memoryview(unit)[7:], b""])
    assert b"".join(transport.kept) == b"head" + unit[7:]


def test_the_connection_that_waits_longest_is_closed_when_too_much_waits() -> None:
    unsent = UnsentAnswers(100)
    first, second, third = waiting(40), waiting(50), waiting(30)
    unsent.note(first)
    unsent.note(second)
    assert (unsent.bytes, first.is_aborted) == (90, False)
    unsent.note(third)
    assert (first.is_aborted, second.is_aborted, third.is_aborted) == (True, False, False)
    assert unsent.bytes == 80


def test_a_client_that_takes_something_stays() -> None:
    unsent = UnsentAnswers(100)
    slow, silent, third = waiting(40), waiting(50), waiting(50)
    unsent.note(slow)
    unsent.note(silent)
    slow.take(5)
    unsent.note(third)
    assert (slow.is_aborted, silent.is_aborted, third.is_aborted) == (False, True, False)
    assert unsent.bytes == 85


def test_clients_that_have_taken_all_do_not_count() -> None:
    unsent = UnsentAnswers(100)
    done = [waiting(30) for _ in range(3)]
    for each in done:
        unsent.note(each)
        each.kept.clear()
    last = waiting(100)
    unsent.note(last)
    assert unsent.bytes == 100
    assert not any(each.is_aborted for each in [*done, last])
    last.kept.clear()
    unsent.note(last)
    assert unsent.bytes == 0


def test_one_answer_may_be_larger_than_the_bound() -> None:
    unsent = UnsentAnswers(100)
    large = waiting(5000)
    unsent.note(large)
    assert not large.is_aborted
    unsent.forget(large)
    assert unsent.bytes == 0


def test_clients_that_read_nothing_are_sent_away_before_they_fill_the_memory() -> None:
    """Each has asked for many answers. Its socket takes some, and the next one waits."""
    memory = 4 << 20
    store = archive_of(made_records(range(1000), size=1000))
    ask = encoded_request(fetch_request(TOPIC, partition_max_bytes=16 << 20), 12)
    with served(store, memory=memory) as serving, ExitStack() as stack:
        silent = [stack.enter_context(ServeClient(serving)) for _ in range(20)]
        for client in silent:
            client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with suppress(OSError):
                client.stream.sendall(ask * 64)
        until = time.monotonic() + 20
        # Their answers together are larger than the bound. How many fit depends on how the others were served.
        while serving.server.clients == len(silent):
            assert time.monotonic() < until, "all clients are still there"
            assert serving.server.unsent_bytes <= memory // 4
            time.sleep(0.05)
        with ServeClient(serving) as reader:
            assert records_of(reader.fetch(TOPIC).records)[0].offset == 0
        assert serving.server.unsent_bytes <= memory // 4
        assert serving.server.counts.failed == 0
