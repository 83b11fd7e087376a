"""Spark: sessions, tasks and the data source `kbackup`. Notebooks call `register` and `read`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def register(session: SparkSession) -> None:
    """Makes `session.read.format("kbackup")` and `session.readStream.format("kbackup")` known, for where Spark does not
    find them by itself. Takes seconds: Spark starts a Python for it."""
    from kbackup.spark.source import KbackupDataSource

    session.dataSource.register(KbackupDataSource)


def read(session: SparkSession, archive: str, **options: str) -> DataFrame:
    """`session.read.format("kbackup").load(archive)`, where filters on topic, partition, offset, timestamp and segment
    leave unread what they exclude. One thread at a time may make queries of it."""
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    reader = session.read.format("kbackup").options(**options)
    frame = reader.option("pushFilters", "true").load(archive)
    never_null = {"offset", "partition", "topic", "segment", "timestampType"} & set(frame.columns)
    if not never_null:
        return reader.option("pushFilters", "false").load(archive)
    return frame.where(f"{min(never_null)} is not null")  # each query has a filter then
