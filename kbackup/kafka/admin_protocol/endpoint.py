"""Read addresses, TLS and login of a connection from librdkafka's properties; a pure function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kbackup.kafka.admin_protocol import oidc
from kbackup.kafka.admin_protocol.errors import NotMappedError

TokenSource = Callable[[], tuple[str, Mapping[str, str]]]
"""Makes a token for OAUTHBEARER, and its SASL extensions."""

_DEFAULT_PORT = 9092
_TLS = ("SSL", "SASL_SSL")
_SASL = ("SASL_PLAINTEXT", "SASL_SSL")
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
_MECHANISMS: tuple[Mechanism, ...] = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

_TLS_PROPERTIES = {
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem"),
    *(
        "ssl.key.location",
        "ssl.key.pem",
        "ssl.key.password",
        "ssl.keystore.location",
        "ssl.keystore.password",
    ),
    *("ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification", "ssl.cipher.suites"),
}
_ADDRESS = re.compile(r"^(?:[A-Za-z_]+://)?(?:\[(?P<ip6>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>\d+))?$")


@dataclass(frozen=True, kw_only=True)
class Login:
    """The credentials that a client logs in with."""

    mechanism: Mechanism
    user: str = ""
    password: str = field(default="", repr=False)
    token: TokenSource | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """`tls` has the properties of TLS, None for plain text. `timeout` is in seconds."""

    addresses: tuple[tuple[str, int], ...]
    tls: Mapping[str, str] | None = field(repr=False)
    login: Login | None
    timeout: float
    client_id: str


def endpoint_of(
    properties: Mapping[str, str],
    token: TokenSource | None,
    timeout: float,
) -> Endpoint:
    """Return where and how to connect; `NotMappedError` where the properties ask for what only librdkafka can do.

    `token` is the user's own function for tokens, None where there is none."""
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in ("PLAINTEXT", *_TLS, *_SASL):
        raise NotMappedError(f"security.protocol {protocol} is not supported")
    milliseconds = properties.get("socket.timeout.ms", "")
    return Endpoint(
        addresses=tuple(map(_address, filter(None, _split(properties["bootstrap.servers"])))),
        tls=_tls(properties) if protocol in _TLS else None,
        login=_login(properties, token, timeout) if protocol in _SASL else None,
        timeout=min(timeout, int(milliseconds) / 1000) if milliseconds.isdecimal() else timeout,
        client_id=properties.get("client.id", "kbackup"),
    )


def _split(servers: str) -> list[str]:
    return [address.strip() for address in servers.split(",")]


def _address(text: str) -> tuple[str, int]:
    found = _ADDRESS.match(text)
    if found is None:
        raise NotMappedError(f"bootstrap.servers has {text!r}, which is no host:port")
    return found["ip6"] or found["host"], int(found["port"] or _DEFAULT_PORT)


def _tls(properties: Mapping[str, str]) -> dict[str, str]:
    for name in properties:
        if name.startswith(("ssl.", "ssl_")) and name not in _TLS_PROPERTIES:
            raise NotMappedError(f"{name} works in librdkafka alone")
    return {name: value for name, value in properties.items() if name in _TLS_PROPERTIES}


def _login(properties: Mapping[str, str], token: TokenSource | None, timeout: float) -> Login:
    name = properties.get("sasl.mechanism", properties.get("sasl.mechanisms", "GSSAPI")).upper()
    mechanism = next((each for each in _MECHANISMS if each == name), None)
    if mechanism is None:
        raise NotMappedError(f"sasl.mechanism {name} works in librdkafka alone")
    if mechanism == "OAUTHBEARER":
        token = token or _oidc(properties, timeout)
        if token is None:
            raise NotMappedError("tokens that nobody signs are made by librdkafka alone")
        return Login(mechanism=mechanism, token=token)
    return Login(
        mechanism=mechanism,
        user=properties.get("sasl.username", ""),
        password=properties.get("sasl.password", ""),
    )


def _oidc(properties: Mapping[str, str], timeout: float) -> TokenSource | None:
    """Return the source of tokens of an OIDC provider; None where the properties name no provider."""
    if not oidc.asks_for_oidc(properties):
        return None
    if name := oidc.not_mapped(properties):
        raise NotMappedError(f"{name} works in librdkafka alone")
    return lambda: oidc.fetch_token(properties, timeout)
