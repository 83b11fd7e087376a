"""A block's records one by one, for those who print them: found by vector steps, cut out as they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kbackup.formats.layout import Fields, layout
from kbackup.types import RecordBlock


class Row(NamedTuple):
    """A record as it is archived. `timestamp` is in ms, None for the types -1 and -2. Header keys are bytes: Kafka
    takes any."""

    offset: int
    timestamp_type: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


def rows(block: RecordBlock, name: str = "record block", base: int = 0) -> Iterator[Row]:
    """The records in order; `CorruptError`, naming `name`, before the first one where the block is not whole."""
    fields = layout(block, name, base)
    data = block.data.data
    keys, values = _cuts(fields.keys), _cuts(fields.values)
    header_keys, header_values = _cuts(fields.header_keys), _cuts(fields.header_values)
    starts = fields.header_starts.tolist()
    types, timestamps = fields.types.tolist(), fields.timestamps.tolist()

    def cut(span: tuple[int, int]) -> bytes | None:
        start, length = span
        return None if length < 0 else data[start : start + length].tobytes()

    for n, offset in enumerate(block.offsets.tolist()):
        headers = range(starts[n], starts[n + 1])
        yield Row(
            offset,
            types[n],
            timestamps[n] if types[n] >= 0 else None,
            cut(keys[n]),
            cut(values[n]),
            tuple((cut(header_keys[h]) or b"", cut(header_values[h])) for h in headers),
        )


def _cuts(fields: Fields) -> list[tuple[int, int]]:
    return list(zip(fields.start.tolist(), fields.length.tolist(), strict=True))
