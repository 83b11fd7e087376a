"""Open and close connections for the requests of this package.

kafka-python is loaded where a connection is opened, not by importing this module.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

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
from kbackup.kafka.security import Untold
from kbackup.types import TopicPartition

if TYPE_CHECKING:
    from kbackup.kafka.admin_protocol.connection import BrokerConnection, LogBatch, LogWindow
    from kbackup.kafka.admin_protocol.metadata_requests import AdminSession

_AT_ONCE = 500  # logs in one Fetch
_HEADER, _WINDOW = 1 << 10, 1 << 20  # bytes of a log in an answer to Fetch, for one batch's header, for many batches


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


class UntoldError(Exception):
    """A cluster can't be asked, or refused."""

    def __init__(self, untold: Untold) -> None:
        super().__init__(untold.why)
        self.untold = untold


A = TypeVar("A")
Ask = Callable[["BrokerConnection", list[TopicPartition]], Answers[TopicPartition, A]]
"""Asks a broker about partitions that it leads."""


def ask_leaders(
    connection: Connection, partitions: Iterable[TopicPartition], ask: Ask[A], doing: str = ""
) -> dict[TopicPartition, A]:
    """Return the answer of each partition's leader. `UntoldError` where none can be asked, or one refuses: without
    `doing`, which names the request, its partitions are left out."""
    from kbackup.kafka.admin_protocol.connection import connect  # which loads kafka-python

    def asked(waiting: list[TopicPartition]) -> Answers[TopicPartition, A]:
        with admin_session(connection) as session:
            topics = session if isinstance(session, Untold) else session.topics({tp.topic for tp in waiting})
        if isinstance(topics, Untold):
            raise UntoldError(topics)
        by_leader: dict[tuple[str, int] | None, list[TopicPartition]] = defaultdict(list)
        for tp in waiting:
            by_leader[topics[tp.topic].leaders.get(tp.partition)].append(tp)
        for tp in by_leader.pop(None, ()):
            yield tp, KafkaError(topics[tp.topic].error or KafkaError.LEADER_NOT_AVAILABLE)
        endpoint = endpoint_of(connection.properties, _tokens(connection), TIMEOUT)
        for address, tps in by_leader.items():
            assert address is not None  # noqa: S101 (it was taken out)
            try:
                with closing(connect(replace(endpoint, addresses=(address,)))) as broker:
                    yield from ask(broker, tps)
            except (NoConnectionError, RefusedRequestError) as error:
                yield from ((tp, error.kafka_error()) for tp in tps)

    answers, refused = ask_until_ready(partitions, asked, LEADER_NOT_READY if doing else {})
    for tp, error in refused.items() if doing else ():
        raise UntoldError(Untold.of(error, f"{doing} {tp}", connection))
    return answers


def log_batches(
    connection: Connection, offsets: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, LogBatch] | Untold:
    """Return the batch of each log that has the offset given, or else the next batch.

    Logs that give no answer are left out; `Untold` where none can be asked."""
    from kbackup.kafka.admin_protocol.connection import fetch_batches  # which loads kafka-python

    def ask(broker: BrokerConnection, tps: list[TopicPartition]) -> Answers[TopicPartition, LogBatch]:
        waiting = dict.fromkeys(tps)
        while batches := dict(fetch_batches(broker, {tp: offsets[tp] for tp in islice(waiting, _AT_ONCE)}, _HEADER)):
            for tp, found in batches.items():
                yield tp, found if isinstance(found, KafkaError) else found[0]
                del waiting[tp]

    try:
        return ask_leaders(connection, offsets, ask)
    except UntoldError as error:
        return error.untold


def log_windows(
    connection: Connection, windows: Mapping[TopicPartition, tuple[int, int]], limit: int
) -> dict[TopicPartition, LogWindow]:
    """Return the window of each log from the first to the second offset. After `limit` bytes, the rest of them stay
    incomplete. `UntoldError` where one can't be read."""
    from kbackup.kafka.admin_protocol.connection import LogWindow, fetch_batches  # which loads kafka-python

    found = {tp: LogWindow(*window) for tp, window in windows.items()}
    room = limit

    def ask(broker: BrokerConnection, tps: list[TopicPartition]) -> Answers[TopicPartition, LogWindow]:
        nonlocal room
        waiting = dict.fromkeys(sorted(tps, key=lambda tp: windows[tp][1] - windows[tp][0]))
        while waiting and room > 0:
            asked = {tp: found[tp].position for tp in islice(waiting, _AT_ONCE)}
            answers = dict(fetch_batches(broker, asked, _WINDOW, committed=False))
            for tp, batches in answers.items():
                if isinstance(batches, KafkaError):
                    yield tp, batches
                    del waiting[tp]
                    continue
                for batch in batches:
                    found[tp].add(batch)
                    room -= batch.size
                if found[tp].complete:
                    yield tp, found[tp]
                    del waiting[tp]
            if not answers:
                break
        for tp in waiting:
            yield tp, found[tp] if room <= 0 else KafkaError(KafkaError.OFFSET_NOT_AVAILABLE)

    return ask_leaders(connection, windows, ask, "reading")


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
