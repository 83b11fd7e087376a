"""Spark: sessions, tasks and the data source `kbackup`. Notebooks call `register` and `read`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def register(session: SparkSession) -> None:
    """Make `session.read.format("kbackup")` and `session.readStream.format("kbackup")` known where Spark does not find
    them by itself. This takes seconds: Spark starts a Python for it."""
    from kbackup.spark.source import KbackupDataSource

    session.dataSource.register(KbackupDataSource)


def read(session: SparkSession, archive: str, **options: str) -> DataFrame:
    """Return the frame of `session.read.format("kbackup").load(archive)`, where filters on topic, partition, offset,
    timestamp and segment leave unread what they exclude. One thread at a time may make queries of the frame."""
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    reader = session.read.format("kbackup").options(**options)
    frame = reader.option("pushFilters", "true").load(archive)
    never_null = {"offset", "partition", "topic", "segment", "timestampType"} & set(frame.columns)
    if not never_null:
        return reader.option("pushFilters", "false").load(archive)
    # Each query has a filter then: Spark 4.1 reuses the filters of the last query for one without any.
    return frame.where(f"{min(never_null)} is not null")
