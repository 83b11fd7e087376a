"""An export cut off half-way and done again: every record is in its table once, restore point by restore point."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kbackup.archive import layout
from kbackup.errors import KbackupError
from kbackup.jobs.export.destination import Destination
from kbackup.jobs.export.job import DeltaTable, export_delta, export_parquet
from kbackup.spark.delta import delta_session
from kbackup.store.file import FileStore
from tests.conftest import delta_conf
from tests.faults.dying import Wish
from tests.faults.process import run
from tests.support.archives import make_archive
from tests.support.export_jobs import export_job
from tests.support.exported import Exported, exported, parquet_table
from tests.support.truth import archive_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = ("clicks", "orders")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Of an archive of two restore points, and jars from our cache."""
    make_archive(FileStore(tmp_path / "archive"))
    path = tmp_path / "kbackup.toml"
    settings = "\n".join(f'"{name}" = "{value}"' for name, value in delta_conf().items())
    path.write_text(
        f"""
        archive = "{tmp_path}/archive"
        spark.master = "local[1]"
        [spark.conf]
        {settings}
        """
    )
    return path


def held(archive: Path) -> Exported:
    records = {(topic, 1): archive_records(FileStore(archive), topic) for topic in TOPICS}
    return {key: {p: rows for p, rows in by_partition.items() if rows} for key, by_partition in records.items()}


def free_destination(folder: Path) -> None:
    """Delete the lease of a dead export, so that the test need not wait until it runs out."""
    Destination.at(str(folder), {}).own.delete([layout.LOCK])


@pytest.mark.parametrize(
    ("wish", "appended"),
    [
        (Wish("kill job", "before", "rows", 5), 46),  # in the middle of the first commit of orders
        pytest.param(Wish("kill job", "after", "delta commit", 2), 24, marks=pytest.mark.soak),  # orders lags one
    ],
    ids=lambda value: value.name if isinstance(value, Wish) else str(value),
)
def test_an_export_to_delta_tables_goes_on_after_a_kill(
    wish: Wish, appended: int, config: Path, tmp_path: Path, spark: SparkSession
) -> None:
    tables = tmp_path / "tables"
    dead = run(tmp_path / "dead", ["export", "--config", str(config), "--delta", str(tables)], wish)
    assert dead.code == -9, dead.err
    free_destination(tables)
    repeated = export_delta(export_job(FileStore(tmp_path / "archive"), str(tables), lambda: spark))
    assert repeated.records == appended
    session = delta_session(spark)
    rows = [DeltaTable(session, f"{tables}/{topic}", {}).rows().toArrow() for topic in TOPICS]
    assert exported(pa.concat_tables(rows)) == held(tmp_path / "archive")


def test_an_export_to_parquet_files_goes_on_after_a_kill(config: Path, tmp_path: Path, spark: SparkSession) -> None:
    files = tmp_path / "files"
    wish = Wish("kill job", "after", "write topic=*", 3)
    dead = run(tmp_path / "dead", ["export", "--config", str(config), "--parquet", str(files)], wish)
    assert dead.code == -9, dead.err
    assert len(list(files.rglob("*.parquet"))) == 3
    free_destination(files)
    repeated = export_parquet(export_job(FileStore(tmp_path / "archive"), str(files), lambda: spark))
    assert repeated.tables[0].restore_points == (1, 2)
    assert exported(parquet_table(FileStore(files))) == held(tmp_path / "archive")


def test_one_restore_point_by_two_at_the_same_time(tmp_path: Path, spark: SparkSession) -> None:
    """Also without the lease, which keeps them apart as a rule, the number of the restore point does."""
    session = delta_session(spark)
    table = DeltaTable(session, str(tmp_path / "table"), {})

    def append(version: int) -> str:
        rows = session.range(100).selectExpr("id", f"date'2026-01-0{version}' AS date")
        try:
            table.append(rows, "app", version, {"restorePoint": version})
        except KbackupError as error:
            return error.message
        return ""

    assert append(1) == ""
    with ThreadPoolExecutor(2) as pool:
        messages = list(pool.map(append, [2, 2]))
    assert "" in messages
    assert table.rows().groupBy("date").count().toArrow().column("count").to_pylist() == [100, 100]
    assert (table.reached("app"), table.reached("another")) == (2, 0)
