"""Reads records of `__transaction_state` and `__consumer_offsets`, by Kafka's own definitions: TransactionLogValue and
OffsetCommitValue, with their keys.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from kbackup.kafka.cursor import Cursor
from kbackup.types import CommittedOffset, TopicPartition

_INT16, _INT32, _INT64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")


class Entry(NamedTuple):
    """An entry of `__transaction_state`: a transaction is prepared, with its partitions, or `complete`.

    `version` is the version of the producer's transactions; `aborted` tells an abort from a commit."""

    coordinator: TopicPartition
    offset: int
    producer_id: int
    epoch: int
    version: int
    complete: bool
    partitions: frozenset[TopicPartition] = frozenset()
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """A position that a group committed; `offset` is None where it was deleted."""

    group: str
    tp: TopicPartition
    offset: CommittedOffset | None


# Entries of `__transaction_state`.

_TRANSACTION_START = struct.Struct(">qhib")
"""The producer's id, its epoch, the timeout, and the status."""

_PREPARE_COMMIT, _PREPARE_ABORT, _COMPLETE_COMMIT, _COMPLETE_ABORT = 2, 3, 4, 5
_KNOWN_STATUSES = (_PREPARE_COMMIT, _PREPARE_ABORT, _COMPLETE_COMMIT, _COMPLETE_ABORT)
_NEWEST_TRANSACTION = 1
_FIRST_FLEXIBLE_TRANSACTION = 1
_TIMES = 16  # bytes: when it began, and when it was last updated
_CLIENT_VERSION = 2
"""The tagged field with the version of the producer's transactions."""


def entry_of(tp: TopicPartition, offset: int, key: bytes, value: bytes | None) -> tuple[str, Entry | None]:
    """Return a transactional id and the entry of a record; None if nothing is prepared or complete by the record.

    `CorruptError` for unknown versions."""
    keys = Cursor(key, str(tp))
    _version(keys, 0)
    name = _text(keys)
    # Kafka deletes a transactional id that was long not used.
    if value is None:
        return name, None
    values = Cursor(value, str(tp))
    version = _version(values, _NEWEST_TRANSACTION)
    producer_id, epoch, _, status = values.unpack(_TRANSACTION_START)
    # The other statuses decide nothing: a transaction is empty, going on, or about to be fenced.
    if status not in _KNOWN_STATUSES:
        return name, None
    is_flexible = version >= _FIRST_FLEXIBLE_TRANSACTION
    partitions = _partitions(values, is_flexible=is_flexible)
    values.take(_TIMES)
    tags = _tags(values) if is_flexible else {}
    # Older brokers write no such field: then the version is 0.
    client_version = int.from_bytes(tags.get(_CLIENT_VERSION, b""), "big")
    entry = Entry(
        coordinator=tp,
        offset=offset,
        producer_id=producer_id,
        epoch=epoch,
        version=client_version,
        complete=status in (_COMPLETE_COMMIT, _COMPLETE_ABORT),
        partitions=partitions,
        aborted=status in (_PREPARE_ABORT, _COMPLETE_ABORT),
    )
    return name, entry


def _partitions(values: Cursor, *, is_flexible: bool) -> frozenset[TopicPartition]:
    """Read the partitions of a transaction, topic by topic."""
    found: set[TopicPartition] = set()
    for _ in range(_size(values, is_flexible=is_flexible)):
        topic = _compact_text(values) if is_flexible else _text(values)
        for _ in range(_size(values, is_flexible=is_flexible)):
            (number,) = values.unpack(_INT32)
            found.add(TopicPartition(topic, number))
        if is_flexible:
            _tags(values)
    return frozenset(found)


# Entries of `__consumer_offsets`.

_COMMIT_KEYS = (0, 1)
"""The versions of keys that belong to positions. Other versions belong to groups themselves."""

_NEWEST_COMMIT = 4
_FIRST_COMMIT_WITH_EPOCH = 3
_FIRST_FLEXIBLE_COMMIT = 4


def commit_of(tp: TopicPartition, key: bytes, value: bytes | None) -> Commit | None:
    """Return the position that a record commits, None for another kind. `CorruptError` for unknown versions."""
    keys = Cursor(key, str(tp))
    (key_version,) = keys.unpack(_INT16)
    if key_version not in _COMMIT_KEYS:
        return None
    group = _text(keys)
    topic = _text(keys)
    (partition,) = keys.unpack(_INT32)
    place = TopicPartition(topic, partition)
    if value is None:
        return Commit(group, place, None)
    values = Cursor(value, str(tp))
    version = _version(values, _NEWEST_COMMIT)
    (offset,) = values.unpack(_INT64)
    epoch = None
    if version >= _FIRST_COMMIT_WITH_EPOCH:
        (number,) = values.unpack(_INT32)
        # -1 stands for an epoch that the consumer did not know.
        if number >= 0:
            epoch = number
    metadata = _compact_text(values) if version >= _FIRST_FLEXIBLE_COMMIT else _text(values)
    return Commit(group, place, CommittedOffset(place, offset, epoch, metadata))


# Kafka's types, as they are in bytes.


def _version(values: Cursor, newest: int) -> int:
    (version,) = values.unpack(_INT16)
    if not 0 <= version <= newest:
        values.fail(f"version {version} is not known")
    return int(version)


def _size(values: Cursor, *, is_flexible: bool) -> int:
    """Read the size of an array."""
    # Flexible versions keep 0 for null, and so write sizes raised by 1.
    if is_flexible:
        return values.unsigned() - 1
    (size,) = values.unpack(_INT32)
    return int(size)


def _text(values: Cursor) -> str:
    (size,) = values.unpack(_INT16)
    return values.take(size).decode(errors="replace")


def _compact_text(values: Cursor) -> str:
    size = values.unsigned() - 1
    return values.take(size).decode(errors="replace")


def _tags(values: Cursor) -> dict[int, bytes]:
    """Read the tagged fields of a flexible version."""
    tags: dict[int, bytes] = {}
    for _ in range(values.unsigned()):
        number = values.unsigned()
        size = values.unsigned()
        tags[number] = values.take(size)
    return tags
