"""Building librdkafka clients and saying what went wrong with them.

Clients are made inside the process and task that uses them, never before a fork. Addresses in messages come
from `bootstrap.servers`; no other property is ever shown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from kbackup.errors import ClusterError, KbackupError, UnreachableError, UsageError

log = logging.getLogger("kbackup.librdkafka")

Properties = Mapping[str, str]

TIMEOUT = 30.0  # s, for an admin request

COORDINATOR_NOT_READY = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
"""It was just elected, or its partition just made: what was asked is to be asked again."""

_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._NO_OFFSET,
}
_DENIED = {
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class Connection:
    """What a client is connected to, and the last thing librdkafka said about that; makes errors of it."""

    def __init__(self, properties: Properties, role: str) -> None:
        self.properties = dict(properties)
        self.role = role
        self.last: KafkaError | None = None
        if not self.properties.get("bootstrap.servers"):
            raise UsageError(
                f"no {role} cluster is named",
                f"set bootstrap.servers in [{role}], or give --bootstrap-server",
            )

    @property
    def address(self) -> str:
        return f"{self.role} cluster at {self.properties['bootstrap.servers']}"

    def config(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """The user's properties win over our tuning, never over what correctness needs (those are refused in
        the config)."""
        return {
            "log_level": 3,
            "client.id": "kbackup",
            **extra,
            **self.properties,
            "error_cb": self.heard,
        }

    def settings(self, extra: Mapping[str, Any]) -> dict[str, str]:
        """The same as librdkafka itself takes it: text alone, and no callback."""
        every = self.config(extra)
        del every["error_cb"]
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in every.items()
        }

    def heard(self, error: KafkaError) -> None:
        """Remember what the client said last."""
        self.last = error

    def error(self, error: KafkaError, doing: str) -> KbackupError:
        """The right kind of error for what librdkafka reports while `doing` something."""
        last = self.last
        if error.code() in _UNREACHABLE and last is not None and last.code() in _DENIED:
            error = last
        when = f" {doing}" if doing else ""
        if error.code() in _DENIED:
            return UnreachableError(
                f"{self.address} denied access{when}: {error.str()}",
                "check credentials, TLS settings and ACLs",
            )
        if error.code() in _UNREACHABLE:
            said = f" ({last.str()})" if last is not None else ""
            return UnreachableError(
                f"{self.address} did not answer{when}: {error.str()}{said}",
                "is it running, and reachable from here?",
            )
        return ClusterError(
            f"{self.address} failed{when}: {error.str()}", f"librdkafka calls it {error.name()}"
        )

    def result(
        self, future: Future[Any], doing: str, missing: Callable[[KafkaError], bool] | None = None
    ) -> Any:
        """What an admin request came to; None where `missing` says that its error means just that."""
        try:
            return future.result(timeout=TIMEOUT * 2)
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            if missing is not None and missing(error):
                return None
            raise self.error(error, doing) from raised

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Turns what confluent-kafka raises inside into kbackup's errors."""
        try:
            yield
        except KafkaException as raised:
            raise self.error(raised.args[0], doing) from raised

    def admin(self) -> AdminClient:
        with self._building():
            return AdminClient(self.config({}), logger=log)

    def consumer(self, extra: Mapping[str, Any]) -> Consumer:
        with self._building():
            return Consumer(self.config(extra), logger=log)

    def producer(self, extra: Mapping[str, Any]) -> Producer:
        with self._building():
            return Producer(self.config(extra), logger=log)

    @contextmanager
    def _building(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as raised:
            raise UsageError(
                f"[{self.role}] has a property librdkafka can't use: {raised.args[0].str()}",
                "see librdkafka's CONFIGURATION.md for names and values",
            ) from raised
