"""Batches of Arrow: functions of ours over those of a frame, and all rows of a frame in the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BufferedIOBase
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kbackup.spark.pandas_check import without_pandas_warning

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Batches = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(frame: DataFrame, function: Batches, schema: StructType | str) -> DataFrame:
    """Return the frame of the batches that `function` makes of those of each partition."""
    # pyspark makes a function for pandas of it first, and checks for pandas.
    with without_pandas_warning():
        return frame.mapInArrow(function, schema)


def collect_arrow(frame: DataFrame) -> pa.Table:
    """Return all rows of a frame.

    The `toArrow` of pyspark 4.0 and 4.1 leaves its socket to the garbage collector, which warns of that: under
    `-W error`, a program's test ends there. Otherwise this is what it does. What the JVM writes is the same in all
    releases; pyspark's class that reads it is not.
    """
    from pyspark.errors.exceptions.captured import unwrap_spark_exception
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.util import local_connect_and_auth

    java_frame: Any = frame._jdf
    address, secret, server = java_frame.collectAsArrowToPython()
    try:
        file, connection = local_connect_and_auth(address, secret)
        with connection, file:
            # How long the rows take is not known: a limit would end a long job.
            connection.settimeout(None)
            in_order = _read_batches(file)
    finally:
        # This raises the error that ended the job, if one did.
        with unwrap_spark_exception():
            server.getResult()
    return pa.Table.from_batches(in_order, schema=None if in_order else to_arrow_schema(frame.schema))


def _read_batches(file: BufferedIOBase) -> list[pa.RecordBatch]:
    """Read what the JVM writes of a frame: a stream of batches as they come, and the place of each in the frame."""
    with pa.ipc.open_stream(file) as stream:
        batches = list(stream)
    count = _read_int(file)
    if count < 0:
        # The job failed while batches came. Whoever waits for its result gets the error itself.
        text = file.read(_read_int(file))
        raise RuntimeError(text.decode(errors="backslashreplace"))
    return [batches[_read_int(file)] for _ in range(count)]


def _read_int(file: BufferedIOBase) -> int:
    return int.from_bytes(file.read(4), "big", signed=True)
