"""Clients of a cluster and their properties, and hints at missing rights for refused requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, libversion

from kbackup.errors import ClusterError, KbackupError, UnreachableError, UsageError
from kbackup.kafka.oauth import Tokens
from kbackup.metadata.sources import is_source_property
from kbackup.native.property_check import CALLBACK
from kbackup.util.plain_http import warn_of_plain_http

_PREFIX = "kbackup.admin."


def with_admin(properties: Mapping[str, str], admin: Mapping[str, str]) -> dict[str, str]:
    """Return `properties` together with the admin client's."""
    marked = {f"{_PREFIX}{name}": value for name, value in admin.items()}
    return {**properties, **marked}


def without_admin(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of the other clients."""
    return {name: value for name, value in properties.items() if not name.startswith(_PREFIX)}


def admin_properties(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return the properties of the admin client: the other clients' properties if it has none of its own."""
    own: dict[str, str] = {}
    for name, value in properties.items():
        if name.startswith(_PREFIX):
            own[name.removeprefix(_PREFIX)] = value
    return own or properties


_PROGRESS = "Write on transactional ids and Read on groups that begin with kbackup-"
_NEEDED = {
    "describing topic": "Describe on the topic",
    "describing producers": "Read on the topic",
    "reading configs of topic": "DescribeConfigs on the topic",
    "reading configs of broker": "DescribeConfigs on the cluster",
    "reading configs of group": "DescribeConfigs on the group",
    "asking for offsets": "Describe on the topic",
    "asking where": "Describe on the topic",
    "listing consumer groups": "Describe on the cluster",
    "reading offsets of group": "Describe on the group and on its topics",
    "describing group": "Describe on the group",
    "setting offsets of group": "Read on the group and on its topics",
    "deleting offsets of group": "Delete on the group, and Read on its topics",
    "deleting group": "Delete on the group",
    "deleting topic": "Delete on the topic",
    "creating topic": "Create on the cluster, or on topics of that name",
    "adding partitions to topic": "Alter on the topic",
    "setting configs of topic": "AlterConfigs on the topic",
    "starting transactions": _PROGRESS,
    "committing a transaction": f"{_PROGRESS}, and Read on the topic",
    "delivering": "Write on the topic",
    "reading": "Read on the topic",
    "starting to read": "Read on the topic",
    "a read": "Read on the topic",
    "describing ACLs": "Describe on the cluster",
    "describing SCRAM users": "Describe on the cluster",
    "describing the cluster": "Describe on the cluster",
    "describing client": "DescribeConfigs on the cluster",
    "describing delegation tokens": "Describe on the tokens",
    "changing client quotas": "AlterConfigs on the cluster",
    "creating an ACL": "Alter on the cluster",
    "deleting an ACL": "Alter on the cluster",
    "setting": "AlterConfigs on the cluster",
}
"""The right that is missing where a cluster denies something, in the words of `kafka-acls`. A key is the beginning of
what was being done. The first key that fits is taken: a longer one stands before a shorter one that begins alike."""


log = logging.getLogger("kbackup.librdkafka")

READS_ALONE: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # With any other value librdkafka seeks to another offset and reports nothing: records would be missed unseen.
    "auto.offset.reset": "error",
}
"""Properties of a consumer that reads the partitions and offsets it is given, and commits nothing."""

Properties = Mapping[str, str]
C = TypeVar("C")


def librdkafka_version() -> str:
    """Return the version of the librdkafka that clients use."""
    return str(libversion()[0])


_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._NO_OFFSET,
    KafkaError._NOENT,  # no partition that was asked about has a leader
}
_ANSWER_HINT = "check that it is running and can be reached from here"
_NO_ANSWER = {
    "starting transactions": f"{_ANSWER_HINT}, and that transaction.state.log.replication.factor is not "
    "above the number of its brokers"
}
"""Hints for requests that a running cluster, too, may leave without an answer. A new cluster of fewer brokers than that
factor can't create the topic of transactions' states."""

