"""Encode responses as frames. Records are not copied: they are sent from where they are kept."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from kbackup.serve.protocol import Api, RequestHeader

Piece = bytes | bytearray | memoryview
"""A part of a frame."""

_STAND_IN = secrets.token_bytes(16)
"""Stands for the records of a partition while kafka-python encodes a response, which would copy records three times.
It is random: no name that a client gives is taken for it."""

_LEAST_APART = 16 << 10
"""Bytes of records that are a piece of their own. To copy fewer costs less than another call to send them."""

_FETCH = 1
_LENGTH_BYTES = 4
"""Bytes of a frame's length, and of the length of records in versions of Fetch without compact types."""


def encode_response(api: Api, header: RequestHeader, response: Any) -> list[Piece]:
    """Encode a response as a frame, with its length. The frame comes in pieces, to be sent one after another."""
    records = _take_records(response) if api.key == _FETCH else []
    # The version first: to set it later would look for it in the header.
    response.API_VERSION = header.version
    response.with_header(correlation_id=header.correlation)
    encoded = response.encode(header=True, framed=True)
    if not records:
        return [encoded]
    return _with_records(encoded, records, compact=api.response.flexible_version_q(header.version))


def _take_records(response: Any) -> list[bytes | memoryview]:
    """Put the stand-in in place of the records of each partition that has some. Return these records, in order."""
    taken: list[bytes | memoryview] = []
    for topic in response.responses:
        for partition in topic.partitions:
            if partition.records:
                taken.append(partition.records)
                partition.records = _STAND_IN
    return taken


def _with_records(encoded: bytearray, records: Sequence[bytes | memoryview], *, compact: bool) -> list[Piece]:
    """Put records back in place of the stand-ins of an encoded response."""
    before, *after = encoded.split(_STAND_IN)
    length_of_stand_in = len(_length(_STAND_IN, compact=compact))
    last = before
    pieces: list[bytearray | bytes | memoryview] = [last]
    for data, following in zip(records, after, strict=True):
        del last[-length_of_stand_in:]
        last += _length(data, compact=compact)
        if len(data) < _LEAST_APART:
            last += data
            last += following
        else:
            last = following
            pieces += [data, last]
    size = sum(len(piece) for piece in pieces) - _LENGTH_BYTES
    before[:_LENGTH_BYTES] = size.to_bytes(_LENGTH_BYTES, "big")
    return pieces


def _length(data: bytes | memoryview, *, compact: bool) -> bytes:
    """Return the length of records as it stands before them: compact, it is one more than that, seven bits a byte."""
    if not compact:
        return len(data).to_bytes(_LENGTH_BYTES, "big")
    remaining = len(data) + 1
    encoded = bytearray()
    while remaining > 0x7F:
        encoded.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    encoded.append(remaining)
    return bytes(encoded)
