"""Kill runs at random moments, repeat them and compare, by a seed. `scripts.soak.kills` runs many rounds, CI a few."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kbackup.jobs.verify import verify
from kbackup.store.base import Store
from tests.faults.conftest import Counting, backup_arguments, free_lease
from tests.faults.dying import Wish
from tests.faults.process import Ended, Kbackup, run
from tests.faults.shop import Shop, check_archive, sell
from tests.faults.trip import Trip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LONGEST = 9.0  # s into a run, for kills by the clock: from its first import to after its end
_AGAIN = 0.3  # how often the second run is killed as well
_PHASES = ("plan", "preflight", "schemas", "create topics", "run", "groups", "report")
_EVENTS: Mapping[str, Sequence[tuple[str, int]]] = {
    "backup": (
        *((f"phase {name}", 1) for name in ("discover", "plan", "run", "commit", "refresh derived files")),
        ("write catalog/*", 4),
        ("write tables/*", 3),
        ("write topics/*_records*", 12),
        ("write topics/*_index", 12),
        ("write points/*", 3),
        ("write topics/*/index_partition_*", 4),
        ("write topics/*/consumer_offsets_*", 3),
    ),
    "restore": (*((f"phase {name}", 1) for name in _PHASES), ("transaction", 12), ("write restores/*", 12)),
}
"""The events of a run, and how often each happens at least: a kill is before or after the nth of one."""


class Kill(NamedTuple):
    """Round `number`: `job` (backup, follow or restore) is killed `how`."""

    number: int
    job: str
    how: str
    ended: tuple[int, ...]
    """The exit codes of the runs that were to be killed: 0 where one was faster."""


@dataclass
class KillLoop:
    """`store` as `url` and `env` name it for a process; `spark` for what is checked in this one."""

    shop: Shop
    store: Store
    env: Mapping[str, str]
    folder: Path
    spark: Callable[[], SparkSession]
    seed: int
    rounds: int = 0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def begin(self) -> None:
        """Commit the first restore point."""
        self._finish(self._backup)

    def round(self, job: str) -> Kill:
        """Run one round; raises AssertionError for any difference."""
        self.rounds += 1
        sell(self.shop, self._random.randrange(20, 300))
        trip = Trip(self.shop, self.store)
        arguments = trip.arguments if job == "restore" else self._backup
        how, code = self._kill_follower() if job == "follow" else self._kill(job, arguments)
        codes = [code]
        while self._random.random() < _AGAIN:
            next_kill, code = self._kill("restore" if job == "restore" else "backup", arguments)
            how, codes = f"{how}, {next_kill}", [*codes, code]
        self._finish(arguments)
        if job == "restore":
            trip.check()
        else:
            check_archive(self.store, self.shop)
        report = verify(self.store, "all", False, self.spark, Counting())
        assert not report.findings, report.findings
        return Kill(self.rounds, job, how, tuple(codes))

    @property
    def _backup(self) -> list[str]:
        registries = self.shop.registries
        flags = [] if registries is None else [f"--schema-registry={registries[0].url}"]
        return [*backup_arguments(self.shop, self.store.url), *flags]

    def _kill(self, job: str, arguments: Sequence[str]) -> tuple[str, int]:
        """Kill one run at random; return how it was killed, and its exit code."""
        free_lease(self.store)
        if self._random.random() < 0.5:
            return self._kill_at_a_moment(arguments)
        event, most = self._random.choice(_EVENTS[job])
        when = self._random.choice(("before", "after"))
        act = "kill worker" if event.startswith(("write topics/*_", "transaction")) else "kill job"
        act = act if self._random.random() < 0.5 else "kill job"
        wish = Wish(act, when, event, self._random.randint(1, most))  # type: ignore[arg-type]
        ended = run(self._next_folder(), arguments, wish, self.env)
        assert ended.code in ((0,) if act == "kill worker" else (0, -signal.SIGKILL)), ended.err
        return f"{act} {wish.name}", ended.code

    def _kill_at_a_moment(self, arguments: Sequence[str]) -> tuple[str, int]:
        moment = self._random.uniform(0, _LONGEST)
        with Kbackup(self._next_folder(), arguments, None, self.env) as process:
            time.sleep(moment)
            process.signal(signal.SIGKILL)
            ended = process.wait()
        assert ended.code in (0, -signal.SIGKILL), ended.err
        return f"kill job after {moment:.2f} s", ended.code

    def _kill_follower(self) -> tuple[str, int]:
        """Kill a following backup while records arrive: between two of its restore points, or within one."""
        free_lease(self.store)
        moment = self._random.uniform(_LONGEST / 2, 2 * _LONGEST)
        arguments = [*self._backup, "--follow", "--interval=1s"]
        with Kbackup(self._next_folder(), arguments, None, self.env) as process:
            time.sleep(moment / 2)
            sell(self.shop, self._random.randrange(20, 100))
            time.sleep(moment / 2)
            process.signal(signal.SIGKILL)
            ended = process.wait()
        assert ended.code == -signal.SIGKILL, ended.err
        return f"kill follower after {moment:.2f} s", ended.code

    def _finish(self, arguments: Sequence[str]) -> Ended:
        free_lease(self.store)
        ended = run(self._next_folder(), arguments, None, self.env)
        assert ended.code == 0, ended.err
        return ended

    def _next_folder(self) -> Path:
        return self.folder / f"run-{time.monotonic_ns()}"
