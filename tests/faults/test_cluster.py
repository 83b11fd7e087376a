"""On a standalone cluster: executors, workers and drivers that are killed, and tasks that sleep while Spark runs twins
of them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbackup.store.file import FileStore
from kbackup.util.system import attempts
from scripts.dev.spark import LIGHT_JVMS, SparkCluster
from tests.faults.conftest import backup_arguments
from tests.faults.dying import Wish
from tests.faults.process import Kbackup, run
from tests.faults.shop import Shop, check_archive
from tests.faults.trip import Trip

ROOT = Path(__file__).parents[2]
_TWINS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.1",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster(workers=2) as running:
        yield running


def _on(cluster: SparkCluster, wish: Wish, counter: Path, conf: dict[str, str]) -> list[str]:
    """Arguments that bring the job, and the wish, to the executors."""
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        **{f"spark.executorEnv.{name}": value for name, value in wish.environment(str(counter)).items()},
        **conf,
    }
    return [f"--master={cluster.url}", *(f"--set=spark.conf.{name}={value}" for name, value in settings.items())]


def _env() -> dict[str, str]:
    return {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, **LIGHT_JVMS}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("wish", "conf"),
    [
        (Wish("kill executor", "before", "write topics/*_records*", 3), {}),
        (Wish("pause worker", "before", "write topics/*_index", 4), _TWINS),
    ],
    ids=lambda value: value.name if isinstance(value, Wish) else "",
)
def test_a_backup_whose_executor(
    wish: Wish, conf: dict[str, str], cluster: SparkCluster, shop: Shop, archive: Path, tmp_path: Path
) -> None:
    counter = tmp_path / "moments"
    arguments = [*backup_arguments(shop, str(archive)), *_on(cluster, wish, counter, conf)]
    ended = run(tmp_path / "run", arguments, wish, _env())
    assert ended.code == 0, ended.err
    assert counter.stat().st_size >= wish.nth, "nothing happened"
    check_archive(FileStore(archive), shop)


@pytest.mark.soak
def test_a_restore_with_a_task_that_sleeps_while_a_twin_runs(
    cluster: SparkCluster, shop: Shop, archive: Path, tmp_path: Path
) -> None:
    wish, counter = Wish("pause worker", "before", "transaction", 2), tmp_path / "moments"
    trip = Trip(shop, FileStore(archive))
    trip.begin(groups=2)
    ended = run(tmp_path / "run", [*trip.arguments, *_on(cluster, wish, counter, _TWINS)], wish, _env())
    assert ended.code == 0, ended.err
    assert counter.stat().st_size >= wish.nth, "nothing happened"
    trip.check()


def test_a_restore_that_loses_its_driver_and_then_a_worker(
    cluster: SparkCluster, shop: Shop, archive: Path, tmp_path: Path
) -> None:
    """The last test: the cluster has one worker less after it."""
    trip = Trip(shop, FileStore(archive))
    trip.begin(groups=2)
    sleeps, first = Wish("pause worker", "after", "transaction", 2), tmp_path / "first"
    with Kbackup(tmp_path / "dead", [*trip.arguments, *_on(cluster, sleeps, first, {})], sleeps, _env()) as dead:
        slept = any(first.exists() and first.stat().st_size >= sleeps.nth for _ in attempts(120, 0.1))
        dead.signal(signal.SIGKILL)
    assert slept, dead.err
    lost, second = Wish("kill machine", "after", "transaction"), tmp_path / "second"
    ended = run(tmp_path / "again", [*trip.arguments, *_on(cluster, lost, second, {})], lost, _env())
    assert ended.code == 0, ended.err
    assert second.stat().st_size > lost.nth, "nothing happened after it"
    trip.check()
