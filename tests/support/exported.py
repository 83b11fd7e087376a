"""Read the records of exported tables by Spark and pyarrow alone."""

from __future__ import annotations

import io
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kbackup.store.base import Store
from tests.support.truth import Records
from tests.unit.formats.reference import Record, a_record

Exported = dict[tuple[str, int], Records]
"""By topic and incarnation."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def exported(table: pa.Table) -> Exported:
    """The rows of a table, in order of offset; none may be there twice, and each must be of the date that it says."""
    by_offset: dict[tuple[str, int], dict[int, dict[int, Record]]] = defaultdict(lambda: defaultdict(dict))
    for row in table.to_pylist():
        records = by_offset[row["topic"], row["incarnation"]][row["partition"]]
        assert row["offset"] not in records, f"offset {row['offset']} of {row['topic']} is there twice"
        records[row["offset"]] = record_of(row)
    return {
        key: {p: [rows[offset] for offset in sorted(rows)] for p, rows in partitions.items()}
        for key, partitions in by_offset.items()
    }


def record_of(row: dict[str, Any]) -> Record:
    """As `formats/delta.md` says."""
    shown: datetime | None = row["timestamp"]
    stamp = row["rawTimestamp"] if shown is None else round((shown.astimezone(UTC) - _EPOCH) / _MS)
    assert row["date"] == (None if shown is None else shown.astimezone(UTC).date())
    kind = -2 if (row["timestampType"], stamp) == (0, None) else row["timestampType"]
    headers = [(h["key"], h["value"]) for h in row["headers"] or ()]
    if row["rawHeaderKeys"] is not None:
        keys = [key.decode(errors="surrogateescape") for key in row["rawHeaderKeys"]]
        headers = [(key, value) for key, (_, value) in zip(keys, headers, strict=True)]
    return a_record(row["offset"], kind=kind, timestamp=stamp, key=row["key"], value=row["value"], headers=headers)


def parquet_table(store: Store) -> pa.Table:
    """All files of an export of Parquet files; topic and date are from their paths."""
    tables: list[pa.Table] = []
    for entry in store.list("topic="):
        topic, day, _ = (part.rpartition("=")[2] for part in entry.key.split("/"))
        table = pq.read_table(io.BytesIO(store.get(entry.key)))
        of = None if day.startswith("__HIVE") else date.fromisoformat(day)
        table = table.append_column("topic", pa.array([topic] * len(table), pa.string()))
        tables.append(table.append_column("date", pa.array([of] * len(table), pa.date32())))
    return pa.concat_tables(tables)
