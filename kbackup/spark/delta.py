"""The jars and session settings that Delta tables need."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kbackup.config import Config
from kbackup.errors import UsageError
from kbackup.spark.jvm import LOCK
from kbackup.store.base import HadoopTables
from kbackup.store.registry import StoreOptions, kind_of, options_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA = ("io.delta:delta-spark_4.1_2.13:4.3.1",)
"""The release of Delta for the Spark that kbackup depends on."""
LEFT_OUT = (
    # 640 MB; the modules of the SDK that Hadoop needs for S3 are 11 MB, and are named by the store.
    "software.amazon.awssdk:bundle",
    # What Spark brings itself.
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.parquet:*",
    "org.apache.logging.log4j:*",
    "org.apache.httpcomponents:*",
    "org.slf4j:*",
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*",
    "commons-codec:*",
    "commons-logging:*",
    "commons-pool:*",
    "io.netty:*",
    "org.scala-lang:*",
    "org.roaringbitmap:*",
    "com.github.luben:*",
    "org.xerial.snappy:*",
    "io.airlift:*",
    "org.locationtech.jts:*",
    "com.google.code.findbugs:*",
    "javax.annotation:*",
    "org.apache.spark:*",
    # What is for other streams and catalogs than these.
    "io.unitycatalog:*",
    "software.amazon.s3.analyticsaccelerator:*",
)

DELTA_LOCK = Path(__file__).with_name("delta-jars.sha256")
"""The SHA-256 checksums of all jars that these packages resolve to."""

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
    itself, none are added."""
    ours = dict(EXTENSION)
    if not any(conf.get(name) for name in _BROUGHT):
        packages = list(DELTA)
        for url in urls:
            packages += tables_of(url).packages
        ours |= {
            "spark.jars.packages": ",".join(dict.fromkeys(packages)),
            "spark.jars.excludes": ",".join(LEFT_OUT),
            LOCK: str(DELTA_LOCK),
        }
    found = ours | dict(conf)
    extensions = conf.get("spark.sql.extensions", "")
    if extensions and EXTENSION["spark.sql.extensions"] not in extensions:
        found["spark.sql.extensions"] = f"{extensions},{EXTENSION['spark.sql.extensions']}"
    return found


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
        raise UsageError(
            "Spark has no jars of Delta", f"bring them: spark-submit --packages {DELTA[0]}, see delta.md"
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
