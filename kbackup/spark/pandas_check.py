"""pyspark's check for pandas, which warns of a pandas that none of kbackup's jobs uses.

Since 4.2, pyspark warns of pandas 3 where it checks for pandas at all. It does so for functions over batches of Arrow,
and when the first object goes to the JVM: what looks there for numpy imports `pyspark.testing.utils`, which checks for
every package that tests of Spark may need.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_TEXT = "PySpark does not yet fully support pandas"
_changing_filters = threading.Lock()


@contextmanager
def without_pandas_warning() -> Iterator[None]:
    """Leave that warning out within the block; a program's own use of pandas in Spark is warned of as before."""
    # Filters are those of the process: two threads at once would leave ours behind.
    with _changing_filters, warnings.catch_warnings():
        warnings.filterwarnings("ignore", _TEXT, FutureWarning)
        yield


def import_checks() -> None:
    """Import the module that checks for packages, before pyspark does."""
    with without_pandas_warning():
        import pyspark.testing.utils  # noqa: F401
