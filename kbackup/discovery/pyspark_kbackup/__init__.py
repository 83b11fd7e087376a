"""Where Spark looks for data sources: modules named `pyspark_*`. So `spark.read.format("kbackup")` is there wherever
kbackup is installed."""

from kbackup.spark.source import KbackupDataSource as DefaultSource

__all__ = ["DefaultSource"]
