"""The settings of sessions that Delta tables need, their jars among them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kbackup.config import Config
from kbackup.errors import UsageError
from kbackup.spark.jars import LEFT_OUT, TableJars, known_jars, spark_release, table_jars
from kbackup.spark.jvm import LOCK
from kbackup.spark.session import active_session
from kbackup.store.base import HadoopTables
from kbackup.store.registry import StoreOptions, kind_of, options_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT_JARS = Path(sys.prefix, "share", "kbackup", "jars")
"""The folder of an installation that has the jars of its Spark, as the image does. Others let Spark fetch them."""

EXTENSION = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_BROUGHT = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
_RUNTIME = {
    # Of Delta's 50, each of which is a task that reads a part of a table's list of files.
    "spark.databricks.delta.snapshotPartitions": "4",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
}


def delta_config(config: Config, url: str | None) -> Config:
    """Return the configuration with Spark's settings for Delta tables at `url`; unchanged without tables."""
    if not url:
        return config
    spark = msgspec.structs.replace(config.spark, conf=session_conf(config.spark.conf, (url,)))
    return msgspec.structs.replace(config, spark=spark)


def session_conf(conf: Mapping[str, str], urls: tuple[str, ...]) -> dict[str, str]:
    """Return `conf` (`[spark.conf]`) with the settings that Delta tables at `urls` need. Where `conf` names jars
    itself, none are added. `UsageError` if there are no jars for the Spark that a session would get."""
    ours = dict(EXTENSION)
    schemes = {tables_of(url).scheme for url in urls}
    jars = None if any(conf.get(name) for name in _BROUGHT) else _jars_of_new_session()
    if jars is not None:
        ours |= _jar_settings(jars, schemes)
    found = ours | dict(conf)
    extensions = conf.get("spark.sql.extensions", "")
    if extensions and EXTENSION["spark.sql.extensions"] not in extensions:
        found["spark.sql.extensions"] = f"{extensions},{EXTENSION['spark.sql.extensions']}"
    return found


def _jars_of_new_session() -> TableJars | None:
    """Return the jars for the Spark that a new session gets; None if there are none, and Spark runs already: whoever
    started it has brought jars, or `delta_session` says that they are missing."""
    release = spark_release()
    runs_already = "PYSPARK_GATEWAY_PORT" in os.environ or active_session() is not None
    return known_jars(release) if runs_already else table_jars(release)


def _jar_settings(jars: TableJars, schemes: set[str]) -> dict[str, str]:
    """Return the settings by which Spark gets `jars`: it fetches them, unless this installation has them."""
    kept = sorted(str(jar) for jar in KEPT_JARS.glob("*.jar"))
    if kept:
        # Fetching takes a network, and a home that can be written: pods often have neither.
        return {"spark.jars": ",".join(kept), LOCK: str(jars.lock)}
    return {
        "spark.jars.packages": ",".join(jars.packages(schemes)),
        "spark.jars.excludes": ",".join(LEFT_OUT),
        LOCK: str(jars.lock),
    }


def delta_session(spark: SparkSession) -> SparkSession:
    """Return a session of its own on the same context, tuned for tables: kbackup's own jobs are tuned for plans of one
    stage. `UsageError` if the JVM has no Delta."""
    jvm: Any = spark._jvm
    extensions = spark.conf.get("spark.sql.extensions", "") or ""
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass("io.delta.tables.DeltaTable")
        extended = "DeltaSparkSessionExtension" in extensions
    except Exception as error:
        # py4j's error for a class that is not there.
        package = table_jars(spark.version).delta_package
        raise UsageError(
            "Spark has no jars of Delta", f"bring them: spark-submit --packages {package}, see delta.md"
        ) from error
    if not extended:
        options = " ".join(f"--conf {name}={value}" for name, value in EXTENSION.items())
        raise UsageError("Spark's session is not set up for Delta", options)
    session = spark.newSession()
    for name, value in _RUNTIME.items():
        session.conf.set(name, value)
    return session


def tables_of(url: str) -> HadoopTables:
    """Return how Spark reaches tables at `url`; `UsageError` where it can't."""
    kind = kind_of(url)
    if kind.tables is None:
        raise UsageError(
            f"no Delta tables can be written to {url}",
            "export --parquet files there, or Delta tables to S3 or a directory",
        )
    return kind.tables


def table_path(url: str) -> str:
    """Return an address as Hadoop writes it: Hadoop would look for one without a scheme in the cluster's own file
    system."""
    return tables_of(url).path(url)


def hadoop_options(stores: StoreOptions, url: str) -> dict[str, str]:
    """Return Hadoop's options for a table at `url`. They go with each read and write, and into no setting of the
    session: nobody sees them on a command line or a page."""
    options = options_for(kind_of(url), stores)
    return tables_of(url).options(options, url)
