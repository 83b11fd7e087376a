"""Keys and values of records as columns: decoded by their schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from kbackup.schemas.decoder import Decoded, Decoder, Undecoded


def json_columns(batch: pa.RecordBatch, decoders: Mapping[str, Decoder]) -> dict[str, pa.Array[Any]]:
    """Return `key_json`, `value_json` and `decode_error` of records in columns of `rows.SCHEMA`: null where a key or
    value is null, or names no schema."""
    headers = [[(h["key"].encode(), h["value"]) for h in row or ()] for row in batch.column("headers").to_pylist()]
    errors: list[list[str]] = [[] for _ in headers]
    columns: dict[str, pa.Array[Any]] = {}
    for part in ("key", "value"):
        texts: list[str | None] = [None] * len(headers)
        if decoder := decoders.get(part):
            for n, data in enumerate(batch.column(part).to_pylist()):
                made = decoder(data, headers[n]) if data is not None else None
                if isinstance(made, Decoded):
                    texts[n] = msgspec.json.encode(made.value).decode()
                elif isinstance(made, Undecoded):
                    errors[n].append(f"{part}: {made.why}")
        columns[f"{part}_json"] = pa.array(texts, pa.string())
    return columns | {"decode_error": pa.array(["; ".join(why) or None for why in errors], pa.string())}
