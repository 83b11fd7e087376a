"""Open and close connections for the requests of this package.

kafka-python is loaded where a connection is opened, not by importing this module.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError

from kbackup.kafka.admin_protocol.endpoint import (
    LoginError,
    NoConnectionError,
    NotMappedError,
    RefusedRequestError,
    TokenSource,
    endpoint_of,
)
from kbackup.kafka.client import Connection
from kbackup.kafka.retry import LEADER_NOT_READY, TIMEOUT, Answers, ask_until_ready
from kbackup.kafka.security import Unavailable
from kbackup.types import TopicPartition

if TYPE_CHECKING:
    from kbackup.kafka.admin_protocol.connection import BrokerConnection, LogBatch, LogWindow
    from kbackup.kafka.admin_protocol.metadata_requests import AdminSession

_BY_NAME = 9  # of MetadataRequest, the last version that names topics alone
_AT_ONCE = 500  # logs in one Fetch
_LARGEST = 1 << 62


@contextmanager
def admin_session(connection: Connection) -> Iterator[AdminSession | Unavailable]:
    """One connection to the cluster while the context lasts; `Unavailable` where none can be made, with the reason."""
    from kbackup.kafka.admin_protocol.metadata_requests import AdminSession  # which loads kafka-python

    try:
        broker = open_broker(connection)
    except NotMappedError as error:
        yield Unavailable("not supported", str(error))
        return
    except NoConnectionError as error:
        yield Unavailable("failed", f"{connection.address} took no connection for admin requests: {error}")
        return
    with closing(broker):
        yield AdminSession(connection, broker)


class UnavailableError(Exception):
    """A cluster can't be asked, or refused."""

    def __init__(self, unavailable: Unavailable) -> None:
        super().__init__(unavailable.why)
        self.unavailable = unavailable


def describe_topics(connection: Connection, names: Iterable[str]) -> Any:
    """Return Kafka's `MetadataResponse` for topics, with the operations that we may do. Raises `UnavailableError`."""
    from kafka.protocol.metadata import MetadataRequest

    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    with admin_session(connection) as session:
        if isinstance(session, Unavailable):
            raise UnavailableError(session)
        try:
            return session.broker.ask(request, _BY_NAME)
        except (NoConnectionError, RefusedRequestError) as error:
            raise UnavailableError(Unavailable.of(error.kafka_error(), "describing topics", connection)) from error


A = TypeVar("A")
K = TypeVar("K")
Ask = Callable[["BrokerConnection", list[TopicPartition]], Answers[TopicPartition, A]]
"""Asks a broker about partitions that it leads."""


def ask_leaders(
    connection: Connection, partitions: Iterable[TopicPartition], ask: Ask[A], doing: str = ""
) -> dict[TopicPartition, A]:
    """Return the answer of each partition's leader. `UnavailableError` if none can be asked, or if one refuses; without
    `doing`, which names the request, its partitions are left out instead."""

    def asked(waiting: list[TopicPartition]) -> Answers[TopicPartition, A]:
        try:
            described = describe_topics(connection, {tp.topic for tp in waiting})
        except UnavailableError as error:
            if error.unavailable.reason != "failed":
                raise
            yield from ((tp, KafkaError(KafkaError._TRANSPORT, error.unavailable.why)) for tp in waiting)
            return
        brokers = {broker.node_id: (broker.host, broker.port) for broker in described.brokers}
        leaders = {
            TopicPartition(topic.name, each.partition_index): brokers.get(each.leader_id)
            for topic in described.topics
            for each in topic.partitions
        }
        by_leader: dict[tuple[str, int], list[TopicPartition]] = defaultdict(list)
        for tp in waiting:
            if (address := leaders.get(tp)) is not None:
                by_leader[address].append(tp)
            else:
                yield tp, KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
        for address, tps in by_leader.items():
            yield from ask_broker(connection, address, tps, ask)

    answers, refused = ask_until_ready(partitions, asked, LEADER_NOT_READY if doing else {})
    for tp, error in refused.items() if doing else ():
        raise UnavailableError(Unavailable.of(error, f"{doing} {tp}", connection))
    return answers


