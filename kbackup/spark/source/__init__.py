"""`spark.read.format("kbackup")` and `spark.readStream.format("kbackup")`: archives as tables of records."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from kbackup.spark.source.options import Request


class KbackupDataSource(DataSource):
    """The data source `kbackup`."""

    # Each method imports what it needs: Spark imports this module wherever it looks for data sources.

    @classmethod
    def name(cls) -> str:
        return "kbackup"

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._table = secrets.token_hex(8)

    def schema(self) -> str:
        from kbackup.spark.source.options import COLUMNS

        return ", ".join(f"{name} {COLUMNS[name]}" for name in self._request().columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        from kbackup.spark.source.batch import BatchReader, PushingReader

        request, columns = self._request(), columns_of(schema)
        if request.push_filters:
            return PushingReader(request, columns, self._table)
        return BatchReader(request, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's)
        from kbackup.spark.source.batch import StreamReader

        return StreamReader(self._request(), columns_of(schema))

    def _request(self) -> Request:
        from kbackup.spark.source.options import request_of

        return request_of(self.options)


def columns_of(schema: StructType) -> list[str]:
    """Return the names of a schema; `UsageError` for a column that archives don't have, or have in another type."""
    from kbackup.errors import UsageError
    from kbackup.spark.source.options import COLUMNS

    for field in schema.fields:
        kind = field.dataType.simpleString()
        if kind != COLUMNS.get(field.name):
            columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            raise UsageError(f"an archive has no column {field.name} of type {kind}", f"use the columns {columns}")
    return [field.name for field in schema.fields]
