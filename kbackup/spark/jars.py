"""The jars that Spark takes for Delta tables: their releases for each release of Spark, and their checksums.

Spark brings a Hadoop, whose s3a must be of the same release, and is built with an AWS SDK, which s3a gets as well.
Delta is built for each minor release of Spark anew.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from kbackup.errors import UsageError
from kbackup.spark.jvm import spark_home


class TableJars(NamedTuple):
    """The releases of Delta, Hadoop's s3a and the AWS SDK for a minor release of Spark."""

    spark: str
    delta: str
    hadoop: str
    aws_sdk: str

    @property
    def delta_package(self) -> str:
        """Delta's package in Maven."""
        return f"io.delta:delta-spark_{self.spark}_2.13:{self.delta}"

    @property
    def s3a_packages(self) -> tuple[str, ...]:
        """The packages of s3a, with the few modules of the AWS SDK that it needs."""
        modules = [f"software.amazon.awssdk:{module}:{self.aws_sdk}" for module in _AWS_MODULES]
        return f"org.apache.hadoop:hadoop-aws:{self.hadoop}", *modules

    @property
    def lock(self) -> Path:
        """The file with the SHA-256 checksums of all jars that these packages resolve to."""
        return Path(__file__).with_name(f"delta-jars-{self.spark}.sha256")

    def packages(self, schemes: set[str]) -> list[str]:
        """Return the packages for tables at addresses with Hadoop's `schemes`."""
        packages = [self.delta_package]
        if "s3a" in schemes:
            packages += self.s3a_packages
        return packages


_AWS_MODULES = ("s3", "s3-transfer-manager", "sts", "apache-client")

TABLE_JARS = {
    jars.spark: jars
    for jars in (
        TableJars(spark="4.0", delta="4.4.0", hadoop="3.4.1", aws_sdk="2.25.53"),
        TableJars(spark="4.1", delta="4.4.0", hadoop="3.4.2", aws_sdk="2.29.52"),
        TableJars(spark="4.2", delta="4.4.0", hadoop="3.5.0", aws_sdk="2.35.4"),
    )
}
"""By the minor release of Spark. After a change: `python -m scripts.dev lock`."""

LEFT_OUT = (
    # 640 MB; the modules of the SDK that Hadoop needs for S3 are 11 MB, and are named above.
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
    # What is for other catalogs than Spark's own.
    "io.unitycatalog:*",
)

_CORE = re.compile(r"spark-core_[\d.]+-(\d+\.\d+.*)\.jar")


def spark_release() -> str:
    """Return the release of Spark that a new session gets, such as 4.1.4: that of `spark_home`."""
    for jar in (spark_home() / "jars").glob("spark-core_*.jar"):
        if found := _CORE.fullmatch(jar.name):
            return found[1]
    # A SPARK_HOME whose jars lie elsewhere: pyspark works with a Spark of its own release alone.
    return version("pyspark")


def table_jars(release: str) -> TableJars:
    """Return the jars for a release of Spark; `UsageError` if there is no release of Delta for it."""
    jars = known_jars(release)
    if jars is None:
        *others, newest = TABLE_JARS
        known = f"{', '.join(others)} or {newest}"
        raise UsageError(
            f"there are no jars of Delta for Spark {release}",
            f"use Spark {known} (pip install 'kafka-kbackup[delta]' takes one), export --parquet files, or name jars "
            "of your own in spark.jars, see delta.md",
        )
    return jars


def known_jars(release: str) -> TableJars | None:
    """Return the jars for a release of Spark; None if there is no release of Delta for it."""
    minor = ".".join(release.split(".")[:2])
    return TABLE_JARS.get(minor)
