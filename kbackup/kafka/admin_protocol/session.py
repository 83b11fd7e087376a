"""Open and close connections for the requests of this package.

kafka-python is loaded where a connection is opened, not by importing this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from kbackup.kafka.admin_protocol.endpoint import (
    LoginError,
    NoConnectionError,
    NotMappedError,
    RefusedRequestError,
    TokenSource,
    endpoint_of,
)
from kbackup.kafka.client import Connection
from kbackup.kafka.retry import TIMEOUT, Answers

if TYPE_CHECKING:
    from kbackup.kafka.admin_protocol.connection import BrokerConnection

A = TypeVar("A")
K = TypeVar("K")


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
