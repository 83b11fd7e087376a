"""Where and how to connect to brokers, by librdkafka's properties.

Every property that has to do with a connection keeps its meaning here, or is refused by name before anything is sent
(`UnsupportedSettingError`). Properties of consumers and producers, and those that tune librdkafka, mean nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from kbackup.kafka.control.errors import REQUEST_SECONDS, UnsupportedSettingError
from kbackup.kafka.control.login import Login, Mechanism
from kbackup.kafka.control.tls import TLS_PROPERTIES
from kbackup.kafka.control.tokens import TokenSource, token_source
from kbackup.util.text import words_of

_DEFAULT_PORT = 9092
_PLAIN_TEXT = "PLAINTEXT"
_WITH_TLS = ("SSL", "SASL_SSL")
_WITH_LOGIN = ("SASL_PLAINTEXT", "SASL_SSL")
_LARGEST_ANSWER = 100_000_000  # bytes, as librdkafka's
_ADDRESS = re.compile(r"^(?:[A-Za-z_]+://)?(?:\[(?P<ip6>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>\d+))?$")

Address = tuple[str, int]
"""Host and port."""


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """How to connect to the brokers of a cluster.

    `addresses` are the bootstrap servers. `tls` has the properties of TLS, None for plain text; `login` is None where
    brokers ask nobody. `request_seconds` is how long an answer may take, `setup_seconds` how long it may take to
    connect and log in. An answer of more than `largest_answer` bytes is none of a broker's.
    """

    addresses: tuple[Address, ...]
    tls: Mapping[str, str] | None = field(repr=False)
    login: Login | None
    request_seconds: float
    setup_seconds: float
    largest_answer: int
    client_id: str


def settings_of(properties: Mapping[str, str], token: TokenSource | None) -> ConnectionSettings:
    """Return how to connect. Raise `UnsupportedSettingError` for a property that can't be followed.

    `token` is the user's own function for tokens, None if there is none."""
    protocol = properties.get("security.protocol", _PLAIN_TEXT).upper()
    if protocol not in (_PLAIN_TEXT, *_WITH_TLS, *_WITH_LOGIN):
        raise UnsupportedSettingError(f"security.protocol {protocol} is not supported")
    addresses = tuple(_address_of(text) for text in words_of(properties["bootstrap.servers"]))
    if not addresses:
        raise UnsupportedSettingError("bootstrap.servers names no address")
    request_seconds = _seconds(properties, "socket.timeout.ms", REQUEST_SECONDS)
    tls = _tls_properties(properties) if protocol in _WITH_TLS else None
    login = _login(properties, token, request_seconds) if protocol in _WITH_LOGIN else None
    return ConnectionSettings(
        addresses=addresses,
        tls=tls,
        login=login,
        request_seconds=request_seconds,
        setup_seconds=_seconds(properties, "socket.connection.setup.timeout.ms", REQUEST_SECONDS),
        largest_answer=int(properties.get("receive.message.max.bytes", _LARGEST_ANSWER)),
        client_id=properties.get("client.id", "kbackup"),
    )


def _address_of(text: str) -> Address:
    found = _ADDRESS.match(text)
    if found is None:
        raise UnsupportedSettingError(f"bootstrap.servers has {text!r}, which is no host:port")
    host = found["ip6"] or found["host"]
    port = int(found["port"] or _DEFAULT_PORT)
    return host, port


def _tls_properties(properties: Mapping[str, str]) -> dict[str, str]:
    followed = {name: value for name, value in properties.items() if name in TLS_PROPERTIES}
    for name in properties:
        if name.startswith(("ssl.", "ssl_")) and name not in followed:
            raise UnsupportedSettingError(f"{name} works in librdkafka alone")
    return followed


def _login(properties: Mapping[str, str], token: TokenSource | None, seconds: float) -> Login:
    name = properties.get("sasl.mechanism", properties.get("sasl.mechanisms", "GSSAPI")).upper()
    mechanism = next((each for each in get_args(Mechanism) if each == name), None)
    if mechanism is None:
        raise UnsupportedSettingError(f"sasl.mechanism {name} works in librdkafka alone")
    if mechanism == "OAUTHBEARER":
        return Login(mechanism=mechanism, token=token or token_source(properties, seconds))
    user = properties.get("sasl.username", "")
    password = properties.get("sasl.password", "")
    return Login(mechanism=mechanism, user=user, password=password)


def _seconds(properties: Mapping[str, str], name: str, most: float) -> float:
    """Return a property of milliseconds in seconds, at most `most`, which it is by default."""
    milliseconds = properties.get(name, "")
    if not milliseconds.isdecimal():
        return most
    return min(most, int(milliseconds) / 1000)
