"""Requests of producers made by hand: records that client libraries won't send as they are, ids that they won't tell.

Source of the bytes: the Kafka protocol guide, Produce version 8 (the last without compact fields; Kafka 4
serves it), InitProducerId version 0 and the record batch of magic 2.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

from awscrt.checksums import crc32c
from confluent_kafka.admin import AdminClient

Header = tuple[bytes, bytes | None]
Record = tuple[bytes | None, bytes | None, int, Sequence[Header]]
"""Key, value, timestamp in ms since the epoch (-1: none), headers."""

NO_TIMESTAMP = -1
_PRODUCE, _VERSION, _CORRELATION = 0, 8, 7
_ALL_IN_SYNC, _TIMEOUT_MS = -1, 30_000
_NOT_YET = {3, 6}  # unknown topic or partition, not its leader
_NEW_PRODUCER, _NO_BLOCK_YET = 22, {14, 15}
_NO_PRODUCER = struct.pack(">qhi", -1, -1, -1)


def raw_produce(bootstrap: str, topic: str, partition: int, records: Sequence[Record]) -> int:
    """Append `records` as one batch to a partition (plain text listener); returns the first one's offset."""
    until = time.monotonic() + _TIMEOUT_MS / 1000
    while True:
        error, base_offset = _produce(bootstrap, topic, partition, records)
        if error not in _NOT_YET or time.monotonic() > until:
            break
        time.sleep(0.1)  # the topic is so new that its leader does not know yet
    if error:
        raise RuntimeError(f"{topic}-{partition}: the broker refused the batch with error code {error}")
    return base_offset


def new_producer_id(bootstrap: str) -> int:
    """The id that the first broker gives to a producer without transactions (plain text listener)."""
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    until = time.monotonic() + _TIMEOUT_MS / 1000
    body = struct.pack(">hhihhi", _NEW_PRODUCER, 0, _CORRELATION, -1, -1, _TIMEOUT_MS)
    while True:
        error, producer_id = struct.unpack_from(">hq", _ask(host, int(port), body), 4 + 4)
        if error not in _NO_BLOCK_YET or time.monotonic() > until:
            break
        time.sleep(0.1)  # the broker asks the controller for its first block
    if error:
        raise RuntimeError(f"the broker gave no producer id: error code {error}")
    return int(producer_id)


def _produce(bootstrap: str, topic: str, partition: int, records: Sequence[Record]) -> tuple[int, int]:
    """The broker's error code and the base offset."""
    host, port = _leader(bootstrap, topic, partition)
    name, batch = topic.encode(), record_batch(records)
    body = b"".join(
        (
            struct.pack(">hhihh", _PRODUCE, _VERSION, _CORRELATION, -1, -1),  # no client id, no transaction
            struct.pack(">hi", _ALL_IN_SYNC, _TIMEOUT_MS),
            struct.pack(">ih", 1, len(name)) + name,
            struct.pack(">iii", 1, partition, len(batch)) + batch,
        )
    )
    answer = _ask(host, port, body)
    # correlation, topic count, name, partition count, partition, error, base offset
    error, base_offset = struct.unpack_from(">hq", answer, 4 + 4 + 2 + len(name) + 4 + 4)
    return error, base_offset


def _ask(host: str, port: int, body: bytes) -> bytes:
    with socket.create_connection((host, port), timeout=_TIMEOUT_MS / 1000) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            return stream.read(size)


def record_batch(records: Sequence[Record], attributes: int = 0) -> bytes:
    """A batch of magic 2, uncompressed; `attributes` as in its header."""
    base = records[0][2]
    encoded = b"".join(_record(number, base, record) for number, record in enumerate(records))
    timestamps = [record[2] for record in records]
    checked = b"".join(
        (
            struct.pack(">hiqq", attributes, len(records) - 1, base, max(timestamps)),
            _NO_PRODUCER,
            struct.pack(">i", len(records)),
            encoded,
        )
    )
    after_length = struct.pack(">ibI", -1, 2, crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(after_length)) + after_length


def _record(number: int, base: int, record: Record) -> bytes:
    key, value, timestamp, headers = record
    body = b"\0" + _varint(timestamp - base) + _varint(number) + _bytes(key) + _bytes(value) + _varint(len(headers))
    body += b"".join(_bytes(name) + _bytes(content) for name, content in headers)
    return _varint(len(body)) + body


def _bytes(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Zigzag, then seven bits a byte, lowest first."""
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _leader(bootstrap: str, topic: str, partition: int) -> tuple[str, int]:
    cluster = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=30)
    broker = cluster.brokers[cluster.topics[topic].partitions[partition].leader]
    return str(broker.host), broker.port
