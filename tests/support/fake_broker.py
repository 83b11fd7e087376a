"""Brokers in this process that answer Kafka's own messages with what functions of a test return.

A test says what brokers answer, and reads afterwards which of them was asked what:

    with fake_cluster(nodes=2) as cluster:
        cluster.topics = {"orders": [1, 2]}                    # by partition, the broker that leads it
        cluster.on(ListOffsetsRequest, log_ends_of_seven)      # a function of the request that returns the response
        ...
        assert cluster.asked(ListOffsetsRequest, node=2) == [...]

Metadata, FindCoordinator and ApiVersions are answered from what the cluster is; a test may answer them itself.
Brokers know the requests that something was given for, and no others.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

from kbackup.kafka.client import Connection
from kbackup.kafka.control.router import Router

UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, UNSUPPORTED_VERSION = 3, 5, 35
_FIRST_WITH_MANY_KEYS = 4  # of FindCoordinator


class HangUp(Exception):  # noqa: N818 (a handler raises it as an answer)
    """Raised by the function that answers a request: the broker closes the connection instead."""


Handler = Callable[[Any], Any]
"""Takes a request and returns its response; None: the broker never answers it. It may raise `HangUp`, and may take
its time."""


@dataclass(frozen=True)
class Known:
    """A request that brokers know, with its oldest and newest version."""

    request: type[Any]
    handler: Handler
    oldest: int
    newest: int


@dataclass
class FakeCluster:
    """`topics` has for each partition of a topic the id of the broker that leads it, -1 for none. `coordinators` has
    the brokers that groups and transactional ids belong to, the first one by default. `hidden` are brokers that
    metadata leaves out. `features` are the levels of finalized features, None where brokers return none. `failures`
    are errors of the functions of the test: they are raised when the cluster ends."""

    topics: dict[str, list[int]] = field(default_factory=dict)
    coordinators: dict[str, int] = field(default_factory=dict)
    controller: int = 1
    cluster_id: str | None = "fake"
    hidden: set[int] = field(default_factory=set)
    features: dict[str, int] | None = None
    brokers: dict[int, FakeBroker] = field(default_factory=dict)
    failures: list[BaseException] = field(default_factory=list)
    _known: dict[tuple[int | None, int], Known] = field(default_factory=dict)
    _asked: list[tuple[int, Any]] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values())

    def router(self, role: str = "target", **properties: str) -> Router:
        """Return a router to these brokers; `properties` are librdkafka's, with _ for every dot."""
        named = {name.replace("_", "."): value for name, value in properties.items()}
        return Router(Connection({"bootstrap.servers": self.bootstrap, **named}, role))

    def on(
        self, request: type[Any], handler: Handler, *, node: int | None = None, oldest: int = 0, newest: int = 99
    ) -> None:
        """Answer requests of this class by `handler`, from now on: those to one broker, or to every one."""
        known = Known(request, handler, oldest, min(newest, request.max_version))
        self._known[node, request.API_KEY] = known

    def asked(self, request: type[Any], node: int | None = None) -> list[Any]:
        """Return the requests of this class that came, in their order: to one broker, or to any."""
        return [each for at, each in [*self._asked] if isinstance(each, request) and node in (None, at)]

    def known(self, node: int, key: int) -> Known | None:
        return self._known.get((node, key)) or self._known.get((None, key))

    def answer(self, node: int, known: Known, request: Any) -> Any:
        self._asked.append((node, request))
        return known.handler(request)

    def versions(self, node: int) -> Any:
        """Return the response to ApiVersions of a broker."""
        keys = sorted({key for at, key in self._known if at in (None, node)})
        found = [known for key in keys if (known := self.known(node, key)) is not None]
        entry = ApiVersionsResponse.ApiVersion
        entries = [entry(api_key=k.request.API_KEY, min_version=k.oldest, max_version=k.newest) for k in found]
        level = ApiVersionsResponse.FinalizedFeatureKey
        features = [
            level(name=name, max_version_level=top, min_version_level=top)
            for name, top in (self.features or {}).items()
        ]
        return ApiVersionsResponse(
            error_code=0,
            api_keys=entries,
            throttle_time_ms=0,
            finalized_features_epoch=-1 if self.features is None else 1,
            finalized_features=features,
        )

    def metadata(self, request: Any) -> Any:
        """Return the response to Metadata."""
        names = [*self.topics] if request.topics is None else [topic.name for topic in request.topics]
        shown = [broker for broker in self.brokers.values() if broker.node not in self.hidden]
        entry = MetadataResponse.MetadataResponseBroker
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=[entry(node_id=each.node, host="127.0.0.1", port=each.port, rack=None) for each in shown],
            cluster_id=self.cluster_id,
            controller_id=self.controller,
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> Any:
        entry = MetadataResponse.MetadataResponseTopic
        if name not in self.topics:
            return entry(error_code=UNKNOWN_TOPIC, name=name, partitions=[])
        partitions = []
        for number, leader in enumerate(self.topics[name]):
            replicas = [leader] if leader >= 0 else [*self.brokers][:1]
            partition = entry.MetadataResponsePartition(
                error_code=0 if leader >= 0 else LEADER_NOT_AVAILABLE,
                partition_index=number,
                leader_id=leader,
                leader_epoch=0,
                replica_nodes=replicas,
                isr_nodes=replicas,
                offline_replicas=[],
            )
            partitions.append(partition)
        return entry(error_code=0, name=name, is_internal=False, partitions=partitions)

    def find_coordinator(self, request: Any) -> Any:
        """Return the response to FindCoordinator."""
        if request.version < _FIRST_WITH_MANY_KEYS:
            broker = self._coordinator(request.key)
            return FindCoordinatorResponse(error_code=0, node_id=broker.node, host="127.0.0.1", port=broker.port)
        entries = []
        for key in request.coordinator_keys:
            broker = self._coordinator(key)
            entry = FindCoordinatorResponse.Coordinator(
                key=key, node_id=broker.node, host="127.0.0.1", port=broker.port, error_code=0, error_message=None
            )
            entries.append(entry)
        return FindCoordinatorResponse(throttle_time_ms=0, coordinators=entries)

    def _coordinator(self, key: str) -> FakeBroker:
        return self.brokers[self.coordinators.get(key, min(self.brokers))]


