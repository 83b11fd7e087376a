"""The data source "kbackup", where Spark searches for data sources: in modules named `pyspark_*`.

So `spark.read.format("kbackup")` works wherever kbackup is installed.
"""

from kbackup.spark.source import KbackupDataSource as DefaultSource

__all__ = ["DefaultSource"]