def ask_broker(
    connection: Connection,
    address: tuple[str, int] | None,
    items: list[K],
    ask: Callable[[BrokerConnection, list[K]], Answers[K, A]],
) -> Answers[K, A]:
    """Yield the answer of one broker for each item, and why there is none. `address` as in `open_broker`."""
    try:
        with closing(open_broker(connection, address)) as broker:
            yield from ask(broker, items)
    except (NotMappedError, NoConnectionError, RefusedRequestError) as error:
        yield from ((item, error.kafka_error()) for item in items)


def open_broker(connection: Connection, address: tuple[str, int] | None = None) -> BrokerConnection:
    """Connect to the broker at `address`, or to the first one of the properties that takes us. `NotMappedError` or
    `NoConnectionError` where none does."""
    from kbackup.kafka.admin_protocol.connection import connect  # which loads kafka-python

    endpoint = endpoint_of(connection.properties, _tokens(connection), TIMEOUT)
    return connect(endpoint if address is None else replace(endpoint, addresses=(address,)))


def log_batches(
    connection: Connection, offsets: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, LogBatch] | Unavailable:
    """Return the batch of each log that has the offset given, or else the next batch.

    Logs that give no answer are left out; `Unavailable` where none can be asked."""
    from kbackup.kafka.admin_protocol.connection import LogWindow  # which loads kafka-python

    windows = {tp: LogWindow(offset, 0, offset + 1) for tp, offset in offsets.items()}
    try:
        found = ask_leaders(connection, windows, partial(_read_windows, windows, size=1 << 10, committed=True))
    except UnavailableError as error:
        return error.unavailable
    return {tp: window.batches[0] for tp, window in found.items()}


def log_windows(
    connection: Connection,
    ranges: Mapping[TopicPartition, tuple[int, int, int]],
    limit: int,
    records: Container[TopicPartition],
) -> dict[TopicPartition, LogWindow]:
    """Return the batches of logs in ranges of offsets, each with records or headers alone. After `limit` bytes of a
    broker, the rest of its windows stay incomplete. `UnavailableError` if a log can't be read."""
    from kbackup.kafka.admin_protocol.connection import LogWindow  # which loads kafka-python

    windows = {tp: LogWindow(*ranges[tp]) for tp in sorted(ranges, key=lambda tp: ranges[tp][1] - ranges[tp][0])}
    ask = partial(_read_windows, windows, size=1 << 20, limit=limit, records=records)
    return ask_leaders(connection, windows, ask, "reading") if windows else {}


def _read_windows(
    windows: Mapping[TopicPartition, LogWindow],
    broker: BrokerConnection,
    partitions: Iterable[TopicPartition],
    size: int,
    limit: int = _LARGEST,
    records: Container[TopicPartition] = (),
    *,
    committed: bool = False,
) -> Answers[TopicPartition, LogWindow]:
    from kbackup.kafka.admin_protocol.connection import fetch_batches  # which loads kafka-python

    waiting = dict.fromkeys(partitions)
    found = True
    while waiting and found and limit > 0:
        found = False
        asked = {tp: windows[tp].position for tp in islice(waiting, _AT_ONCE)}
        for tp, batches in fetch_batches(broker, asked, size, committed=committed):
            found = True
            if isinstance(batches, KafkaError):
                yield tp, batches
                del waiting[tp]
                continue
            for batch in batches:
                windows[tp].add(batch if tp in records else batch._replace(data=b""))
                limit -= len(batch.data)
            if windows[tp].complete:
                yield tp, windows[tp]
                del waiting[tp]
    for tp in waiting:
        yield tp, windows[tp] if limit <= 0 else KafkaError(KafkaError.OFFSET_NOT_AVAILABLE)


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
