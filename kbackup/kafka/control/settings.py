"""Where and how to connect to brokers, by librdkafka's properties.

Every property that has to do with a connection is in one of three tables: it keeps its meaning (`FOLLOWED`), it means
nothing for requests like ours (`MEANS_NOTHING`, with the reasons), or it is refused by name before anything is sent
(`REFUSED`). Properties of consumers, producers and topics are in none: they mean nothing here.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import get_args

from kbackup.kafka.control.errors import REQUEST_SECONDS, UnsupportedSettingError
from kbackup.kafka.control.login import Login, Mechanism
from kbackup.kafka.control.oidc import OIDC_PROPERTIES, provider_of
from kbackup.kafka.control.tls import TLS_PROPERTIES, tls_context
from kbackup.kafka.control.tokens import TokenCache, TokenSource, unsigned_token
from kbackup.kafka.control.values import is_true, number_of, seconds_of
from kbackup.util.text import words_of

FOLLOWED = {
    "bootstrap.servers",
    "metadata.broker.list",
    "security.protocol",
    "client.id",
    "client.dns.lookup",
    "broker.address.family",
    "socket.timeout.ms",
    "socket.connection.setup.timeout.ms",
    "socket.send.buffer.bytes",
    "socket.receive.buffer.bytes",
    "socket.keepalive.enable",
    "socket.nagle.disable",
    "api.version.request.timeout.ms",
    "connections.max.idle.ms",
    "receive.message.max.bytes",
    "max.in.flight.requests.per.connection",
    "max.in.flight",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.method",
    "enable.sasl.oauthbearer.unsecure.jwt",
    *OIDC_PROPERTIES,
    *TLS_PROPERTIES,
}
"""Properties that keep their meaning."""

_RECORDS = "only records are read and written by it"
_TUNES = "it tunes how librdkafka asks again; here `errors.REMEDIES` says when, at a steady pace"
_LIBRARY = "it is about librdkafka itself: its threads, its logs, its events"
_PERIODS = "metadata is asked for when it is needed, never in the background"
_VERSIONS = "brokers are always asked which requests they know: those of today all answer"
_KERBEROS = "a login by Kerberos is refused as such"

MEANS_NOTHING: Mapping[str, str] = {
    "builtin.features": _LIBRARY,
    "client.software.name": _LIBRARY,
    "client.software.version": _LIBRARY,
    "client.rack": "it chooses the replica that records are read from",
    "message.max.bytes": _RECORDS,
    "message.copy.max.bytes": _RECORDS,
    "topic.blacklist": "what is asked for is chosen by kbackup's own options",
    "allow.auto.create.topics": "nothing that is asked creates a topic by the way",
    "metadata.recovery.strategy": "bootstrap servers are always gone back to",
    "metadata.recovery.rebootstrap.trigger.ms": "bootstrap servers are always gone back to",
    "metadata.request.timeout.ms": _PERIODS,
    "metadata.max.age.ms": _PERIODS,
    "topic.metadata.refresh.interval.ms": _PERIODS,
    "topic.metadata.refresh.fast.interval.ms": _PERIODS,
    "topic.metadata.refresh.fast.cnt": _PERIODS,
    "topic.metadata.refresh.sparse": _PERIODS,
    "topic.metadata.propagation.max.ms": _PERIODS,
    "broker.address.ttl": "names of hosts are looked up for each connection",
    "enable.sparse.connections": "connections are made where something is asked",
    "socket.max.fails": "a connection that failed once is never used again",
    "socket.blocking.max.ms": _LIBRARY,
    "reconnect.backoff.jitter.ms": _TUNES,
    "reconnect.backoff.ms": _TUNES,
    "reconnect.backoff.max.ms": _TUNES,
    "retry.backoff.ms": _TUNES,
    "retry.backoff.max.ms": _TUNES,
    "api.version.request": _VERSIONS,
    "api.version.fallback.ms": _VERSIONS,
    "broker.version.fallback": _VERSIONS,
    "enable.metrics.push": "it is about metrics of consumers and producers",
    "debug": "nothing is logged that goes over a connection",
    "log_level": _LIBRARY,
    "log.queue": _LIBRARY,
    "log.thread.name": _LIBRARY,
    "log.connection.close": _LIBRARY,
    "statistics.interval.ms": _LIBRARY,
    "enabled_events": _LIBRARY,
    "enable.random.seed": _LIBRARY,
    "internal.termination.signal": _LIBRARY,
    "plugin.library.paths": _LIBRARY,
    "interceptors": _LIBRARY,
    "enable_sasl_queue": _LIBRARY,
    "test.mock.num.brokers": _LIBRARY,
    "test.mock.broker.rtt": _LIBRARY,
    # callbacks and objects, which no text can set
    "background_event_cb": _LIBRARY,
    "error_cb": _LIBRARY,
    "throttle_cb": _LIBRARY,
    "stats_cb": _LIBRARY,
    "log_cb": _LIBRARY,
    "socket_cb": _LIBRARY,
    "connect_cb": _LIBRARY,
    "closesocket_cb": _LIBRARY,
    "open_cb": _LIBRARY,
    "resolve_cb": _LIBRARY,
    "opaque": _LIBRARY,
    "default_topic_conf": _LIBRARY,
    "oauthbearer_token_refresh_cb": _LIBRARY,
    "ssl.certificate.verify_cb": _LIBRARY,
    "ssl_key": _LIBRARY,
    "ssl_certificate": _LIBRARY,
    "ssl_ca": _LIBRARY,
    "ssl_engine_callback_data": _LIBRARY,
    "ssl.engine.id": "it names a part of `ssl.engine.location`, which is refused",
    "ssl.ca.certificate.stores": "it names stores that Windows has",
    "sasl.kerberos.service.name": _KERBEROS,
    "sasl.kerberos.principal": _KERBEROS,
    "sasl.kerberos.kinit.cmd": _KERBEROS,
    "sasl.kerberos.keytab": _KERBEROS,
    "sasl.kerberos.min.time.before.relogin": _KERBEROS,
}
"""Properties that change nothing here, and why."""

REFUSED: Mapping[str, str] = {
    "ssl.curves.list": "Python can't choose several curves for TLS",
    "ssl.sigalgs.list": "Python can't choose the signature algorithms of TLS",
    "ssl.providers": "Python loads no providers into OpenSSL",
    "ssl.engine.location": "Python loads no engines into OpenSSL",
}
"""Properties of TLS that can't be followed, and why: they are refused where a connection has TLS."""

