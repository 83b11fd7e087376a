"""Rows of Spark in the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def collect_arrow(frame: DataFrame) -> pa.Table:
    """Return all rows of a frame.

    pyspark's own `toArrow` leaves its socket to the garbage collector, which warns of that: under `-W error`, a
    program's test ends there. Otherwise this is what it does.
    """
    from pyspark.errors.exceptions.captured import unwrap_spark_exception
    from pyspark.sql.pandas.serializers import ArrowCollectSerializer
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.util import local_connect_and_auth

    java_frame: Any = frame._jdf
    serializer: Any = ArrowCollectSerializer
    address, secret, server = java_frame.collectAsArrowToPython()
    try:
        file, connection = local_connect_and_auth(address, secret)
        with connection, file:
            # How long the rows take is not known: a limit would end a long job.
            connection.settimeout(None)
            *batches, order = serializer().load_stream(file)
    finally:
        # This raises the error that ended the job, if one did.
        with unwrap_spark_exception():
            server.getResult()
    in_order = [batches[number] for number in order]
    return pa.Table.from_batches(in_order, schema=None if in_order else to_arrow_schema(frame.schema))
