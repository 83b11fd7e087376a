"""A served archive for tests, and a client that sends Kafka's requests one by one."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kbackup.archive.query.selection import Selection
from kbackup.kafka.control.messages import DefaultRecordBatch, consumer
from kbackup.serve.logs import Choosing
from kbackup.serve.service import ArchiveServer, Listening, Serving, serving_in_thread
from kbackup.store.base import Store
from tests.unit.formats.reference import Record

PATIENCE = 20.0
"""Seconds that a test waits for an answer."""


@contextmanager
def served(
    store: Store,
    *,
    topics: Sequence[str] = (),
    point: str = "latest",
    to_time: int | None = None,
    follow: bool = False,
    memory: int = 64 << 20,
    logins: Any = None,
) -> Iterator[Serving]:
    """Serve an archive on a free port of this machine."""
    choosing = Choosing(Selection.of(topics, ()), point, to_time, follow)
    server = ArchiveServer(store, choosing, Listening(port=0, logins=logins), memory)
    with serving_in_thread(server) as serving:
        yield serving


@dataclass
class ServeClient:
    """A connection on which requests are sent one by one."""

    serving: Serving
    stream: socket.socket = field(init=False)
    _correlation: int = 0

    def __post_init__(self) -> None:
        self.stream = socket.create_connection(self.serving.address, PATIENCE)

    def __enter__(self) -> ServeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def send(self, request: Any, version: int) -> None:
        self._correlation += 1
        self.stream.sendall(encoded_request(request, version, self._correlation))

    def receive(self, kind: Any, version: int) -> Any:
        """Return the next answer. Raises `EOFError` if the server has closed the connection."""
        size = struct.unpack(">i", self.read(4))[0]
        data = self.read(size)
        assert struct.unpack_from(">i", data)[0] == self._correlation
        return kind.decode(data, version=version, header=True)

    def ask(self, request: Any, kind: Any, version: int) -> Any:
        self.send(request, version)
        return self.receive(kind, version)

    def read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.stream.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def fetch(self, topic: str, partition: int = 0, offset: int = 0, **values: Any) -> Any:
        """Return the answer to a Fetch of one partition."""
        version = values.pop("version", 12)
        request = fetch_request(topic, partition, offset, **values)
        response = self.ask(request, consumer.FetchResponse, version)
        (found,) = response.responses[0].partitions
        return found


def encoded_request(request: Any, version: int, correlation: int = 1) -> bytes:
    """Return a request as it goes over the network, with its length."""
    request.API_VERSION = version
    request.with_header(correlation_id=correlation, client_id="test")
    return bytes(request.encode(header=True, framed=True))


def fetch_request(topic: str, partition: int = 0, offset: int = 0, **values: Any) -> Any:
    kind = consumer.FetchRequest.FetchTopic
    most = values.pop("partition_max_bytes", 1 << 20)
    asked = kind.FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=most,
        current_leader_epoch=-1,
        last_fetched_epoch=-1,
        log_start_offset=-1,
    )
    given = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 50 << 20, "isolation_level": 0, **values}
    return consumer.FetchRequest(replica_id=-1, topics=[kind(topic=topic, partitions=[asked])], **given)


def batches_of(data: bytes | None) -> list[Any]:
    """Return the batches in an answer's records, as kafka-python reads them; their checksums are checked."""
    batches: list[Any] = []
    view = memoryview(data or b"")
    while view:
        length = 12 + struct.unpack_from(">i", view, 8)[0]
        batch = DefaultRecordBatch(bytes(view[:length]))
        assert batch.validate_crc()
        batches.append(batch)
        view = view[length:]
    return batches


def records_of(data: bytes | None, offset: int = 0) -> list[Record]:
    """Return the records in an answer from an offset on, as a consumer would see them."""
    found: list[Record] = []
    for batch in batches_of(data):
        for each in batch:
            if each.offset < offset:
                continue
            kind = -2 if each.timestamp == -1 else each.timestamp_type
            time = None if kind == -2 else each.timestamp
            key = None if each.key is None else bytes(each.key)
            value = None if each.value is None else bytes(each.value)
            headers = [(name, None if content is None else bytes(content)) for name, content in each.headers]
            found.append(Record(each.offset, kind, time, key, value, headers))
    return found