_DEFAULT_PORT = 9092
_PLAIN_TEXT = "PLAINTEXT"
_WITH_TLS = ("SSL", "SASL_SSL")
_WITH_LOGIN = ("SASL_PLAINTEXT", "SASL_SSL")
_LARGEST_ANSWER = 100_000_000  # bytes, as librdkafka's
_VERSIONS_SECONDS = 10.0  # as librdkafka's
_MOST_UNANSWERED = 1_000_000  # requests, as librdkafka's

_IDLE_SECONDS = 200.0
"""Balancers and firewalls before brokers forget connections that were idle for some 4 minutes, and say nothing: a
request would wait in vain. Brokers end them themselves after 10 minutes."""

_FAMILIES = {"any": socket.AF_UNSPEC, "v4": socket.AF_INET, "v6": socket.AF_INET6}
_ADDRESS = re.compile(r"^(?:[A-Za-z_]+://)?(?:\[(?P<ip6>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>\d+))?$")

Address = tuple[str, int]
"""Host and port."""

SocketOption = tuple[int, int, int]
"""Level, name and value, as `setsockopt` takes them."""


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """How to connect to the brokers of a cluster.

    `addresses` are the bootstrap servers. `tls` is None for plain text; `login` is None where brokers ask nobody.
    `request_seconds` is how long an answer may take, `setup_seconds` how long it may take to connect and log in,
    `versions_seconds` how long the first answer may take. A connection that was idle for `idle_seconds` is made anew.
    An answer of more than `largest_answer` bytes is none of a broker's. `most_unanswered` requests may wait for their
    answers.
    """

    addresses: tuple[Address, ...]
    tls: ssl.SSLContext | None = field(repr=False)
    login: Login | None
    family: int
    socket_options: tuple[SocketOption, ...]
    request_seconds: float
    setup_seconds: float
    versions_seconds: float
    idle_seconds: float
    largest_answer: int
    most_unanswered: int
    client_id: str


def settings_of(properties: Mapping[str, str], token: TokenSource | None) -> ConnectionSettings:
    """Return how to connect. Raise `UnsupportedSettingError` for a property that can't be followed, and for
    certificates and keys that can't be used.

    `token` is the user's own function for tokens, None if there is none."""
    protocol = properties.get("security.protocol", _PLAIN_TEXT).upper()
    if protocol not in (_PLAIN_TEXT, *_WITH_TLS, *_WITH_LOGIN):
        raise UnsupportedSettingError(f"security.protocol {protocol} is not supported")
    request_seconds = seconds_of(properties, "socket.timeout.ms", REQUEST_SECONDS)
    # The second name is an alias of the first.
    by_alias = number_of(properties, "max.in.flight", _MOST_UNANSWERED)
    most_unanswered = number_of(properties, "max.in.flight.requests.per.connection", by_alias)
    family_name = properties.get("broker.address.family", "any").lower()
    family = _FAMILIES.get(family_name, socket.AF_UNSPEC)
    addresses = _addresses(properties, family)
    # Certificates, keys and mechanisms that the protocol doesn't use may be wrong, or missing.
    tls = _tls(properties) if protocol in _WITH_TLS else None
    login = _login(properties, token, request_seconds) if protocol in _WITH_LOGIN else None
    return ConnectionSettings(
        addresses=addresses,
        tls=tls,
        login=login,
        family=family,
        socket_options=tuple(_socket_options(properties)),
        request_seconds=request_seconds,
        setup_seconds=seconds_of(properties, "socket.connection.setup.timeout.ms", REQUEST_SECONDS),
        versions_seconds=seconds_of(properties, "api.version.request.timeout.ms", _VERSIONS_SECONDS),
        idle_seconds=seconds_of(properties, "connections.max.idle.ms", _IDLE_SECONDS),
        largest_answer=number_of(properties, "receive.message.max.bytes", _LARGEST_ANSWER),
        most_unanswered=most_unanswered,
        client_id=properties.get("client.id", "kbackup"),
    )


