"""The record batches of logs as brokers give them, with the markers and aborted records that clients skip."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from kafka.protocol.consumer import FetchRequest

from kbackup.kafka.admin_protocol.connection import BrokerConnection, connect
from kbackup.kafka.admin_protocol.endpoint import Endpoint, NoConnectionError, RefusedRequestError
from kbackup.types import TopicPartition

_BY_NAME = 12  # the last version that names topics; later ones have their ids
_HEADER = struct.Struct(">qiibIhiqqqhii")
_MAGIC = 2
_CONTROL = 0x20
_PARTITION_BYTES = 1024  # of which the header is wanted
_BATCH = 500
_READ_COMMITTED = 1


class LogBatch(NamedTuple):
    """Offsets `first` to `last`. `control`: markers of transactions. `aborted`: records of an aborted transaction."""

    first: int
    last: int
    leader_epoch: int
    control: bool
    aborted: bool


def read_log_batches(
    endpoint: Endpoint, leaders: Mapping[tuple[str, int], Mapping[TopicPartition, int]]
) -> Iterator[tuple[TopicPartition, LogBatch]]:
    """Yield the batch of each log that has the offset given, or else the next batch.

    `leaders` are brokers by address, each with the partitions that it leads. Logs that give no answer are left out.
    """
    for address, offsets in leaders.items():
        try:
            with closing(connect(replace(endpoint, addresses=(address,)))) as broker:
                remaining = dict(offsets)
                while found := list(_fetch(broker, dict(islice(remaining.items(), _BATCH)))):
                    yield from found
                    # a batch that is larger than the answer leaves no room for other partitions
                    remaining = {tp: at for tp, at in remaining.items() if tp not in dict(found)}
        except (NoConnectionError, RefusedRequestError):
            continue


def _fetch(
    broker: BrokerConnection, offsets: Mapping[TopicPartition, int]
) -> Iterator[tuple[TopicPartition, LogBatch]]:
    topics: dict[str, list[Any]] = defaultdict(list)
    kind = FetchRequest.FetchTopic
    for tp, offset in offsets.items():
        topics[tp.topic].append(
            kind.FetchPartition(partition=tp.partition, fetch_offset=offset, partition_max_bytes=_PARTITION_BYTES)
        )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_BATCH * _PARTITION_BYTES,
        isolation_level=_READ_COMMITTED,
        topics=[kind(topic=name, partitions=partitions) for name, partitions in topics.items()],
    )
    for topic in broker.ask(request, _BY_NAME).responses:
        for each in topic.partitions:
            data = bytes(each.records or b"")
            tp = TopicPartition(topic.topic, each.partition_index)
            if each.error_code or len(data) < _HEADER.size or tp not in offsets:
                continue
            first, _, epoch, magic, _, attributes, delta, _, _, producer, *_ = _HEADER.unpack_from(data)
            if magic == _MAGIC:
                aborted = any(
                    a.producer_id == producer and a.first_offset <= first + delta
                    for a in each.aborted_transactions or ()
                )
                yield tp, LogBatch(first, first + delta, epoch, bool(attributes & _CONTROL), aborted)
