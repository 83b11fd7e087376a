"""pandas in processes that do without it."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HIDDEN = """
import sys
from kbackup.util.pandas_finder import hide_pandas, show_pandas
hide_pandas()
import pyarrow as pa
pa.Table.from_pylist([{"number": 1}]).to_pylist()
assert "pandas" not in sys.modules
try:
    import pandas
except ModuleNotFoundError as error:
    print(error.name)
show_pandas()
import pandas
print(pandas.__name__)
"""


@pytest.mark.exhaustive
def test_hidden_pandas_is_not_imported_and_comes_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HIDDEN], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("pandas\npandas\n", "")