def _addresses(properties: Mapping[str, str], family: int) -> tuple[Address, ...]:
    servers = properties.get("bootstrap.servers") or properties.get("metadata.broker.list", "")
    addresses = tuple(_address_of(text) for text in words_of(servers))
    if not addresses:
        raise UnsupportedSettingError("bootstrap.servers names no address")
    if properties.get("client.dns.lookup") != "resolve_canonical_bootstrap_servers_only":
        return addresses
    # Two aliases may stand for the same host.
    canonical: dict[Address, None] = {}
    for address in addresses:
        canonical.update(dict.fromkeys(_canonical(address, family)))
    return tuple(canonical)


def _address_of(text: str) -> Address:
    found = _ADDRESS.match(text)
    if found is None:
        raise UnsupportedSettingError(f"bootstrap.servers has {text!r}, which is no host:port")
    host = found["ip6"] or found["host"]
    port = int(found["port"] or _DEFAULT_PORT)
    return host, port


def _canonical(address: Address, family: int) -> Iterator[Address]:
    """Yield the address with each name that its host really has: an alias may stand for several hosts."""
    host, port = address
    try:
        found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
    except (OSError, ValueError):
        # Whoever connects will say that there is no such host.
        yield address
        return
    for *_, target in found:
        name, _ = socket.getnameinfo(target, 0)
        yield name, port


def _socket_options(properties: Mapping[str, str]) -> Iterator[SocketOption]:
    if is_true(properties, "socket.nagle.disable", default=True):
        # A request that follows another one would else wait until the first is acknowledged.
        yield socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    if is_true(properties, "socket.keepalive.enable", default=False):
        yield socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
    if size := number_of(properties, "socket.send.buffer.bytes", 0):
        yield socket.SOL_SOCKET, socket.SO_SNDBUF, size
    if size := number_of(properties, "socket.receive.buffer.bytes", 0):
        yield socket.SOL_SOCKET, socket.SO_RCVBUF, size


def _tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    for name in properties:
        if name in REFUSED:
            raise UnsupportedSettingError(f"{name} can't be followed: {REFUSED[name]}")
        if name.startswith("ssl.") and name not in FOLLOWED and name not in MEANS_NOTHING:
            raise UnsupportedSettingError(f"{name} works in librdkafka alone")
    return tls_context(properties)


def _login(properties: Mapping[str, str], token: TokenSource | None, seconds: float) -> Login:
    # librdkafka's default, which is refused below.
    name = "GSSAPI"
    # One is an alias of the other: the later one counts.
    for key, value in properties.items():
        if key in ("sasl.mechanism", "sasl.mechanisms"):
            name = value.upper()
    mechanism = next((each for each in get_args(Mechanism) if each == name), None)
    if mechanism is None:
        raise UnsupportedSettingError(f"sasl.mechanism {name} is not supported")
    if mechanism == "OAUTHBEARER":
        source = token or _token_source(properties, seconds)
        return Login(mechanism=mechanism, token=TokenCache(source))
    if "sasl.username" not in properties or "sasl.password" not in properties:
        raise UnsupportedSettingError(f"sasl.mechanism {name} takes sasl.username and sasl.password")
    return Login(mechanism=mechanism, user=properties["sasl.username"], password=properties["sasl.password"])


def _token_source(properties: Mapping[str, str], seconds: float) -> TokenSource:
    """Return where tokens come from without a function of the user's."""
    for name in properties:
        if name.startswith("sasl.oauthbearer.") and name not in FOLLOWED:
            raise UnsupportedSettingError(f"{name} works in librdkafka alone")
    unsigned = is_true(properties, "enable.sasl.oauthbearer.unsecure.jwt", default=False)
    if properties.get("sasl.oauthbearer.method", "default").lower() == "oidc":
        if unsigned:
            raise UnsupportedSettingError("enable.sasl.oauthbearer.unsecure.jwt excludes sasl.oauthbearer.method oidc")
        return provider_of(properties, seconds)
    if not unsigned:
        raise UnsupportedSettingError(
            "sasl.mechanism OAUTHBEARER takes a function for tokens, sasl.oauthbearer.method oidc, or "
            "enable.sasl.oauthbearer.unsecure.jwt"
        )
    return unsigned_token(properties.get("sasl.oauthbearer.config", ""))
