"""What commands share that work with archives and Spark: the store, and a session that is built when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kbackup.cli.frame import Frame
from kbackup.config import Config
from kbackup.store import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def archive_store(frame: Frame) -> Store:
    """The store of the archive that the command is about."""
    return open_store(frame.archive, frame.config.s3)


@contextmanager
def spark_session(config: Config) -> Iterator[Callable[[], SparkSession]]:
    """A function that gives the session, started at its first call and stopped at the end."""
    made: list[SparkSession] = []

    def session() -> SparkSession:
        if not made:
            from kbackup.spark import build_session

            made.append(build_session(config.spark.master, config.spark.conf, config.spark.task_attempts))
        return made[0]

    try:
        yield session
    finally:
        for built in made:
            built.sparkContext.cancelAllJobs()
            built.stop()