class FakeBroker:
    """One broker. `accepted` counts the connections that were made to it."""

    def __init__(self, cluster: FakeCluster, node: int) -> None:
        self._cluster = cluster
        self.node = node
        self.port = 0
        self.accepted = 0
        self._listener: socket.socket | None = None
        self._open: list[socket.socket] = []
        self.start()

    def start(self) -> None:
        """Listen, on the same port as before."""
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections, and end those that there are."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # it wakes the thread that accepts
            self._listener.close()
            self._listener = None
        self.hang_up()

    def hang_up(self) -> None:
        """End the connections that there are."""
        for stream in self._open:
            with suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)
            stream.close()
        self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                stream, _ = listener.accept()
                self.accepted += 1
                self._open.append(stream)
                threading.Thread(target=self._serve, args=(stream,), daemon=True).start()

    def _serve(self, stream: socket.socket) -> None:
        try:
            while data := _message(stream):
                answer = self._answer(data)
                if answer is not None:
                    stream.sendall(answer)
        except (HangUp, OSError):
            pass
        except BaseException as error:  # noqa: BLE001 (raised again where the cluster ends)
            self._cluster.failures.append(error)
        with suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)
        stream.close()

    def _answer(self, data: bytes) -> bytes | None:
        key, version, correlation = struct.unpack(">hhi", data[:8])
        if key == ApiVersionsRequest.API_KEY and self._cluster.known(self.node, key) is None:
            response = self._cluster.versions(self.node)
            return _encoded(response, version, correlation)
        known = self._cluster.known(self.node, key)
        if known is None or not known.oldest <= version <= known.newest:
            raise HangUp  # so does Kafka with what it doesn't know
        request = known.request.decode(data, version=version, header=True)
        response = self._cluster.answer(self.node, known, request)
        return None if response is None else _encoded(response, version, correlation)


def _encoded(response: Any, version: int, correlation: int) -> bytes:
    response.API_VERSION = version  # before there is a header, which would not take it
    response.with_header(correlation_id=correlation)
    return bytes(response.encode(header=True, framed=True))


def _message(stream: socket.socket) -> bytes:
    """Return the next request, b"" if the client has gone."""
    head = stream.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        return b""
    (size,) = struct.unpack(">i", head)
    return stream.recv(size, socket.MSG_WAITALL)


@contextmanager
def fake_cluster(nodes: int = 1) -> Iterator[FakeCluster]:
    """Run brokers with the ids 1, 2, ..."""
    cluster = FakeCluster()
    cluster.on(MetadataRequest, cluster.metadata)
    cluster.on(FindCoordinatorRequest, cluster.find_coordinator)
    for node in range(1, nodes + 1):
        cluster.brokers[node] = FakeBroker(cluster, node)
    try:
        yield cluster
    finally:
        for broker in cluster.brokers.values():
            broker.stop()
        if cluster.failures:
            # it is why the test failed, if it has failed
            raise cluster.failures[0]
