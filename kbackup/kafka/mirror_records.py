"""Records of MirrorMaker 2's internal topics, byte for byte as its Java classes write and read them.

All integers are big-endian; a string is its length in bytes (int16) and UTF-8. A key has no version. The value of a
heartbeat or a checkpoint begins with its version, 0 (int16). No value is ever null: Java's `RemoteClusterUtils` fails
at a tombstone.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any, Literal, NamedTuple, Self, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kbackup.errors import UndecodableError
from kbackup.kafka.client import READS_ALONE, Connection, Properties
from kbackup.schemas.base import Headers
from kbackup.schemas.decoder import Decoded, Decoder, Made, Undecoded
from kbackup.types import TopicPartition

Fields = Mapping[str, Literal["string", "int16", "int32", "int64"]]
"""Fields of a key or a value in their order, with the names that Java's schemas give them."""

VERSION = 0

_NUMBERS = {"int16": ">h", "int32": ">i", "int64": ">q"}
_LONGEST = 0x7FFF  # bytes of a string


class RecordFields(NamedTuple):
    """The fields of the key and value of a kind of record."""

    kind: str
    key: Fields
    value: Fields


HEARTBEAT = RecordFields(
    "heartbeat",
    {"sourceClusterAlias": "string", "targetClusterAlias": "string"},
    {"version": "int16", "timestamp": "int64"},
)
CHECKPOINT = RecordFields(
    "checkpoint",
    {"group": "string", "topic": "string", "partition": "int32"},
    {"version": "int16", "upstreamOffset": "int64", "offset": "int64", "metadata": "string"},
)
OFFSET_SYNC = RecordFields(
    "offset sync", {"topic": "string", "partition": "int32"}, {"upstreamOffset": "int64", "offset": "int64"}
)


class Heartbeat(NamedTuple):
    """A sign of life of the flow `source->target`; `timestamp` in ms since the epoch."""

    source: str
    target: str
    timestamp: int

    @property
    def key(self) -> bytes:
        return _encode(HEARTBEAT.key, self.source, self.target)

    @property
    def value(self) -> bytes:
        return _encode(HEARTBEAT.value, VERSION, self.timestamp)

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> Self:
        source, target = decode_key(HEARTBEAT, key).values()
        return cls(source, target, decode_value(HEARTBEAT, value)["timestamp"])


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
        return _encode(CHECKPOINT.key, self.group, *self.tp)

    @property
    def value(self) -> bytes:
        return _encode(CHECKPOINT.value, VERSION, self.upstream, self.offset, self.metadata)

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> Self:
        group, *tp = decode_key(CHECKPOINT, key).values()
        _, *rest = decode_value(CHECKPOINT, value).values()
        return cls(group, TopicPartition(*tp), *rest)


class OffsetSync(NamedTuple):
    """The record at offset `upstream` of the source's partition `tp` is at `offset` of the target's."""

    tp: TopicPartition
    upstream: int
    offset: int

    @property
    def key(self) -> bytes:
        return _encode(OFFSET_SYNC.key, *self.tp)

    @property
    def value(self) -> bytes:
        return _encode(OFFSET_SYNC.value, self.upstream, self.offset)

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> Self:
        return cls(TopicPartition(*decode_key(OFFSET_SYNC, key).values()), *decode_value(OFFSET_SYNC, value).values())


MirrorRecord = Heartbeat | Checkpoint | OffsetSync
"""`decode` raises `UndecodableError` for other bytes."""


def fits(text: str) -> bool:
    """Return whether a string can stand in a record."""
    return len(text.encode()) <= _LONGEST


def decode_key(record: RecordFields, data: bytes) -> dict[str, Any]:
    """Return the fields of a key by name. `UndecodableError` for bytes that are none."""
    return _decode(record.key, data, f"key of a {record.kind}")


def decode_value(record: RecordFields, data: bytes) -> dict[str, Any]:
    """Return the fields of a value by name. `UndecodableError` for bytes that are none, or of another version."""
    fields = _decode(record.value, data, f"value of a {record.kind}")
    if fields.get("version", VERSION) != VERSION:
        raise UndecodableError(f"value of a {record.kind}: unknown version {fields['version']}")
    return fields


def _encode(fields: Fields, *values: str | int) -> bytes:
    parts: list[bytes] = []
    for kind, value in zip(fields.values(), values, strict=True):
        if isinstance(value, str):
            data = value.encode()
            parts += struct.pack(">h", len(data)), data
        else:
            parts.append(struct.pack(_NUMBERS[kind], value))
    return b"".join(parts)


def _decode(fields: Fields, data: bytes, name: str) -> dict[str, Any]:
    """Take the fields off the front of `data`. What follows the last one is ignored, as Java does."""
    values: dict[str, Any] = {}
    at = 0
    try:
        for field, kind in fields.items():
            form = _NUMBERS["int16" if kind == "string" else kind]
            (number,) = struct.unpack_from(form, data, at)
            at += struct.calcsize(form)
            if kind != "string":
                values[field] = number
                continue
            if not 0 <= number <= len(data) - at:
                raise UndecodableError(f"{name}: {field} has {number} bytes, {len(data) - at} follow")
            values[field] = data[at : at + number].decode()
            at += number
    except struct.error:
        raise UndecodableError(f"{name}: {len(data)} bytes are too few") from None
    except UnicodeDecodeError:
        raise UndecodableError(f"{name}: {field} is not UTF-8") from None
    return values


