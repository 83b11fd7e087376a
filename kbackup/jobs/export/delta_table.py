"""Append restore points to one Delta table, each once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbackup.errors import KbackupError, from_text
from kbackup.spark.delta import table_path
from kbackup.spark.gateway import jvm_has_ended
from kbackup.spark.tasks import SparkEndedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def app_id(archive_id: str) -> str:
    """The application of Delta's transactions whose version is the number of a restore point."""
    return f"kbackup-{archive_id}"


@dataclass(frozen=True)
class DeltaTable:
    """`options` are Hadoop's for the store (`delta_session.hadoop_options`)."""

    session: SparkSession
    url: str
    options: Mapping[str, str]

    @property
    def path(self) -> str:
        return table_path(self.url)

    def reached(self, app: str) -> int:
        """The restore point that `app` appended last; 0 where there is none, or no table."""
        transactions = self._snapshot("transactions")
        version = transactions.get(app)
        return int(version.get()) if version.isDefined() else 0

    def append(self, rows: DataFrame, app: str, version: int, note: Mapping[str, object]) -> None:
        """One commit of `rows`, unless `app` has committed `version` or a later one; `note` is its `userMetadata`."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        writer = (
            rows.write.format("delta")
            .mode("append")
            .partitionBy("date")
            .option("txnAppId", app)
            .option("txnVersion", version)
            .option("userMetadata", json.dumps(note))
            .options(**self.options)
        )
        try:
            # in a thread: an interrupt would tear the main one's connection to the JVM, which it takes to cancel this
            with ThreadPoolExecutor(1) as apart:
                apart.submit(writer.save, self.path).result()
        except (Py4JError, PySparkException, ConnectionError) as error:
            raise self._error(error) from None

    def rows(self) -> DataFrame:
        """All of it, as of now, however often it is read."""
        from pyspark.errors import PySparkException

        reader = self.session.read.format("delta").option("versionAsOf", self._snapshot("version"))
        try:
            return reader.options(**self.options).load(self.path)
        except PySparkException as error:
            raise self._error(error) from None

    def _snapshot(self, of: str) -> Any:
        """Return property `of` of Delta's newest snapshot of the table."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        jvm: Any = self.session._jvm
        options = jvm.java.util.HashMap()
        for name, value in self.options.items():
            options.put(name, value)
        try:
            snapshot = jvm.org.apache.spark.sql.delta.DeltaLog.forTableWithSnapshot(
                self.session._jsparkSession,
                jvm.org.apache.hadoop.fs.Path(self.path),
                jvm.PythonUtils.toScalaMap(options),
            )
            return getattr(snapshot._2(), of)()
        except (Py4JError, PySparkException, ConnectionError) as error:
            raise self._error(error) from None

    def _error(self, error: Any) -> KbackupError:
        """Return the error of a task of kbackup, or the first line of Spark's or Delta's error."""
        if isinstance(error, ConnectionError) or jvm_has_ended():
            return SparkEndedError()
        text = str(error)
        known = from_text(text)
        if known is not None:
            return known
        java = getattr(error, "java_exception", None)
        message = str(java.getMessage() or java) if java is not None else text
        line = next((line.strip() for line in message.splitlines() if line.strip()), "?")
        return KbackupError(
            f"Delta table {self.url}: {line}", "run again with --debug to see Spark's own words"
        )
