"""MinIO that tells what it was asked, and an archive in it that a real broker's log goes on from."""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import Producer

from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import PartitionWriter, Target
from kbackup.formats.record import encode
from kbackup.kafka.admin.cluster import Cluster
from kbackup.store.base import Store
from kbackup.types import RECORDS, OffsetRange
from scripts.dev.kafka import Broker
from scripts.dev.minio import Minio

_COUNTED = re.compile(r'^minio_api_requests_total\{name="(\w+)".*\} (\S+)$', re.MULTILINE)
_BYTES = re.compile(r"^minio_api_requests_traffic_(sent|received)_bytes\{.*\} (\S+)$", re.MULTILINE)
_KINDS = {"Get": "GET", "Head": "HEAD", "List": "LIST", "Delete": "DELETE"}  # all others are paid as PUT


class CountedMinio(Minio):
    """`counts` has its requests so far as 'GET', 'HEAD', 'LIST', 'PUT' and 'DELETE' (a part of a multipart upload, its
    beginning and its end are PUTs), and the bytes of bodies as 'sent' (by the server) and 'received'."""

    def _command(self, port: int, folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        argv, env = super()._command(port, folder)
        return argv, {**env, "MINIO_PROMETHEUS_AUTH_TYPE": "public"}

    def counts(self) -> Counter[str]:
        with urllib.request.urlopen(
            f"{self.endpoint_url}/minio/metrics/v3/api/requests", timeout=30
        ) as answer:
            text = answer.read().decode()
        totals: Counter[str] = Counter()
        for name, number in _COUNTED.findall(text):
            totals[_kind(name)] += int(float(number))
        for way, number in _BYTES.findall(text):
            totals[way] += int(float(number))
        return totals


def _kind(name: str) -> str:
    return next((kind for start, kind in _KINDS.items() if name.startswith(start)), "PUT")


class _Content(NamedTuple):
    """The content that records of a log share with those of an archive's segments; a backup compares them."""

    timestamp: int
    key: bytes
    value: bytes


def _content(offset: int) -> _Content:
    return _Content(1_700_000_000_000 + offset, b"customer-%d" % (offset % 97), b'{"order": %d}' % offset)


def write_segment(store: Store, offsets: OffsetRange) -> Segment:
    """A whole segment of the small records that `produce` sends."""
    rows: list[dict[str, Any]] = [
        {"offset": offset, "timestamp_type": 0, "headers": [], **_content(offset)._asdict()}
        for offset in range(offsets.start, offsets.end)
    ]
    block = encode(pa.RecordBatch.from_pylist(rows, schema=RECORDS))
    with PartitionWriter(store, Target(offsets.topic, 1, offsets.partition, 1 << 30, "none")) as writer:
        (segment,) = [*writer.append(block), *writer.finish()]
    return segment


def topic_id(broker: Broker, topic: str) -> str:
    return Cluster(broker.client(), "source").topics([topic])[topic].id


def produce(broker: Broker, topic: str, partitions: int, offsets: range) -> None:
    """Small records into every partition, whose logs end at the first of `offsets`."""
    producer = Producer(
        broker.client(
            **{"linger.ms": 50, "enable.idempotence": True, "queue.buffering.max.messages": 10_000_000}
        )
    )
    for offset in offsets:
        timestamp, key, value = _content(offset)
        for partition in range(partitions):
            producer.produce(topic, value, key, partition, timestamp=timestamp)
        producer.poll(0)
    if producer.flush(300):
        raise SystemExit(f"the broker did not take the records of {topic}")
