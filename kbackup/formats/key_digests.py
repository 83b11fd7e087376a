"""Digests of the keys of record blocks: 64 bits each, computed by numpy for all records at once.

Equal keys have equal digests. Different keys may share one, by chance or because somebody has made them so: who
compares digests must be safe where that happens.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kbackup.formats.fields import FieldSpans, locate_fields
from kbackup.types import Bytes, RecordBlock

KEYS = np.dtype([("digest", "<u8"), ("offset", "<i8"), ("has_value", "?")])
"""A record with a key: the key's digest, the record's offset, and whether it has a value (a deletion has none)."""

_AT_ONCE = 1 << 20
"""Bytes of keys. The arrays beside them take about sixty times as much."""

# The constants of SplitMix64.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def keys_of(block: RecordBlock, name: str = "record block") -> npt.NDArray[np.void]:
    """Return `KEYS` of the records of a block that have a key. `CorruptError` for records that are none."""
    fields = locate_fields(block, name, 0)
    keyed = np.flatnonzero(fields.keys.length >= 0)
    spans = FieldSpans(fields.keys.start[keyed], fields.keys.length[keyed])
    keys = np.empty(len(keyed), KEYS)
    keys["digest"] = _digests(block.data, spans)
    keys["offset"] = block.offsets[keyed]
    keys["has_value"] = fields.values.length[keyed] >= 0
    return keys


def _digests(data: Bytes, keys: FieldSpans) -> npt.NDArray[np.uint64]:
    """Return the digest of each key."""
    digests = np.empty(len(keys.start), np.uint64)
    for rows in _chunks(keys):
        chunk = FieldSpans(keys.start[rows], keys.length[rows])
        digests[rows] = _chunk_digests(data, chunk)
    return digests


def _chunks(keys: FieldSpans) -> Iterator[slice]:
    """Yield slices of the keys, each of about `_AT_ONCE` bytes, or with one longer key."""
    ends = np.cumsum(keys.length)
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, before + _AT_ONCE, side="right"))
        last = max(last, first + 1)
        yield slice(first, last)
        first = last


def _chunk_digests(data: Bytes, keys: FieldSpans) -> npt.NDArray[np.uint64]:
    """Return for each key the sum over its bytes of a mixed number, made of the byte and its place in the key."""
    sums = _mixed(keys.length.astype(np.uint64))
    # `reduceat` can't sum over no byte.
    filled = np.flatnonzero(keys.length > 0)
    if len(filled):
        lengths = keys.length[filled]
        begins = np.cumsum(lengths) - lengths
        # For each byte of all keys, one after the other: its place in its own key. The arrays between have no names, so
        # that numpy uses their memory again: with names a block takes a tenth longer.
        place = np.arange(int(lengths.sum())) - np.repeat(begins, lengths)
        octets = data[np.repeat(keys.start[filled], lengths) + place]
        marks = (place.astype(np.uint64) + np.uint64(1)) << np.uint64(8) | octets
        sums[filled] += np.add.reduceat(_mixed(marks), begins)
    return _mixed(sums)


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return each number mixed by the finalizer of SplitMix64, which changes half of the bits for each changed bit."""
    mixed = numbers + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))
