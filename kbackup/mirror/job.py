"""The mirror job: run readers of sources and writers of flows, one after the other or side by side until stopped."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from kbackup.jobs.backup.follow import FollowReport
from kbackup.jobs.common import Stop
from kbackup.metrics.registry import counted
from kbackup.mirror.reader import MirrorReader
from kbackup.mirror.writer import ApplyReport, MirrorWriter

MirrorHalf = MirrorReader | MirrorWriter
HalfReport = FollowReport | ApplyReport

_LOOK = 0.2  # s; signal handlers run between two looks


def run_half(half: MirrorReader | MirrorWriter) -> HalfReport:
    """Run a half to its end. Its metrics count for the archive that it writes or reads."""
    with counted.of_archive(half.archive):
        if isinstance(half, MirrorReader):
            return run_reader(half)
        return run_writer(half)


def run_reader(reader: MirrorReader) -> FollowReport:
    """Take restore points of a source until stopped."""
    return reader.back_up_source()


def run_writer(writer: MirrorWriter) -> ApplyReport:
    """Apply restore points to a target until stopped."""
    return writer.apply_archive()


def run_once(halves: Mapping[str, MirrorHalf]) -> dict[str, HalfReport]:
    """Run each half to its end, one after the other in their order, and return their reports by name. They take and
    apply one restore point if they were stopped before."""
    reports: dict[str, HalfReport] = {}
    for name, half in halves.items():
        reports[name] = run_half(half)
    return reports


def run_until_stopped(
    readers: Mapping[str, MirrorHalf], stop: Stop, writers: Mapping[str, MirrorHalf], writers_stop: Stop
) -> dict[str, HalfReport]:
    """Run all halves side by side until they end, and return their reports by name.

    `readers` must end when `stop` is asked, `writers` when `writers_stop` is: once all of `readers` have ended. Without
    `readers` somebody else asks. The error of the first half that fails is raised once all have ended. An interrupt is
    not kept waiting: the threads end with the process."""
    outcome = HalvesOutcome((stop, writers_stop))
    reading = [HalfThread(name, half, outcome) for name, half in readers.items()]
    writing = [HalfThread(name, half, outcome) for name, half in writers.items()]
    for thread in (*reading, *writing):
        thread.start()
    wait_for_threads(reading)
    if reading:
        # only now: until here the readers have committed restore points, which the writers have still to apply
        writers_stop.ask()
    wait_for_threads(writing)
    if outcome.errors:
        raise outcome.errors[0]
    return outcome.reports


@dataclass
class HalvesOutcome:
    """What the halves of a process have come to so far, in the order in which they ended. `stops` end all of them."""

    stops: tuple[Stop, ...]
    reports: dict[str, HalfReport] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)


class HalfThread(threading.Thread):
    """Runs one half. If the half fails, the others are asked to stop."""

    def __init__(self, half_name: str, half: MirrorHalf, outcome: HalvesOutcome) -> None:
        super().__init__(name=f"kbackup {half_name}", daemon=True)
        self._half_name, self._half, self._outcome = half_name, half, outcome

    def run(self) -> None:
        try:
            self._outcome.reports[self._half_name] = run_half(self._half)
        except BaseException as error:  # noqa: BLE001 (`run_until_stopped` raises it in the thread that waits)
            self._outcome.errors.append(error)
            for stop in self._outcome.stops:
                stop.ask()


def wait_for_threads(threads: list[HalfThread]) -> None:
    """Wait until the threads have ended. Signal handlers run meanwhile: a plain `join` would keep them waiting."""
    for thread in threads:
        while thread.is_alive():
            thread.join(_LOOK)
