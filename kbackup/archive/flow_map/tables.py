"""The columns of a flow's offset map."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

_FIELDS: list[pa.Field[Any]] = [
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("incarnation", pa.int32(), nullable=False),
    pa.field("source", pa.int64(), nullable=False),
    pa.field("target", pa.int64(), nullable=False),
    pa.field("count", pa.int64(), nullable=False),
]
SCHEMA = pa.schema(_FIELDS)
"""Runs: record `source + i` of `incarnation` is at `target + i` of the remote `topic` and `partition`, for
0 <= i < `count`."""
