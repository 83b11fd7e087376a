"""The clock of a flow's heartbeats."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from kbackup.errors import KbackupError, UnreachableError
from kbackup.jobs.mirror import internal
from kbackup.jobs.mirror.flow import Clock
from kbackup.jobs.mirror.internal import HeartbeatClock, InternalTopics
from kbackup.kafka.mirror_records import Heartbeat
from tests.support.fake_groups import FakeCluster, FakeGroups
from tests.support.mirrors import flow_of


class Writer:
    """A target that takes heartbeats, one that refuses them, or one that is silent until `abort`."""

    def __init__(self) -> None:
        self.written: list[tuple[str, Heartbeat, int]] = []
        self.error: BaseException | None = None
        self.silent = False
        self.aborted = threading.Event()
        self.closed = False

    def __call__(self, properties: object, role: str, timeout: float) -> Writer:
        return self

    def write(self, topic: str, records: Sequence[Heartbeat], timestamp: int) -> int:
        if self.silent:
            self.aborted.wait(60)
            raise UnreachableError("purged")
        if self.error is not None:
            raise self.error
        self.written += [(topic, record, timestamp) for record in records]
        return len(records)

    def abort(self) -> None:
        self.aborted.set()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Writer:
    made = Writer()
    monkeypatch.setattr(internal, "RecordWriter", made)
    return made


def clock_of(*, enabled: bool = True, seconds: float = 0.01) -> HeartbeatClock:
    flow = replace(flow_of(), emit_heartbeats=Clock(enabled, seconds))
    return HeartbeatClock(flow, InternalTopics(flow, FakeCluster(FakeGroups()).cluster))


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_the_first_heartbeat_comes_at_once(writer: Writer) -> None:
    with clock_of(seconds=3600) as clock:
        wait_until(lambda: clock.count == 1)
        clock.check()
    ((topic, heartbeat, timestamp),) = writer.written
    assert (topic, heartbeat.source, heartbeat.target) == ("heartbeats", "A", "B")
    assert heartbeat.timestamp == timestamp
    assert abs(timestamp / 1000 - time.time()) < 60
    assert writer.closed


def test_a_flow_without_heartbeats_has_no_thread(writer: Writer) -> None:
    with clock_of(enabled=False) as clock:
        clock.check()
    assert not writer.written


def test_a_failure_is_told_until_a_heartbeat_is_written(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.error = UnreachableError("the target does not answer")
    clock = clock_of()
    errors: list[KbackupError] = []

    def fails() -> bool:
        try:
            clock.check()
        except UnreachableError as error:
            errors.append(error)
        return bool(errors)

    with clock:
        wait_until(fails)
        assert errors == [writer.error]
        writer.error = None
        wait_until(lambda: clock.count > 0)
        clock.check()


def test_an_unexpected_error_ends_the_clock_and_is_told(writer: Writer) -> None:
    writer.error = ZeroDivisionError()
    clock = clock_of()
    with clock:
        wait_until(lambda: writer.closed)
        with pytest.raises(ZeroDivisionError):
            clock.check()


def test_the_clock_stops_while_the_target_is_silent(writer: Writer) -> None:
    writer.silent = True
    clock = clock_of()
    with clock:
        pass
    assert writer.closed
    clock.check()
