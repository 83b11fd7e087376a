"""Open and close connections for the requests of this package.

kafka-python is loaded where a connection is opened, not by importing this module.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from kbackup.kafka.admin_protocol.endpoint import (
    LoginError,
    NoConnectionError,
    NotMappedError,
    TokenSource,
    endpoint_of,
)
from kbackup.kafka.client import Connection
from kbackup.kafka.retry import TIMEOUT
from kbackup.kafka.security import Untold
from kbackup.types import TopicPartition

if TYPE_CHECKING:
    from kbackup.kafka.admin_protocol.connection import LogBatch
    from kbackup.kafka.admin_protocol.metadata_requests import AdminSession


@contextmanager
def admin_session(connection: Connection) -> Iterator[AdminSession | Untold]:
    """One connection to the cluster while the context lasts; `Untold` where none can be made, with the reason."""
    from kbackup.kafka.admin_protocol.connection import connect  # which loads kafka-python
    from kbackup.kafka.admin_protocol.metadata_requests import AdminSession

    try:
        endpoint = endpoint_of(connection.properties, _tokens(connection), TIMEOUT)
        broker = connect(endpoint)
    except NotMappedError as error:
        yield Untold("not supported", str(error))
        return
    except NoConnectionError as error:
        yield Untold("failed", f"{connection.address} took no connection for admin requests: {error}")
        return
    with closing(broker):
        yield AdminSession(connection, broker)


def log_batches(
    connection: Connection, offsets: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, LogBatch] | Untold:
    """Return the batch of each log that has the offset given, or else the next batch.

    Logs that give no answer are left out; `Untold` where none can be asked."""
    from kbackup.kafka.admin_protocol.connection import read_log_batches  # which loads kafka-python

    try:
        endpoint = endpoint_of(connection.properties, _tokens(connection), TIMEOUT)
    except NotMappedError as error:
        return Untold("not supported", str(error))
    with connection.errors("listing leaders"):
        metadata = connection.admin().list_topics(timeout=TIMEOUT)
    leaders: dict[tuple[str, int], dict[TopicPartition, int]] = defaultdict(dict)
    for tp, offset in offsets.items():
        topic = metadata.topics.get(tp.topic)
        partition = topic.partitions.get(tp.partition) if topic is not None else None
        broker = metadata.brokers.get(partition.leader) if partition is not None else None
        if broker is not None and broker.host is not None and broker.port is not None:
            leaders[broker.host, broker.port][tp] = offset
    return dict(read_log_batches(endpoint, leaders))


def _tokens(connection: Connection) -> TokenSource | None:
    """Return the user's own function for tokens, None if there is none."""
    tokens = connection.tokens
    if tokens is None:
        return None

    def token() -> tuple[str, Mapping[str, str]]:
        try:
            made = tokens(connection.properties.get("sasl.oauthbearer.config", ""))
        except Exception:  # noqa: BLE001 (it is the user's function)
            raise LoginError(f"no token: {tokens.failure}") from None
        return made.value, made.extensions

    return token
