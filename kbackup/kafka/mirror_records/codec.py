"""Records of MirrorMaker 2's internal topics, byte for byte as its Java classes write and read them.

All integers are big-endian; a string is its length in bytes (int16) and UTF-8. A key has no version. The value of a
heartbeat or a checkpoint begins with its version, 0 (int16). No value is ever null: Java's `RemoteClusterUtils` fails
at a tombstone.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kbackup.errors import UndecodableError
from kbackup.types import TopicPartition

_VERSION = 0
_LONGEST = 0x7FFF  # bytes of a string


class Heartbeat(NamedTuple):
    """A sign of life of the flow `source->target`; `timestamp` in ms since the epoch."""

    source: str
    target: str
    timestamp: int

    @property
    def key(self) -> bytes:
        return _string(self.source) + _string(self.target)

    @property
    def value(self) -> bytes:
        return struct.pack(">hq", _VERSION, self.timestamp)

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> Heartbeat:
        """`UndecodableError` for bytes that are no heartbeat."""
        fields, data = _Reader(key, "key of a heartbeat"), _Reader(value, "value of a heartbeat")
        source, target = fields.string(), fields.string()
        data.version()
        return cls(source, target, data.int64())


class Checkpoint(NamedTuple):
    """A group's committed offset in the source (`upstream`) and the same position in the target (`offset`). `tp` is
    the target's partition."""

    group: str
    tp: TopicPartition
    upstream: int
    offset: int
    metadata: str

    @property
    def key(self) -> bytes:
        return _string(self.group) + _string(self.tp.topic) + struct.pack(">i", self.tp.partition)

    @property
    def value(self) -> bytes:
        return struct.pack(">hqq", _VERSION, self.upstream, self.offset) + _string(self.metadata)

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> Checkpoint:
        """`UndecodableError` for bytes that are no checkpoint."""
        fields, data = _Reader(key, "key of a checkpoint"), _Reader(value, "value of a checkpoint")
        group, topic, partition = fields.string(), fields.string(), fields.int32()
        data.version()
        return cls(group, TopicPartition(topic, partition), data.int64(), data.int64(), data.string())


class OffsetSync(NamedTuple):
    """The record at offset `upstream` of the source's partition `tp` is at `offset` of the target's."""

    tp: TopicPartition
    upstream: int
    offset: int

    @property
    def key(self) -> bytes:
        return _string(self.tp.topic) + struct.pack(">i", self.tp.partition)

    @property
    def value(self) -> bytes:
        return struct.pack(">qq", self.upstream, self.offset)

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> OffsetSync:
        """`UndecodableError` for bytes that are no offset sync."""
        fields, data = _Reader(key, "key of an offset sync"), _Reader(value, "value of an offset sync")
        topic, partition = fields.string(), fields.int32()
        return cls(TopicPartition(topic, partition), data.int64(), data.int64())


MirrorRecord = Heartbeat | Checkpoint | OffsetSync


def fits(text: str) -> bool:
    """Return whether a string can stand in a record."""
    return len(text.encode()) <= _LONGEST


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


class _Reader:
    """Takes fields off the front of `data`. What follows the last field is ignored, as Java's `Struct` does."""

    def __init__(self, data: bytes, name: str) -> None:
        self._data, self._name, self._at = data, name, 0

    def int64(self) -> int:
        return int(self._unpack(">q", 8))

    def int32(self) -> int:
        return int(self._unpack(">i", 4))

    def version(self) -> None:
        version = self._unpack(">h", 2)
        if version != _VERSION:
            raise UndecodableError(f"{self._name}: unknown version {version}")

    def string(self) -> str:
        length = self._unpack(">h", 2)
        if length < 0:
            raise UndecodableError(f"{self._name}: a string has the length {length}")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise UndecodableError(f"{self._name}: a string is not UTF-8") from None

    def _unpack(self, form: str, size: int) -> int:
        (number,) = struct.unpack(form, self._take(size))
        return int(number)

    def _take(self, size: int) -> bytes:
        data = self._data[self._at : self._at + size]
        if len(data) < size:
            raise UndecodableError(f"{self._name}: {len(self._data)} bytes are too few")
        self._at += size
        return data
