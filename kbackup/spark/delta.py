"""The jars and session settings that Delta tables need, and the settings of s3a for the store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from kbackup.errors import UsageError
from kbackup.spark.jvm import LOCK
from kbackup.store.options import S3Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA = ("io.delta:delta-spark_4.1_2.13:4.3.1",)
"""The release of Delta for the Spark that kbackup depends on."""
_AWS = ("s3", "s3-transfer-manager", "sts", "apache-client")
S3A = ("org.apache.hadoop:hadoop-aws:3.4.2", *(f"software.amazon.awssdk:{name}:2.29.52" for name in _AWS))
"""The s3a of the Hadoop that Spark brings, with the few modules of the AWS SDK that it needs."""
LEFT_OUT = (
    "software.amazon.awssdk:bundle",  # 640 MB; the modules above are 11
    # what Spark brings itself, and what is for other streams and catalogs than these
    *("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime"),
    *("org.apache.parquet:*", "org.apache.logging.log4j:*", "org.apache.httpcomponents:*", "org.slf4j:*"),
    *("com.fasterxml.jackson.core:*", "com.fasterxml.jackson.datatype:*", "commons-codec:*"),
    *("commons-logging:*", "commons-pool:*", "io.netty:*", "org.scala-lang:*", "org.roaringbitmap:*"),
    *("com.github.luben:*", "org.xerial.snappy:*", "io.airlift:*", "org.locationtech.jts:*"),
    *("com.google.code.findbugs:*", "javax.annotation:*", "org.apache.spark:*"),
    *("io.unitycatalog:*", "software.amazon.s3.analyticsaccelerator:*"),
)

DELTA_LOCK = Path(__file__).with_name("delta-jars.sha256")
"""The SHA-256 checksums of all jars that these packages resolve to."""

EXTENSION = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_BROUGHT = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
_RUNTIME = {
    "spark.databricks.delta.snapshotPartitions": "4",  # of 50, each a task: of a table's list of files
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
}
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_TEMPORARY = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"


def session_conf(conf: Mapping[str, str], urls: tuple[str, ...]) -> dict[str, str]:
    """`conf` (`[spark.conf]`) with what Delta tables at `urls` take. Where it names jars itself, none are added."""
    ours = dict(EXTENSION)
    if not any(conf.get(name) for name in _BROUGHT):
        packages = (*DELTA, *(S3A if any(_is_s3(url) for url in urls) else ()))
        ours |= {
            "spark.jars.packages": ",".join(packages),
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
    if not hasattr(spark, "_jvm"):
        raise UsageError("Delta tables take a session of its own, not Spark Connect", "leave spark.remote out")
    jvm: Any = spark._jvm
    extensions = spark.conf.get("spark.sql.extensions", "") or ""
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass("io.delta.tables.DeltaTable")
        extended = "DeltaSparkSessionExtension" in extensions
    except Exception as error:  # py4j's, of a class that is not there
        raise UsageError(
            "Spark has no jars of Delta", f"bring them: spark-submit --packages {DELTA[0]}, see delta.md"
        ) from error
    if not extended:
        raise UsageError(
            "Spark's session is not set up for Delta",
            " ".join(f"--conf {name}={value}" for name, value in EXTENSION.items()),
        )
    session = spark.newSession()
    for name, value in _RUNTIME.items():
        session.conf.set(name, value)
    return session


def table_path(url: str) -> str:
    """Return a path as Hadoop writes it: without a scheme it would be one of the cluster's own file system."""
    if url.startswith("file://"):
        return "file:" + unquote("/" + url.removeprefix("file://").partition("/")[2])
    return "s3a://" + url.partition("://")[2] if _is_s3(url) else f"file:{Path(url).absolute()}"


def hadoop_options(s3: S3Options, url: str, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`[s3]` as options of s3a, for a table at `url`; none for a directory. They go with each read and write, and into
    no setting of the session: nobody sees them on a command line or a page."""
    if not _is_s3(url):
        return {}
    if s3.profile and not s3.access_key_id:
        from kbackup.store.s3.bucket import with_credentials

        s3 = with_credentials(s3)
    endpoint = s3.endpoint_url or next(filter(None, map(env.get, _ENDPOINTS)), "")
    region = s3.region or next(filter(None, map(env.get, _REGIONS)), "")
    path_style = bool(endpoint) if s3.path_style is None else s3.path_style
    given = {
        "endpoint": endpoint,
        "endpoint.region": region or ("us-east-1" if endpoint else ""),
        "connection.ssl.enabled": str(not endpoint.startswith("http:")).lower(),
        "path.style.access": str(path_style).lower(),
        "access.key": s3.access_key_id,
        "secret.key": s3.secret_access_key,
        "session.token": s3.session_token,
        "aws.credentials.provider": _TEMPORARY if s3.session_token else "",
        "encryption.algorithm": {"AES256": "AES256", "aws:kms": "SSE-KMS"}.get(s3.sse, ""),
        "encryption.key": s3.sse_kms_key_id,
        "attempts.maximum": str(s3.max_attempts),
        "connection.establish.timeout": f"{round(s3.connect_timeout * 1000)}ms",
        "connection.timeout": f"{round(s3.read_timeout * 1000)}ms",
        "requester.pays.enabled": str(s3.requester_pays).lower(),
    }
    return {f"fs.s3a.{name}": value for name, value in given.items() if value}


def _is_s3(url: str) -> bool:
    return url.startswith(("s3://", "s3a://"))