_LOGIN_HINT = "is sasl.mechanism right, and are user and password, or the token?"
_TLS_HINT = "is ssl.ca.location the authority of the brokers' certificates, and is ours one that they accept?"
_NOT_LET_IN = {
    KafkaError._AUTHENTICATION: _LOGIN_HINT,
    KafkaError.SASL_AUTHENTICATION_FAILED: _LOGIN_HINT,
    KafkaError._SSL: _TLS_HINT,
}
"""Errors that occur before any request, with their hints: retrying changes nothing."""

_NOT_A_BROKER = KafkaError._UNDERFLOW
"""The control plane's error for a listener that does not answer as a broker does."""

_PLAIN_HINT = "set security.protocol to PLAINTEXT or SASL_PLAINTEXT: this listener has no TLS"
_NO_TLS = "the connection ended in the TLS handshake"
"""The control plane's words for a listener without TLS: such a listener takes the handshake for a message that is too
large, and closes the connection."""

_TLS_ALERT = "SSL routines"
"""OpenSSL's words, in librdkafka's error, for a connection that the other side ended because of our certificate."""

_FORBIDDEN = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


_NEAR = 0.05  # s; one more fetch is on its way for each such part of the round trip
_MOST_TIMES = 4


def fetch_size_factor(round_trip: float) -> int:
    """Return how many times as much must be on its way as to a near cluster, for a round trip in seconds: 1 to 4.

    A connection carries what is on its way once a round trip. Over 200 ms, two tasks that fetch 1 MiB each
    used 72 % of 5 MB/s.
    """
    times = round(round_trip / _NEAR)
    return min(max(1, times), _MOST_TIMES)