def decoder_of(topic: str, part: str) -> Decoder | None:
    """Return the decoder for the `key` or the `value` of an internal topic's records, whatever the separator in its
    name; None for any other topic."""
    fields: RecordFields | None = None
    if topic.endswith("internal"):
        if topic.startswith("mm2-offset-syncs"):
            fields = OFFSET_SYNC
        elif "checkpoints" in topic:
            fields = CHECKPOINT
    elif topic.endswith("heartbeats"):
        fields = HEARTBEAT
    return partial(_made, fields, part) if fields is not None else None


def _made(record: RecordFields, part: str, data: bytes, headers: Headers) -> Made:
    try:
        value: dict[str, Any] = (decode_key if part == "key" else decode_value)(record, data)
    except UndecodableError as error:
        return Undecoded(error.message)
    return Decoded(value, {"type": "MM2", "record": record.kind})


_TUNING = {
    **READS_ALONE,
    "group.id": "kbackup-mirror-reader",  # needed by librdkafka; nothing is ever committed
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
}
_BATCH = 1000
_WAIT = 0.1  # s
_QUIET = 30.0  # s without anything from a broker

T = TypeVar("T")


def read_records(properties: Properties, role: str, topic: str, decode: Callable[[bytes, bytes], T]) -> Iterator[T]:
    """Yield the records of partition 0 that `decode` knows, in order; the others, and tombstones, are skipped as Java's
    readers skip them."""
    connection = Connection(properties, role)
    with connection.errors(f"reading topic {topic}"), closing(connection.consumer(_TUNING)) as consumer:
        for key, value in _messages(connection, consumer, topic):
            try:
                yield decode(key, value)
            except UndecodableError:
                continue


def _messages(connection: Connection, consumer: Consumer, topic: str) -> Iterator[tuple[bytes, bytes]]:
    consumer.assign([KafkaTopicPartition(topic, 0, 0)])
    until = time.monotonic() + _QUIET
    while time.monotonic() < until:
        for message in consumer.consume(_BATCH, _WAIT):
            error, key, value = message.error(), message.key(), message.value()
            if error is None:
                until = time.monotonic() + _QUIET
                if isinstance(key, bytes) and isinstance(value, bytes):
                    yield key, value
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            elif not error.retriable():
                raise KafkaException(error)
    raise connection.silent(f"sent nothing of topic {topic} for {_QUIET:.0f} s")


_SLACK = 5.0  # s, for librdkafka to report a record that timed out


class RecordWriter:
    """An idempotent producer for partition 0 of internal topics; `timeout` in s is for each record. Only `abort` may
    be called in another thread."""

    def __init__(self, properties: Properties, role: str, timeout: float = 60.0) -> None:
        self._connection = Connection(properties, role)
        self._timeout = timeout
        self._producer: Producer | None = None
        self._failed: list[KafkaError] = []

    def write(self, topic: str, records: Iterable[MirrorRecord], timestamp: int | None = None) -> int:
        """Write `records` and wait until brokers have them; returns their number. `timestamp` in ms, default now.

        Raises where one was not written. Others may have been, before it and after it.
        """
        stamp = int(time.time() * 1000) if timestamp is None else timestamp
        doing = f"writing to topic {topic}"
        with self._connection.errors(doing):
            try:
                count, waiting = self._send(topic, records, stamp)
            except BaseException:
                self.close()  # the next call begins with a new producer: the error may be fatal
                raise
        failed = self._failed[:1]
        if failed or waiting:
            self.close()
        if failed:
            raise self._connection.error(failed[0], doing)
        if waiting:
            raise self._connection.silent(f"did not answer {doing}")
        return count

    def abort(self) -> None:
        """Fail what is being written."""
        producer = self._producer
        if producer is not None:
            producer.purge(blocking=False)

    def close(self) -> None:
        """Drop what is not written yet; idempotent."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(_SLACK)

    def _send(self, topic: str, records: Iterable[MirrorRecord], timestamp: int) -> tuple[int, int]:
        """Return how many records were produced, and how many of them nothing was heard of."""
        if self._producer is None:
            tuning = {"enable.idempotence": True, "message.timeout.ms": int(self._timeout * 1000)}
            self._producer = self._connection.producer(tuning)
        producer = self._producer
        self._failed.clear()
        count = 0
        for count, record in enumerate(records, start=1):  # noqa: B007 (counts)
            while True:
                try:
                    producer.produce(topic, record.value, record.key, 0, timestamp=timestamp, on_delivery=self._note)
                except BufferError:
                    producer.poll(0.1)
                else:
                    producer.poll(0)
                    break
        return count, producer.flush(self._timeout + _SLACK)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append(error)
