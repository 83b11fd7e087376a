"""A broker in memory, librdkafka's own, that answers requests with the errors that a test asks for."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_int16, c_int32, c_size_t, c_void_p
from dataclasses import dataclass

from confluent_kafka import Consumer, cimpl

from kbackup.native.library import client_of

PRODUCE, OFFSET_COMMIT, OFFSET_FETCH = 0, 8, 9
"""Keys of requests in Kafka's protocol."""


@dataclass(frozen=True)
class MockCluster:
    bootstrap: str
    _handle: int

    def create_topic(self, name: str) -> None:
        _library().rd_kafka_mock_topic_create(self._handle, name.encode(), 1, 1)

    def hide(self) -> None:
        """Leave the only broker out of metadata, as one does that is about to stop."""
        _library().rd_kafka_mock_broker_remove_from_metadata(self._handle, 1)

    def replace(self, topic: str, transactional_id: str, group: str) -> None:
        """Start a second broker that leads the topic, and coordinates the rest; the first one is still asked."""
        _library().rd_kafka_mock_broker_add(self._handle, 2)
        _library().rd_kafka_mock_partition_set_leader(self._handle, topic.encode(), 0, 2)
        for kind, key in (("transaction", transactional_id), ("group", group)):
            _library().rd_kafka_mock_coordinator_set(self._handle, kind.encode(), key.encode(), 2)

    def fail(self, request: int, *errors: int) -> None:
        """Answer the next requests of a kind with `errors`, one after the other."""
        codes = (c_int * len(errors))(*errors)
        _library().rd_kafka_mock_push_request_errors_array(self._handle, request, len(errors), codes)


@contextmanager
def mock_cluster() -> Iterator[MockCluster]:
    owner = Consumer({"test.mock.num.brokers": 1, "group.id": "owner", "bootstrap.servers": "unused"})
    try:
        handle = _library().rd_kafka_handle_mock_cluster(client_of(owner))
        yield MockCluster(_library().rd_kafka_mock_cluster_bootstraps(handle).decode(), handle)
    finally:
        owner.close()


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(cimpl.__file__)
    for name, result, arguments in (
        ("rd_kafka_handle_mock_cluster", c_void_p, (c_void_p,)),
        ("rd_kafka_mock_cluster_bootstraps", c_char_p, (c_void_p,)),
        ("rd_kafka_mock_topic_create", c_int, (c_void_p, c_char_p, c_int, c_int)),
        ("rd_kafka_mock_broker_remove_from_metadata", c_int, (c_void_p, c_int32)),
        ("rd_kafka_mock_broker_add", c_int, (c_void_p, c_int32)),
        ("rd_kafka_mock_partition_set_leader", c_int, (c_void_p, c_char_p, c_int32, c_int32)),
        ("rd_kafka_mock_coordinator_set", c_int, (c_void_p, c_char_p, c_char_p, c_int32)),
        ("rd_kafka_mock_push_request_errors_array", None, (c_void_p, c_int16, c_size_t, c_void_p)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