class Connection:
    """The cluster that a client is connected to, and librdkafka's last error about it; makes clients and errors of
    kbackup.

    Clients are made inside the process and task that uses them, never before a fork. Addresses in messages come from
    `bootstrap.servers`; no other property is ever shown.
    """

    def __init__(self, properties: Properties, role: str) -> None:
        others = without_admin(properties)
        self.properties = {name: value for name, value in others.items() if not is_source_property(name)}
        self.role = role
        self.last: KafkaError | None = None
        named = self.properties.pop(CALLBACK, "")
        self.tokens = Tokens(named, role) if named else None
        if self.properties.get("sasl.oauthbearer.method", "").lower() == "oidc":
            endpoint = self.properties.get("sasl.oauthbearer.token.endpoint.url", "")
            warn_of_plain_http(f"the client secret of the {role} cluster", endpoint)
        if not self.properties.get("bootstrap.servers"):
            raise UsageError(
                f"no {role} cluster is named",
                f"set bootstrap.servers in [{role}] of kbackup.toml, which 'kbackup init' writes, or give "
                "--bootstrap-server",
            )

    @property
    def address(self) -> str:
        return f"{self.role} cluster at {self.properties['bootstrap.servers']}"

    def config(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a client is made with: the user's properties win over the tuning in `extra`. Those that would
        break correctness are refused where the configuration is read."""
        config = {"log_level": 3, "client.id": "kbackup", **extra, **self.properties}
        config["error_cb"] = self.heard
        if self.tokens is not None:
            config["oauth_cb"] = self._token
        return config

    def settings(self, extra: Mapping[str, Any]) -> dict[str, str]:
        """Return the settings in librdkafka's own form: text alone, and no callback."""
        settings: dict[str, str] = {}
        for name, value in self.config(extra).items():
            if isinstance(value, bool):
                settings[name] = str(value).lower()
            elif not callable(value):
                settings[name] = str(value)
        return settings

    def heard(self, error: KafkaError) -> None:
        """Remember the client's last error."""
        # librdkafka reports that all brokers are down after why the last one is: the reason is worth more.
        if self.last is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.last = error

    @property
    def locked_out(self) -> bool:
        """Return True if the cluster did not let us in: waiting does not help then."""
        return self.last is not None and bool(_why_not_let_in(self.last))

    def _token(self, config: str) -> tuple[str, float, str, dict[str, str]]:
        """Return the token in the form that confluent-kafka takes."""
        assert self.tokens is not None  # noqa: S101 (it is called by none but clients that have them)
        token = self.tokens(config)
        return token.value, token.expires, token.principal, dict(token.extensions)

    def error(self, error: KafkaError, doing: str) -> KbackupError:
        """Return the right kind of error for what librdkafka reports while `doing` something."""
        last = self.last
        # A call that waits for a broker only times out. Why there is none was reported to the client beside it.
        if error.code() in _UNREACHABLE and last is not None and (self.locked_out or last.code() in _FORBIDDEN):
            error = last
        code = error.code()
        when = f" {doing}" if doing else ""
        # Without a token nothing else can work, but a cluster that forbids something has let us in by an earlier one.
        if self.tokens is not None and self.tokens.failure and code not in _FORBIDDEN:
            return self._no_token(when)
        hint = _why_not_let_in(error)
        if hint:
            return UnreachableError(f"{self.address} denied access{when}: {error.str()}", hint)
        if code in _FORBIDDEN:
            right = _needed_right(doing)
            takes = f" (it takes {right})" if right else ""
            return UnreachableError(
                f"{self.address} denied access{when}: {error.str()}{takes}",
                "give its user that right: security.md has the list",
            )
        # librdkafka's last error names a reason, such as a refused connection, unless it is connected: then the last
        # error is only that all brokers are down.
        is_silent = code in _UNREACHABLE and last is not None and last.code() == KafkaError._ALL_BROKERS_DOWN
        if is_silent or code == _NOT_A_BROKER:
            return UnreachableError(
                f"{self.address} did not answer{when}: it accepts connections, but answers none as a broker does",
                "check security.protocol (a listener with TLS needs SSL or SASL_SSL), and that the port is Kafka's",
            )
        if code in _UNREACHABLE:
            reason = f" ({last.str()})" if last is not None else ""
            hint = _NO_ANSWER.get(doing, _ANSWER_HINT)
            return UnreachableError(f"{self.address} did not answer{when}: {error.str()}{reason}", hint)
        return ClusterError(
            f"{self.address} failed{when}: {error.str()}", f"see Kafka's documentation for error {error.name()}"
        )

    def silent(self, what: str) -> UnreachableError:
        """Return the error for a cluster that was not heard in time; `what` goes on from the cluster's name."""
        return UnreachableError(f"{self.address} {what}", _ANSWER_HINT)

    def _no_token(self, when: str = "") -> UnreachableError:
        assert self.tokens is not None  # noqa: S101 (they have failed)
        return UnreachableError(
            f"no token to log in to the {self.address}{when}: {self.tokens.failure}",
            f"check the function that [{self.role}] {CALLBACK} names",
        )

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Turn what confluent-kafka raises inside into kbackup's errors."""
        try:
            yield
        except KafkaException as raised:
            raise self.error(raised.args[0], doing) from raised

    def consumer(self, extra: Mapping[str, Any]) -> Consumer:
        return self._made(Consumer, extra)

    def producer(self, extra: Mapping[str, Any]) -> Producer:
        return self._made(Producer, extra)

    def _made(self, kind: Callable[..., C], extra: Mapping[str, Any]) -> C:
        try:
            return kind(self.config(extra), logger=log)
        except KafkaException as raised:
            if self.tokens is not None and self.tokens.failure:
                raise self._no_token() from raised
            raise UsageError(
                f"[{self.role}] has a property librdkafka can't use: {raised.args[0].str()}",
                "see librdkafka's CONFIGURATION.md for names and values",
            ) from raised


def _why_not_let_in(error: KafkaError) -> str:
    """Return a hint if an error means that we were not let in, else ''."""
    text = error.str()
    # OpenSSL reads the version of TLS out of whatever a plain listener answers, and finds it wrong.
    if "wrong version number" in text or _NO_TLS in text:
        return _PLAIN_HINT
    if _TLS_ALERT in text:
        return _TLS_HINT
    return _NOT_LET_IN.get(error.code(), "")


def _needed_right(doing: str) -> str:
    for begins, right in _NEEDED.items():
        if doing.startswith(begins):
            return right
    return ""
