"""On a standalone cluster: an executor that is killed, and a task that sleeps while Spark runs a twin of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbackup.store.file import FileStore
from scripts.dev.spark import SparkCluster
from tests.faults.conftest import backup_arguments
from tests.faults.dying import Wish
from tests.faults.process import run
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
    return {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


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


def test_a_restore_whose_executor_is_killed(cluster: SparkCluster, shop: Shop, archive: Path, tmp_path: Path) -> None:
    wish, counter = Wish("kill executor", "after", "transaction", 2), tmp_path / "moments"
    trip = Trip(shop, FileStore(archive))
    ended = run(tmp_path / "run", [*trip.arguments, *_on(cluster, wish, counter, {})], wish, _env())
    assert ended.code == 0, ended.err
    assert counter.stat().st_size >= wish.nth, "nothing happened"
    trip.check()
