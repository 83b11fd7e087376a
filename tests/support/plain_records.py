"""Record blocks written field by field, as `formats/README.md` says: a reference for what is done by kernels."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kbackup.formats.block import make_block
from kbackup.types import RecordBlock


class Plain(NamedTuple):
    """`timestamp` in ms, meaningless for the types -1 and -2. Header names are bytes: any may be in an archive."""

    key: bytes | None
    value: bytes | None
    kind: int = 0
    timestamp: int = 1_700_000_000_000
    headers: tuple[tuple[bytes, bytes | None], ...] = ()

    @property
    def restored(self) -> Plain:
        """The record as it is read back from a topic."""
        kind = 0 if self.kind >= 0 else -2
        return self._replace(kind=kind, timestamp=0 if kind else self.timestamp or 1)


def _field(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def encoded(offset: int, record: Plain) -> bytes:
    stamp = struct.pack(">q", record.timestamp) if record.kind >= 0 else b""
    headers = b"".join(_field(name) + _field(value) for name, value in record.headers)
    return b"".join(
        (
            struct.pack(">qi", offset, record.kind),
            stamp,
            _field(record.key),
            _field(record.value),
            struct.pack(">i", len(record.headers)),
            headers,
        )
    )


def block_of(records: Sequence[Plain], offsets: Sequence[int] | None = None) -> RecordBlock:
    """The records at `offsets`, or from 0 on."""
    every = range(len(records)) if offsets is None else offsets
    parts = [encoded(offset, record) for offset, record in zip(every, records, strict=True)]
    lengths = np.array([len(part) for part in parts], np.int64)
    data = np.frombuffer(b"".join(parts), np.uint8)
    positions = np.cumsum(lengths) - lengths
    return make_block(data, np.array(list(every), np.int64), positions, lengths)
