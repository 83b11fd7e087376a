"""Arrow's large_binary columns made of numpy arrays, and joined row by row: what `record` encodes with.

pyarrow's stubs lag behind it, so what they don't know is typed Any here and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kbackup.types import Bytes, Int64Array

if TYPE_CHECKING:
    Column = pa.Array[Any] | pa.Scalar[Any]


def compute() -> Any:
    """Return pyarrow's functions. Importing them takes a tenth of `kbackup status`, which needs none."""
    import pyarrow.compute

    return pyarrow.compute


def octets(values: npt.NDArray[Any]) -> pa.Buffer:
    """Return the array's memory as an Arrow buffer, without a copy where it is contiguous."""
    contiguous: Any = np.ascontiguousarray(values)
    return pa.py_buffer(contiguous)


def binary(edges: Int64Array, data: pa.Buffer) -> pa.Array[Any]:
    """large_binary[n] over `data`: element i lies from `edges[i]` to `edges[i + 1]`."""
    return pa.Array.from_buffers(pa.large_binary(), len(edges) - 1, [None, octets(edges), data])


def fixed(values: npt.NDArray[Any]) -> pa.Array[Any]:
    """Return the bytes of each element of `values` as large_binary[n]."""
    return binary(np.arange(len(values) + 1, dtype=np.int64) * values.itemsize, octets(values))


def join(*columns: Column) -> tuple[Int64Array, pa.Buffer]:
    """Return the columns' bytes joined row by row, null as nothing: the n + 1 edges of the rows, and their bytes. At
    least one column is an array. Measured 0.1 µs a row of five columns."""
    # Not at import: pyarrow's conversions import pandas, which commands that only read records do without.
    empty = pa.scalar(b"", pa.large_binary())
    joined = compute().binary_join_element_wise(*columns, empty, null_handling="replace", null_replacement=b"")
    _, edges, data = joined.buffers()
    return np.frombuffer(edges, np.int64)[: len(joined) + 1], data or pa.py_buffer(b"")


def view(data: pa.Buffer) -> Bytes:
    """Return the buffer as uint8, without a copy."""
    memory: Any = data
    return np.frombuffer(memory, np.uint8)


def lengths(column: pa.Array[Any]) -> Int64Array:
    """Byte lengths of a large_binary column, -1 for null."""
    return filled(compute().binary_length(column), -1)


def filled(column: pa.Array[Any], value: int) -> npt.NDArray[Any]:
    """Return a column of integers as numpy, with `value` for null."""
    found: npt.NDArray[Any] = compute().fill_null(column, value).to_numpy(zero_copy_only=False)
    return found
